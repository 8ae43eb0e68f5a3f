"""carrel hub dump: all that is kept of a space."""

from __future__ import annotations

import json

from carrel.cli.call import Call
from carrel.cli.speaking import NAME, hub_place, space_of
from carrel.cli.spec import SPACES, TEXT, Option, Verb
from carrel.client.hub_line import HubLine, ended

VERB = Verb(
    "Print all kept messages of a space, one JSON object a line.",
    options=(
        Option("--space", kind=TEXT, metavar="SPACE", completes=SPACES, help="Of this space."),
    ),
)


def run(call: Call) -> int:
    with HubLine(hub_place(call), start=not call.flag("no_start")) as line:
        line.open(NAME, types=["*"])
        space = space_of(call, call.text("space"), line.space)
        payload = {"space": space, "seq": 0}
        last = line.ask({"type": "buffer_replay", "payload": payload})["replay_to"][space]
        if last:
            _print(call, line, space, last)
    return 0


def _print(call: Call, line: HubLine, space: str, last: int) -> None:
    """What was kept when the hub answered; what comes later is not waited for."""
    for text in line.lines():
        message = json.loads(text)
        if message.get("space") == space and message.get("seq"):
            call.say(text.decode("utf-8", "replace"))
            if message["seq"] >= last:
                return
    raise ended()
