"""carrel events: what happened, and what happens."""

from __future__ import annotations

import json

from carrel.cli.call import Call
from carrel.cli.layout import clean
from carrel.cli.output import flush
from carrel.cli.spec import MANY, SPACES, WHOLE, Option, Verb
from carrel.client.requests import asking

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

VERB = Verb(
    "Print what happened to spaces; with -f, also what happens from now on.",
    options=(
        Option("-f", "--follow", help="Go on, until Ctrl-C."),
        Option("--space", kind=MANY, metavar="SPACE", completes=SPACES, help="Only of this one."),
        Option("--type", kind=MANY, metavar="TYPE", help="Only of this type."),
        Option("--after", kind=WHOLE, metavar="N", help="Only those after number N."),
    ),
)


def run(call: Call) -> int:
    """With -f and without --after: from now on."""
    events = _follow(call) if call.flag("follow") else _log(call)
    for event in events:
        if call.json:
            call.say(json.dumps(event))
        else:
            call.say(_line(event))
        if call.flag("follow"):
            flush()
    return 0


def _log(call: Call) -> Iterator[dict[str, Any]]:
    after = call.whole("after") or 0
    query = [("space", one) for one in call.texts("space")]
    query += [("type", one) for one in call.texts("type")]
    while True:
        answer = call.link.json(asking("/v1/events", [*query, ("after", after), ("limit", 1000)]))
        yield from answer["events"]
        if answer["next"] == after:
            return
        after = answer["next"]


def _follow(call: Call) -> Iterator[dict[str, Any]]:
    import msgspec

    from carrel.client.watching import watch_events

    spaces, types = call.texts("space"), call.texts("type")
    for event in watch_events(call.link, call.whole("after"), spaces, types):
        yield msgspec.to_builtins(event)


def _line(event: dict[str, Any]) -> str:
    words = " ".join(f"{name}={_short(value)}" for name, value in event["data"].items())
    space = event["space"] or "-"
    return clean(f"{event['seq']} {event['at']} {space} {event['type']} {words}").rstrip()


def _short(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return json.dumps(text) if " " in text and not text.startswith(("[", "{")) else text
