"""The messages of the launcher: what it is asked, what it answers, what it writes down.

All are JSON objects, and these types say their fields. A launcher outlives the daemon that started
it, and a file outlives both: so a field keeps its name and its meaning, and a new one is
`NotRequired`. What a request must have is looked at before anything is done (`server.py`).

The daemon's side imports this for its types only.
"""

# Without `from __future__ import annotations`: Python 3.11 would take what is not required for
# required.

import json
from collections.abc import Callable
from typing import Any, NotRequired, TypedDict

ReaderHolds = list[tuple[str, str, int, float]]
"""A stream, its reader, the reader's position, and how long that counts."""


class LauncherProblem(TypedDict):
    """Why something failed, and at which step."""

    step: str
    errno: NotRequired[int]
    text: NotRequired[str]


def failure(step: str, text: str, number: int = 0) -> LauncherProblem:
    return {"step": step, "errno": number, "text": text}


def told(line: bytes, *wanted: str) -> dict[str, Any]:
    """What a child of ours says in a line: what is `wanted`, or a problem. Foreign code may have
    come to its pipe, so what makes no sense is a problem too."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        message = None
    if not isinstance(message, dict) or not (
        all(type(message.get(one, 0)) is int for one in _NUMBERS)
        and all(type(message.get(one, "")) is str for one in ("step", "text"))
        and ("step" in message or (wanted and message.keys() >= set(wanted)))
    ):
        return dict(failure("ending", "it said what makes no sense"))
    return message


_NUMBERS = ("pid", "keeper", "errno", "ended", "rss")


# Sandboxes and commands


class UserMap(TypedDict):
    """See `carrel.domain.systems.System`."""

    own: tuple[int, int]
    host: tuple[int, int]
    first: int | None


class ContainerPlan(TypedDict):
    """The first process of a container that an engine has made, on the host."""

    pid: int
    started: int


class SandboxBase(TypedDict):
    """What every process of a sandbox joins and becomes."""

    join: list[str]
    """Files `cgroup.procs`."""
    tracking: str | None
    """The control group below which each command has its own."""
    uid: int
    gid: int
    scope_sockets: bool
    seccomp: str
    """Compiled, in hexadecimal digits."""
    capabilities: NotRequired[int]
    """Those that the commands of its own root keep, as the kernel numbers the bits."""
    users: NotRequired[UserMap]
    """Of a sandbox in a container of an engine: who its users are on the host."""


class MountPoint(TypedDict):
    """One below a folder that the sandbox may write: bubblewrap would follow links there."""

    above: str
    path: str
    folder: bool


class LinkPoint(TypedDict):
    above: str
    path: str
    target: str


class SandboxPlan(TypedDict):
    """How a sandbox is set up."""

    argv: list[str]
    """Of bubblewrap."""
    container: NotRequired[ContainerPlan]
    """Instead of bubblewrap. All its mounts are late ones, which go along."""
    uid: int
    gid: int
    namespace: NotRequired[str | None]
    """The key of the held mount in which it starts."""
    points: NotRequired[list[MountPoint]]
    """Made ready while nothing of the sandbox runs."""
    late: NotRequired[list[str]]
    """Targets whose mounts come later, by `place`."""
    seccomp: str
    join: list[str]
    base: SandboxBase
    stage: list[str]
    """Names of the mounts that go along as descriptors; `users` is a user namespace, as whose root
    bubblewrap starts."""
    kept: NotRequired[list[str]]
    """All that bubblewrap takes from the host by its path."""
    paths: NotRequired[dict[str, str]]
    """For an ordinary user with a range of ids: what is staged where it starts, by name."""
    users: NotRequired[UserMap]
    """With `paths`: the ids of the namespace as whose root bubblewrap starts."""
    links: NotRequired[list[LinkPoint]]
    """With `paths`, whose points are made there too."""
    pod: NotRequired[str]
    """Sandboxes with the same word here have one network, which is nobody else's."""
    entered: NotRequired[dict[str, int]]
    """The launcher's own: descriptors of the namespaces in which it starts."""
    mark: NotRequired[dict[str, str]]
    """The launcher's own: the variable by which a later one finds what is left half set up."""


class CallPlan(TypedDict):
    file: str
    function: str
    argument: Any


class CommandPlan(TypedDict):
    """What the child that becomes a command does."""

    join: list[str]
    rlimits: list[tuple[int, int, int]]
    keeper: bool
    """A process stays above the command and inherits all that detaches itself from it."""
    given: int
    """Descriptors beside the standard ones."""
    pty: list[int] | None
    landlock: Any
    shared_memory: str
    uid: int | None
    gid: int | None
    cwd: str
    confined: bool
    seccomp: str
    probe: dict[str, Any] | None
    argv: list[str]
    env: dict[str, str]
    call: CallPlan | None
    warm: bool
    takes_terminal: NotRequired[bool]
    """Its standard input becomes its controlling terminal, if that is nobody's."""


class RecordPlan(TypedDict):
    """What of a run is recorded."""

    names: list[str]
    keep: int
    reader: NotRequired[str]
    lease: NotRequired[float]
    pipes: NotRequired[list[int]]
    """Their inodes; in `run.json` only."""


