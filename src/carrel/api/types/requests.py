"""Requests: what is asked for, and what is told of them."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypedDict

from msgspec import Meta, field

from carrel.api.types.common import (
    END,
    MAX_PATH,
    OS_TEXT,
    Answer,
    Body,
    Environment,
    Labels,
    Moment,
    PathText,
    Query,
    Span,
    Word,
    WordText,
)
from carrel.api.types.runs import Offset
from carrel.api.types.spaces import BackEnd, FrontendName, LimitsBody, ProjectBody, Servers
from carrel.domain.limits import Limits
from carrel.domain.projects import Project
from carrel.domain.requests import Checked, Keeping, Older, Policy, RequestState, Workspace
from carrel.domain.runtimes import Network
from carrel.domain.trees import EntryType
from carrel.domain.turns import NOTHING_SPENT, Permission, Usage

LONGEST_WAIT_S = 60.0
MOST_FILES = 10_000
RequestName = Annotated[str, Meta(max_length=128)]
RequestWord = Annotated[str, Meta(min_length=1, max_length=128)]
Time = Annotated[str, Meta(pattern=rf"^[0-9]{{1,9}}(\.[0-9]{{1,3}})?[smhdw]{END}")]
"""As people write it: 90s, 15m, 36h, 7d, 2w."""
Line = Annotated[str, Meta(min_length=1, max_length=131_072, extra=OS_TEXT)]
Command = Annotated[tuple[WordText, ...], Meta(min_length=1, max_length=4096)]
Url = Annotated[str, Meta(min_length=1, max_length=2000)]
Data = bytes


class KeepingBody(Body, frozen=True, kw_only=True):
    """What becomes of the workspace. Where `policy` is left out, a `series` says `versioned`
    and a time says `retain`."""

    policy: Policy | None = None
    seconds: Span | None = None
    """So long it is retained; null: a day."""
    for_: Time | None = field(default=None, name="for")
    """The same as people write it, such as 36h."""
    series: RequestName = ""
    newest: Annotated[int, Meta(ge=1, le=1000)] = 10
    older: Older = Older.ARCHIVE
    hold_s: Annotated[float, Meta(ge=0, le=86_400)] = 0.0
    """Of an ephemeral one: so long after its result files can be fetched, or until `done`."""


class CheckBody(Body, frozen=True, kw_only=True):
    command: Line | Command
    timeout_s: Span = 600.0


class WebhookBody(Body, frozen=True, kw_only=True):
    url: Url
    secret: Annotated[str, Meta(max_length=1024)] = ""
    """For the signature of what is sent; shown to nobody."""


class RequestLimitsBody(LimitsBody, frozen=True, kw_only=True):
    tier: Literal["", "minimal", "default", "large"] = ""
    timeout_s: Span | None = None
    """For the agent."""


class NewRequest(Body, frozen=True, kw_only=True):
    """What is to be made. Strings stand for the usual objects."""

    instructions: str
    request_id: RequestName = ""
    """Your name for it: the same again never makes a second workspace."""
    owner: Annotated[str, Meta(max_length=256)] = ""
    """For whom it is: turns are fair between owners."""
    tool: Word = "codesmith"
    project: Annotated[str, Meta(max_length=MAX_PATH, extra=OS_TEXT)] | ProjectBody | None = None
    """A folder of the daemon's machine, the URL of a repository, or as for a space; null, or
    an empty string: nothing."""
    workspace_path: PathText | None = None
    """A folder to work in directly; on the Unix socket only."""
    frontend: FrontendName | None = None
    model: Annotated[str, Meta(max_length=200)] = ""
    architecture: str | dict[str, Any] | None = None
    context: str | dict[str, str] | None = None
    """A text; or texts by name, which the agent finds as files."""
    also_read: Annotated[tuple[PathText, ...], Meta(max_length=100)] = ()
    """Absolute paths of the daemon's machine that the agent may read too; for administrators."""
    retention: Policy | KeepingBody = Policy.EPHEMERAL
    limits: RequestLimitsBody = RequestLimitsBody()
    check: Line | Command | CheckBody | None = None
    """A command that runs in the workspace afterwards: its words, or a line for `sh -c`."""
    content: bool | None = None
    """Whether the result has the files' content in it; null: when the workspace goes at
    once."""
    webhook: Url | WebhookBody | None = None
    labels: Labels = field(default_factory=dict)
    env: Environment = field(default_factory=dict)
    network: Network | None = None
    """Null: what the agent needs."""
    mcp: Servers = ()
    """MCP servers that its agent is to have: see `GET /v1/servers`."""
    permission: Permission | None = None
    """What the agent may do without asking; null: everything, where walls confine it."""
    runtime: BackEnd = "auto"
    tied: bool = False
    """It ends with the connection that it came by."""


class RequestOptions(TypedDict, total=False):
    """The same as Python says it: all about a request beside what is to be made and its project;
    see docs/requests.md."""

    request_id: str
    owner: str
    tool: str
    ref: str
    workspace_path: str
    frontend: str
    model: str
    architecture: str | Mapping[str, object]
    context: str | Mapping[str, str]
    also_read: Sequence[str]
    retention: str | Mapping[str, object] | Keeping
    tier: str
    limits: Limits
    timeout_s: float
    check: str | Sequence[str] | Mapping[str, object]
    content: bool
    webhook: str | Mapping[str, str]
    labels: Mapping[str, str]
    env: Mapping[str, str]
    network: str
    mcp: Sequence[str]
    permission: str
    runtime: str
    tied: bool


