"""Tokens, events, bases, clean-up and the daemon itself."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal

from msgspec import Meta

from carrel.api.types.common import END, Answer, Body, Count, Moment, PathText, Query, Span
from carrel.api.types.spaces import ProjectBody
from carrel.domain.cleanup import DiskReport, Report
from carrel.domain.limits import Limits
from carrel.domain.projects import Project
from carrel.domain.trees import Skipped

__all__ = ["DiskReport", "Report"]
"""Records of the domain that are told as they are; the rest is written here."""


ScopeText = Annotated[str, Meta(pattern=rf"^(admin|label:[^=]+=.+|space:.+){END}", max_length=400)]
"""`admin`, `label:key=value` or `space:<id>`."""


class NewToken(Body, frozen=True, kw_only=True):
    name: Annotated[str, Meta(max_length=100)] = ""
    scope: ScopeText
    ttl_s: Span | None = None


class Token(Answer, frozen=True, kw_only=True):
    id: str
    name: str
    scope: str
    created_at: Moment
    expires_at: Moment | None = None
    used_at: Moment | None = None
    revoked_at: Moment | None = None


class TokenWithSecret(Token, frozen=True, kw_only=True):
    secret: str
    """Shown once; nobody can ask for it again."""


class TokenList(Answer, frozen=True, kw_only=True):
    tokens: tuple[Token, ...]


class EventInfo(Answer, frozen=True, kw_only=True):
    seq: int
    type: str
    space: str
    """Empty for the daemon's own."""
    at: Moment
    data: Mapping[str, Any]


TypeName = Annotated[str, Meta(pattern=rf"^[a-z][a-z0-9_.]{{0,99}}{END}")]
"""One of Carrel's own (`space.state`), or of a message on the hub (`buffer_…`)."""


class EventsQuery(Query, frozen=True, kw_only=True):
    space: Annotated[tuple[str, ...], Meta(max_length=100)] = ()
    type: Annotated[tuple[TypeName, ...], Meta(max_length=100)] = ()
    after: Annotated[int, Meta(ge=0, lt=1 << 62)] | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 500
    """For `application/json` only."""


class EventList(Answer, frozen=True, kw_only=True):
    events: tuple[EventInfo, ...]
    next: int
    """The `after` of what comes next."""


class NewBase(Body, frozen=True, kw_only=True):
    project: ProjectBody
    exclude: Annotated[tuple[PathText, ...], Meta(max_length=1000)] = ()
    max_bytes: Count | None = None
    max_files: Count | None = None
    follow_git: bool = False
    """Take what git needs from repositories outside that the project names, now and later."""
    allow_changing: bool = False
    """Keep files of `.git` too that keep changing, as they were at one moment."""


class BaseInfo(Answer, frozen=True, kw_only=True):
    id: str
    project: Project
    entries: int
    size_bytes: int
    created_at: Moment
    has_git: bool = False
    skipped: tuple[Skipped, ...] = ()
    unstable: tuple[str, ...] = ()


class BaseList(Answer, frozen=True, kw_only=True):
    bases: tuple[BaseInfo, ...]


class CollectBody(Body, frozen=True, kw_only=True):
    dry_run: bool = False
    bases: bool = False
    """Every base goes that no space uses, whatever its age."""


class Grade(StrEnum):
    GOOD = "good"
    WARNING = "warning"
    """Works, but less well or less safely than it could."""
    BAD = "bad"
    """Something that is promised does not work."""
    UNUSED = "unused"
    """It does not work or is not there, and nothing misses it."""


class Finding(Answer, frozen=True):
    """`remedy` is the command that mends it, or a sentence."""

    area: str
    name: str
    grade: Grade
    what: str
    remedy: str = ""


class Diagnosis(Answer, frozen=True, kw_only=True):
    healthy: bool
    runtime: str
    """What `auto` takes; empty when nothing confines here."""
    driver: str
    findings: tuple[Finding, ...]


class Health(Answer, frozen=True, kw_only=True):
    status: Literal["ok"] = "ok"


class Info(Answer, frozen=True, kw_only=True):
    """The daemon. What only administrators are told is None for others."""

    version: str
    api: str
    scope: str
    """What the caller may: `admin`, `label:key=value` or `space:<id>`."""
    started_at: Moment
    pid: int | None = None
    uid: int | None = None
    data: str | None = None
    defaults: Mapping[str, Any] = {}
    """What a space gets that says nothing itself: `runtime`, `driver`, `network`, `tier`, `idle_s`,
    `keep_s`."""
    tiers: Mapping[str, Limits] = {}


class Ending(Answer, frozen=True, kw_only=True):
    ending: bool
