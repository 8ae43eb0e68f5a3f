"""Commands: what is asked for, and what is told of them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from carrel.interfaces.http.models.common import Answer, Body, Environment, Moment
from carrel.interfaces.http.texts import MAX_PATH, OsText, PathText, WordText

DEFAULT_OUTPUT = 1 << 20
MAX_OUTPUT = 16 << 20

SignalName = Literal[
    "HUP", "INT", "QUIT", "KILL", "USR1", "USR2", "ALRM", "TERM", "CONT", "STOP", "TSTP", "WINCH"
]
Timeout = Annotated[float, Field(gt=0, le=3_153_600_000, allow_inf_nan=False)]
Side = Annotated[int, Field(ge=1, le=65_535)]
Argv = Annotated[list[WordText], Field(min_length=1, max_length=16_384)]


class CommandBody(Body):
    argv: Argv
    env: Environment = Field(default_factory=dict)
    cwd: PathText = "."
    timeout_s: Timeout | None = None


class RunBody(CommandBody):
    stdin: Annotated[str, OsText(1 << 20)] | None = None
    """Text for its standard input, which ends then; without, it is /dev/null."""
    stdin_base64: Annotated[str, Field(max_length=1 << 20)] | None = None


class ExecBody(RunBody):
    base64: bool = False
    """Answer with the output in base64, for what is no text."""
    max_output_bytes: Annotated[int, Field(ge=0, le=MAX_OUTPUT)] = DEFAULT_OUTPUT
    """Of each stream; the last bytes are kept."""


class SocketCommand(CommandBody):
    """The first frame on the WebSocket."""

    terminal: bool = False
    rows: Side = 24
    cols: Side = 80
    stdin: bool = False
    hangup: bool = False
    """It is hung up when nobody has been attached to it for a while."""


class SignalBody(Body):
    signal: SignalName


class ExitView(Answer):
    reason: Literal["exited", "signaled", "timeout", "memory", "disk", "stopped", "lost"]
    code: int | None
    signal: int | None
    started_at: Moment
    ended_at: Moment
    cpu_seconds: float
    max_rss_bytes: int


class RunView(Answer):
    id: str
    space: str
    argv: list[str]
    display_command: str
    """For people: `argv` as a shell would take it, or what it stands for."""
    cwd: Annotated[str, OsText(MAX_PATH)]
    state: Literal["starting", "running", "ended", "failed"]
    terminal: bool
    created_at: Moment
    pid: int
    exit: ExitView | None
    failure: str
    failure_code: str


class RunList(Answer):
    runs: list[RunView]


class ExecView(Answer):
    """With `base64`, `stdout_base64` and `stderr_base64` stand for the other two."""

    run: RunView
    stdout: str | None = None
    stderr: str | None = None
    stdout_base64: str | None = None
    stderr_base64: str | None = None
    truncated: bool
