"""What a command gave."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from carrel.client.exchange import STDERR, STDOUT, Output
from carrel.client.exits import exit_code
from carrel.client.models import RunInfo, decode
from carrel.domain.errors import CarrelError

MAX_OUTPUT = 64 * 1024 * 1024
"""Of each stream, unless the caller says otherwise; the last bytes are kept."""


class CommandFailed(CarrelError):
    """A command ended badly, and the caller asked for that to be an error. `result` has all."""

    code = "command_failed"

    def __init__(self, result: RunResult) -> None:
        last = result.stderr.strip().rpartition("\n")[2]
        super().__init__(
            f"{result.run.argv[0]} ended with {result.code}" + (f": {last}" if last else "."),
            hint=f"carrel run show {result.run.id}",
        )
        self.result = result


@dataclass(frozen=True)
class RunResult:
    """`code` is as a shell has it: the command's own, 128 and the signal's number, 124 when
    its time was over."""

    run: RunInfo
    code: int
    stdout_bytes: bytes = b""
    stderr_bytes: bytes = b""
    truncated: bool = False
    """There was more output than was to be kept; the last bytes were."""

    @property
    def ok(self) -> bool:
        return self.code == 0

    @property
    def stdout(self) -> str:
        return self.stdout_bytes.decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        return self.stderr_bytes.decode("utf-8", "replace")

    def check(self) -> RunResult:
        """Raises `CommandFailed` unless it ended well."""
        if not self.ok:
            raise CommandFailed(self)
        return self


@dataclass
class _Tail:
    """The last bytes of a stream."""

    limit: int
    size: int = 0
    cut: bool = False
    pieces: deque[bytes] = field(default_factory=deque)

    def add(self, output: Output) -> None:
        self.cut = self.cut or bool(output.dropped)
        self.pieces.append(output.data)
        self.size += len(output.data)
        while self.size > self.limit:
            self.cut = True
            first = self.pieces.popleft()
            over = min(len(first), self.size - self.limit)
            self.size -= over
            if over < len(first):
                self.pieces.appendleft(first[over:])

    def joined(self) -> bytes:
        return b"".join(self.pieces)


class Collector:
    """Gathers output to a result."""

    def __init__(self, max_output_bytes: int = MAX_OUTPUT) -> None:
        self._tails = {STDOUT: _Tail(max_output_bytes), STDERR: _Tail(max_output_bytes)}

    def add(self, output: Output) -> None:
        self._tails[output.stream].add(output)

    def result(self, run: dict[str, object]) -> RunResult:
        out, err = self._tails[STDOUT], self._tails[STDERR]
        info = decode(run, RunInfo)
        return RunResult(info, exit_code(run), out.joined(), err.joined(), out.cut or err.cut)
