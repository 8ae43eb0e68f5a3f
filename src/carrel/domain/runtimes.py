"""Sandboxes and the commands in them: the nouns and the contract of a runtime."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from carrel.domain.availability import Availability
from carrel.domain.limits import NO_LIMITS, LimitKind, Limits, LimitSupport, ResourceUsage
from carrel.domain.services import ServiceView
from carrel.domain.systems import System
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
    if_real: bool = False
    """Left out where the source is gone, or where a link has come into its path."""


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
    systems: bool = False
    """It can give a sandbox the system of an image."""
    needs_image: bool = False
    """And has none without one. It is never chosen: it has to be asked for by name."""


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
    path_first: tuple[str, ...] = ()
    """Where commands look for programs before the system's folders, and after them."""
    path_last: tuple[str, ...] = ()
    also_at: str = ""
    """Where the tree is shown too, by a runtime that shows it at /workspace, unless its sandboxes
    have something else there."""
    and_at: str = ""
    """The same, by another name of that folder: the one by which it was asked for."""
    family: str = ""
    """Sandboxes of one family have the same limits, and have them together; empty: none else."""
    carrel: tuple[str, ...] = ()
    """The command that runs this program, which the sandbox has on its PATH then."""
    shells: tuple[str, ...] = ()
    """The command behind the shells by which its agent runs what belongs into the image."""
    home_files: Mapping[str, bytes] = field(default_factory=dict, compare=False)
    """What a home begins with, by path; for a sandbox that has none yet."""
    home_links: Mapping[str, str] = field(default_factory=dict, compare=False)
    """The same, symlinks and where they lead."""
    account: str = ""
    """Those of one account have one share of the commands that can run; empty: none else."""
    hidden: tuple[str, ...] = ()
    """Paths of the host in folders among `binds` whose content the sandbox does not see."""
    system: System | None = None
    """Its root is this, instead of the host's toolchain."""
    pod: str = ""
    """Sandboxes of one pod have one network, where that is nobody else's."""
    service: ServiceView | None = None
    """It is a service's: of the space it shows nothing else."""


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
    GIVEN = "given"
    """Three streams of the caller's, `Command.streams`; nothing is recorded."""


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
    streams: tuple[int, ...] = ()
    """Its standard input, output and error, with `Output.GIVEN`: open ones of the caller, who keeps
    them."""
    takes_terminal: bool = False
    """The first of `streams` becomes its controlling terminal, if that is nobody's."""
    path_first: tuple[str, ...] = ()
    """Where it looks for programs first."""
    call: Call | None = None
    """Instead of executing `argv`, which then is what the function finds as `sys.argv`. The
    launcher's own interpreter calls it, in a process that nobody in the sandbox can trace."""
    warm: str = ""
    """The name of the `Zygote` that is forked for the call; see `WarmRuntime`."""
    reader: str = ""
    """Who will follow all its recorded streams from their first byte on, and misses none; see
    `carrel.domain.runs.Recordings.follow`."""
    may_make_room: bool = False
    """It is begun however far the sandbox is above its disk limit."""


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
class LimitsChanged:
    """An event: a sandbox was set up again, and its limits are enforced in another way than
    before, or not any more."""

    sandbox_id: str
    limits: tuple[LimitSupport, ...]


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
    def input_bytes(self) -> int | None:
        """How many bytes `give` gave since the run began, whoever called it. None with a
        terminal, with raw pipes, and when nobody knows: a daemon was killed within a write."""
        ...

    async def give(self, data: bytes | memoryview) -> int:
        """Writes to standard input as much as it takes now, and counts it. What the command
        does not want (it closed its input, it ended) counts as given. Raises
        `BlockingIOError` when the input is full: wait for `writable`, then try again."""
        ...

    async def writable(self) -> None:
        """Returns when `give` may take something again, at once for a run without input. The
        caller stops waiting itself when the run ends."""
        ...

    async def wait(self) -> Exit:
        """The end of the command. Raises `LauncherUnavailable` when nobody can tell it."""
        ...

    async def close_input(self) -> None:
        """The command reads to the end of its standard input; idempotent. Does nothing with a
        terminal, which has no end: type the end-of-file character instead.
        Raises `LauncherUnavailable`."""
        ...

    def resize(self, rows: int, cols: int) -> None:
        """Sets the size of the terminal; does nothing without one."""
        ...

    def close(self) -> None:
        """Lets go of this side. A recorded run keeps its input open, and `attach` gives it
        again."""
        ...


