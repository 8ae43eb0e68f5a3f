"""The hub from the command line: which space, what is said, and how messages are shown."""

from __future__ import annotations

import json
import time

from carrel.cli.call import Call
from carrel.cli.layout import clean
from carrel.client.hub_line import HubLine
from carrel.client.hub_places import HubPlace, find_hub
from carrel.client.requests import asking, space_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

NAME = "carrel"
ID_LENGTH = 15
"""Of a space's id, `sp_` and twelve characters."""


def hub_place(call: Call) -> HubPlace:
    return find_hub(data=call.text("data"), url=call.text("url"))


def open_line(call: Call) -> HubLine:
    return HubLine(hub_place(call), start=not call.flag("no_start")).open(NAME)


def space_of(call: Call, word: str, inside: str) -> str:
    """The id of the space that is meant: the one that this runs in, unless it is said."""
    if not word and not inside:
        from carrel.domain.errors import MessageInvalid

        raise MessageInvalid("Which space is meant?", hint="Name it: --space SPACE")
    if not word or inside or (word.startswith("sp_") and len(word) == ID_LENGTH):
        return word or inside
    return str(call.link.json(asking(space_path(word)))["id"])


def payload_of(text: str) -> dict[str, Any]:
    """An object as JSON; `-` is what comes on standard input. `MessageInvalid`."""
    if text == "-":
        import sys

        text = sys.stdin.read()
    try:
        found = json.loads(text or "{}")
    except ValueError as error:
        found = error
    if not isinstance(found, dict):
        from carrel.domain.errors import MessageInvalid

        raise MessageInvalid(
            "The payload is no JSON object.", hint="""Write it in quotes: '{"text": "hello"}'"""
        )
    return found


def say_inside(call: Call, type: str, payload: dict[str, Any]) -> int:
    """For scripts in a space: silent when it went well."""
    where = hub_place(call)
    if not where.inside:
        from carrel.domain.errors import MessageInvalid

        raise MessageInvalid(
            "This is for what runs in a space.",
            hint=f"Elsewhere: carrel hub send --space SPACE {type} JSON",
        )
    with HubLine(where).open(NAME) as line:
        data = line.ask({"type": type, "space": line.space, "payload": payload})
    if call.json:
        call.show(data)
    return 0


def message_line(message: Mapping[str, Any]) -> str:
    """For people. Live messages have no number."""
    payload = message.get("payload") or {}
    words = " ".join(f"{name}={_short(value)}" for name, value in payload.items())
    sender = (message.get("sender") or {}).get("kind") or "-"
    head = f"{message.get('seq') or '-'} {moment(message.get('ts') or 0.0)}"
    space = message.get("space") or "-"
    return clean(f"{head} {space} {sender} {message['type']} {words}").rstrip()


def moment(at: float) -> str:
    """As the API writes times."""
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at))
    return f"{whole}.{int(at * 1000) % 1000:03d}Z"


def _short(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return json.dumps(text) if " " in text and not text.startswith(("[", "{")) else text
