"""Spaces: what is asked for, and what is told of them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

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
from carrel.interfaces.http.texts import MAX_PATH, OsText, PathText

ProjectKindName = Literal["folder", "git", "archive", "empty"]
StateName = Literal[
    "creating", "ready", "running", "stopping", "stopped", "failed", "removing", "removed"
]
NetworkName = Literal["none", "open"]
TierName = Literal["", "minimal", "default", "large"]
BackEnd = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9-]{0,31}$")]
SpaceName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$")]
ServerName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9-]{0,62}$")]
InstanceStateName = Literal["starting", "ready", "restarting", "ended", "failed"]
Count = Annotated[int, Field(ge=1, lt=1 << 62)]
Grace = Annotated[float, Field(ge=0, le=600, allow_inf_nan=False)]


class ProjectBody(Body):
    kind: ProjectKindName
    location: Annotated[str, OsText(MAX_PATH)] = ""
    """A path of the daemon's machine; for git also a URL."""
    ref: Annotated[str, StringConstraints(max_length=1024)] | None = None
    """For git; null: its HEAD."""


class LimitsBody(Body):
    memory_bytes: Count | None = None
    cpus: Annotated[float, Field(gt=0, le=65_536, allow_inf_nan=False)] | None = None
    pids: Count | None = None
    disk_bytes: Count | None = None
    file_bytes: Count | None = None
    open_files: Count | None = None
    wall_seconds: Annotated[float, Field(gt=0, le=3_153_600_000, allow_inf_nan=False)] | None = None
    strict: bool = False
    """Refuse to start where one of them cannot be enforced."""


Description = Annotated[str, Field(max_length=10_000)]


class RetentionBody(Body):
    ttl_s: Seconds | None = None
    idle_s: Seconds | None = None
    keep_s: Seconds | None = None
    discard: bool = False


class NewSpace(Body):
    project: ProjectBody | None = None
    """Null: an empty tree."""
    base: Word | None = None
    """A base that is ready, instead of a project."""
    name: SpaceName | None = None
    exclude: Annotated[list[PathText], Field(max_length=1000)] = Field(default_factory=list)
    max_bytes: Count | None = None
    max_files: Count | None = None
    runtime: BackEnd = "auto"
    driver: BackEnd = "auto"
    network: NetworkName | None = None
    """Null: what the agent needs, and none without one."""
    agent: FrontendName | None = None
    """The frontend that is to work in it."""
    mcp: Annotated[list[ServerName], Field(max_length=16)] = Field(default_factory=list)
    """MCP servers that its agent is to have: see `GET /v1/servers`."""
    tier: TierName = ""
    limits: LimitsBody = LimitsBody()
    labels: Labels = Field(default_factory=dict)
    env: Environment = Field(default_factory=dict)
    retention: RetentionBody = RetentionBody()
    description: Description = ""


class SpaceUpdate(Body):
    """Null, or left out: as it is. `labels` and `retention` are replaced as a whole."""

    name: SpaceName | None = None
    labels: Labels | None = None
    retention: RetentionBody | None = None
    description: Description | None = None


class StopBody(Body):
    grace_s: Grace = 2.0
    """From the request to end to the kill."""


class ProjectView(Answer):
    kind: ProjectKindName
    location: str
    ref: str | None


class LimitsView(Answer):
    memory_bytes: int | None
    cpus: float | None
    pids: int | None
    disk_bytes: int | None
    file_bytes: int | None
    open_files: int | None
    wall_seconds: float | None
    strict: bool


class EnforcedView(Answer):
    kind: Literal["memory", "cpu", "pids", "disk", "file_size", "open_files", "wall_time"]
    enforced: bool
    how: str


class RetentionView(Answer):
    ttl_s: float | None
    idle_s: float | None
    keep_s: float | None
    discard: bool


class FailureView(Answer):
    """Why a space failed: the step, and the error as its caller got it."""

    step: str
    code: str
    message: str
    hint: str


class ResidentView(Answer):
    """An MCP server that a space was made with."""

    name: str
    state: InstanceStateName | None
    """Null while it is not there: the space is stopped, or has only just begun."""
    instance: str
    problem: FailureView | None


class SpaceView(Answer):
    id: str
    name: str
    state: StateName
    project: ProjectView
    base: str
    runtime: str
    confined: bool | None
    """Null until it is known what confines it."""
    uncovered: list[str]
    driver: str
    path: str
    network: NetworkName
    tier: str
    limits: LimitsView
    enforced: list[EnforcedView]
    labels: dict[str, str]
    env: dict[str, str]
    retention: RetentionView
    created_at: Moment
    updated_at: Moment
    active_at: Moment
    stopped_at: Moment | None
    removed_at: Moment | None
    problem: FailureView | None
    restored_from: str
    description: str
    parent: str
    agent: str
    spent: SpentView
    """By its agents, all turns together."""
    working: str
    """The turn that runs in it now; empty when none does."""
    activity: Literal[
        "", "idle", "working", "waiting for input", "waiting for permission", "exited"
    ]
    """Of its agent; empty when it has none."""
    mcp: list[ResidentView]
    live_runs: int


class SpaceList(Answer):
    spaces: list[SpaceView]
    next: str
    """The `after` of the next page; empty on the last."""
    total: int


class ChangeView(Answer):
    path: str
    kind: Literal["added", "modified", "deleted", "renamed", "mode", "type"]
    old_path: str | None
    old_type: Literal["file", "folder", "symlink", "other"] | None
    new_type: Literal["file", "folder", "symlink", "other"] | None
    old_mode: int | None
    new_mode: int | None
    size: int


class ChangeList(Answer):
    changes: list[ChangeView]
    total: int
    """How many there are, also when not all were asked for."""


class UsageView(Answer):
    """Null where this machine cannot tell, or was not asked to."""

    space: str
    cpu_seconds: float | None
    memory_bytes: int | None
    memory_peak_bytes: int | None
    pids: int | None
    disk_bytes: int | None
    disk_files: int | None


class UsageList(Answer):
    usage: list[UsageView]


class AttemptView(Answer):
    name: str
    refused: bool
    detail: str


class ProofView(Answer):
    space: str
    runtime: str
    holds: bool
    attempts: list[AttemptView]


class TrashedView(Answer):
    space: SpaceView
    trashed_at: Moment
    bytes_kept: int
    changes: int


class RemovalView(Answer):
    space: str
    changes: int
    kept: TrashedView | None
    lost: str
    """Why nothing could be kept, in a sentence."""


class TrashList(Answer):
    trash: list[TrashedView]
