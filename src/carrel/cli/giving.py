"""Files of this machine that an agent is given: to read always, or with one prompt."""

from __future__ import annotations

import os

from carrel.cli.call import Call
from carrel.cli.spec import FILES, MANY, TEXT, Option
from carrel.client.requests import LONG_S, Request, space_path
from carrel.client.wire import segment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

OPTIONS = (
    Option(
        "--attach",
        kind=MANY,
        metavar="FILE",
        completes=FILES,
        help="A file of this machine that goes with the prompt.",
    ),
    Option(
        "--context",
        kind=MANY,
        metavar="FILE",
        completes=FILES,
        help="A document that the agent is given to read from now on.",
    ),
    Option(
        "--system-prompt",
        kind=TEXT,
        metavar="TEXT|@FILE",
        help="Added to the agent's own for this turn.",
    ),
)
"""Of every verb that begins a turn."""


def give(call: Call, space: str) -> list[dict[str, Any]]:
    """Puts them into the space; gives what goes with the prompt, as the API takes it."""
    for path in call.texts("context"):
        put(call, space, path)
    return [_attached(put(call, space, path)) for path in call.texts("attach")]


def put(call: Call, space: str, path: str) -> str:
    """Under its own name, which it gives."""
    name = os.path.basename(os.path.abspath(path))
    with open(path, "rb") as file:
        data = file.read()
    headers = [("Content-Type", "application/octet-stream")]
    where = space_path(space, "context", segment(name))
    call.link.json(Request("PUT", where, body=data, headers=headers, timeout_s=LONG_S))
    return name


def system_prompt(call: Call) -> str:
    text = call.text("system_prompt")
    if not text.startswith("@"):
        return text
    with open(text[1:], encoding="utf-8") as file:
        return file.read()


def _attached(name: str) -> dict[str, Any]:
    from mimetypes import guess_type

    return {"path": name, "folder": "context", "media_type": guess_type(name)[0] or ""}
