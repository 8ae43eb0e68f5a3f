"""Events, tokens, bases, clean-up and the daemon itself."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from carrel.interfaces.http.models.common import Answer, Body, Moment
from carrel.interfaces.http.models.spaces import Count, LimitsView, ProjectBody, ProjectView
from carrel.interfaces.http.texts import PathText

ScopeText = Annotated[
    str, StringConstraints(pattern=r"^(admin|label:[^=]+=.+|space:.+)$", max_length=400)
]


class EventView(Answer):
    seq: int
    type: str
    space: str
    """Empty for the daemon's own."""
    at: Moment
    data: dict[str, Any]


class EventList(Answer):
    events: list[EventView]
    next: int
    """The `after` of what comes next."""


class TokenBody(Body):
    name: Annotated[str, StringConstraints(max_length=100)] = ""
    scope: ScopeText
    """`admin`, `label:key=value` or `space:<id>`."""
    ttl_s: Annotated[float, Field(gt=0, le=3_153_600_000, allow_inf_nan=False)] | None = None


class TokenView(Answer):
    id: str
    name: str
    scope: str
    created_at: Moment
    expires_at: Moment | None
    used_at: Moment | None
    revoked_at: Moment | None


class NewTokenView(TokenView):
    secret: str
    """Shown once; nobody can ask for it again."""


class TokenList(Answer):
    tokens: list[TokenView]


class BaseBody(Body):
    project: ProjectBody
    exclude: Annotated[list[PathText], Field(max_length=1000)] = Field(default_factory=list)
    max_bytes: Count | None = None
    max_files: Count | None = None
    allow_changing: bool = False
    """Keep files that change while they are read as they were at one moment."""


class SkippedView(Answer):
    path: str
    why: str


class BaseView(Answer):
    id: str
    project: ProjectView
    entries: int
    size_bytes: int
    created_at: Moment
    has_git: bool
    skipped: list[SkippedView]
    unstable: list[str]


class BaseList(Answer):
    bases: list[BaseView]


class CollectBody(Body):
    dry_run: bool = False


class ActionView(Answer):
    verb: str
    target: str
    why: str
    done: bool
    bytes_freed: int


class ReportView(Answer):
    dry_run: bool
    actions: list[ActionView]


class FindingView(Answer):
    area: str
    name: str
    grade: Literal["good", "warning", "bad"]
    what: str
    remedy: str


class DiagnosisView(Answer):
    healthy: bool
    runtime: str
    driver: str
    findings: list[FindingView]


class HealthView(Answer):
    status: Literal["ok"]


class DefaultsView(Answer):
    runtime: str
    driver: str
    network: str
    tier: str
    idle_s: float
    keep_s: float


class InfoView(Answer):
    """What only administrators are told is null for others."""

    version: str
    api: str
    pid: int | None
    uid: int | None
    data: str | None
    started_at: Moment
    scope: str
    """What the caller may: `admin`, `label:key=value` or `space:<id>`."""
    defaults: DefaultsView
    tiers: dict[str, LimitsView]


class EndingView(Answer):
    ending: bool