@runtime_checkable
class LocalRun(Run, Protocol):
    """A live command that is a process of this machine."""

    @property
    def pid(self) -> int:
        """On the host."""
        ...

    @property
    def stdin(self) -> int | None:
        """The pipe or the terminal to write to, never to read from. It is non-blocking when
        the run is recorded: the launcher and every other holder share the flag, so leave it.
        A full one raises `BlockingIOError`."""
        ...

    @property
    def stdout(self) -> Path | int | None:
        """The file of the recording (see `carrel.domain.runs.Recordings`), or with pipes the
        descriptor to read."""
        ...

    @property
    def stderr(self) -> Path | int | None: ...


def host_pid(run: Run) -> int:
    """The number of its process on this machine; 0 when it is not here."""
    # Asked for every command: to ask whether it is a `LocalRun` takes the time of twenty such.
    pid: int = getattr(run, "pid", 0)
    return pid


class Runtime(Protocol):
    """One way of confining commands, here or elsewhere.

    Two kinds of errors are kept apart. `SandboxUnavailable` and its kinds say that the sandbox
    is at fault, so the same command may work in another; `CommandError` and its kinds say that
    the command is. A command that ran and ended badly is neither: it is an `Exit`.

    What only some back ends can do is in the Protocols below: `LocalRuntime`, `EagerRuntime`,
    `WarmRuntime`. Callers ask with `isinstance`.
    """

    @property
    def name(self) -> str: ...

    @property
    def capabilities(self) -> Capabilities: ...

    async def probe(self) -> Availability:
        """Tries the real thing, and leaves nothing. Raises nothing: the answer says why not.
        Called by `carrel doctor`, and when the best runtime is chosen."""
        ...

    async def start(self, spec: SandboxSpec, tree: TreeMount, *, wait: bool = True) -> Sandbox:
        """Prepares a sandbox; costs no process until a command runs. Called when a space is
        made, and when one that was stopped is started again.

        Raises `IsolationUnproven` when a confining runtime fails its own proof,
        `LimitsUnavailable` when strict limits cannot be enforced, else `SandboxUnavailable`;
        nothing is left then. Without `wait`, a sandbox whose configuration was proven already is
        set up while the caller goes on: the first command waits for it, and tells if that
        failed."""
        ...

    async def run(self, sandbox: Sandbox, tree: TreeMount, command: Command) -> Run:
        """Starts a command, and returns when it executes. Called for every command, also in a
        sandbox that an earlier daemon prepared.

        Raises `CommandInvalid`, `CommandNotFound` or `CommandNotExecutable` for a command that
        cannot run; `SandboxUnavailable` (`WarmUnavailable` for one that is to be forked) when the
        sandbox fails; `TreeDamaged` when the tree lost its mount; `InsufficientDisk` when its
        record cannot be written. Nothing of it runs then."""
        ...

    async def attach(self, sandbox: Sandbox, run_id: str) -> Run:
        """Takes up a run of this or an earlier daemon, with its input and its terminal; raw
        pipes are not given again. Called for each run that is recorded as running when a daemon
        starts. Raises `RunNotFound`, `LauncherUnavailable`."""
        ...

    async def signal(self, sandbox: Sandbox, run_id: str, signal: int) -> None:
        """Sends a signal to the run's process group, as a client asked. A run that has ended
        is no error. Raises `LauncherUnavailable`."""
        ...

    async def kill(self, sandbox: Sandbox, run_id: str) -> None:
        """Ends all that came of a run, detached or not, and returns when that is gone; the
        sandbox's other runs go on. Called when a turn or an instance ends while its space stays.

        Idempotent, also for a run that has ended and left something running. Without control
        groups, what cleared its environment and detached itself too is not known as the run's;
        `stop` ends it. Raises `RunNotFound` for what is no id, `SandboxUnavailable` when
        something does not end."""
        ...

    async def usage(self, sandbox: Sandbox) -> ResourceUsage:
        """What its processes use now, as far as the machine can tell. Called when a space is
        shown, and to see whether an instance is idle."""
        ...

    async def verify(self, sandbox: Sandbox, tree: TreeMount) -> Proof:
        """Tries from inside what the sandbox must refuse. Called once for each configuration,
        and by `carrel verify`. A runtime that confines nothing gives a proof without attempts,
        which does not hold. Raises `IsolationUnproven` when the attempts could not be made."""
        ...

    async def stop(self, sandbox: Sandbox, grace_s: float = 2.0) -> None:
        """Asks all processes to end, waits so long at most, kills the rest, and returns when
        all of it is gone, with its limits; idempotent. Called when a space is stopped or
        removed, and to undo a start. Raises `SandboxUnavailable` when something does not
        end."""
        ...


