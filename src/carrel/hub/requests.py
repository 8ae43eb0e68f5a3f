"""Requests from client to client: each gets one answer, in time or not at all."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from carrel.hub.client import Client

DEADLINE_MS = 30_000
MAX_DEADLINE_MS = 3_600_000
"""What takes longer is answered with `pending`, and its outcome is a message of its own."""
MAX_OPEN = 1000
"""Of one client: it waits for its answers."""


@dataclass(frozen=True)
class Open:
    """`original` is the id that the asker gave it."""

    asker: Client
    receiver: Client
    original: str
    timer: asyncio.TimerHandle


class Requests:
    def __init__(self) -> None:
        self._open: dict[str, Open] = {}
        self._asked: dict[str, int] = {}
        self.late = 0
        """Answers that nobody waited for any more."""

    def __len__(self) -> int:
        return len(self._open)

    def open_of(self, client: Client) -> int:
        return self._asked.get(client.client_id, 0)

    def add(
        self,
        asker: Client,
        receiver: Client,
        original: str,
        seconds: float,
        passed: Callable[[Open], None],
    ) -> str:
        """Gives the id under which the receiver knows it."""
        number = f"rq_{secrets.token_hex(8)}"

        def expire() -> None:
            found = self._take(number)
            if found is not None:
                passed(found)

        timer = asyncio.get_running_loop().call_later(seconds, expire)
        self._open[number] = Open(asker, receiver, original, timer)
        self._asked[asker.client_id] = self.open_of(asker) + 1
        return number

    def answered(self, number: str, by: Client) -> Open | None:
        """The request, once; None when it is not there (any more) or was not put to this
        client."""
        found = self._open.get(number)
        if found is None or found.receiver is not by:
            self.late += 1
            return None
        return self._take(number)

    def drop(self, client: Client) -> Iterator[Open]:
        """Its client has gone: those that it asked, and those that were put to it. The
        latter are given, for their askers to be told."""
        for number, one in list(self._open.items()):
            if one.asker is client:
                self._take(number)
            elif one.receiver is client:
                self._take(number)
                yield one

    def _take(self, number: str) -> Open | None:
        found = self._open.pop(number, None)
        if found is None:
            return None
        found.timer.cancel()
        left = self.open_of(found.asker) - 1
        if left:
            self._asked[found.asker.client_id] = left
        else:
            self._asked.pop(found.asker.client_id, None)
        return found
