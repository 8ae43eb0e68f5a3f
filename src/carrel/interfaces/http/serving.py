"""What every route needs, in one place."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from starlette.requests import HTTPConnection

from carrel.domain.access import Caller
from carrel.domain.errors import RunNotFound, SpaceNotFound
from carrel.domain.runs import RunRecord
from carrel.interfaces.http.access import caller_in
from carrel.interfaces.http.background import Background
from carrel.interfaces.http.closing import Closing
from carrel.interfaces.http.metrics import Metrics
from carrel.interfaces.http.services import Options, Services
from carrel.interfaces.http.views import SpaceViews
from carrel.service.inputs import Inputs

STREAMS = 8
"""Uploads and archives at the same time: each has a worker thread for as long as its client
takes, and others need threads too."""


@dataclass(frozen=True)
class Serving:
    services: Services
    options: Options
    closing: Closing
    views: SpaceViews
    inputs: Inputs
    background: Background = field(default_factory=Background)
    metrics: Metrics = field(default_factory=Metrics)
    streams: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(STREAMS))

    async def run(self, caller: Caller, run_id: str) -> RunRecord:
        """A run of a space that the caller may see; of another one it is as if it were not."""
        record = await self.services.runs.get(run_id)
        try:
            await self.services.spaces.get(caller, record.space_id)
        except SpaceNotFound:
            raise run_not_found(run_id) from None
        return record


def run_not_found(run_id: str) -> RunNotFound:
    """The same words as of one that never was."""
    return RunNotFound(f"There is no run {run_id[:40]!r}.", hint="`carrel runs` lists them.")


def make_serving(services: Services, options: Options, closing: Closing) -> Serving:
    return Serving(
        services=services,
        options=options,
        closing=closing,
        views=SpaceViews(services.spaces, services.runs, services.turns, options.data),
        inputs=Inputs(services.runs),
    )


def serving(connection: HTTPConnection) -> Serving:
    found: Serving = connection.app.state.serving
    return found


def caller(connection: HTTPConnection) -> Caller:
    return caller_in(connection.scope)