class RequestListQuery(Query, frozen=True, kw_only=True):
    live: bool | None = None
    """Only those that have not ended, or (false) that have."""
    owner: Annotated[str, Meta(max_length=256)] | None = None
    series: RequestName | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 50
    before: RequestName = ""


class RequestWaitQuery(Query, frozen=True, kw_only=True):
    wait: Annotated[float, Meta(ge=0, le=LONGEST_WAIT_S)] = 0.0
    """For its end, at most so many seconds."""


class FollowQuery(Query, frozen=True, kw_only=True):
    after: Offset | None = None


class RequestAnswerBody(Body, frozen=True, kw_only=True):
    """To a question `text`, to a permission `allow`."""

    id: Word = ""
    """Of the question; may be left out when there is one only."""
    text: Annotated[str, Meta(max_length=100_000)] | None = None
    answer: Annotated[str, Meta(max_length=100_000)] | None = None
    """The same as `text`."""
    allow: bool | None = None


class ExtendBody(Body, frozen=True, kw_only=True):
    """One of both."""

    seconds: Span | None = None
    for_: Time | None = field(default=None, name="for")


class MadeQuery(Query, frozen=True, kw_only=True):
    limit: Annotated[int, Meta(ge=1, le=MOST_FILES)] = 1000
    after: Annotated[str, Meta(max_length=MAX_PATH, extra=OS_TEXT)] = ""
    """The last path of the page before."""


class MadeArchiveQuery(Query, frozen=True, kw_only=True):
    all: bool = False
    """Everything that is there, not only what was added and modified."""


class DiffQuery(Query, frozen=True, kw_only=True):
    from_: Annotated[int, Meta(ge=0, lt=1 << 31)] | None = field(default=None, name="from")
    to: Annotated[int, Meta(ge=1, lt=1 << 31)] | None = None


# Frames of clients, on the WebSocket


class GenerateFrame(NewRequest, frozen=True, kw_only=True, tag_field="type", tag="generate"):
    pass


class ResumeFrame(Body, frozen=True, kw_only=True, tag_field="type", tag="resume"):
    request_id: RequestWord
    after: Offset = 0


class CancelFrame(Body, frozen=True, kw_only=True, tag_field="type", tag="cancel"):
    request_id: RequestWord


class AnswerFrame(RequestAnswerBody, frozen=True, kw_only=True, tag_field="type", tag="answer"):
    request_id: RequestWord


class DoneFrame(Body, frozen=True, kw_only=True, tag_field="type", tag="done"):
    request_id: RequestWord


ClientFrame = GenerateFrame | ResumeFrame | CancelFrame | AnswerFrame | DoneFrame

# What is told


class ResultFile(Answer, frozen=True, kw_only=True):
    """One entry that is not as it was: added, modified or deleted."""

    path: str
    change: str
    bytes: int = 0
    lines: int | None = None
    """None for what is no text, and for what is too long."""
    language: str = ""
    type: EntryType = EntryType.FILE
    executable: bool = False
    text: str | None = None
    base64: str | None = None

    @property
    def data(self) -> Data | None:
        """What is in it, where the result says."""
        if self.text is not None:
            return self.text.encode("utf-8", "surrogateescape")
        return None if self.base64 is None else b64decode(self.base64)


class ResultFileList(Answer, frozen=True, kw_only=True):
    files: tuple[ResultFile, ...]
    total: int
    next: str
    """The `after` of the next page; empty on the last."""


class ResultInfo(Answer, frozen=True, kw_only=True):
    """`complete`: the agent ended well, something was made, nothing is missing and the check
    passed. `files` are the first of `total_files`."""

    complete: bool
    summary: str = ""
    files: tuple[ResultFile, ...] = ()
    total_files: int = 0
    needs_research: tuple[str, ...] = ()
    check: Checked | None = None
    usage: Usage = NOTHING_SPENT


class RequestFailure(Answer, frozen=True, kw_only=True):
    """Why there is no result."""

    code: str
    message: str
    step: str = ""
    retriable: bool = False
    hint: str = ""


class ListedRequest(Answer, frozen=True, kw_only=True):
    """Of variables the names only, and of a webhook nothing but where it goes."""

    request_id: str
    key: str
    state: RequestState
    caller: str = ""
    owner: str = ""
    place: int = 0
    """In the line, from 1; 0: it does not wait."""
    tool: str = ""
    instructions: str = ""
    """In lists their beginning."""
    project: Project | None = None
    frontend: str = ""
    model: str = ""
    policy: Policy = Policy.EPHEMERAL
    series: str = ""
    version: int = 0
    space_id: str = ""
    workspace: Workspace = Workspace.NONE
    workspace_path: str = ""
    run_id: str = ""
    check_run_id: str = ""
    created_at: Moment
    updated_at: Moment
    ended_at: Moment | None = None
    delivered_at: Moment | None = None
    retained_until: Moment | None = None
    archive_bytes: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    env: tuple[str, ...] = ()
    webhook: str = ""
    told: int = 0
    complete: bool | None = None
    """None when there is no result."""
    total_files: int = 0
    failure: RequestFailure | None = None
    notes: tuple[str, ...] = ()

    @property
    def ended(self) -> bool:
        return self.state in ("done", "failed", "cancelled")


class RequestInfo(ListedRequest, frozen=True, kw_only=True):
    result: ResultInfo | None = None


class RequestList(Answer, frozen=True, kw_only=True):
    requests: tuple[ListedRequest, ...]
    next: str
    """The `before` of the next page; empty on the last."""


class VersionList(Answer, frozen=True, kw_only=True):
    versions: tuple[ListedRequest, ...]