@runtime_checkable
class LocalRuntime(Runtime, Protocol):
    """A runtime whose commands are processes of this machine: they can be given descriptors
    (`Command.descriptors`) and functions of this program (`Command.call`), which others refuse
    with `CommandInvalid`."""

    async def run(self, sandbox: Sandbox, tree: TreeMount, command: Command) -> LocalRun: ...

    async def attach(self, sandbox: Sandbox, run_id: str) -> LocalRun: ...

    def expect(self) -> None:
        """Begins in the background what the next start would wait for. Called when somebody
        has asked for an instance. Raises nothing."""
        ...

    def watch(self, sandbox: Sandbox) -> None:
        """Sees to the limits of what an earlier daemon's commands have left running in it.
        Called once for each live space when a daemon starts. Raises `LauncherUnavailable`."""
        ...

    async def check_writing(self, sandbox: Sandbox, written: int = 0) -> None:
        """Whether something may be written into it from outside. Called before and while that is
        done for others than the owner, with how many bytes were `written` since the last call.
        Raises `InsufficientDisk` above the disk limit."""
        ...


@dataclass(frozen=True, order=True)
class ListeningPort:
    """A TCP port on which something in a sandbox listens. `host` is an address there; all zeros
    stand for every one."""

    port: int
    host: str
    pid: int = 0
    """On the host; 0: not known."""
    program: str = ""


@dataclass(frozen=True)
class Listening:
    """What listens in a sandbox now."""

    ports: tuple[ListeningPort, ...] = ()
    mark: tuple[str, ...] = ()
    """Changes when something may have begun or ended to listen; empty: nobody knows."""
    caution: str = ""
    """How it was found, where it may not be all, in a sentence."""


@runtime_checkable
class ReachableRuntime(Protocol):
    """A runtime into whose sandboxes one can connect from outside. It starts nothing there: a
    sandbox in which nothing runs has no port."""

    async def listening(self, sandbox: Sandbox, before: Listening | None = None) -> Listening:
        """`before`, while its mark holds, as it was. Called when somebody looks, and now and then
        while a port is forwarded. Raises `LauncherUnavailable`."""
        ...

    async def connect(self, sandbox: Sandbox, port: int) -> socket.socket:
        """A connection to its loopback, first by IPv4, then by IPv6; non-blocking, the caller's.
        Where sandboxes share the host's network, only to what listens in this one. Called for
        each connection to a port that is forwarded. Raises `PortUnavailable` when nothing
        listens, `SandboxUnavailable`."""
        ...


@runtime_checkable
class EagerRuntime(Protocol):
    """A runtime that can set a sandbox up while its tree is still being made."""

    def furnish(self, spec: SandboxSpec) -> None:
        """Makes the folders of a new sandbox. Blocking, any thread: a home may begin with thousands
        of files. Raises OSError."""
        ...

    def begin(self, spec: SandboxSpec) -> None:
        """Sets up what does not need the tree, in the background. Either `start` goes on from
        there, or `stop` ends it. Raises nothing: what goes wrong, `start` will tell. Called when
        the owner of a new space is known."""
        ...


@runtime_checkable
class StillRuntime(Protocol):
    """A runtime that can have a sandbox stand still, while its files are copied say."""

    async def pause(self, sandbox: Sandbox, seconds: float) -> bool:
        """Returns when nothing runs in it any more; commands that are to start wait. It goes on by
        itself after so long. False: it cannot be done here, or not all stood still. Raises
        `LauncherUnavailable`."""
        ...

    async def resume(self, sandbox: Sandbox) -> None:
        """Idempotent. Raises `LauncherUnavailable`."""
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
        """Ends it; idempotent. Raises `LauncherUnavailable`."""
        ...
