"""A new space, told step by step."""

from __future__ import annotations

import asyncio
import time

from starlette.responses import Response

from carrel.domain.access import Caller
from carrel.domain.projects import Progress
from carrel.domain.spaces import SpaceRequest
from carrel.interfaces.http.guard import foreseen
from carrel.interfaces.http.problems import details_of
from carrel.interfaces.http.serving import Serving
from carrel.interfaces.http.streams import EventStream, Told, told

EVERY_S = 0.1
"""People and progress bars see no more; a large project has thousands of steps."""


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


def stream_creation(here: Serving, caller: Caller, wanted: SpaceRequest, key: str) -> Response:
    """The space is made to the end, also when nobody listens any more."""

    async def events() -> Told:
        steps = _Steps()
        begun = time.perf_counter()
        making = asyncio.ensure_future(here.services.spaces.create(caller, wanted, steps.note, key))
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
            yield told("space", await here.views.one(space))
        finally:
            making.cancel()

    return EventStream(events(), here.closing)
