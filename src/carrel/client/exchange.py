"""What is said over a WebSocket that is connected again when it was lost, and one command's streams
over any number of connections: bytes in, bytes out, no socket.

What was received is counted, so that after a lost connection the command is attached again
where it was: nothing is missing and nothing comes twice. The daemon knows us by a name, under
which the command waits for us meanwhile. Input is kept here until the daemon
says that the command has it, and what it does not have is sent again. Only when nobody knows
how much that is (a daemon was killed within a write, or another client writes as well), and the
command goes on and may wait for the rest, that is an error; unless the input comes from a
terminal, where somebody sees what happens.
"""

from __future__ import annotations

import json
import os
import time
from collections import deque

from carrel.client import websocket
from carrel.client.http import HttpRequest, ProtocolError, encoded, run_path, space_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any, BinaryIO


STDOUT, STDERR = 1, 2
MAX_COMMAND = 4 << 20
"""The daemon takes no larger one; the kernel takes about 2 MiB of arguments and variables."""
PIECE = 64 * 1024
"""Of input, in one message: the daemon takes no large ones."""
WAIT_S = 30.0
"""How long one request waits for the end of a command or a turn; then it is asked again."""
_HEAD = 9
"""Before the data of an output message: the stream, and eight bytes of offset."""
_QUIET = b"quiet"


def _too_large() -> Exception:
    from carrel.domain.errors import TooLarge

    return TooLarge(
        "The message is larger than the daemon accepts.",
        hint="Pass long input on standard input or in a file.",
    )


class ExchangeOutput:
    """A piece of one stream. `dropped` bytes before it were not kept; at the very end there
    may be only such."""

    __slots__ = ("data", "dropped", "stream")

    def __init__(self, stream: int, data: bytes, dropped: int = 0) -> None:
        self.stream = stream
        self.data = data
        self.dropped = dropped


class Lost(ProtocolError):
    """The connection ended. With `going`, because the daemon does."""

    def __init__(self, message: str, *, going: bool = False) -> None:
        super().__init__(message)
        self.going = going


class SocketExchange:
    """What is said over one WebSocket after the other. Drivers move the bytes: what is in `out`
    to the connection, what comes to `receive`; `ended` says that all came."""

    def __init__(self) -> None:
        self.ended = False
        self.out = bytearray()
        self._parser = websocket.FrameParser()

    # Connections

    def connecting(self) -> HttpRequest:
        """What a connection that is to become ours begins with."""
        raise NotImplementedError

    def connected(self, rest: bytes) -> None:
        """`rest` is what came with its beginning."""
        raise NotImplementedError

    def lost(self, error: Exception) -> None:
        """Raises `DaemonUnavailable` when it cannot be gone on with."""

    def gone(self) -> Exception:
        """For when the daemon did not come back."""
        raise NotImplementedError

    def _begin(self) -> None:
        self._parser = websocket.FrameParser()
        self.out.clear()

    # What comes

    def receive(self, data: bytes) -> None:
        """Raises `Lost` when the connection ended, and the error when the daemon refuses."""
        if not data:
            raise Lost("The connection was closed.")
        for message in self._parser.receive(data):
            self._take(message)

    def _take(self, message: websocket.WebSocketMessage) -> None:
        if message.kind == websocket.BINARY:
            self._output(message.data)
        elif message.kind == websocket.TEXT:
            self._control(json.loads(message.data))
        elif message.kind == websocket.PING:
            self.out += websocket.encode(websocket.PONG, message.data)
        elif message.kind == websocket.CLOSE and not self.ended:
            if message.code == websocket.TOO_LARGE:
                raise _too_large()
            going = message.code in (websocket.GOING_AWAY, websocket.SERVICE_RESTART)
            raise Lost(f"The daemon closed the connection ({message.code}).", going=going)

    def _output(self, data: bytes) -> None:
        raise ProtocolError("A piece of data came that nobody asked for.")

    def _control(self, message: dict[str, Any]) -> None:
        raise NotImplementedError

    # What goes

    def ping(self) -> None:
        self.out += websocket.encode(websocket.PING, _QUIET)

    def leave(self) -> None:
        self.out += websocket.encode_close()

    def _say(self, message: Mapping[str, object]) -> None:
        self.out += websocket.encode(websocket.TEXT, encoded(message))