class RunFields(TypedDict):
    """Of a run that is asked for, and of one that is written down."""

    sandbox_id: str
    account: NotRequired[str]
    """Whose share of the descriptors it takes; that of its sandbox, where it is missing."""
    run_id: str
    folder: str
    linger: float
    """How many seconds its sandbox stays set up after it."""
    record: RecordPlan
    group: NotRequired[str | None]
    timeout: NotRequired[float | None]
    oom: NotRequired[list[str] | None]
    """A file and the key in it that counts what the kernel killed for want of memory."""
    zygote: NotRequired[str]


class RunRequest(RunFields):
    """`run`. The descriptors: see `LaunchedRuns.start`."""

    input: bool
    plan: CommandPlan
    holder: NotRequired[SandboxPlan | None]
    """Missing for a runtime without namespaces; None when the sandbox is believed to be set up."""
    until: NotRequired[float]
    """The moment of the monotonic clock after which nobody waits for it."""


class WarmRequest(TypedDict):
    """`warm`: sets a sandbox up."""

    sandbox_id: str
    holder: SandboxPlan
    linger: float


class PlaceRequest(TypedDict):
    """`place`: gives a sandbox the mounts that it was begun without."""

    sandbox_id: str


class SocketsRequest(TypedDict):
    """`sockets`: makes TCP sockets in the network of a sandbox."""

    sandbox_id: str
    families: list[int]
    """One socket for each."""


class AttachRequest(TypedDict):
    """`attach`."""

    run_id: str
    folder: str
    given: str
    """`terminal`, `input` or nothing: which of them the client still has."""
    holds: NotRequired[ReaderHolds | None]


class SignalRequest(TypedDict):
    run_id: str
    signal: int


class KillRequest(TypedDict):
    run_id: str
    folder: str
    reason: str


class CloseInputRequest(TypedDict):
    run_id: str


class PaceRequest(TypedDict):
    """`pace`: how far readers have come. A run, its stream, its reader, and the position, or None
    when it reads no more."""

    holds: list[tuple[str, str, str, int | None]]
    lease: float


class ResumeRequest(TypedDict):
    sandbox_id: str


class SandboxRequest(TypedDict):
    """`members`: by which all processes of a sandbox are found."""

    sandbox_id: str
    groups: list[str]


class PauseRequest(SandboxRequest):
    seconds: float


class StopRequest(SandboxRequest):
    grace: float
    runs: str
    """The folder of its runs."""
    reason: NotRequired[str]


# Warm processes, mounts, the launcher itself


class ZygoteRequest(TypedDict):
    """`zygote`."""

    name: str
    python: str
    preload: list[str]
    load: list[str]
    env: dict[str, str]
    uid: int | None
    gid: int | None
    idle: NotRequired[float]


class EndZygoteRequest(TypedDict):
    """`unzygote`."""

    name: str


class HoldRequest(TypedDict):
    """`hold`: mounts an overlay in namespaces that are held under `key`."""

    key: str
    lowers: list[str]
    upper: str
    work: str
    target: str
    beside: NotRequired[str]
    """The key of those in which it is to be; else it has its own."""
    ranged: NotRequired[bool]
    """There have to be the user's further ids in there; the upper folder gets the owner of the
    lowest one."""


class KeyRequest(TypedDict):
    """`open`, `release`."""

    key: str


class ShutdownRequest(TypedDict):
    force: bool


class NoFields(TypedDict):
    """`hello`, `held`, `zygotes`."""


class Reply(TypedDict, total=False):
    """Any answer: `problem`, or what was asked for."""

    problem: LauncherProblem | None
    pid: int
    started_at: float
    terminal: bool
    sent: bool
    gone: bool
    still: bool
    pids: list[int]
    holding: list[int]
    waiting: list[int]
    """In a sandbox, for the next command; they are none of `pids`."""
    network: str
    """Of the sandbox's pod, as `/proc` names it; empty without a pod."""
    keys: list[str]
    zygotes: list[dict[str, Any]]
    busy: int
    protocol: int
    version: str
    runs: int
    sandboxes: int
    held: int
    recordings: int


Answer = Callable[[Reply, list[int]], None]
"""Sends the answer to one request; the descriptors stay the caller's."""


# Orders of a child


class Orders(TypedDict, total=False):
    """What a forked child is to become. Those of a zygote may run another version than we."""

    become: str
    """`holder` (bubblewrap), `spare` (a child that waits in a sandbox), `command`, `zygote`,
    `sockets` (makes some in a sandbox's network)."""
    plan: Any
    base: SandboxBase
    descriptors: list[str]
    home: bool
    enter: list[str]
    late: list[str]


# Files


class RunFile(RunFields):
    """`run.json`: all that a later launcher needs."""

    pid: int
    keeper: int
    started: int | None
    """When the process began, by which it is told from a later one of that number."""
    keeper_started: NotRequired[int | None]
    started_at: NotRequired[float]


class ExitFile(TypedDict):
    """`exit.json`."""

    reason: str
    code: int | None
    signal: int | None
    started_at: float
    ended_at: float
    cpu_seconds: float
    max_rss_bytes: int
    stdout_bytes: NotRequired[int]
    """How much the stream was …"""
    stdout_dropped: NotRequired[int]
    """… how much of it there was no room for …"""
    stdout_closed: NotRequired[bool]
    """… and that nothing was left that could write more."""
    stderr_bytes: NotRequired[int]
    stderr_dropped: NotRequired[int]
    stderr_closed: NotRequired[bool]
