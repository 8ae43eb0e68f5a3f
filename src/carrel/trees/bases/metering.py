"""Tells the caller how far a build is, and whoever waits for it that it lives."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from carrel.domain.projects import OnProgress, Progress

_INTERVAL_S = 0.1
"""Ten times a second looks smooth, and costs nothing."""


class Stopped(Exception):
    """Raised in worker threads when the build was interrupted."""


class Meter:
    """Counts from any thread; speaks only from the thread that made it."""

    def __init__(self, on_progress: OnProgress, alive: Callable[[], None]) -> None:
        self._on_progress = on_progress
        self._alive = alive
        self._thread = threading.get_ident()
        self._lock = threading.Lock()
        self._next = 0.0
        self._stage = ""
        self._done = self._total = self._bytes = 0
        self._stopping = False

    def begin(self, stage: str, total: int = 0) -> None:
        with self._lock:
            self._stage, self._total = stage, total
            self._done = self._bytes = 0
        self._speak()

    def reach(self, done: int) -> None:
        self._done = done
        self.tick()

    def add(self, done: int) -> None:
        with self._lock:
            self._done += done
        self.tick()

    def pulse(self, count: int) -> None:
        """For `contents.Pulse`."""
        if self._stopping:
            raise Stopped
        if count:
            with self._lock:
                self._bytes += count
        self.tick()

    def forward(self, progress: Progress) -> None:
        """Passes on what somebody else counts."""
        with self._lock:
            self._stage, self._done = progress.stage, progress.done
            self._total, self._bytes = progress.total, progress.bytes_done
        self.tick()

    def tick(self) -> None:
        if threading.get_ident() == self._thread and time.monotonic() >= self._next:
            self._speak()

    def stop(self) -> None:
        """Makes all threads that are at work raise `Stopped`."""
        self._stopping = True

    def _speak(self) -> None:
        self._next = time.monotonic() + _INTERVAL_S
        self._alive()
        self._on_progress(Progress(self._stage, self._done, self._total, self._bytes))