class RunExchange(SocketExchange):
    """`run` is the run's record as far as it is known."""

    def __init__(self, path: str, command: Mapping[str, object] | None = None) -> None:
        super().__init__()
        self.run: dict[str, Any] = {}
        self.offsets = {STDOUT: 0, STDERR: 0}
        self.unenforced: list[str] = []
        """The limits of its space that nothing holds, once the command runs."""
        self.missing = 0
        """Bytes of output that were not kept until we came for them."""
        self._path = path
        self._reader = os.urandom(8).hex()
        """Our name; empty: the command does not wait for us."""
        self._first = encoded({**(command or {}), "reader": self._reader})
        self._outputs: deque[ExchangeOutput] = deque()
        self._terminal = bool(command and command.get("terminal"))
        self._size: tuple[int, int] | None = None
        self._input = Unconfirmed(0 if command is not None else None)
        self._eof_sent = False
        self._in_step = command is not None
        """The daemon knows what we gave before, so that more may follow."""

    @classmethod
    def starting(cls, space: str, command: Mapping[str, object]) -> RunExchange:
        return cls(space_path(space, "exec"), command)

    @classmethod
    def attaching(
        cls, run: str, stdout: int = 0, stderr: int = 0, *, hold: bool = True
    ) -> RunExchange:
        """With `hold` the command waits when it is too far ahead of us; without, we may miss
        something, and see how much."""
        exchange = cls("")
        if not hold:
            exchange._reader = ""
        exchange.run = {"id": run}
        exchange.offsets = {STDOUT: stdout, STDERR: stderr}
        return exchange

    @property
    def run_id(self) -> str:
        return str(self.run.get("id", ""))

    # Connections

    def connecting(self) -> HttpRequest:
        self._begin()
        if not self.run_id:
            if len(self._first) > MAX_COMMAND:
                # The daemon would hang up before it has heard it all, and not be understood.
                raise _too_large()
            return HttpRequest("GET", self._path, again=False)
        self._in_step = False
        query: list[tuple[str, str | int]] = [
            ("stdout", self.offsets[STDOUT]),
            ("stderr", self.offsets[STDERR]),
            ("reader", self._reader) if self._reader else ("hold", "false"),
        ]
        return HttpRequest("GET", run_path(self.run_id, "attach"), query)

    def connected(self, rest: bytes) -> None:
        if not self.run_id:
            self.out += websocket.encode(websocket.TEXT, self._first)
        if self._size is not None:
            self.resize(*self._size)
        if rest:
            self.receive(rest)

    def lost(self, error: Exception) -> None:
        from carrel.domain.errors import DaemonUnavailable

        if not self.run_id:
            raise DaemonUnavailable(
                "The connection was lost before the daemon said whether the command runs.",
                hint="`carrel runs SPACE` shows whether it does.",
            ) from error

    def gone(self) -> Exception:
        from carrel.domain.errors import DaemonUnavailable

        return DaemonUnavailable(
            "The daemon went away and did not come back.",
            hint=f"The command goes on; when it is up again: carrel run attach {self.run_id}",
            run_id=self.run_id,
        )

    # What comes

    def _output(self, data: bytes) -> None:
        if len(data) < _HEAD or data[0] not in self.offsets:
            raise ProtocolError("A piece of output cannot be read.")
        stream, offset = data[0], int.from_bytes(data[1:_HEAD], "big")
        have, end = self.offsets[stream], offset + len(data) - _HEAD
        if end > have:
            piece = data[_HEAD + max(0, have - offset) :]
            self.offsets[stream] = end
            dropped = max(0, offset - have)
            self.missing += dropped
            self._outputs.append(ExchangeOutput(stream, piece, dropped))

    def _control(self, message: dict[str, Any]) -> None:
        kind = message.get("type")
        if kind in ("started", "exit"):
            self.run = message["run"]
            self._terminal = bool(self.run.get("terminal"))
            self.unenforced = message.get("unenforced", [])
            self.ended = kind == "exit"
            if not (self._in_step or self.ended):
                self._fall_in(message.get("input"))
        elif kind == "input":
            self._input.confirm(message["bytes"])
        elif kind == "problem":
            from carrel.client.problems import error_from

            raise error_from({name: value for name, value in message.items() if name != "type"})

    def _fall_in(self, accepted: int | None) -> None:
        """Sends again what the daemon does not have."""
        self._in_step = True
        try:
            missing = self._input.drain() if self._terminal else self._input.missing(accepted)
        except LookupError:
            self._doubt()
            return
        for start in range(0, len(missing), PIECE):
            self.out += websocket.encode(websocket.BINARY, missing[start : start + PIECE])
        if self._eof_sent and not self._terminal:
            self._say({"type": "eof"})

    def _doubt(self) -> None:
        if self.run.get("state") in ("ended", "failed"):
            return
        from carrel.domain.errors import DaemonUnavailable

        raise DaemonUnavailable(
            f"The connection was lost while input went to {self.run_id}: "
            "part of it may be missing.",
            hint=f"The command goes on: carrel run attach {self.run_id}",
            run_id=self.run_id,
        )

    def take(self) -> list[ExchangeOutput]:
        """What came since the last time."""
        taken = list(self._outputs)
        self._outputs.clear()
        return taken

    # What goes

    def input(self, data: bytes) -> None:
        if not data:
            return
        if not self._terminal:
            self._input.add(data)
        if self._in_step or self._terminal:
            for start in range(0, len(data), PIECE):
                self.out += websocket.encode(websocket.BINARY, data[start : start + PIECE])

    @property
    def unconfirmed(self) -> int:
        """Bytes of input that the command may not have yet."""
        return self._input.size

    def close_input(self) -> None:
        self._eof_sent = True
        if self._in_step:
            self._say({"type": "eof"})

    def resize(self, rows: int, cols: int) -> None:
        self._size = (rows, cols)
        self._say({"type": "resize", "rows": rows, "cols": cols})

    def signal(self, name: str) -> None:
        self._say({"type": "signal", "signal": name})


