"""What the daemon tells, as frozen records. The names are those of docs/api.md.

Members that a newer daemon adds are ignored. A space here is metadata; what one can do with
it is `carrel.client.sync.Space`.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal, TypeVar

import msgspec

from carrel.client.problems import unreadable
from carrel.domain.agents import (
    NOTHING_SPENT,
    Activity,
    Asked,
    Attachment,
    ContextFile,
    Continuation,
    FoundFrontend,
    Permission,
    TurnResult,
    TurnState,
)
from carrel.domain.agents import Usage as AgentUsage
from carrel.domain.instances import InstanceState
from carrel.domain.limits import Limits, LimitSupport
from carrel.domain.projects import Progress, Project
from carrel.domain.runs import RunState
from carrel.domain.runtimes import Attempt, ExitReason, Network
from carrel.domain.spaces import Problem, Retention, SpaceState
from carrel.domain.trees import Change, EntryType, Skipped

__all__ = [
    "Action",
    "Asked",
    "Attachment",
    "Base",
    "Change",
    "ContextFile",
    "Diagnosis",
    "Event",
    "Exit",
    "File",
    "Finding",
    "FoundFrontend",
    "Info",
    "Limits",
    "NewToken",
    "Progress",
    "Project",
    "Proof",
    "Removal",
    "Report",
    "Resident",
    "Retention",
    "RunInfo",
    "SpaceInfo",
    "Token",
    "Trashed",
    "Turn",
    "Usage",
    "decode",
]

T = TypeVar("T")


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """The base of all."""


class Resident(Record, frozen=True, kw_only=True):
    """An MCP server that a space was made with."""

    name: str
    state: InstanceState | None = None
    """None while it is not there."""
    instance: str = ""
    problem: Problem | None = None


class SpaceInfo(Record, frozen=True, kw_only=True):
    id: str
    name: str
    state: SpaceState
    project: Project
    base: str
    runtime: str
    confined: bool | None
    """None until it is known what confines it."""
    uncovered: tuple[str, ...]
    driver: str
    path: str
    network: Network
    tier: str
    limits: Limits
    enforced: tuple[LimitSupport, ...]
    labels: Mapping[str, str]
    env: Mapping[str, str]
    retention: Retention
    created_at: datetime
    updated_at: datetime
    active_at: datetime
    stopped_at: datetime | None = None
    removed_at: datetime | None = None
    problem: Problem | None = None
    restored_from: str = ""
    description: str = ""
    parent: str = ""
    agent: str = ""
    """The frontend that works in it."""
    spent: AgentUsage = NOTHING_SPENT
    working: str = ""
    """The turn that runs in it now."""
    activity: Activity = Activity.NONE
    mcp: tuple[Resident, ...] = ()
    """The MCP servers that it was made with."""
    live_runs: int = 0


class Exit(Record, frozen=True, kw_only=True):
    """How a command ended: exactly one of `code` and `signal`, neither when lost."""

    reason: ExitReason
    code: int | None = None
    signal: int | None = None
    started_at: datetime
    ended_at: datetime
    cpu_seconds: float = 0.0
    max_rss_bytes: int = 0


class RunInfo(Record, frozen=True, kw_only=True):
    id: str
    space: str
    argv: tuple[str, ...]
    display_command: str = ""
    """For people; `argv` is what runs."""
    cwd: str
    state: RunState
    terminal: bool
    created_at: datetime
    pid: int = 0
    exit: Exit | None = None
    failure: str = ""
    failure_code: str = ""

    @property
    def ended(self) -> bool:
        return self.state in (RunState.ENDED, RunState.FAILED)


class Turn(Record, frozen=True, kw_only=True):
    """What an agent was given to do, and what came of it. `id` is also the run's."""

    id: str
    space: str
    session: str
    frontend: str
    provider: str
    prompt: str
    state: TurnState
    created_at: datetime
    model: str = ""
    terminal: bool = False
    permission: Permission = Permission.DENY
    permissions: tuple[Asked, ...] = ()
    """Those that wait for an answer now."""
    ended_at: datetime | None = None
    continuation: Continuation | None = None
    result: TurnResult | None = None
    usage: AgentUsage = NOTHING_SPENT

    @property
    def ended(self) -> bool:
        return self.state is not TurnState.RUNNING


class Attaching(Record, frozen=True, kw_only=True):
    """A command in the space, for a terminal: whoever runs it is attached as long as it runs."""

    turn: Turn
    argv: tuple[str, ...]
    cwd: str


class File(Record, frozen=True, kw_only=True):
    """One entry as it is itself: a symlink is not followed, `target` is where it points."""

    name: str
    type: EntryType
    mode: str
    """Octal."""
    size: int
    modified_ns: int
    target: str | None = None


class Usage(Record, frozen=True, kw_only=True):
    """What a space uses now; None where the machine cannot tell."""

    space: str
    cpu_seconds: float | None = None
    memory_bytes: int | None = None
    memory_peak_bytes: int | None = None
    pids: int | None = None
    disk_bytes: int | None = None
    disk_files: int | None = None


class Proof(Record, frozen=True, kw_only=True):
    """What was tried inside, and whether every attempt was refused."""

    space: str
    runtime: str
    holds: bool
    attempts: tuple[Attempt, ...]


class Trashed(Record, frozen=True, kw_only=True):
    space: SpaceInfo
    trashed_at: datetime
    bytes_kept: int
    changes: int


class Removal(Record, frozen=True, kw_only=True):
    space: str
    changes: int
    kept: Trashed | None = None
    """What `undelete` can bring back."""
    lost: str = ""
    """Why nothing could be kept, in a sentence."""


class Event(Record, frozen=True, kw_only=True):
    seq: int
    type: str
    space: str
    at: datetime
    data: Mapping[str, Any]


class Token(Record, frozen=True, kw_only=True):
    id: str
    name: str
    scope: str
    created_at: datetime
    expires_at: datetime | None = None
    used_at: datetime | None = None
    revoked_at: datetime | None = None


class NewToken(Token, frozen=True, kw_only=True):
    secret: str
    """Shown once; nobody can ask for it again."""


class Base(Record, frozen=True, kw_only=True):
    id: str
    project: Project
    entries: int
    size_bytes: int
    created_at: datetime
    has_git: bool = False
    skipped: tuple[Skipped, ...] = ()
    unstable: tuple[str, ...] = ()


class Action(Record, frozen=True, kw_only=True):
    """One line of a report. When it was not `done`, `why` says what keeps it."""

    verb: str
    target: str
    why: str
    done: bool = True
    bytes_freed: int = 0


class Report(Record, frozen=True, kw_only=True):
    dry_run: bool
    actions: tuple[Action, ...] = ()


class Finding(Record, frozen=True, kw_only=True):
    area: str
    name: str
    grade: Literal["good", "warning", "bad"]
    what: str
    remedy: str = ""


class Diagnosis(Record, frozen=True, kw_only=True):
    healthy: bool
    runtime: str
    """What `auto` takes; empty when nothing confines here."""
    driver: str
    findings: tuple[Finding, ...]


class Info(Record, frozen=True, kw_only=True):
    """The daemon. What only administrators are told is None for others."""

    version: str
    api: str
    scope: str
    started_at: datetime
    pid: int | None = None
    uid: int | None = None
    data: str | None = None
    defaults: Mapping[str, Any] = {}
    tiers: Mapping[str, Limits] = {}


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
