"""This terminal and our streams: raw keys, signals, its size, writing past Python's buffers."""

from __future__ import annotations

import os
import termios

from carrel.cli.output import flush

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Iterable
    from types import FrameType
    from typing import Any

    from carrel.client.link import StreamedAnswer
else:
    # The same without enums, which take longer to load than all else here.
    import _signal as signal

STOP_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
"""What ends a program in the foreground."""
_CONTROL_CHARACTERS = 6
"""Where `termios` keeps VMIN and VTIME."""


class RawTerminal:
    """Every key goes to the command, and what it writes is shown as it is. The terminal is
    as it was when the context ends, however it ends."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._before: list[Any] = []

    def __enter__(self) -> RawTerminal:
        self._before = termios.tcgetattr(self._descriptor)
        mode = termios.tcgetattr(self._descriptor)
        mode[0] &= ~(termios.BRKINT | termios.ICRNL | termios.INPCK | termios.ISTRIP | termios.IXON)
        mode[1] &= ~termios.OPOST
        mode[2] = mode[2] & ~(termios.CSIZE | termios.PARENB) | termios.CS8
        mode[3] &= ~(termios.ECHO | termios.ICANON | termios.IEXTEN | termios.ISIG)
        mode[_CONTROL_CHARACTERS][termios.VMIN] = 1
        mode[_CONTROL_CHARACTERS][termios.VTIME] = 0
        termios.tcsetattr(self._descriptor, termios.TCSADRAIN, mode)
        return self

    def __exit__(self, *_: object) -> None:
        try:
            termios.tcsetattr(self._descriptor, termios.TCSADRAIN, self._before)
        except termios.error:
            # The terminal itself is gone.
            return


class Ended(BaseException):
    """Somebody wants us gone (SIGTERM, SIGHUP), and we are still here."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Signals:
    """Those that came, one after the other, and a descriptor that can be read when one did:
    a handler alone would not wake who waits for many things.

    With `patience_s`, SIGTERM and SIGHUP raise `Ended` that long after the first of them, and at
    once with the second, whatever we wait for then: a reader of our output, a daemon, a command
    that ignores them.
    """

    def __init__(self, wanted: Iterable[int], patience_s: float = 0) -> None:
        self.descriptor = -1
        self._wanted = tuple(wanted)
        self._came: list[int] = []
        self._before: dict[int, Any] = {}
        self._writer = -1
        self._woken = -1
        self._patience_s = patience_s
        self._ending = 0

    def __enter__(self) -> Signals:
        self.descriptor, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._woken = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        for number in self._wanted:
            # One that whoever started us has ignored (nohup) stays so.
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._note)
        if self._patience_s:
            self._before[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._time_is_over)
        return self

    def __exit__(self, *_: object) -> None:
        if self._patience_s:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, before in self._before.items():
            signal.signal(number, before)
        signal.set_wakeup_fd(self._woken)
        os.close(self.descriptor)
        os.close(self._writer)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._came.append(number)
        if self._patience_s and number in (signal.SIGTERM, signal.SIGHUP):
            if self._ending:
                raise Ended(self._ending)
            self._ending = number
            signal.setitimer(signal.ITIMER_REAL, self._patience_s)

    def _time_is_over(self, _number: int, _frame: FrameType | None) -> None:
        raise Ended(self._ending)

    def take(self) -> list[int]:
        try:
            while os.read(self.descriptor, 4096):
                continue
        except BlockingIOError:
            came, self._came = self._came, []
            return came
        return []


def size_of(descriptor: int) -> tuple[int, int] | None:
    """Rows and columns; None when it is no terminal, or has none."""
    try:
        size = os.get_terminal_size(descriptor)
    except OSError:
        return None
    return (size.lines, size.columns) if size.lines and size.columns else None


def write_all(descriptor: int, data: bytes) -> None:
    """Past Python's buffers, also when somebody made the descriptor non-blocking."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:
            import select

            poll = select.poll()
            poll.register(descriptor, select.POLLOUT)
            poll.poll()


def check_stream(stream: StreamedAnswer) -> None:
    """Raises the error that an answer is, if it is one."""
    if stream.head.status >= 400:
        from carrel.client.http import HttpAnswer

        HttpAnswer(stream.head, stream.read()).check()


def write_stream(stream: StreamedAnswer, descriptor: int) -> None:
    """Writes an answer as it comes. Raises the error that it is, if it is one."""
    check_stream(stream)
    flush()
    for piece in stream:
        write_all(descriptor, piece)


def missing(count: int) -> str:
    """What is written where output is missing."""
    return f"carrel: {count} bytes of the output are missing here: they were not kept.\n"
