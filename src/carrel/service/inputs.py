"""Standard input of commands, from clients that may send faster than a command reads.

Whoever writes to a run writes through the same queue, so that what several clients send is
not mixed up within a piece, and an end comes after all that was sent before it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import AsyncGenerator
from weakref import WeakValueDictionary

from carrel.domain.errors import CarrelError
from carrel.service.runs import Live, Runs

ROOM = 256 * 1024
"""So much waits for a command that does not read; then its client waits."""
END_OF_FILE = b"\x04"
"""A terminal has no end: one types it."""


class Input:
    """Of one run. Bytes for a command that has ended go nowhere, as with any pipe."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._waiting: deque[bytes | None] = deque()
        self._size = 0
        self._less = asyncio.Event()
        self._moved = asyncio.Event()
        self._pumping: asyncio.Task[None] | None = None

    @property
    def accepted(self) -> int | None:
        """Bytes that the command was given, or will be if the daemon lives."""
        given = self._live.run.input_bytes
        return None if given is None else given + self._size

    async def given(self) -> AsyncGenerator[int | None, None]:
        """How many bytes the command was given, whenever it is more, and None when that is no
        longer known. Without an end."""
        last: int | None = 0
        while True:
            moved = self._moved
            now = self._live.run.input_bytes
            if now != last:
                last = now
                yield now
            else:
                await moved.wait()

    async def put(self, data: bytes) -> None:
        """Returns when there is room for more."""
        if not data:
            return
        self.push(data)
        while self._size > ROOM and self._pumping is not None and not self._pumping.done():
            self._less.clear()
            await self._less.wait()

    def end(self) -> None:
        self.push(END_OF_FILE if self._live.record.terminal else None)

    def push(self, data: bytes | None) -> None:
        """Without waiting for room: for what has come as a whole."""
        self._waiting.append(data)
        self._size += len(data or b"")
        if self._pumping is None or self._pumping.done():
            self._pumping = asyncio.create_task(self._pump())

    async def _pump(self) -> None:
        try:
            while self._waiting:
                data = self._waiting.popleft()
                if data is None:
                    with contextlib.suppress(CarrelError):
                        # Without a launcher there is no command either.
                        await self._live.run.close_input()
                    continue
                await self._write(data)
                self._less.set()
        finally:
            self._waiting.clear()
            self._size = 0
            self._less.set()

    async def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            if self._live.ended.is_set():
                return
            try:
                given = self._live.run.give(rest)
            except BlockingIOError:
                await self._writable()
                continue
            rest = rest[given:]
            self._size -= given
            moved, self._moved = self._moved, asyncio.Event()
            moved.set()

    async def _writable(self) -> None:
        """Waits on a descriptor of its own: the run may close the other one meanwhile."""
        target = self._live.run.stdin
        if target is None:
            return
        loop = asyncio.get_running_loop()
        own = os.dup(target)
        writable = loop.create_future()

        def ready() -> None:
            if not writable.done():
                writable.set_result(None)

        ended = asyncio.ensure_future(self._live.ended.wait())
        try:
            loop.add_writer(own, ready)
            await asyncio.wait({writable, ended}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended.cancel()
            loop.remove_writer(own)
            os.close(own)


class Inputs:
    """Those in use."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self._known: WeakValueDictionary[str, Input] = WeakValueDictionary()

    def of(self, run_id: str) -> Input | None:
        """None when the command has ended, or takes no input."""
        live = self._runs.live(run_id)
        if live is None or not (live.record.stdin or live.record.terminal):
            return None
        known = self._known.get(run_id)
        if known is None:
            known = self._known[run_id] = Input(live)
        return known
