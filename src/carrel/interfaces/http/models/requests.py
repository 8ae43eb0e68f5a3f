"""Requests: what is asked for, and what is told of them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, StringConstraints, Tag

from carrel.interfaces.http.models.agents import FrontendName, SpentView
from carrel.interfaces.http.models.common import (
    Answer,
    Body,
    Environment,
    Labels,
    Moment,
    Seconds,
    Word,
)
from carrel.interfaces.http.models.spaces import (
    BackEnd,
    LimitsBody,
    NetworkName,
    ProjectBody,
    ProjectView,
    TierName,
)
from carrel.interfaces.http.texts import MAX_PATH, OsText, PathText, WordText
from carrel.interfaces.http.validation import SHAPE

PolicyName = Literal["ephemeral", "retain", "versioned"]
RequestStateName = Literal[
    "queued", "making", "working", "checking", "collecting", "done", "failed", "cancelled"
]
WorkspaceName = Literal["none", "there", "archived", "gone"]
ChangeName = Literal["added", "modified", "deleted"]
Span = Annotated[Seconds, Field(gt=0)]
Time = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,9}(\.[0-9]{1,3})?[smhdw]$")]
"""As people write it: 90s, 15m, 36h, 7d, 2w."""


def _shape(value: object) -> str:
    """What of several a value is meant to be, so that only what is wrong with that is told."""
    if isinstance(value, str):
        return f"{SHAPE}text"
    return f"{SHAPE}list" if isinstance(value, list) else f"{SHAPE}object"


_TEXT, _LIST, _OBJECT = (Tag(f"{SHAPE}{one}") for one in ("text", "list", "object"))
_TWO: Any = Discriminator(_shape, "shape", "Input should be a string or an object")
_ANY: Any = Discriminator(_shape, "shape", "Input should be a string, a list or an object")

Command = Annotated[list[WordText], Field(min_length=1, max_length=4096)]


class KeepingBody(Body):
    """What becomes of the workspace. Where `policy` is left out, a `series` says `versioned`
    and a time says `retain`."""

    policy: PolicyName | None = None
    seconds: Span | None = None
    """So long it is retained; null: a day."""
    for_: Annotated[Time | None, Field(alias="for")] = None
    """The same as people write it, such as 36h."""
    series: Annotated[str, StringConstraints(max_length=128)] = ""
    newest: Annotated[int, Field(ge=1, le=1000)] = 10
    older: Literal["archive", "drop"] = "archive"
    hold_s: Annotated[Seconds, Field(le=86_400)] = 0.0
    """Of an ephemeral one: so long after its result files can be fetched, or until `done`."""


class CheckBody(Body):
    command: Annotated[
        Annotated[str, OsText(131_072, 1), _TEXT] | Annotated[Command, _LIST],
        Discriminator(_shape, "shape", "Input should be a string or a list"),
    ]
    timeout_s: Span = 600.0


class WebhookBody(Body):
    url: Annotated[str, StringConstraints(min_length=1, max_length=2000)]
    secret: Annotated[str, StringConstraints(max_length=1024)] = ""
    """For the signature of what is sent; shown to nobody."""


class RequestLimitsBody(LimitsBody):
    tier: TierName = ""
    timeout_s: Span | None = None
    """For the agent."""


class GenerateBody(Body):
    """What is to be made. Strings stand for the usual objects."""

    instructions: str
    request_id: Annotated[str, StringConstraints(max_length=128)] = ""
    """Your name for it: the same again never makes a second workspace."""
    owner: Annotated[str, StringConstraints(max_length=256)] = ""
    """For whom it is: turns are fair between owners."""
    tool: Word = "codesmith"
    project: (
        Annotated[
            Annotated[str, OsText(MAX_PATH), _TEXT] | Annotated[ProjectBody, _OBJECT],
            _TWO,
        ]
        | None
    ) = None
    """A folder of the daemon's machine, the URL of a repository, or as for a space; null, or
    an empty string: nothing."""
    workspace_path: PathText | None = None
    """A folder to work in directly; on the Unix socket only."""
    frontend: FrontendName | None = None
    model: Annotated[str, StringConstraints(max_length=200)] = ""
    architecture: (
        Annotated[Annotated[str, _TEXT] | Annotated[dict[str, Any], _OBJECT], _TWO] | None
    ) = None
    context: Annotated[Annotated[str, _TEXT] | Annotated[dict[str, str], _OBJECT], _TWO] | None = (
        None
    )
    """A text; or texts by name, which the agent finds as files."""
    retention: Annotated[Annotated[PolicyName, _TEXT] | Annotated[KeepingBody, _OBJECT], _TWO] = (
        "ephemeral"
    )
    limits: RequestLimitsBody = RequestLimitsBody()
    check: (
        Annotated[
            Annotated[str, OsText(131_072, 1), _TEXT]
            | Annotated[Command, _LIST]
            | Annotated[CheckBody, _OBJECT],
            _ANY,
        ]
        | None
    ) = None
    """A command that runs in the workspace afterwards: its words, or a line for `sh -c`."""
    content: bool | None = None
    """Whether the result has the files' content in it; null: when the workspace goes at
    once."""
    webhook: (
        Annotated[
            Annotated[str, StringConstraints(min_length=1, max_length=2000), _TEXT]
            | Annotated[WebhookBody, _OBJECT],
            _TWO,
        ]
        | None
    ) = None
    labels: Labels = Field(default_factory=dict)
    env: Environment = Field(default_factory=dict)
    network: NetworkName | None = None
    """Null: what the agent needs."""
    runtime: BackEnd = "auto"
    tied: bool = False
    """It ends with the connection that it came by."""


class AnswerBody(Body):
    """To a question `text`, to a permission `allow`."""

    id: Annotated[str, StringConstraints(max_length=255)] = ""
    """Of the question; may be left out when there is one only."""
    text: Annotated[str, StringConstraints(max_length=100_000)] | None = None
    answer: Annotated[str, StringConstraints(max_length=100_000)] | None = None
    """The same as `text`."""
    allow: bool | None = None


class ExtendBody(Body):
    """One of both."""

    seconds: Span | None = None
    for_: Annotated[Time | None, Field(alias="for")] = None


class ResultFileView(Answer):
    path: str
    change: ChangeName
    bytes: int
    lines: int | None
    """Null for what is no text, and for what is too long."""
    language: str
    type: Literal["file", "folder", "symlink", "other"]
    executable: bool
    text: str | None = None
    base64: str | None = None


class ResultFileList(Answer):
    files: list[ResultFileView]
    total: int
    next: str
    """The `after` of the next page; empty on the last."""


class CheckedView(Answer):
    passed: bool
    code: int | None
    reason: str
    output: str
    seconds: float


class ResultView(Answer):
    complete: bool
    summary: str
    files: list[ResultFileView]
    total_files: int
    needs_research: list[str]
    check: CheckedView | None
    usage: SpentView


class GenerationFailureView(Answer):
    code: str
    message: str
    step: str
    retriable: bool
    hint: str


class RequestSummary(Answer):
    """Of variables the names only, and of a webhook nothing but where it goes."""

    request_id: str
    key: str
    caller: str
    owner: str
    state: RequestStateName
    place: int
    """In the line, from 1; 0: it does not wait."""
    tool: str
    instructions: str
    """In lists their beginning."""
    project: ProjectView | None
    frontend: str
    model: str
    policy: PolicyName
    series: str
    version: int
    space_id: str
    workspace: WorkspaceName
    workspace_path: str
    run_id: str
    check_run_id: str
    created_at: Moment
    updated_at: Moment
    ended_at: Moment | None
    delivered_at: Moment | None
    retained_until: Moment | None
    archive_bytes: int
    labels: dict[str, str]
    env: list[str]
    webhook: str
    told: int
    complete: bool | None
    """Null when there is no result."""
    total_files: int
    failure: GenerationFailureView | None
    notes: list[str]


class RequestView(RequestSummary):
    result: ResultView | None


class RequestList(Answer):
    requests: list[RequestSummary]
    next: str
    """The `before` of the next page; empty on the last."""


class VersionList(Answer):
    versions: list[RequestSummary]
