"""carrel hub send: one message to a space."""

from __future__ import annotations

from carrel.cli.call import Call
from carrel.cli.speaking import open_line, payload_of, space_of
from carrel.cli.spec import SPACES, TEXT, Argument, Option, Verb

VERB = Verb(
    "Send one message to a space; what begins with buffer_ is kept.",
    Argument("type"),
    Argument("payload", required=False),
    details="The payload is a JSON object, - for standard input. Types: docs/hub.md.",
    options=(
        Option("--space", kind=TEXT, metavar="SPACE", completes=SPACES, help="To this space."),
        Option("--reply-to", kind=TEXT, metavar="ID", help="The id of what this answers."),
    ),
)


def run(call: Call) -> int:
    payload = payload_of(call.text("payload"))
    with open_line(call) as line:
        envelope = {
            "type": call.text("type"),
            "space": space_of(call, call.text("space"), line.space),
            "payload": payload,
        }
        if call.text("reply_to"):
            envelope["reply_to"] = call.text("reply_to")
        data = line.ask(envelope)
    if call.json or not isinstance(data, dict):
        call.show(data)
    elif "seq" in data:
        call.say(f"Kept as number {data['seq']}.")
    elif "delivered" in data:
        call.say(f"Heard by {data['delivered']}.")
    else:
        call.show(data)
    return 0
