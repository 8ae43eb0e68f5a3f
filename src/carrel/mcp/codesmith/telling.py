"""What the server says: messages to its client, and lines for people. Neither keeps anybody else
waiting."""

from __future__ import annotations

import json
import os
import select
import sys
import threading
from _queue import SimpleQueue

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from carrel.mcp.handshake import Message

PREFIX = "[codesmith] "
LAST_S = 0.5
"""For a client to take what was said when it says no more itself."""
MANY = 1000
"""Messages that a client has not taken; news of progress is left out then."""
LINE_BYTES = 2000
"""Of one line for people: a pipe takes that much at once, when it takes anything."""
PATIENCE_S = 1.0
"""For whoever reads those lines; they are left out then, and work goes on."""


class Mouth:
    """Messages go out in a thread of their own: a client that does not read stops nobody from
    hearing it go. `gone` is called when nobody can read them any more."""

    def __init__(self, descriptor: int, gone: Callable[[], None]) -> None:
        self._descriptor = descriptor
        self._gone = gone
        self._waiting: SimpleQueue[bytes | threading.Event] = SimpleQueue()
        threading.Thread(target=self._write_out, name="mouth", daemon=True).start()

    def say(self, message: Message) -> None:
        text = json.dumps(message, ensure_ascii=False, separators=(",", ":"))
        # Half a character cannot be told; the rest of the message is.
        self._waiting.put(text.encode("utf-8", "replace") + b"\n")

    def report(self, message: Message) -> None:
        """What nobody misses."""
        if self._waiting.qsize() < MANY:
            self.say(message)

    def finish(self) -> None:
        """All that was said is out, unless nobody takes it."""
        done = threading.Event()
        self._waiting.put(done)
        done.wait(LAST_S)

    def _write_out(self) -> None:
        while True:
            data = self._waiting.get()
            if isinstance(data, threading.Event):
                data.set()
                continue
            try:
                while data:
                    data = data[os.write(self._descriptor, data) :]
            except OSError:
                self._gone()
                return


class Log:
    """Lines on standard error."""

    def __init__(self, descriptor: int = 2) -> None:
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)
        self._descriptor = descriptor
        self._lock = threading.Lock()
        self._patience_ms = PATIENCE_S * 1000

    def __call__(self, text: str) -> None:
        with self._lock:
            for line in text.splitlines() or [""]:
                self._write((PREFIX + plain(line)).encode("utf-8", "replace")[:LINE_BYTES] + b"\n")

    def _write(self, line: bytes) -> None:
        """Who does not read for a while is not waited for again until it does."""
        ready = self._poll.poll(self._patience_ms)
        self._patience_ms = PATIENCE_S * 1000 if ready else 0.0
        if ready and not ready[0][1] & (select.POLLERR | select.POLLNVAL):
            try:
                os.write(self._descriptor, line)
            except OSError:
                # Nobody reads it, which is not the client's concern.
                return

    def failure(self) -> None:
        """What is being handled now, with where it was."""
        import traceback

        self("".join(traceback.format_exception(*sys.exc_info())))


def plain(text: str) -> str:
    """Names come from anywhere and may hold anything, escape sequences too."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else _escaped(one) for one in text)


def _escaped(letter: str) -> str:
    return letter.encode("unicode_escape", "surrogatepass").decode("ascii")


def name_of(path: str) -> str:
    """A file's name as text: bytes that are none are written as `\\xff`."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
