"""What streams of a space: how it is made, step by step; how its files differ, and its work as one
file, at the pace of the client."""

from __future__ import annotations

import contextlib
import time

from starlette.requests import Request
from starlette.responses import Response

from carrel.api.routes import BYTES
from carrel.api.types.review import DiffBody, ExportBody
from carrel.api.types.spaces import NewSpace, SpaceInfo
from carrel.domain.access import Caller
from carrel.domain.projects import OnProgress
from carrel.interfaces.http.answers import answer
from carrel.interfaces.http.operations import body_of, key_of
from carrel.interfaces.http.progress import step_by_step
from carrel.interfaces.http.requests import DIFF
from carrel.interfaces.http.responses import COPY, ByteStream, EventStream, begun
from carrel.interfaces.http.services import ApiContext, caller, serving
from carrel.service.operations.spaces import space_request


async def create(request: Request) -> Response:
    here, who, key = serving(request), caller(request), key_of(request)
    new = await body_of(request, NewSpace)
    if "text/event-stream" in request.headers.get("Accept", ""):
        # What nobody can make is refused as such, not in a stream.
        space_request(new)
        return _stream(here, who, new, key)
    started = time.perf_counter()
    space = await here.services.operations.spaces.create(who, new, key=key)
    here.metrics.create.observe(time.perf_counter() - started)
    return answer(space, 201)


def _stream(here: ApiContext, who: Caller, new: NewSpace, key: str) -> Response:
    """The space is made to the end, also when nobody listens any more."""

    async def create(tell: OnProgress) -> SpaceInfo:
        started = time.perf_counter()
        spaces = here.services.operations.spaces
        space = await spaces.create(who, new, on_progress=tell, key=key)
        here.metrics.create.observe(time.perf_counter() - started)
        return space

    return EventStream(step_by_step(create, "space", "a creation"), here.closing)


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
