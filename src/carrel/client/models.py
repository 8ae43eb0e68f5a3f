"""What the daemon tells, as frozen records, and the result of a command. The names are those of
docs/api.md.

Members that a newer daemon adds are ignored. A space here is metadata; what one can do with
it is `carrel.client.sync.Space`.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from carrel.api.types.admin import (
    BaseInfo,
    Diagnosis,
    EventInfo,
    Finding,
    Info,
    Report,
    Token,
    TokenWithSecret,
)
from carrel.api.types.agents import TerminalInfo, TurnInfo
from carrel.api.types.checkpoints import CheckpointInfo, ForkList
from carrel.api.types.comments import CommentInfo
from carrel.api.types.images import ImageInfo
from carrel.api.types.landings import LandingInfo, QueueEntryInfo, TakeInfo
from carrel.api.types.ports import (
    ForwardInfo,
    PortList,
    PsInfo,
    ServiceInfo,
    ServiceList,
    SpacePort,
    SshKeyInfo,
    SshListenerInfo,
)
from carrel.api.types.races import RaceInfo, RacerInfo
from carrel.api.types.review import DiffSummary
from carrel.api.types.runs import ExitInfo, File, RunInfo
from carrel.api.types.spaces import (
    ProofInfo,
    RemovalInfo,
    Resident,
    SpaceInfo,
    TrashedInfo,
    UsageInfo,
)
from carrel.client.exchange import STDERR, STDOUT, ExchangeOutput, exit_code
from carrel.client.problems import unreadable
from carrel.domain.agents import ContextFile, FoundFrontend
from carrel.domain.cleanup import Action, DiskPart, DiskReport
from carrel.domain.errors import CarrelError
from carrel.domain.limits import Limits
from carrel.domain.projects import Progress, Project
from carrel.domain.review import DiffFile
from carrel.domain.spaces import Retention
from carrel.domain.trees import Change
from carrel.domain.turns import Asked, Attachment

__all__ = [
    "Action",
    "Asked",
    "Attachment",
    "Base",
    "Change",
    "Checkpoint",
    "Comment",
    "ContextFile",
    "Diagnosis",
    "DiffFile",
    "DiffSummary",
    "DiskPart",
    "DiskReport",
    "Event",
    "Exit",
    "File",
    "Finding",
    "Forks",
    "Forward",
    "FoundFrontend",
    "Image",
    "Info",
    "Landing",
    "Limits",
    "NewToken",
    "PortList",
    "Progress",
    "Project",
    "Proof",
    "Ps",
    "QueueEntry",
    "Race",
    "Racer",
    "Removal",
    "Report",
    "Resident",
    "Retention",
    "RunInfo",
    "Service",
    "ServiceList",
    "SpaceInfo",
    "SpacePort",
    "SshKey",
    "SshListener",
    "Take",
    "Token",
    "TokenWithSecret",
    "Trashed",
    "Turn",
    "Usage",
    "decode",
]

T = TypeVar("T")
Attaching = TerminalInfo
Base = BaseInfo
Comment = CommentInfo
Event = EventInfo
Exit = ExitInfo
Checkpoint = CheckpointInfo
Forks = ForkList
Image = ImageInfo
Forward = ForwardInfo
SshKey = SshKeyInfo
SshListener = SshListenerInfo
Landing = LandingInfo
QueueEntry = QueueEntryInfo
NewToken = TokenWithSecret
Proof = ProofInfo
Ps = PsInfo
Service = ServiceInfo
Race = RaceInfo
Racer = RacerInfo
Removal = RemovalInfo
Take = TakeInfo
Trashed = TrashedInfo
Turn = TurnInfo
Usage = UsageInfo


_first = threading.Lock()
_known: set[type] = set()
"""msgspec notes on a class how it is read, and a thread that comes across a note that another
has not finished crashes the process: the first of each kind is read alone."""


def decode(content: object, kind: type[T]) -> T:
    """Raises `DaemonUnavailable` for an answer that is not what docs/api.md says."""
    try:
        if kind in _known:
            return msgspec.convert(content, kind)
        with _first:
            found = msgspec.convert(content, kind)
            _known.add(kind)
            return found
    except msgspec.ValidationError as error:
        raise unreadable(str(error)) from error


# The result of a command

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


class OutputLost(CarrelError):
    """Part of what a command wrote is not there any more: nobody was attached to it when there
    was too much to be kept, or there was no disk for it. `data` is what is there."""

    code = "output_lost"

    def __init__(self, run: str, missing: int, data: bytes) -> None:
        super().__init__(
            f"{missing} bytes of the output of {run} were not kept.",
            hint="Attach to a command while it runs: it then waits until you have read its output.",
            missing=missing,
        )
        self.missing = missing
        self.data = data


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
    missing: int = 0
    """Bytes that never came: the disk was full, or we were away for too long."""

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
        """Raises `CommandFailed` unless it ended well, and `OutputLost` when some of its output
        never came."""
        if not self.ok:
            raise CommandFailed(self)
        if self.missing:
            raise OutputLost(self.run.id, self.missing, self.stdout_bytes)
        return self


@dataclass
class _Tail:
    """The last bytes of a stream."""

    limit: int
    size: int = 0
    cut: bool = False
    pieces: deque[bytes] = field(default_factory=deque)

    def add(self, output: ExchangeOutput) -> None:
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


class OutputCollector:
    """Gathers output to a result."""

    def __init__(self, max_output_bytes: int = MAX_OUTPUT) -> None:
        self._tails = {STDOUT: _Tail(max_output_bytes), STDERR: _Tail(max_output_bytes)}
        self._missing = 0

    def add(self, output: ExchangeOutput) -> None:
        self._missing += output.dropped
        self._tails[output.stream].add(output)

    def result(self, run: dict[str, object]) -> RunResult:
        out, err = self._tails[STDOUT], self._tails[STDERR]
        info = decode(run, RunInfo)
        cut = out.cut or err.cut
        return RunResult(info, exit_code(run), out.joined(), err.joined(), cut, self._missing)
