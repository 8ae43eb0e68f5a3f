"""Standard input and output: what comes is understood here, and worked on in threads."""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import sys
import threading
from _queue import SimpleQueue

from carrel.mcp.codesmith.session import (
    INVALID_REQUEST,
    Called,
    CodesmithSession,
    GivenUp,
    Unheard,
)

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from carrel.mcp.codesmith.calls import Calls
    from carrel.mcp.codesmith.session import Message


PIECE = 65_536
LONGEST = 32 << 20
"""Of a line: all that a request may hold, in the longest way to write it, several times."""


def serve(
    *,
    data: str = "",
    url: str = "",
    autostart: bool = True,
    usual: Mapping[str, object] | None = None,
) -> None:
    """Until the client is gone. What it had begun ends with the connections to the daemon, which
    go with this process. `usual` is what every call asks for that does not say otherwise."""
    # A thread that waits cannot be interrupted by Python's own handler.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    heard, said = private_ends()
    place = {"data": data, "url": url, "autostart": autostart}
    server = CodesmithServer(Mouth(said, _leave), Log(), place, usual or {})
    for line in _lines(heard, said):
        server.take(line)
    server.finish()


class CodesmithServer:
    def __init__(
        self, mouth: Mouth, log: Log, place: dict[str, object], usual: Mapping[str, object]
    ) -> None:
        self.mouth = mouth
        self._log = log
        self._place = place
        self._usual = usual
        self._session = CodesmithSession()
        self._calls: Calls | None = None

    def take(self, line: bytes | None) -> None:
        """None: one that is too long to be read."""
        if line is None:
            error = {"code": INVALID_REQUEST, "message": f"a line of more than {LONGEST} bytes"}
            self.mouth.say({"jsonrpc": "2.0", "id": None, "error": error})
            return
        found = self._session.take(line)
        if isinstance(found, dict):
            self.mouth.say(found)
        elif isinstance(found, Called):
            self._begin(found)
        elif isinstance(found, GivenUp) and self._calls is not None:
            self._calls.give_up(found.id)
        elif isinstance(found, Unheard):
            self._log(f"passed over a line: {found.why}")

    def finish(self) -> None:
        self.mouth.finish()
        if self._calls is not None:
            self._calls.finish()

    def _begin(self, called: Called) -> None:
        """What is needed to work comes with the first work."""
        if self._calls is None:
            from carrel.domain.errors import CarrelError
            from carrel.mcp.codesmith.calls import Calls, refusal, response

            about = self._session.about()
            try:
                self._calls = Calls(self.mouth, self._log, about, self._usual, self._place)
            except CarrelError as error:
                # Such as an address of the daemon that is none.
                self.mouth.say(response(called, refusal(error), about))
                return
        self._calls.begin(called)


def _lines(heard: int, said: int) -> Iterator[bytes | None]:
    """To the end of what is heard, or until nobody can hear what is said."""
    poll = select.poll()
    poll.register(heard, select.POLLIN)
    poll.register(said, 0)
    parts: list[bytes] = []
    size = 0
    while said not in (ready := dict(poll.poll())):
        piece = _read(heard) if heard in ready else b""
        if not piece:
            break
        *whole, rest = piece.split(b"\n")
        for line in whole:
            yield b"".join((*parts, line)) if size <= LONGEST else None
            parts, size = [], 0
        size += len(rest)
        parts.append(rest)
        if size > LONGEST:
            parts.clear()
    if parts:
        yield b"".join(parts)


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, PIECE)
    except OSError:
        return b""


def _leave() -> None:
    os._exit(0)


# What the server says: messages to its client, and lines for people. Neither keeps anybody else
# waiting.

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


# Standard input and output of a server that speaks by them.

STDIN, STDOUT, STDERR = 0, 1, 2


def private_ends() -> tuple[int, int]:
    """What the client writes, and what it reads. Nothing else finds them at the standard
    places from then on: a stray print goes to standard error."""
    heard, said = (fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, STDERR + 1) for one in (STDIN, STDOUT))
    _put_in_place(os.open(os.devnull, os.O_RDONLY), STDIN)
    _put_in_place(_stray(), STDOUT)
    return heard, said


def _put_in_place(descriptor: int, place: int) -> None:
    os.dup2(descriptor, place)
    os.close(descriptor)


def _stray() -> int:
    try:
        return os.dup(STDERR)
    except OSError:
        return os.open(os.devnull, os.O_WRONLY)
