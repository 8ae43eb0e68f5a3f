"""Requests: a workspace of its own for one thing that is to be made.

A client says what it wants, the server makes the workspace, an agent works in it, and what truly
changed there comes back. The workspace goes as the request says.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from carrel.domain.limits import NO_LIMITS, Limits
from carrel.domain.projects import Project
from carrel.domain.runtimes import Network
from carrel.domain.spaces import AUTO
from carrel.domain.trees import EntryType, Tree, TreeDriver
from carrel.domain.turns import NOTHING_SPENT, Permission, Usage

TOOL = "codesmith"
DAY_S = 86_400.0

WORKSPACE = "carrel.request"
"""The label of a request's workspace."""


class RequestState(StrEnum):
    QUEUED = "queued"
    MAKING = "making"
    """Its workspace is."""
    WORKING = "working"
    """The agent is."""
    CHECKING = "checking"
    """The command that was given with it runs."""
    COLLECTING = "collecting"
    """What changed is being looked at."""
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


ENDED = frozenset({RequestState.DONE, RequestState.FAILED, RequestState.CANCELLED})


class Policy(StrEnum):
    """What becomes of the workspace."""

    EPHEMERAL = "ephemeral"
    """It goes when the result was delivered, or the client gave up."""
    RETAIN = "retain"
    """It stays for a while."""
    VERSIONED = "versioned"
    """It is a numbered version of its series; the newest of those stay."""


class Older(StrEnum):
    """What becomes of versions that are not among the newest."""

    ARCHIVE = "archive"
    """Their files are kept, compressed."""
    DROP = "drop"


@dataclass(frozen=True)
class Keeping:
    """`seconds` is for `retain`; `series`, `newest` and `older` are for `versioned`; `hold_s` is
    for `ephemeral`: so long after the result its files can be fetched, unless somebody says that
    they have been."""

    policy: Policy = Policy.EPHEMERAL
    seconds: float = DAY_S
    series: str = ""
    newest: int = 10
    older: Older = Older.ARCHIVE
    hold_s: float = 0.0


@dataclass(frozen=True)
class Check:
    """A command that runs in the workspace when the agent is done."""

    argv: tuple[str, ...]
    timeout_s: float = 600.0


@dataclass(frozen=True)
class Webhook:
    """Who is told the outcome: a POST of the same JSON that a WebSocket gets. With `secret` it
    is signed."""

    url: str
    secret: str = ""


@dataclass(frozen=True)
class Generate:
    """All that a caller says. `content` is whether the result has the files' text in it; None:
    where the workspace goes at once."""

    instructions: str
    request_id: str = ""
    """The caller's own name for it: the same again never makes a second workspace. Empty: one
    is made."""
    owner: str = ""
    """For whom, in the caller's words: between owners turns are fair."""
    tool: str = TOOL
    project: Project | None = None
    """None: nothing."""
    workspace_path: str = ""
    """A folder of this machine in which the agent is to work directly, instead of a workspace
    of its own."""
    frontend: str = ""
    """Empty: as the settings say."""
    model: str = ""
    architecture: str = ""
    context: str = ""
    context_files: Mapping[str, str] = field(default_factory=dict)
    """What the agent may read, by name."""
    also_read: tuple[str, ...] = ()
    """Folders of this machine that the agent may read beside its workspace."""
    keeping: Keeping = Keeping()
    tier: str = ""
    limits: Limits = NO_LIMITS
    timeout_s: float | None = None
    """For the agent; None: as the settings say."""
    check: Check | None = None
    network: Network | None = None
    """None: what the agent needs."""
    mcp: tuple[str, ...] = ()
    """The MCP servers that the agent is to have, by name."""
    permission: Permission | None = None
    """What the agent may do without asking; None: as for a turn that does not say."""
    runtime: str = AUTO
    env: Mapping[str, str] = field(default_factory=dict)
    """For the workspace; keys go by `carrel auth`."""
    labels: Mapping[str, str] = field(default_factory=dict)
    content: bool | None = None
    webhook: Webhook | None = None
    tied: bool = False
    """It ends with the connection that it came by."""


@dataclass(frozen=True)
class ChangedFile:
    """One entry that is not as it was. `lines` is None for what is no text, or too long to be
    counted; `text` and `base64` are its content, where that was asked for."""

    path: str
    change: str
    """added, modified or deleted; a file that was renamed is the one and the other."""
    bytes: int = 0
    lines: int | None = None
    language: str = ""
    type: EntryType = EntryType.FILE
    executable: bool = False
    text: str | None = None
    base64: str | None = None


@dataclass(frozen=True)
class Checked:
    """How the check ended: by a code, or for a reason. `output` is the end of what it wrote."""

    passed: bool
    code: int | None
    reason: str
    output: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Result:
    """`complete`: the agent ended well, something was produced, nothing is missing and the
    check passed. `files` are at most so many; `total` is how many there are."""

    complete: bool
    summary: str = ""
    files: tuple[ChangedFile, ...] = ()
    total: int = 0
    needs_research: tuple[str, ...] = ()
    """What the agent would have to know."""
    check: Checked | None = None
    usage: Usage = NOTHING_SPENT


