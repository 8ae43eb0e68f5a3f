"""What the interface calls, what it is told about the daemon, and what every route needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from starlette.requests import HTTPConnection

from carrel.domain.access import LOCAL, Caller
from carrel.domain.errors import RateLimited
from carrel.hub.hub import HubServer
from carrel.interfaces.http.lifetime import BackgroundTasks, Shutdown
from carrel.interfaces.http.metrics import Metrics
from carrel.service.feed import Feed
from carrel.service.files import SpaceContext, SpaceFiles
from carrel.service.instances import Instances
from carrel.service.operations import Operations
from carrel.service.requests import Requests
from carrel.service.runs import Hangups, Runs
from carrel.service.shared import TURN_S, CallerSlots
from carrel.service.spaces import Spaces
from carrel.service.tokens import Tokens


@dataclass(frozen=True)
class ApiServices:
    operations: Operations
    spaces: Spaces
    runs: Runs
    hangups: Hangups
    context: SpaceContext
    files: SpaceFiles
    tokens: Tokens
    feed: Feed
    hub: HubServer
    instances: Instances
    requests: Requests


def _nothing() -> None:
    """For an API that is not served by a daemon."""


@dataclass(frozen=True)
class ApiOptions:
    """`hosts` are names by which TCP clients may call the daemon beside those of the
    loopback, `origins` web pages that may."""

    data: Path
    version: str
    shutdown: Callable[[], None] = _nothing
    """Called when somebody asks the daemon to end; returns at once."""
    hosts: frozenset[str] = frozenset()
    origins: frozenset[str] = frozenset()


# The context of a request

STREAMS = 8
"""Uploads at the same time: each has a worker thread for as long as its client takes, and others
need threads too."""

ARCHIVES = 16
"""Archives that are read at the same time: each has some megabytes of memory, and a descriptor for
every folder that it is in."""

DIFFS = 4
"""Differences that are read at the same time: both versions are on the disk meanwhile."""

OUTCOMES = 4
"""Outcomes of requests, of some megabytes, that are made and read at the same time."""

LISTS = 8
"""Lists of records that are read, made and sent at the same time, for others than the owner: each
can have some ten megabytes of what they wrote."""

BODY_BYTES = 64 << 20
"""Of small files of one account at the same time."""


@dataclass(frozen=True)
class ApiContext:
    services: ApiServices
    options: ApiOptions
    closing: Shutdown
    background: BackgroundTasks = field(default_factory=BackgroundTasks)
    metrics: Metrics = field(default_factory=Metrics)
    streams: CallerSlots = field(default_factory=lambda: CallerSlots(STREAMS, TURN_S))
    archives: CallerSlots = field(default_factory=lambda: CallerSlots(ARCHIVES, TURN_S))
    diffs: CallerSlots = field(default_factory=lambda: CallerSlots(DIFFS, TURN_S))
    outcomes: CallerSlots = field(default_factory=lambda: CallerSlots(OUTCOMES, TURN_S))
    lists: CallerSlots = field(default_factory=lambda: CallerSlots(LISTS, TURN_S))
    bodies: Counter[str] = field(default_factory=Counter)
    """Bytes of small files that are in memory, by account."""

    def stream(self, caller: Caller) -> AbstractAsyncContextManager[None]:
        """While a large body comes."""
        return self.streams.of(caller.account)

    @contextmanager
    def body(self, caller: Caller, size: int) -> Iterator[None]:
        """While a small file is in memory: until a thread takes it, though its client has gone."""
        account = caller.account
        if account != LOCAL.name and self.bodies[account] + size > BODY_BYTES:
            raise RateLimited(
                "Too many files are sent at the same time.", hint="Send fewer at once."
            )
        self.bodies[account] += size
        try:
            yield
        finally:
            self.bodies[account] -= size
            if not self.bodies[account]:
                del self.bodies[account]


def serving(connection: HTTPConnection) -> ApiContext:
    found: ApiContext = connection.app.state.serving
    return found


def caller(connection: HTTPConnection) -> Caller:
    """Who sent a request that came through `Access`."""
    found: Caller | None = connection.scope["carrel.caller"]
    assert found is not None, "an open path asks for no caller"
    return found
