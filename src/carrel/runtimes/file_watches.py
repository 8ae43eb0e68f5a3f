"""Waking whoever waits for a file to grow. One descriptor for all files and all waiters."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from carrel.linux import inotify


class FileWatches:
    """A file is watched for as long as somebody waits for it."""

    def __init__(self) -> None:
        self._queue: int | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: dict[int, set[asyncio.Event]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    @contextmanager
    def watch(self, path: Path) -> Iterator[asyncio.Event | None]:
        """An event that is set when the file changes; None when the kernel watches no more."""
        try:
            queue = self._open()
            number = inotify.add_watch(queue, str(path), inotify.MODIFY)
        except OSError:
            yield None
            return
        changed = asyncio.Event()
        self._waiting.setdefault(number, set()).add(changed)
        try:
            yield changed
        finally:
            self._leave(number, changed)

    def _leave(self, number: int, changed: asyncio.Event) -> None:
        """The file may be gone, and the number with it."""
        waiting = self._waiting.get(number, set())
        waiting.discard(changed)
        if waiting or self._queue is None:
            return
        self._waiting.pop(number, None)
        with contextlib.suppress(OSError):
            inotify.remove_watch(self._queue, number)

    def _open(self) -> int:
        if self._queue is None:
            self._queue = inotify.open_queue()
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(self._queue, self._readable, self._queue)
        return self._queue

    def _readable(self, queue: int) -> None:
        try:
            events = inotify.read_events(queue)
        except BlockingIOError:
            return
        for number, mask in events:
            if mask & inotify.OVERFLOW:
                for waiting in self._waiting.values():
                    _wake(waiting)
            else:
                _wake(self._waiting.get(number, set()))

    def close(self) -> None:
        if self._queue is None:
            return
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._queue)
        os.close(self._queue)
        self._queue = self._loop = None
        for waiting in self._waiting.values():
            _wake(waiting)
        self._waiting.clear()


def _wake(waiting: set[asyncio.Event]) -> None:
    for changed in waiting:
        changed.set()
