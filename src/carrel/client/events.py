# Made from aio_events.py by tools/unasync.py: change that one.
"""What the daemon sends as server-sent events: the steps of a space that is being created, and what
happens in all spaces. A lost connection is made again.

Every request to create a space carries an idempotency key, so that it can be sent again after a
lost connection and creates one space all the same.
"""

from __future__ import annotations

import json
import os
import time

from carrel.client.exchange import RetryDelay
from carrel.client.http import LONG_S, HttpAnswer, HttpRequest, operation
from carrel.domain.sse import EventParser

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
    from typing import Any

    from carrel.client.link import Link
    from carrel.client.models import Event
    from carrel.domain.sse import ServerEvent

GAP = "gap"
"""The type of an event that says that some before the next are no longer kept."""
KIND = "text/event-stream"


# A new space


def create(
    link: Link,
    content: Mapping[str, object],
    on_progress: Callable[[dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """Returns when the space is ready. `on_progress` gets each step as it is told. When the
    daemon goes away meanwhile it is asked again: it carries on, or begins anew."""
    from carrel.domain.errors import DaemonUnavailable

    key, backoff = os.urandom(16).hex(), None
    while True:
        headers = [("Accept", KIND), ("Idempotency-Key", key)]
        request = operation(
            "spaces.create", content=content, headers=headers, timeout_s=LONG_S, again=True
        )
        try:
            return stepwise(link, request, "space", on_progress)
        except DaemonUnavailable as error:
            backoff = backoff or RetryDelay.after(error)
            if not backoff.failed(time.monotonic()):
                raise
        time.sleep(backoff.pause_s)


def stepwise(
    link: Link,
    request: HttpRequest,
    kind: str,
    on_progress: Callable[[dict[str, Any]], None] | None,
) -> dict[str, Any]:
    """What is answered in the end, as an event of this `kind`; its steps come before."""
    with link.open(request) as stream:
        if stream.head.kind != KIND:
            whole: dict[str, Any] = HttpAnswer(stream.head, stream.read()).json()
            return whole
        parser = EventParser()
        for piece in stream:
            for event in parser.receive(piece):
                told: dict[str, Any] = json.loads(event.data)
                if event.type == "progress" and on_progress is not None:
                    on_progress(told)
                elif event.type == kind:
                    return told
                elif event.type == "problem":
                    from carrel.client.problems import error_from

                    raise error_from(told)
    from carrel.client.problems import ConnectionBroken

    raise ConnectionBroken(
        f"The daemon went away before the {kind} was ready.",
        hint="Look whether it is there, or try again.",
    )


# A new image


def take_image(
    link: Link,
    content: Mapping[str, object],
    on_progress: Callable[[dict[str, Any]], None] | None = None,
    *,
    by: str = "images.take",
) -> dict[str, Any]:
    """From a file or folder of the daemon's machine, or `by` another operation. When the connection
    breaks, nothing is left of it."""
    headers = [("Accept", KIND)]
    request = operation(by, content=content, headers=headers, timeout_s=LONG_S)
    return stepwise(link, request, "image", on_progress)


# What happens


def watch_events(
    link: Link, after: int | None, spaces: Iterable[str], types: Iterable[str]
) -> Generator[Event, None, None]:
    """For ever. Raises `DaemonUnavailable` when the daemon went away and did not come back."""
    from carrel.domain.errors import DaemonUnavailable

    log, reconnection = EventLog(after, spaces, types), Reconnection()
    while True:
        lost: DaemonUnavailable | None = None
        try:
            request, start = log.request(), not reconnection.connected
            with link.open(request, start=start) as stream:
                if stream.head.status != 200 or stream.head.kind != KIND:
                    HttpAnswer(stream.head, stream.read()).check()
                for piece in stream:
                    reconnection.heard()
                    yield from log.receive(piece)
        except DaemonUnavailable as error:
            lost = error
        time.sleep(reconnection.pause_s(lost))


class EventLog:
    """Where we are in the log, over any number of connections."""

    def __init__(self, after: int | None, spaces: Iterable[str], types: Iterable[str]) -> None:
        self._last = "" if after is None else str(after)
        self._query = [("space", space) for space in spaces] + [("type", one) for one in types]
        self._parser = EventParser()

    def request(self) -> HttpRequest:
        """Asks for what comes after the last event, on a new connection."""
        self._parser = EventParser(self._last)
        headers = [("Accept", KIND)]
        if self._last:
            headers.append(("Last-Event-ID", self._last))
        return HttpRequest("GET", "/v1/events", self._query, headers=headers, again=False)

    def receive(self, data: bytes) -> Iterator[Event]:
        for event in self._parser.receive(data):
            yield _decoded(event)
            self._last = event.id
        self._last = self._parser.last_id


def _decoded(event: ServerEvent) -> Event:
    from datetime import UTC, datetime

    from carrel.client.models import Event, decode

    content = json.loads(event.data)
    if event.type != GAP:
        return decode(content, Event)
    seq = int(content["first"]) - 1
    return Event(seq=seq, type=GAP, space="", at=datetime.now(UTC), data=content)


class Reconnection:
    """Whether and when to connect again. A daemon that never was there is not waited for, and one
    that somebody ended is not started again by those who only watch."""

    def __init__(self) -> None:
        self.connected = False
        self._backoff: RetryDelay | None = None

    def heard(self) -> None:
        self.connected = True
        self._backoff = None

    def pause_s(self, error: Exception | None) -> float:
        """Raises the error when it is enough."""
        if error is not None and not self.connected:
            raise error
        now = time.monotonic()
        self._backoff = self._backoff or RetryDelay(now)
        if not self._backoff.failed(now) and error is not None:
            raise error
        return self._backoff.pause_s
