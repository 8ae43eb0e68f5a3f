"""Events as they happen: connected again when lost, where the last one was."""

from __future__ import annotations

import json
import time
from collections.abc import Generator, Iterable, Iterator
from datetime import UTC, datetime

from carrel.client import models
from carrel.client.exchange import Patience
from carrel.client.link import Link
from carrel.client.requests import Answer, Request
from carrel.client.wire import Head
from carrel.domain.errors import DaemonUnavailable
from carrel.domain.sse import EventParser, ServerEvent

GAP = "gap"
"""The type of an event that says that some before the next are no longer kept."""


class Watch:
    """Where we are in the log, over any number of connections."""

    def __init__(self, after: int | None, spaces: Iterable[str], types: Iterable[str]) -> None:
        self._last = "" if after is None else str(after)
        self._query = [("space", space) for space in spaces] + [("type", one) for one in types]
        self._parser = EventParser()

    def connecting(self) -> Request:
        self._parser = EventParser(self._last)
        headers = [("Accept", "text/event-stream")]
        if self._last:
            headers.append(("Last-Event-ID", self._last))
        return Request("GET", "/v1/events", self._query, headers=headers, again=False)

    def receive(self, data: bytes) -> Iterator[models.Event]:
        for event in self._parser.receive(data):
            yield _decoded(event)
            self._last = event.id
        self._last = self._parser.last_id


def _decoded(event: ServerEvent) -> models.Event:
    content = json.loads(event.data)
    if event.type != GAP:
        return models.decode(content, models.Event)
    seq = int(content["first"]) - 1
    return models.Event(seq=seq, type=GAP, space="", at=datetime.now(UTC), data=content)


def is_stream(head: Head) -> bool:
    return head.status == 200 and head.kind == "text/event-stream"


class Return:
    """Whether and when to connect again. Whoever never was there is not waited for, and a
    daemon that somebody ended is not started again by those who only watch."""

    def __init__(self) -> None:
        self.connected = False
        self._patience: Patience | None = None

    def heard(self) -> None:
        self.connected = True
        self._patience = None

    def pause_s(self, error: Exception | None) -> float:
        """Raises the error when it is enough."""
        if error is not None and not self.connected:
            raise error
        now = time.monotonic()
        self._patience = self._patience or Patience(now)
        if not self._patience.failed(now) and error is not None:
            raise error
        return max(0.0, self._patience.next_at - now)


def watch_events(
    link: Link, after: int | None, spaces: Iterable[str], types: Iterable[str]
) -> Generator[models.Event, None, None]:
    """For ever. Raises `DaemonUnavailable` when the daemon went away and did not come back."""
    watch, coming_back = Watch(after, spaces, types), Return()
    while True:
        lost: DaemonUnavailable | None = None
        try:
            with link.open(watch.connecting(), start=not coming_back.connected) as stream:
                if not is_stream(stream.head):
                    Answer(stream.head, stream.read()).check()
                for piece in stream:
                    coming_back.heard()
                    yield from watch.receive(piece)
        except DaemonUnavailable as error:
            lost = error
        time.sleep(coming_back.pause_s(lost))
