"""Making a space while watching: what the stream of `POST /v1/spaces` says.

Every request to make one carries an idempotency key, so that it can be sent again after a
lost connection and makes one space all the same.
"""

from __future__ import annotations

import json
import os
import time

from carrel.client.exchange import Patience
from carrel.client.requests import LONG_S, Answer, Request, telling
from carrel.domain.sse import EventParser

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from carrel.client.link import Link


def new_key() -> str:
    return os.urandom(16).hex()


def creating(content: Mapping[str, object], key: str) -> Request:
    headers = [("Accept", "text/event-stream"), ("Idempotency-Key", key)]
    return telling("POST", "/v1/spaces", content, headers=headers, timeout_s=LONG_S, again=True)


class Creation:
    """The answer, as it comes: `progress` from each piece, `space` at the end."""

    def __init__(self) -> None:
        self.space: dict[str, Any] | None = None
        self._parser = EventParser()

    def receive(self, data: bytes) -> list[dict[str, Any]]:
        """Raises the error with which it failed."""
        found = []
        for event in self._parser.receive(data):
            content = json.loads(event.data)
            if event.type == "progress":
                found.append(content)
            elif event.type == "space":
                self.space = content
            elif event.type == "problem":
                from carrel.client.problems import error_from

                raise error_from(content)
        return found


def create(link: Link, content: Mapping[str, object], on_progress: Any = None) -> dict[str, Any]:
    """Returns when the space is ready. `on_progress` gets each step as it is told. When the
    daemon goes away meanwhile it is asked again: it carries on, or begins anew."""
    from carrel.domain.errors import DaemonUnavailable

    key, patience = new_key(), None
    while True:
        try:
            return _create_once(link, creating(content, key), on_progress)
        except DaemonUnavailable as error:
            patience = patience or begin_patience(error)
            if not patience.failed(time.monotonic()):
                raise
        time.sleep(max(0.0, patience.next_at - time.monotonic()))


def begin_patience(error: Exception) -> Patience:
    """For one who was there and went away; whoever never was is not waited for."""
    from carrel.client.problems import ConnectionBroken

    if not isinstance(error, ConnectionBroken):
        raise error
    return Patience(time.monotonic())


def _create_once(link: Link, request: Request, on_progress: Any) -> dict[str, Any]:
    with link.open(request) as stream:
        if stream.head.kind != "text/event-stream":
            whole: dict[str, Any] = Answer(stream.head, stream.read()).json()
            return whole
        creation = Creation()
        for piece in stream:
            for step in creation.receive(piece):
                if on_progress is not None:
                    on_progress(step)
            if creation.space is not None:
                return creation.space
    raise unfinished()


def unfinished() -> Exception:
    """The stream ended before it said how it went."""
    from carrel.client.problems import ConnectionBroken

    return ConnectionBroken(
        "The daemon went away before the space was ready.", hint="`carrel ls` shows it."
    )
