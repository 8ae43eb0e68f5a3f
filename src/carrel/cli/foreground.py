"""A command of a space in this terminal's foreground: output as it comes, input, signals."""

from __future__ import annotations

import contextlib
import os
import signal
import time

from carrel.cli.output import flush, tell
from carrel.cli.terminal import Ended, RawTerminal, Signals, missing, size_of, write_all
from carrel.client.exchange import OUTPUT_LOST, OWN_ERROR, STDERR, RunExchange, exit_code
from carrel.client.streams import RunStream

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
GRACE_S = 10.0
"""For a command that was passed our SIGTERM or SIGHUP, to end before we go without it."""
HANG_UP_S = 3.0
"""The same with a terminal: then it is hung up, for interactive shells ignore SIGTERM."""
LEAVE = b"\x1d"
LEAVE_S = 0.5
"""Ctrl-] twice within this leaves the command to itself."""


class Foreground:
    """Follows a command to its end. `stdin` says whether ours goes to the command; `terminal`
    whether it has one."""

    def __init__(self, link: Link, exchange: RunExchange, *, stdin: bool, terminal: bool) -> None:
        self._exchange = exchange
        self._stream = RunStream(link, exchange)
        self._stdin = 0 if stdin else -1
        self._terminal = terminal
        self._interrupts: list[float] = []
        self._left_at = 0.0
        self._left = False
        self._unheard_since = 0.0

    def run(self) -> int:
        """The command's exit code, or that of a signal when it was left to itself, or 125 when
        some of its output never came."""
        with self._stream:
            try:
                self._follow()
            except Ended as ended:
                return self._go(ended.number)
        if self._unheard_since:
            raise BrokenPipeError
        if self._left:
            return _leave(self._exchange.run_id, signal.SIGINT)
        if why := _explain(self._exchange.run):
            tell(f"carrel: {why}\n")
        return OUTPUT_LOST if self._exchange.missing else exit_code(self._exchange.run)

    def _follow(self) -> None:
        flush()
        numbers = [getattr(signal, f"SIG{name}") for name in PASSED_ON]
        if self._terminal:
            numbers.append(signal.SIGWINCH)
        patience_s = HANG_UP_S if self._terminal else GRACE_S
        with Signals(numbers, patience_s) as signals:
            self._stream.open()
            with self._raw():
                self._resize()
                while not (self._exchange.ended or self._left or self._is_enough()):
                    self._turn(signals)
                # All of it may have come with the connection.
                self._warn()
                self._write_out()

    def _go(self, number: int) -> int:
        if not (self._terminal and self._exchange.run_id):
            return _leave(self._exchange.run_id, number)
        self._exchange.signal("HUP")
        with contextlib.suppress(Exception):
            self._stream.wait(timeout_s=0)
        tell("\ncarrel: The command was hung up.\n")
        return 128 + number

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
        self._warn()
        self._write_out()
        if signals.descriptor in ready:
            for number in signals.take():
                self._signal(number)
        if self._stdin in ready and not self._exchange.ended:
            self._read_in()

    def _warn(self) -> None:
        """Of limits that could be held once, or never: a person must not rely on them."""
        unenforced, self._exchange.unenforced = self._exchange.unenforced, []
        for one in unenforced:
            end = "\r\n" if self._terminal else "\n"
            tell(f"carrel: not enforced here: {one}{end}")

    def _write_out(self) -> None:
        for output in self._exchange.take():
            if self._unheard_since:
                continue
            if output.dropped:
                tell(missing(output.dropped))
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
            if twice:
                # Said to us, not to the command.
                return
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


def _leave(run_id: str, number: int) -> int:
    if run_id:
        tell(f"\ncarrel: The command goes on: carrel run attach {run_id}\n")
    return 128 + number


def _explain(run: dict[str, Any]) -> str:
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
