"""How the files of a space differ, and its work as one file, at the pace of the client."""

from __future__ import annotations

import contextlib

from starlette.requests import Request
from starlette.responses import Response

from carrel.api.routes import BYTES
from carrel.api.types.review import DiffBody, ExportBody
from carrel.interfaces.http.operations import body_of
from carrel.interfaces.http.requests import DIFF
from carrel.interfaces.http.responses import COPY, ByteStream, begun
from carrel.interfaces.http.services import caller, serving


async def diff(request: Request) -> Response:
    here, who, space = serving(request), caller(request), request.path_params["space"]
    asked = await body_of(request, DiffBody, optional=True)
    headers = {"X-Content-Type-Options": "nosniff"}
    async with contextlib.AsyncExitStack() as turn:
        await turn.enter_async_context(here.diffs.of(who.account))
        source = await begun(await here.services.operations.review.diff(who, space, asked))
        return ByteStream(
            source, here.background, headers=headers, media_type=DIFF, held=turn.pop_all()
        )


async def export(request: Request) -> Response:
    here, who, space = serving(request), caller(request), request.path_params["space"]
    asked = await body_of(request, ExportBody)
    async with contextlib.AsyncExitStack() as turn:
        await turn.enter_async_context(here.diffs.of(who.account))
        ticket, pieces = await here.services.operations.review.export(who, space, asked)
        return ByteStream(
            await begun(pieces),
            here.background,
            headers={COPY: ticket, "X-Content-Type-Options": "nosniff"},
            media_type=BYTES,
            held=turn.pop_all(),
        )
