"""Moves bytes between us and one child process, within a deadline and bounded memory."""

from __future__ import annotations

import os
import re
import selectors
import subprocess
import time
from collections.abc import Callable
from typing import IO

_MAX_OUTPUT = 512 << 20
"""Names of some millions of files; more means that something is wrong."""
_ERROR_TAIL = 16 << 10
_CHUNK = 1 << 16
_TICK_S = 0.5
"""How soon the end of a process is seen whose pipes a background helper still holds."""
_LINE_END = re.compile(rb"[\r\n]+")


class TimeIsUp(Exception):
    """The deadline passed."""


class OutputTooLarge(Exception):
    """The process printed more than is held in memory."""


class Pump:
    """One use: `run` feeds the input and gathers output; `errors` is the end of stderr."""

    def __init__(self, data: bytes, on_line: Callable[[str], None]) -> None:
        self._input = memoryview(data)
        self._on_line = on_line
        self._output = bytearray()
        self._errors = bytearray()
        self._line = bytearray()

    @property
    def has_input(self) -> bool:
        return len(self._input) > 0

    @property
    def output(self) -> bytes:
        return bytes(self._output)

    @property
    def errors(self) -> bytes:
        return bytes(self._errors)

    def run(self, process: subprocess.Popen[bytes], deadline: float) -> None:
        """Until the process has ended. Raises `TimeIsUp` or `OutputTooLarge`."""
        with selectors.DefaultSelector() as selector:
            self._register(selector, process)
            while selector.get_map():
                left = deadline - time.monotonic()
                if left <= 0:
                    raise TimeIsUp
                ready = selector.select(min(left, _TICK_S))
                for key, _events in ready:
                    self._serve(selector, key)
                if not ready and process.poll() is not None:
                    break
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired as error:
            raise TimeIsUp from error
        self._end_of_errors()

    def _register(self, selector: selectors.BaseSelector, process: subprocess.Popen[bytes]) -> None:
        streams: tuple[tuple[IO[bytes] | None, int, Callable[[IO[bytes]], bool]], ...] = (
            (process.stdin, selectors.EVENT_WRITE, self._feed),
            (process.stdout, selectors.EVENT_READ, self._take_output),
            (process.stderr, selectors.EVENT_READ, self._take_errors),
        )
        for stream, events, action in streams:
            if stream is not None:
                os.set_blocking(stream.fileno(), False)
                selector.register(stream, events, action)

    def _serve(self, selector: selectors.BaseSelector, key: selectors.SelectorKey) -> None:
        stream: IO[bytes] = key.fileobj  # type: ignore[assignment]
        if not key.data(stream):
            selector.unregister(stream)
            stream.close()

    def _feed(self, stream: IO[bytes]) -> bool:
        try:
            written = os.write(stream.fileno(), self._input[:_CHUNK])
        except BlockingIOError:
            return True
        except BrokenPipeError:
            return False
        self._input = self._input[written:]
        return len(self._input) > 0

    def _take_output(self, stream: IO[bytes]) -> bool:
        data = os.read(stream.fileno(), _CHUNK)
        self._output += data
        if len(self._output) > _MAX_OUTPUT:
            raise OutputTooLarge
        return bool(data)

    def _take_errors(self, stream: IO[bytes]) -> bool:
        data = os.read(stream.fileno(), _CHUNK)
        self._errors += data
        del self._errors[:-_ERROR_TAIL]
        self._line += data
        *lines, rest = _LINE_END.split(bytes(self._line))
        self._line = bytearray(rest[-_ERROR_TAIL:])
        for line in lines:
            self._say(line)
        return bool(data)

    def _end_of_errors(self) -> None:
        self._say(bytes(self._line))
        self._line.clear()

    def _say(self, line: bytes) -> None:
        if line:
            self._on_line(line.decode(errors="replace"))
