"""A command in a space in front of this terminal: output as it comes, input, signals."""

from __future__ import annotations

import contextlib
import os
import signal
import time

from carrel.cli.output import flush, tell
from carrel.cli.terminal import RawTerminal, Signals, size_of, write_all
from carrel.client.exchange import STDERR, Exchange
from carrel.client.exits import OWN_ERROR, exit_code
from carrel.client.streaming import RunStream

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from carrel.client.link import Link

PASSED_ON = ("HUP", "INT", "QUIT", "TERM", "USR1", "USR2")
ENOUGH = 3
"""Interrupts that the command did not heed, after which one wants out."""
AGAIN_S = 3.0
"""Interrupts further apart than this are not impatience."""
READ_BYTES = 64 * 1024
LAST_S = 5.0
"""For a command to end when whoever read its output is gone. Until then we listen: a
connection that is closed with output unread takes with it what we said last."""
LEAVE = b"\x1d"
LEAVE_S = 0.5
"""Ctrl-] twice within this leaves the command to itself."""


class Running:
    """`stdin` says whether ours goes to the command; `terminal` whether it has one."""

    def __init__(self, link: Link, exchange: Exchange, *, stdin: bool, terminal: bool) -> None:
        self._exchange = exchange
        self._stream = RunStream(link, exchange)
        self._stdin = 0 if stdin else -1
        self._terminal = terminal
        self._interrupts: list[float] = []
        self._left_at = 0.0
        self._left = False
        self._unheard_since = 0.0

    def run(self) -> int:
        """The command's exit code, or 130 when it was left to itself."""
        flush()
        numbers = [getattr(signal, f"SIG{name}") for name in PASSED_ON]
        if self._terminal:
            numbers.append(signal.SIGWINCH)
        with self._stream, Signals(numbers) as signals:
            self._stream.open()
            with self._raw():
                self._resize()
                while not (self._exchange.ended or self._left or self._is_enough()):
                    self._turn(signals)
                # All of it may have come with the connection.
                self._write_out()
        if self._unheard_since:
            raise BrokenPipeError
        if self._left:
            return _leave(self._exchange.run_id)
        return _ended(self._exchange.run)

    @contextlib.contextmanager
    def _raw(self) -> Iterator[None]:
        if self._terminal and self._stdin >= 0 and os.isatty(self._stdin):
            with RawTerminal(self._stdin):
                yield
        else:
            yield

    def _turn(self, signals: Signals) -> None:
        readers = [signals.descriptor]
        if self._stdin >= 0 and not self._stream.full:
            readers.append(self._stdin)
        ready = self._stream.wait(readers, LAST_S if self._unheard_since else None)
        self._write_out()
        if signals.descriptor in ready:
            for number in signals.take():
                self._signal(number)
        if self._stdin in ready and not self._exchange.ended:
            self._read_in()

    def _write_out(self) -> None:
        for output in self._exchange.take():
            if self._unheard_since:
                continue
            try:
                write_all(2 if output.stream == STDERR else 1, output.data)
            except BrokenPipeError:
                # SIGPIPE would tell a local command; this one is told so.
                self._unheard_since = time.monotonic()
                self._exchange.signal("TERM")

    def _is_enough(self) -> bool:
        return bool(self._unheard_since) and time.monotonic() - self._unheard_since > LAST_S

    def _read_in(self) -> None:
        data = os.read(self._stdin, READ_BYTES)
        if not data:
            self._stdin = -1
            self._exchange.close_input()
            return
        if self._terminal and LEAVE in data:
            now = time.monotonic()
            twice = data.count(LEAVE) > 1 or now - self._left_at < LEAVE_S
            self._left, self._left_at = twice, now
        self._exchange.input(data)

    def _signal(self, number: int) -> None:
        if number == signal.SIGWINCH:
            self._resize()
            return
        if number == signal.SIGINT:
            now = time.monotonic()
            recent = [at for at in self._interrupts if now - at < AGAIN_S]
            self._interrupts = [*recent, now]
            self._left = len(self._interrupts) >= ENOUGH
        self._exchange.signal(signal.Signals(number).name.removeprefix("SIG"))

    def _resize(self) -> None:
        size = size_of(0) or size_of(1) if self._terminal else None
        if size is not None:
            self._exchange.resize(*size)


def _leave(run_id: str) -> int:
    tell(f"\ncarrel: The command goes on: carrel run attach {run_id}\n")
    return 128 + signal.SIGINT


def _ended(run: dict[str, Any]) -> int:
    """Says what an exit code alone does not."""
    code = exit_code(run)
    why = explain(run)
    if why:
        tell(f"carrel: {why}\n")
    return code


def explain(run: dict[str, Any]) -> str:
    """Why a command ended, when it was not its own doing."""
    ended = run.get("exit")
    if ended is None:
        return str(run.get("failure") or "")
    return {
        "timeout": "The command was ended: its time was over.",
        "memory": "The command was ended: it reached the memory limit.",
        "disk": "The command was ended: it reached the disk limit.",
        "stopped": "The command was ended: its space was stopped.",
        "lost": f"Nobody knows how the command ended ({OWN_ERROR}).",
    }.get(ended["reason"], "")
