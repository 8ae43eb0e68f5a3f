"""A new space: at once, or told step by step."""

from __future__ import annotations

import time

from starlette.requests import Request
from starlette.responses import Response

from carrel.api.types.spaces import NewSpace, SpaceInfo
from carrel.domain.access import Caller
from carrel.domain.projects import OnProgress
from carrel.interfaces.http.answers import answer
from carrel.interfaces.http.operations import body_of, key_of
from carrel.interfaces.http.progress import step_by_step
from carrel.interfaces.http.responses import EventStream
from carrel.interfaces.http.services import ApiContext, caller, serving
from carrel.service.operations.spaces import space_request


async def create(request: Request) -> Response:
    here, who, key = serving(request), caller(request), key_of(request)
    new = await body_of(request, NewSpace)
    if "text/event-stream" in request.headers.get("Accept", ""):
        # What nobody can make is refused as such, not in a stream.
        space_request(new)
        return _stream(here, who, new, key)
    begun = time.perf_counter()
    space = await here.services.operations.spaces.create(who, new, key=key)
    here.metrics.create.observe(time.perf_counter() - begun)
    return answer(space, 201)


def _stream(here: ApiContext, who: Caller, new: NewSpace, key: str) -> Response:
    """The space is made to the end, also when nobody listens any more."""

    async def create(tell: OnProgress) -> SpaceInfo:
        begun = time.perf_counter()
        spaces = here.services.operations.spaces
        space = await spaces.create(who, new, on_progress=tell, key=key)
        here.metrics.create.observe(time.perf_counter() - begun)
        return space

    return EventStream(step_by_step(create, "space", "a creation"), here.closing)
