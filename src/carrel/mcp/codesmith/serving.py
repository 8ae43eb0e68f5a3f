"""Standard input and output: what comes is understood here, and worked on in threads."""

from __future__ import annotations

import os
import select
import signal

from carrel.mcp.codesmith.session import (
    INVALID_REQUEST,
    Called,
    GivenUp,
    Session,
    Unheard,
)
from carrel.mcp.codesmith.telling import Log, Mouth
from carrel.mcp.codesmith.tool import SERVER
from carrel.mcp.ends import private_ends
from carrel.mcp.handshake import load

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from carrel.mcp.codesmith.calls import Calls

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
    server = Server(Mouth(said, _leave), Log(), place, usual or {})
    for line in _lines(heard, said):
        server.take(line)
    server.finish()


class Server:
    def __init__(
        self, mouth: Mouth, log: Log, place: dict[str, object], usual: Mapping[str, object]
    ) -> None:
        self.mouth = mouth
        self._log = log
        self._place = place
        self._usual = usual
        self._session = Session(load(SERVER))
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
            from carrel.mcp.codesmith.answering import refusal, response
            from carrel.mcp.codesmith.calls import Calls

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
