"""How large and how deep a body may be: JSON is small, files are streamed and have no limit."""

from __future__ import annotations

import re

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from carrel.domain.errors import DaemonUnavailable, MessageInvalid, TooLarge
from carrel.domain.nesting import MAX_DEPTH, is_too_deep
from carrel.interfaces.http.answers import problem_response

MAX_JSON = 1 << 20
MAX_COMMAND = 4 << 20
"""The kernel takes about 2 MiB of arguments and variables, for which JSON needs some more; and an
import has 2 MiB of files."""
MAX_ITEMS, ITEM_S = 1 << 20, 1e-6
"""Values in all lists and objects, of which a command has the most, and the time that it takes to
parse, check and forget one."""
_COMMANDS = re.compile(r"/v1/spaces/[^/]+/(?:exec|runs)|/v1/agents/[^/]+/import")
STREAMED, BELOW = "PUT", ("/v1/spaces/", "/v1/images")
"""The method and the places of every request whose body is a file or an archive, and of no
other."""


class BodyLimitLayer:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or _is_streamed(scope):
            await self._app(scope, receive, send)
            return
        most = most_bytes(scope["path"])
        if _announced(scope) > most:
            await problem_response(too_large(scope["path"]))(scope, receive, send)
            return
        body = bytearray()
        weigh = scope.get("state", {}).get("weigh", _any)
        turn = scope.get("state", {}).get("turn", _at_once)

        async def counted() -> Message:
            message = await receive()
            body.extend(message.get("body", b""))
            # The framework lets no other exception through while it reads a body.
            if len(body) > most:
                raise HTTPException(413)
            if not weigh(len(body)):
                raise HTTPException(503)
            if not message.get("more_body", False):
                items = items_of(body)
                if items > MAX_ITEMS:
                    raise HTTPException(413)
                await turn(ITEM_S * items)
                if is_too_deep(bytes(body)):
                    raise HTTPException(422)
            return message

        try:
            await self._app(scope, counted, send)
        finally:
            weigh(0)


def _any(_size: int) -> bool:
    return True


async def _at_once(_seconds: float) -> None:
    """Nobody is waited for."""


def items_of(text: bytes | bytearray) -> int:
    """At least as many as there are values in its lists and objects."""
    return sum(map(text.count, b"[{,"))


def _is_streamed(scope: Scope) -> bool:
    return bool(scope["method"] == STREAMED and scope["path"].startswith(BELOW))


def most_bytes(path: str) -> int:
    """Of a body, or of a message on a WebSocket, at that path."""
    return MAX_COMMAND if _COMMANDS.fullmatch(path) else MAX_JSON


def too_large(path: str) -> TooLarge:
    return TooLarge(
        f"The body is larger than {most_bytes(path)} bytes, or has more than {MAX_ITEMS} values.",
        hint="Send files with PUT, one by one.",
    )


def too_much_at_once() -> DaemonUnavailable:
    return DaemonUnavailable(
        "Too much is sent to the daemon at once.", hint="Wait for the answers to what you sent."
    )


def too_deep() -> MessageInvalid:
    return MessageInvalid(
        f"The body has more than {MAX_DEPTH} levels of lists and objects.",
        hint="Make it flatter.",
        field="body",
    )


def _announced(scope: Scope) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value)
    return 0
