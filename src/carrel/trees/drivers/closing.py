"""Closing the last descriptor of an unmounted overlay without waiting for the disk.

When an overlay ends, the kernel writes out all unwritten data of the disk that its upper
folder is on, whoever wrote it: tenths of seconds, or minutes on a busy machine. Nothing of
a dropped tree waits for that: it is off the mount table and its files are removed before.
"""

from __future__ import annotations

import os
import threading
from collections import deque

MAX_WAITING = 64
"""So many may be unfinished; beyond, dropping waits, so that they cannot pile up."""


class BackgroundCloser:
    """Closes descriptors one after the other in a thread that ends when there is nothing
    left to do. A process that ends meanwhile waits for it; one that is killed leaves the
    closing to the kernel."""

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._waiting: deque[int] = deque()
        self._running = False

    def close(self, descriptor: int) -> None:
        with self._lock:
            self._lock.wait_for(lambda: len(self._waiting) < MAX_WAITING)
            self._waiting.append(descriptor)
            if not self._running:
                self._running = True
                threading.Thread(target=self._work, name="carrel-close").start()

    def wait(self, timeout_s: float) -> bool:
        """Until all is closed; says whether it is."""
        with self._lock:
            return self._lock.wait_for(lambda: not self._running, timeout_s)

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._running = False
                    self._lock.notify_all()
                    return
                descriptor = self._waiting[0]
            os.close(descriptor)
            with self._lock:
                self._waiting.popleft()
                self._lock.notify_all()
