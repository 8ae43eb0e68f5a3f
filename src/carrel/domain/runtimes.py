"""Sandboxes and the commands in them: the nouns and the contract of a runtime."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from carrel.domain.availability import Availability
from carrel.domain.limits import NO_LIMITS, LimitKind, Limits, LimitSupport, Usage
from carrel.domain.trees import Owner, TreeMount


class Network(StrEnum):
    NONE = "none"
    """Loopback only."""
    OPEN = "open"
    """The host's network."""


@dataclass(frozen=True)
class Bind:
    """A host path shown in the sandbox."""

    source: Path
    target: str
    writable: bool = False


@dataclass(frozen=True)
class Capabilities:
    """What a runtime truly does. `uncovered` names, in sentences, what it does not."""

    confines: bool
    private_files: bool
    private_processes: bool
    private_network: bool
    own_paths: bool
    """The tree is at /workspace; otherwise at its own path on the host."""
    uncovered: tuple[str, ...] = ()


@dataclass(frozen=True)
class SandboxSpec:
    """All that makes one sandbox. `folder` is the space's private folder: the runtime
    keeps the home, /tmp and the runs of the sandbox in it."""

    sandbox_id: str
    folder: Path
    tree: Path
    owner: Owner
    network: Network = Network.NONE
    limits: Limits = NO_LIMITS
    binds: tuple[Bind, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    also_at: str = ""
    """Where the tree is shown too, by a runtime that shows it at /workspace."""

    @property
    def on_the_host(self) -> bool:
        """The tree is a folder of the host itself, and not of the space's own."""
        return not self.tree.is_relative_to(self.folder)


@dataclass(frozen=True)
class Sandbox:
    """A started sandbox; metadata only, can be written down and loaded again."""

    runtime: str
    spec: SandboxSpec
    limits: tuple[LimitSupport, ...] = ()
    """How each limit that was asked for is enforced."""


KEEP_BYTES = 16 << 20
MOST_GIVEN = 16
"""Descriptors beside the standard ones that a command can be given."""


class Output(StrEnum):
    FILES = "files"
    """stdout and stderr are recorded in files of the run, with or without a daemon."""
    PIPES = "pipes"
    """Raw, for whoever started the command, and gone with that one."""
    PTY = "pty"
    """One terminal; what it shows is recorded as stdout."""


@dataclass(frozen=True)
class Call:
    """A function of a Python file, which gets one argument that JSON can say. What it returns
    is the exit code; None is 0."""

    file: str
    """As the sandbox sees it, or one of `Zygote.load`."""
    function: str
    argument: Any = None


@dataclass(frozen=True)
class Command:
    """`argv` never passes through a shell; `env` is added to the sandbox's own; `cwd` is
    relative to the tree, or absolute as the sandbox sees it."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str = "."
    output: Output = Output.FILES
    stdin: bool = False
    """Keep standard input open for `Run.stdin`; otherwise it is /dev/null."""
    timeout_s: float | None = None
    pty_size: tuple[int, int] = (24, 80)
    """Rows and columns."""
    keep_bytes: int = KEEP_BYTES
    """So much of the end of each recorded stream is kept at least; what is before goes."""
    run_id: str = ""
    """From who keeps the records; empty: a fresh one is made."""
    display: str = ""
    """What people are shown instead of `argv`; empty: that."""
    descriptors: tuple[int, ...] = ()
    """Open ones of the caller, who keeps them: the command has them as 3, 4, 5, … in this
    order, be it in another network than they were made in."""
    call: Call | None = None
    """Instead of executing `argv`, which then is what the function finds as `sys.argv`. The
    launcher's own interpreter calls it, in a process that nobody in the sandbox can trace."""
    warm: str = ""
    """The name of the `Zygote` that is forked for the call; see `WarmRuntime`."""


@dataclass(frozen=True)
class Zygote:
    """A process that has loaded a Python program's modules, for commands to be forked from.
    It is not confined; its forks are, before they do anything."""

    name: str
    python: str
    """The program's own interpreter, 3.11 or later."""
    owner: Owner
    """Whom it runs as where the daemon is root: the owner of every sandbox that its forks are
    to enter, who must be able to read what it loads."""
    preload: tuple[str, ...] = ()
    """Modules. None may leave a thread running."""
    load: tuple[str, ...] = ()
    """Files with functions for `Call`, which the sandboxes need not show."""
    env: Mapping[str, str] = field(default_factory=dict)
    """All that it has; a command's own replaces it."""
    idle_s: float = 0.0
    """So long after its last fork it goes; 0: never."""


class ExitReason(StrEnum):
    EXITED = "exited"
    SIGNALED = "signaled"
    TIMEOUT = "timeout"
    """Its own time limit, or the sandbox's wall time."""
    MEMORY = "memory"
    """The kernel killed it at the memory limit."""
    DISK = "disk"
    STOPPED = "stopped"
    """The sandbox was stopped under it."""
    LOST = "lost"
    """The launcher died before it could be reaped, so nobody knows."""


@dataclass(frozen=True)
class Exit:
    """How a command ended: exactly one of `code` and `signal`, neither when lost."""

    reason: ExitReason
    code: int | None
    signal: int | None
    started_at: float
    ended_at: float
    cpu_seconds: float
    max_rss_bytes: int


@dataclass(frozen=True)
class LimitHit:
    """An event: a limit was reached. `figure` is the limit, in the kind's own unit."""

    sandbox_id: str
    kind: LimitKind
    figure: float
    run_id: str | None = None
    message: str = ""


@dataclass(frozen=True)
class Attempt:
    """One thing the probe tried inside a sandbox."""

    name: str
    refused: bool
    detail: str


@dataclass(frozen=True)
class Proof:
    """The result of `verify`; `holds` when every attempt was refused."""

    runtime: str
    attempts: tuple[Attempt, ...]

    @property
    def holds(self) -> bool:
        return bool(self.attempts) and all(attempt.refused for attempt in self.attempts)


class Run(Protocol):
    """A live command. Losing it does not end the command."""

    @property
    def run_id(self) -> str: ...

    @property
    def pid(self) -> int:
        """On the host."""
        ...

    @property
    def stdout(self) -> Path | int | None:
        """The file of the recording (see `carrel.domain.runs.Recordings`), or with pipes the
        descriptor to read."""
        ...

    @property
    def stderr(self) -> Path | int | None: ...

    @property
    def stdin(self) -> int | None:
        """The pipe or the terminal to write to, never to read from. It is non-blocking when
        the run is recorded: the launcher and every other holder share the flag, so leave it.
        A full one raises `BlockingIOError`; wait with `loop.add_writer`."""
        ...

    @property
    def input_bytes(self) -> int | None:
        """How many `give` gave since the run began, whoever called it. None with a terminal,
        with raw pipes, and when nobody knows: a daemon was killed within a write."""
        ...

    def give(self, data: bytes | memoryview) -> int:
        """Writes to `stdin` as much as it takes now, and counts it. What the command does not
        want (it closed its input, it ended) counts as given. Raises `BlockingIOError`."""
        ...

    async def wait(self) -> Exit: ...

    async def close_input(self) -> None:
        """The command reads to the end of its standard input; idempotent. Does nothing with a
        terminal, which has no end: type the end-of-file character instead.
        Raises `LauncherUnavailable`."""
        ...

    def resize(self, rows: int, cols: int) -> None:
        """Of the terminal; does nothing without one."""
        ...

    def close(self) -> None:
        """Closes this side's descriptors. A recorded run keeps its input open: the launcher
        holds it, and `attach` gives it again."""
        ...


class Runtime(Protocol):
    """One way of confining. Raises `SandboxUnavailable` (and its kinds) when the sandbox is
    at fault, `CommandError` when the command is; an ended command is an `Exit`."""

    @property
    def name(self) -> str: ...

    @property
    def capabilities(self) -> Capabilities: ...

    async def probe(self) -> Availability:
        """Tries the real thing, and leaves nothing."""
        ...

    def expect(self) -> None:
        """Something is about to be started: begins what that would wait for, in the background."""
        ...

    def begin(self, spec: SandboxSpec) -> None:
        """The tree is being made: sets up meanwhile what does not need it, or nothing. Either
        `start` goes on from there, or `stop` ends it. What goes wrong, `start` will tell."""
        ...

    async def start(self, spec: SandboxSpec, tree: TreeMount, *, wait: bool = True) -> Sandbox:
        """Prepares a sandbox; costs no process until a command runs. A confining runtime
        that fails its own proof raises `IsolationUnproven`. Without `wait`, one whose
        configuration was proven already is set up while the caller goes on: the first
        command waits for it, and tells if that failed."""
        ...

    async def run(self, sandbox: Sandbox, tree: TreeMount, command: Command) -> Run: ...

    async def attach(self, sandbox: Sandbox, run_id: str) -> Run:
        """Takes up a run of this or an earlier daemon, with its input and its terminal; raw
        pipes are not given again. `RunNotFound`."""
        ...

    async def signal(self, sandbox: Sandbox, run_id: str, signal: int) -> None:
        """To the run's process group. A run that has ended is no error."""
        ...

    async def kill(self, sandbox: Sandbox, run_id: str) -> None:
        """Ends all that came of a run, detached or not, and returns when that is gone; the
        sandbox's other runs go on. Idempotent, also for one that has ended and left something
        running. Without control groups what cleared its environment and detached itself too
        is not known as the run's; `stop` ends it."""
        ...

    async def usage(self, sandbox: Sandbox) -> Usage: ...

    async def verify(self, sandbox: Sandbox, tree: TreeMount) -> Proof: ...

    async def stop(self, sandbox: Sandbox, grace_s: float = 2.0) -> None:
        """Ask, bounded wait, kill all, reap, remove the cgroup; idempotent."""
        ...


@runtime_checkable
class WarmRuntime(Protocol):
    """A runtime that can fork commands from a process that has loaded what they need."""

    async def warm_up(self, zygote: Zygote) -> None:
        """Returns when it is ready; idempotent. One of the same name that is not the same is
        replaced. It ends with the launcher, and what was forked from it goes on.
        Raises `WarmUnavailable`, and so does `run` once it is gone."""
        ...

    async def cool_down(self, name: str) -> None:
        """Ends it; idempotent."""
        ...
