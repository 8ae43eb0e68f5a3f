"""A new space: at once, or told step by step."""

from __future__ import annotations

import asyncio
import time

from starlette.requests import Request
from starlette.responses import Response

from carrel.api.types.spaces import NewSpace
from carrel.domain.access import Caller
from carrel.domain.projects import Progress
from carrel.interfaces.http.answers import answer, details_of, foreseen
from carrel.interfaces.http.operations import body_of, key_of
from carrel.interfaces.http.responses import EventStream, Told, told
from carrel.interfaces.http.services import ApiContext, caller, serving
from carrel.service.operations.spaces import space_request

EVERY_S = 0.1
"""People and progress bars see no more; a large project has thousands of steps."""


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


class _Steps:
    """The newest progress. Called from the thread that does the work."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stage = ""
        self._told_at = 0.0
        self._newest: Progress | None = None
        self._changed = asyncio.Event()

    def note(self, progress: Progress) -> None:
        now = time.monotonic()
        if progress.stage == self._stage and now - self._told_at < EVERY_S:
            return
        self._stage, self._told_at = progress.stage, now
        self._loop.call_soon_threadsafe(self._set, progress)

    def _set(self, progress: Progress) -> None:
        self._newest = progress
        self._changed.set()

    async def next(self) -> Progress:
        await self._changed.wait()
        self._changed.clear()
        assert self._newest is not None
        return self._newest


def _stream(here: ApiContext, who: Caller, new: NewSpace, key: str) -> Response:
    """The space is made to the end, also when nobody listens any more."""

    async def events() -> Told:
        steps = _Steps()
        begun = time.perf_counter()
        spaces = here.services.operations.spaces
        making = asyncio.ensure_future(spaces.create(who, new, on_progress=steps.note, key=key))
        try:
            while not making.done():
                step = asyncio.ensure_future(steps.next())
                await asyncio.wait({making, step}, return_when=asyncio.FIRST_COMPLETED)
                if step.done():
                    yield told("progress", step.result())
                else:
                    step.cancel()
            try:
                space = making.result()
            except Exception as error:
                yield told("problem", details_of(foreseen(error, "a creation")))
                return
            here.metrics.create.observe(time.perf_counter() - begun)
            yield told("space", space)
        finally:
            making.cancel()

    return EventStream(events(), here.closing)
