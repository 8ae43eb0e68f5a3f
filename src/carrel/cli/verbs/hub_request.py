"""carrel hub request: ask who is connected to a space, and print the answer."""

from __future__ import annotations

from carrel.cli.call import Call
from carrel.cli.speaking import open_line, payload_of, space_of
from carrel.cli.spec import SECONDS, SPACES, TEXT, Argument, Option, Verb

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

VERB = Verb(
    "Ask an agent, editor or application, and print its answer as JSON.",
    Argument("type"),
    Argument("payload", required=False),
    details="The payload is a JSON object, - for standard input. Types: docs/hub.md.",
    options=(
        Option("--space", kind=TEXT, metavar="SPACE", completes=SPACES, help="At this space."),
        Option("--to", kind=TEXT, metavar="KIND", help="agent, ide, app, cli, or a client's id."),
        Option("--deadline", kind=SECONDS, metavar="TIME", help="Wait so long; 30s if not said."),
    ),
)


def run(call: Call) -> int:
    payload = payload_of(call.text("payload"))
    with open_line(call) as line:
        envelope: dict[str, Any] = {
            "type": call.text("type"),
            "space": space_of(call, call.text("space"), line.space),
            "payload": payload,
        }
        if call.text("to"):
            envelope["to"] = call.text("to")
        deadline_s = call.number("deadline")
        if deadline_s is not None:
            envelope["deadline_ms"] = max(1, round(deadline_s * 1000))
        call.show(line.ask(envelope))
    return 0
