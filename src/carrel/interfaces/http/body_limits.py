"""How large a body may be: JSON is small, files are streamed and have no limit."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from carrel.domain.errors import TooLarge
from carrel.interfaces.http.problems import problem_response

MAX_JSON = 1 << 20
STREAMED, BELOW = "PUT", "/v1/spaces/"
"""The method and the place of every request whose body is a file or an archive, and of no
other."""


class BodyLimits:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or _is_streamed(scope):
            await self._app(scope, receive, send)
            return
        if _announced(scope) > MAX_JSON:
            await problem_response(too_large())(scope, receive, send)
            return
        size = 0

        async def counted() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > MAX_JSON:
                # The framework lets no other exception through while it reads a body.
                raise HTTPException(413)
            return message

        await self._app(scope, counted, send)


def _is_streamed(scope: Scope) -> bool:
    return bool(scope["method"] == STREAMED and scope["path"].startswith(BELOW))


def too_large() -> TooLarge:
    return TooLarge(
        f"The body is larger than {MAX_JSON} bytes.", hint="Put files by PUT, one by one."
    )


def _announced(scope: Scope) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value)
    return 0