class Unconfirmed:
    """Input from when it was given to when the command has it. `base` is how much the run had
    before ours, None as long as that is not known."""

    def __init__(self, base: int | None) -> None:
        self.size = 0
        self._base = base
        self._confirmed = 0
        self._pieces: deque[bytes] = deque()
        self._blind = False
        self._unseen = False
        """Something was given of which nobody will say that it arrived."""

    def add(self, data: bytes) -> None:
        if self._blind:
            self._unseen = True
            return
        self._pieces.append(data)
        self.size += len(data)

    def drain(self) -> bytes:
        """All of it, which is not to be confirmed."""
        data = b"".join(self._pieces)
        self._pieces.clear()
        self.size = 0
        return data

    def _go_blind(self) -> bytes:
        """Nobody counts, or no longer."""
        self._blind = True
        self._unseen = self._unseen or self.size > 0
        return self.drain()

    def confirm(self, total: int | None) -> None:
        """The command has so much of all input."""
        if total is None:
            self._go_blind()
            return
        if self._base is None or self._blind:
            return
        done = min(total - self._base - self._confirmed, self.size)
        self._confirmed = total - self._base
        self.size -= max(0, done)
        while done > 0 and self._pieces:
            first = self._pieces.popleft()
            if len(first) > done:
                self._pieces.appendleft(first[done:])
            done -= len(first)

    def missing(self, accepted: int | None) -> bytes:
        """What is to follow after so much. Raises LookupError when that cannot be known."""
        if self._base is None and not self._blind:
            self._base = accepted
            return b"".join(self._pieces) if accepted is not None else self._go_blind()
        if not (self.size or self._unseen):
            return b""
        if accepted is None or self._base is None or self._blind:
            raise LookupError
        had = accepted - self._base - self._confirmed
        if not 0 <= had <= self.size:
            raise LookupError
        return b"".join(self._pieces)[had:]


def input_pieces(stdin: bytes | str | BinaryIO | None) -> Iterator[bytes]:
    """Splits the standard input of a command into pieces."""
    if stdin is None:
        return iter(())
    if isinstance(stdin, str):
        stdin = stdin.encode()
    if isinstance(stdin, bytes):
        data = stdin
        return (data[start : start + PIECE] for start in range(0, len(data), PIECE))
    file = stdin
    return iter(lambda: file.read(PIECE), b"")


class RetryDelay:
    """When to try again, and when no longer."""

    FIRST_S = 0.02
    """A daemon that was killed is up again in a fraction of a second."""
    LONGEST_S = 1.0
    TOTAL_S = 60.0
    """Longer than any restart takes; then somebody should know."""

    def __init__(self, now: float) -> None:
        self.until = now + self.TOTAL_S
        self.next_at = now
        self._delay = self.FIRST_S

    def failed(self, now: float) -> bool:
        """Whether to go on trying; `next_at` says when."""
        if now >= self.until:
            return False
        self.next_at = now + self._delay
        self._delay = min(self._delay * 2, self.LONGEST_S)
        return True

    @property
    def pause_s(self) -> float:
        return max(0.0, self.next_at - time.monotonic())

    @classmethod
    def after(cls, error: Exception) -> RetryDelay:
        """Begins when a daemon went away. Raises the error when there never was one: that is not
        waited for."""
        from carrel.client.problems import ConnectionBroken

        if not isinstance(error, ConnectionBroken):
            raise error
        return cls(time.monotonic())


def waits(timeout_s: float | None) -> Iterator[float]:
    """Gives how long each of several requests is to wait, until the time is over."""
    if timeout_s is None:
        while True:
            yield WAIT_S
    until = time.monotonic() + timeout_s
    left = timeout_s
    while True:
        yield max(0.0, min(left, WAIT_S))
        left = until - time.monotonic()
        if left <= 0:
            return


TIMED_OUT, OWN_ERROR, NOT_EXECUTABLE, NO_COMMAND = 124, 125, 126, 127
OUTPUT_LOST = OWN_ERROR
"""Part of the output never came, however the command ended."""
SIGNALED = 128
_KILL = 9
_NEVER_RAN = {"command_not_found": NO_COMMAND, "command_not_executable": NOT_EXECUTABLE}


def exit_code(run: Mapping[str, Any]) -> int:
    """The command's own; 128 and the signal's number; 124 when its time was over; 125 when
    nobody knows; 126 and 127 when it could not be executed or found."""
    ended = run.get("exit")
    if ended is None:
        return _NEVER_RAN.get(run.get("failure_code", ""), OWN_ERROR)
    if ended["reason"] == "timeout":
        return TIMED_OUT
    if ended["code"] is not None:
        return int(ended["code"])
    if ended["signal"] is not None:
        return SIGNALED + int(ended["signal"])
    return SIGNALED + _KILL if ended["reason"] in ("memory", "disk", "stopped") else OWN_ERROR