@dataclass(frozen=True)
class Failure:
    """Why there is no result."""

    code: str
    message: str
    step: str
    retriable: bool
    hint: str = ""


class Workspace(StrEnum):
    NONE = "none"
    """It was never made."""
    THERE = "there"
    ARCHIVED = "archived"
    """Its files are, and nothing else."""
    GONE = "gone"


@dataclass(frozen=True)
class Request:
    """The record of one. Times are seconds since 1970."""

    request_id: str
    """Unique among one caller's."""
    key: str
    """Unique among all: `rq_…`."""
    caller: str
    asked: Generate
    digest: str
    """Of what was asked, for a retry."""
    state: RequestState
    created_at: float
    updated_at: float
    space_id: str = ""
    """The workspace; kept when that has gone."""
    attempts: int = 0
    """How often a workspace was begun: a daemon that ended meanwhile leaves none."""
    run_id: str = ""
    """The agent's turn."""
    check_run_id: str = ""
    checked: Checked | None = None
    ended_at: float | None = None
    offset: int = 0
    """What its client hears is numbered as in the log of its space, from here on: an earlier
    attempt had a log of its own."""
    seq: int = 0
    """Of the result or the error, in that order."""
    result: Result | None = None
    failure: Failure | None = None
    delivered_at: float | None = None
    """Somebody has the outcome."""
    retained_until: float | None = None
    version: int = 0
    """In its series."""
    workspace: Workspace = Workspace.NONE
    archive_bytes: int = 0
    told: int = 0
    """How often the webhook was tried."""
    notes: tuple[str, ...] = ()
    """What is not as one might think, in sentences."""
    guest: bool = False
    """Of a caller with less than the owner's rights, as its space is."""
    realm: str = ""
    """Whose name its space has."""

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    @property
    def is_bare(self) -> bool:
        """Nothing but this record is left of it, and nobody waits for that."""
        gone = self.workspace in (Workspace.NONE, Workspace.GONE)
        return self.ended and gone and self.is_settled and not self.version

    @property
    def is_settled(self) -> bool:
        """Nobody waits for its outcome any more."""
        return self.delivered_at is not None or self.state is RequestState.CANCELLED


@dataclass(frozen=True)
class RequestDetails:
    """What the record of a request that has ended leaves out, since it may be large: it is read
    only by who asks for this one request."""

    key: str
    caller: str
    instructions: str
    result: Result | None


@dataclass(frozen=True)
class RequestQuery:
    """Newest first; `before` is the `key` of the last of the page before."""

    caller: str | None = None
    owner: str | None = None
    series: str | None = None
    live: bool | None = None
    """Only those that have not ended, or only those that have."""
    bare: bool | None = None
    """Only those of which nothing but the record is left, or only others."""
    limit: int = 50
    before: str = ""


class FrameKind(StrEnum):
    QUEUED = "queued"
    """`place`: how many are before it, and itself. Live: it has no number."""
    ACCEPTED = "accepted"
    """`space_id`, `workspace_path`."""
    PROGRESS = "progress"
    """`progress` from 0 to 1, `message`."""
    EVENT = "event"
    """`event`: what the agent did, as in the log of its space."""
    INPUT_NEEDED = "input_needed"
    """`id`, `question`, `choices`; `permission` when that is what is asked for."""
    RESULT = "result"
    ERROR = "error"


@dataclass(frozen=True)
class Frame:
    """One thing that a client of a request hears. `seq` grows, not always by one; 0: live, and
    not told again."""

    kind: FrameKind
    request_id: str
    seq: int
    data: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class RequestAnswer:
    """To what an agent asked. `id` may be empty when it asks one thing only; `allow` is for
    permissions."""

    text: str = ""
    id: str = ""
    allow: bool | None = None


@dataclass(frozen=True)
class Collected:
    """What changed in a workspace. `files` are the first of them, in the order of their paths,
    `total` counts all."""

    files: tuple[ChangedFile, ...]
    total: int


class Collecting(Protocol):
    """What changed in a tree, for people. Blocking. Raises what trees raise."""

    def collect(
        self, driver: TreeDriver, tree: Tree, *, most: int, after: str = "", content_bytes: int = 0
    ) -> Collected:
        """The first `most` with a path after `after`. With `content_bytes` those that are small
        enough have their content, until that is used up."""
        ...

    def archive(self, driver: TreeDriver, tree: Tree, *, everything: bool) -> Iterator[bytes]:
        """A tar.gz of what was added and modified, or of all that there is; git's own files are
        left out, and so is whatever is no file, folder or link."""
        ...


@dataclass(frozen=True)
class VersionFiles:
    """Where the files of a version are: in a tree, or in an archive of all of them."""

    driver: TreeDriver | None = None
    tree: Tree | None = None
    archive: Path | None = None


class Differing(Protocol):
    """How two versions differ. Blocking."""

    def diff(
        self, before: VersionFiles | None, after: VersionFiles
    ) -> Generator[bytes, None, None]:
        """As `git diff` tells it, file by file in the order of their paths; what is no text is
        only named. None: nothing was there. Both sides were read when the first piece comes."""
        ...
