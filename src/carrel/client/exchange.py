"""One command's streams over any number of connections: bytes in, bytes out, no socket.

What was received is counted, so that after a lost connection the command is attached again
where it was: nothing is missing and nothing comes twice. Input is kept here until the daemon
says that the command has it, and what it does not have is sent again. Only when nobody knows
how much that is (a daemon was killed within a write, or another client writes as well), and the
command goes on and may wait for the rest, that is an error; unless the input comes from a
terminal, where somebody sees what happens.
"""

from __future__ import annotations

import json
from collections import deque

from carrel.client import frames
from carrel.client.requests import Request, run_path, space_path
from carrel.client.wire import WireError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

STDOUT, STDERR = 1, 2
PIECE = 64 * 1024
"""Of input, in one message: the daemon takes no large ones."""
_HEAD = 9
"""Before the data of an output message: the stream, and eight bytes of offset."""
_QUIET = b"quiet"


class Output:
    """A piece of one stream. `dropped` bytes before it were not kept; at the very end there
    may be only such."""

    __slots__ = ("data", "dropped", "stream")

    def __init__(self, stream: int, data: bytes, dropped: int = 0) -> None:
        self.stream = stream
        self.data = data
        self.dropped = dropped


class Lost(WireError):
    """The connection ended. With `going`, because the daemon does."""

    def __init__(self, message: str, *, going: bool = False) -> None:
        super().__init__(message)
        self.going = going


class Talk:
    """What is said over one WebSocket after the other. Drivers move the bytes: what is in `out`
    to the connection, what comes to `receive`; `ended` says that all came."""

    def __init__(self) -> None:
        self.ended = False
        self.out = bytearray()
        self._parser = frames.FrameParser()

    # Connections

    def connecting(self) -> Request:
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
        self._parser = frames.FrameParser()
        self.out.clear()

    # What comes

    def receive(self, data: bytes) -> None:
        """Raises `Lost` when the connection ended, and the error when the daemon refuses."""
        if not data:
            raise Lost("The connection was closed.")
        for message in self._parser.receive(data):
            self._take(message)

    def _take(self, message: frames.Message) -> None:
        if message.kind == frames.BINARY:
            self._output(message.data)
        elif message.kind == frames.TEXT:
            self._control(json.loads(message.data))
        elif message.kind == frames.PING:
            self.out += frames.encode(frames.PONG, message.data)
        elif message.kind == frames.CLOSE and not self.ended:
            going = message.code in (frames.GOING_AWAY, frames.SERVICE_RESTART)
            raise Lost(f"The daemon closed the connection ({message.code}).", going=going)

    def _output(self, data: bytes) -> None:
        raise WireError("A piece of data came that nobody asked for.")

    def _control(self, message: dict[str, Any]) -> None:
        raise NotImplementedError

    # What goes

    def ping(self) -> None:
        self.out += frames.encode(frames.PING, _QUIET)

    def leave(self) -> None:
        self.out += frames.encode_close()

    def _say(self, message: Mapping[str, object]) -> None:
        self.out += frames.encode(frames.TEXT, json.dumps(message).encode())


class Exchange(Talk):
    """`run` is the run's record as far as it is known."""

    def __init__(self, path: str, command: Mapping[str, object] | None = None) -> None:
        super().__init__()
        self.run: dict[str, Any] = {}
        self.offsets = {STDOUT: 0, STDERR: 0}
        self._path = path
        self._command = command
        self._outputs: deque[Output] = deque()
        self._terminal = bool(command and command.get("terminal"))
        self._size: tuple[int, int] | None = None
        self._input = Unconfirmed(0 if command is not None else None)
        self._eof_sent = False
        self._in_step = command is not None
        """The daemon knows what we gave before, so that more may follow."""

    @classmethod
    def starting(cls, space: str, command: Mapping[str, object]) -> Exchange:
        return cls(space_path(space, "exec"), command)

    @classmethod
    def attaching(cls, run: str, stdout: int = 0, stderr: int = 0) -> Exchange:
        exchange = cls("")
        exchange.run = {"id": run}
        exchange.offsets = {STDOUT: stdout, STDERR: stderr}
        return exchange

    @property
    def run_id(self) -> str:
        return str(self.run.get("id", ""))

    # Connections

    def connecting(self) -> Request:
        self._begin()
        if not self.run_id:
            return Request("GET", self._path, again=False)
        self._in_step = False
        query = [("stdout", self.offsets[STDOUT]), ("stderr", self.offsets[STDERR])]
        return Request("GET", run_path(self.run_id, "attach"), query)

    def connected(self, rest: bytes) -> None:
        if not self.run_id:
            self._say(self._command or {})
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
            raise WireError("A piece of output cannot be read.")
        stream, offset = data[0], int.from_bytes(data[1:_HEAD], "big")
        have, end = self.offsets[stream], offset + len(data) - _HEAD
        if end > have:
            piece = data[_HEAD + max(0, have - offset) :]
            self.offsets[stream] = end
            self._outputs.append(Output(stream, piece, max(0, offset - have)))

    def _control(self, message: dict[str, Any]) -> None:
        kind = message.get("type")
        if kind in ("started", "exit"):
            self.run = message["run"]
            self._terminal = bool(self.run.get("terminal"))
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
            self.out += frames.encode(frames.BINARY, missing[start : start + PIECE])
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

    def take(self) -> list[Output]:
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
                self.out += frames.encode(frames.BINARY, data[start : start + PIECE])

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


class Patience:
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
