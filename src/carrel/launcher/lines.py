"""Reads a child's pipe line by line inside the loop, until it closes."""

from __future__ import annotations

import os
from collections.abc import Callable

from carrel.launcher.loop import Loop

MOST_BYTES = 64 * 1024
"""Of one line; what a hostile or broken child writes beyond is dropped."""


class LinePipe:
    """`on_line` gets every whole line, `on_end` is called once when the writers are gone."""

    def __init__(
        self, loop: Loop, on_line: Callable[[bytes], None], on_end: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._on_line = on_line
        self._on_end = on_end
        self._rest = b""
        self._read, self.write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(self.write, True)
        loop.watch(self._read, self._readable)

    def parent_side(self) -> None:
        """After the fork: only the child writes."""
        os.close(self.write)

    def _readable(self) -> None:
        try:
            chunk = os.read(self._read, MOST_BYTES)
        except BlockingIOError:
            return
        if not chunk:
            self._loop.unwatch(self._read)
            os.close(self._read)
            if self._rest:
                self._on_line(self._rest)
            self._on_end()
            return
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        self._rest = self._rest[:MOST_BYTES]
        for line in lines:
            self._on_line(line)
