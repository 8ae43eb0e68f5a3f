"""Commands and files: what is asked for, and what is told of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, TypedDict

from msgspec import Meta, field

from carrel.api.types.common import (
    END,
    MAX_PATH,
    OS_TEXT,
    Answer,
    Body,
    Environment,
    Moment,
    PathText,
    Query,
    Span,
    WordText,
)
from carrel.domain.runs import RunState, Stream
from carrel.domain.runtimes import ExitReason
from carrel.domain.systems import CommandPlace
from carrel.domain.trees import EntryType

DEFAULT_OUTPUT = 1 << 20
MAX_OUTPUT = 16 << 20
MAX_READ = 1 << 20
MAX_WAIT_S = 60.0

SignalName = Literal[
    "HUP", "INT", "QUIT", "KILL", "USR1", "USR2", "ALRM", "TERM", "CONT", "STOP", "TSTP", "WINCH"
]
Offset = Annotated[int, Meta(ge=0, lt=1 << 62)]
Side = Annotated[int, Meta(ge=1, le=65_535)]
PlaceName = Annotated[str, Meta(pattern=rf"^([A-Za-z0-9][A-Za-z0-9_.-]{{0,62}})?{END}")]
ReaderName = Annotated[str, Meta(max_length=64, pattern=rf"^[A-Za-z0-9_-]*{END}")]
Argv = Annotated[tuple[WordText, ...], Meta(min_length=1, max_length=262_144)]
"""Each costs the kernel ten bytes at least, of the 2 MiB that it takes."""
Mode = Annotated[str, Meta(pattern=rf"^[0-7]{{3,4}}{END}")]
"""Octal, as chmod takes it."""


class CommandBody(Body, frozen=True, kw_only=True):
    argv: Argv
    env: Environment = field(default_factory=dict)
    cwd: PathText = "."
    timeout_s: Span | None = None
    place: PlaceName = ""
    """`dev`: with the space's image; `agent`: with the host's toolchain, as its agent; or the name
    of one of its services. Empty: with the image, if the space has one."""


class CommandOptions(TypedDict, total=False):
    """The same as Python says it, beside the words. `env` is added to the space's own; `cwd` is
    relative to the tree."""

    env: Mapping[str, str]
    cwd: str
    timeout_s: float | None
    place: str


class RunBody(CommandBody, frozen=True, kw_only=True):
    stdin: Annotated[str, Meta(max_length=1 << 20, extra=OS_TEXT)] | None = None
    """Text for its standard input, which ends then; without, it is /dev/null."""
    stdin_base64: Annotated[str, Meta(max_length=1 << 20)] | None = None


class ExecBody(RunBody, frozen=True, kw_only=True):
    base64: bool = False
    """Answer with the output in base64, for what is no text."""
    max_output_bytes: Annotated[int, Meta(ge=0, le=MAX_OUTPUT)] = DEFAULT_OUTPUT
    """Of each stream; the last bytes are kept."""


class SocketCommand(CommandBody, frozen=True, kw_only=True):
    """The first frame on the WebSocket."""

    terminal: bool = False
    rows: Side = 24
    cols: Side = 80
    stdin: bool = False
    hangup: bool = False
    """It is hung up when nobody has been attached to it for a while."""
    reader: ReaderName = ""
    """Under this name a client that lost its connection attaches again, and misses nothing."""


class AttachQuery(Query, frozen=True, kw_only=True):
    stdout: Offset = 0
    stderr: Offset = 0
    reader: ReaderName = ""
    hold: bool = True


class EndFrame(Body, frozen=True, kw_only=True, tag_field="type", tag="eof"):
    """On the WebSocket: no more input comes."""


class ResizeFrame(Body, frozen=True, kw_only=True, tag_field="type", tag="resize"):
    rows: Side
    cols: Side


class SignalFrame(Body, frozen=True, kw_only=True, tag_field="type", tag="signal"):
    signal: SignalName


ControlFrame = EndFrame | ResizeFrame | SignalFrame


class RunListQuery(Query, frozen=True, kw_only=True):
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


class WaitQuery(Query, frozen=True, kw_only=True):
    timeout_s: Annotated[float, Meta(ge=0, le=MAX_WAIT_S)] = MAX_WAIT_S


class SignalBody(Body, frozen=True, kw_only=True):
    signal: SignalName


class OutputQuery(Query, frozen=True, kw_only=True):
    stream: Stream = Stream.STDOUT
    offset: Offset = 0
    limit: Annotated[int, Meta(ge=1, le=MAX_READ)] = MAX_READ


class ExitInfo(Answer, frozen=True, kw_only=True):
    """How a command ended: exactly one of `code` and `signal`, neither when lost."""

    reason: ExitReason
    code: int | None = None
    signal: int | None = None
    started_at: Moment
    ended_at: Moment
    cpu_seconds: float = 0.0
    max_rss_bytes: int = 0


class RunInfo(Answer, frozen=True, kw_only=True):
    id: str
    space: str
    argv: tuple[str, ...]
    """What is longer than 4096 characters is cut, and says how long it was."""
    display_command: str = ""
    """For people: `argv` as a shell would take it, or what it stands for."""
    cwd: Annotated[str, Meta(max_length=MAX_PATH, extra=OS_TEXT)]
    state: RunState
    terminal: bool
    place: CommandPlace = CommandPlace.AGENT
    """Where in the space it runs."""
    service: str = ""
    """In whose sandbox, instead."""
    created_at: Moment
    pid: int = 0
    exit: ExitInfo | None = None
    failure: str = ""
    failure_code: str = ""

    @property
    def ended(self) -> bool:
        return self.state in (RunState.ENDED, RunState.FAILED)


class RunList(Answer, frozen=True, kw_only=True):
    runs: tuple[RunInfo, ...]


class ExecInfo(Answer, frozen=True, kw_only=True, omit_defaults=True):
    """With `base64`, `stdout_base64` and `stderr_base64` stand for the other two."""

    run: RunInfo
    truncated: bool
    stdout: str | None = None
    stderr: str | None = None
    stdout_base64: str | None = None
    stderr_base64: str | None = None


# Files


class PathQuery(Query, frozen=True, kw_only=True):
    path: PathText
    """Relative to the tree's root."""


class ReadQuery(PathQuery, frozen=True, kw_only=True):
    take: bool = False
    """It is to be copied out: the answer has a `Carrel-Copy`, see `CopiedBody`."""


class FolderQuery(Query, frozen=True, kw_only=True):
    path: PathText = "."
    """Relative to the tree's root."""


class ArchiveQuery(FolderQuery, frozen=True, kw_only=True):
    plain: bool = False
    """Not compressed: on one machine that only takes time."""


class WriteQuery(PathQuery, frozen=True, kw_only=True):
    mode: Mode | None = None


class DeleteQuery(PathQuery, frozen=True, kw_only=True):
    recursive: bool = False


class MoveBody(Body, frozen=True, kw_only=True):
    source: PathText
    target: PathText
    replace: bool = False


class FolderBody(Body, frozen=True, kw_only=True):
    path: PathText
    mode: Mode = "755"
    parents: bool = False


class CopiedBody(Body, frozen=True, kw_only=True):
    """All of it is on the client's disk: as it was sent, it keeps the space from being removed no
    more."""

    copy: Annotated[str, Meta(max_length=100)]
    """The `Carrel-Copy` of the answer that had the file or archive, of the last ten minutes."""


class File(Answer, frozen=True, kw_only=True):
    """One entry as it is itself: a symlink is not followed, `target` is where it points."""

    name: str
    type: EntryType
    mode: str
    """Octal."""
    size: int
    modified_ns: int
    target: str | None = None


class FileList(Answer, frozen=True, kw_only=True):
    entries: tuple[File, ...]


class Done(Answer, frozen=True, kw_only=True):
    """It is done; there is no more to say."""
