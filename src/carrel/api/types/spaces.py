"""Spaces: what is asked for, and what is told of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, TypedDict

from msgspec import Meta, field

from carrel.api.types.common import (
    END,
    MAX_PATH,
    OS_TEXT,
    Answer,
    Body,
    Count,
    Environment,
    Labels,
    Moment,
    PathInside,
    PathText,
    Query,
    Seconds,
    Span,
    Word,
    spelled,
)
from carrel.domain.instances import InstanceState
from carrel.domain.limits import Limits, LimitSupport
from carrel.domain.projects import Project, ProjectKind
from carrel.domain.runtimes import Attempt, Network
from carrel.domain.spaces import Problem, Retention, SpaceState
from carrel.domain.trees import Change, Commit, Skipped
from carrel.domain.turns import NOTHING_SPENT, Activity, Continuation
from carrel.domain.turns import Usage as AgentUsage

BackEnd = Annotated[str, Meta(pattern=rf"^[a-z][a-z0-9-]{{0,31}}{END}")]
_PLAIN_NAME = spelled(
    "[a-z][a-z0-9-]{0,62}",
    "A name has up to 63 lower-case letters, digits and dashes, and begins with a letter",
)
FrontendName = Annotated[str, _PLAIN_NAME]
ServerName = Annotated[str, _PLAIN_NAME]
Servers = Annotated[tuple[ServerName, ...], Meta(max_length=16)]
SpaceName = Annotated[
    str,
    spelled(
        "[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?",
        "A space's name has up to 63 lower-case letters, digits, dots, dashes and underscores, and"
        " begins and ends with a letter or digit",
    ),
]
Description = Annotated[str, Meta(max_length=10_000)]
MAX_CHANGES = 100_000


class ProjectBody(Body, frozen=True, kw_only=True):
    kind: ProjectKind
    location: Annotated[str, Meta(max_length=MAX_PATH, extra=OS_TEXT)] = ""
    """A path of the daemon's machine; for git also a URL."""
    ref: Annotated[str, Meta(max_length=1024)] | None = None
    """For git; null: its HEAD."""


class LimitsBody(Body, frozen=True, kw_only=True):
    memory_bytes: Count | None = None
    cpus: Annotated[float, Meta(gt=0, le=65_536)] | None = None
    pids: Count | None = None
    disk_bytes: Count | None = None
    file_bytes: Count | None = None
    open_files: Count | None = None
    wall_seconds: Span | None = None
    strict: bool = False
    """Refuse to start where one of them cannot be enforced."""


class RetentionBody(Body, frozen=True, kw_only=True):
    ttl_s: Seconds | None = None
    idle_s: Seconds | None = None
    keep_s: Seconds | None = None
    discard: bool = False


class NewSpace(Body, frozen=True, kw_only=True):
    project: ProjectBody | None = None
    """Null: an empty tree."""
    base: Word | None = None
    """A base that is ready, instead of a project."""
    name: SpaceName | None = None
    exclude: Annotated[tuple[PathText, ...], Meta(max_length=1000)] = ()
    max_bytes: Count | None = None
    max_files: Count | None = None
    follow_git: bool = False
    """Take what git needs from repositories outside that the project names, now and later."""
    home_tools: bool = True
    """Show it the toolchains in the home of the daemon's user: pyenv, nvm, cargo and the like."""
    show: Annotated[tuple[PathText, ...], Meta(max_length=100)] = ()
    """Other absolute paths of the daemon's machine that it is shown, read-only."""
    see: Annotated[tuple[Word, ...], Meta(max_length=16)] = ()
    """Other spaces whose files it is shown as they are, read-only, at `/see/NAME`."""
    with_credentials: bool = False
    """Give it the passwords and tokens in its owner's settings for package managers, and .netrc."""
    share_downloads: bool = True
    """Let it use packages that other spaces of its project have fetched, and them those that it
    fetches: of npm and pip, as far as they prove themselves. Only with network `open`."""
    run_setup: bool | None = None
    """Run the project's set-up commands once for this state of it, and begin with the result. Null:
    if the project is a folder whose `carrel.toml` has such commands."""
    runtime: BackEnd = "auto"
    driver: BackEnd = "auto"
    network: Network | None = None
    """Null: what the agent needs, and none without one."""
    agent: FrontendName | None = None
    """The frontend that is to work in it."""
    model: Annotated[str, Meta(max_length=200)] = ""
    """The model that its turns will ask for. If the agent certainly has none of that name, nothing
    is made; it is not kept, so each turn names it."""
    wake: bool = False
    """A message to the space begins a turn of its agent while that does nothing."""
    mcp: Servers = ()
    """MCP servers that its agent is to have: see `GET /v1/servers`."""
    image: Annotated[str, Meta(max_length=MAX_PATH, extra=OS_TEXT)] = ""
    """What its commands have instead of the host's toolchain: the name or id of an image, or the
    absolute path of an archive or folder that is taken in as one. `auto`: what the project's files
    describe, if that can be had. `none`: the host's toolchain. Empty: as the settings say."""
    dockerfile: PathInside = ""
    """Instead: the image that this Dockerfile of the project builds."""
    devcontainer: PathInside = ""
    """Instead: by this devcontainer.json of the project, or the one in this folder."""
    by_devcontainer: bool = False
    """Instead: by the first devcontainer.json of the project."""
    services: PathInside = ""
    """What runs beside its commands: `auto`, the services of the project's compose file; `none`; or
    the path of a compose file in the project. Empty: those that go with an image that the project's
    files describe."""
    tier: Literal["", "minimal", "default", "large"] = ""
    limits: LimitsBody = LimitsBody()
    labels: Labels = field(default_factory=dict)
    env: Environment = field(default_factory=dict)
    retention: RetentionBody = RetentionBody()
    description: Description = ""


class SpaceOptions(TypedDict, total=False):
    """The same as Python says it: all about a new space beside its project."""

    name: str
    ref: str
    base: str
    exclude: Sequence[str]
    max_bytes: int
    max_files: int
    follow_git: bool
    home_tools: bool
    show: Sequence[str]
    see: Sequence[str]
    with_credentials: bool
    share_downloads: bool
    run_setup: bool
    runtime: str
    driver: str
    network: str
    tier: str
    limits: Limits
    labels: Mapping[str, str]
    env: Mapping[str, str]
    retention: Retention
    description: str
    agent: str
    model: str
    wake: bool
    mcp: Sequence[str]
    image: str
    dockerfile: str
    devcontainer: str
    by_devcontainer: bool
    services: str


class SpaceListQuery(Query, frozen=True, kw_only=True):
    state: Annotated[tuple[SpaceState, ...], Meta(max_length=8)] = ()
    label: Annotated[tuple[str, ...], Meta(max_length=64)] = ()
    """Each `key=value`."""
    name: Word = ""
    limit: Annotated[int, Meta(ge=1, le=1000)] = 50
    after: Word = ""


class SpaceUpdate(Body, frozen=True, kw_only=True):
    """Null, or left out: as it is. `labels` and `retention` are replaced as a whole."""

    name: SpaceName | None = None
    labels: Labels | None = None
    retention: RetentionBody | None = None
    description: Description | None = None
    ssh_agent: bool | None = None
    """Whether what runs in the space may use the SSH agent of who comes with `ssh -A`."""


class StopBody(Body, frozen=True, kw_only=True):
    grace_s: Annotated[float, Meta(ge=0, le=600)] = 2.0
    """From the request to end to the kill."""


class RemoveQuery(Query, frozen=True, kw_only=True):
    force: bool = False
    """Although there are changes that nobody took out."""


class ChangesQuery(Query, frozen=True, kw_only=True):
    limit: Annotated[int, Meta(ge=1, le=MAX_CHANGES)] = 10_000
    ignored: bool = False
    """List files that git ignores too."""
    git: bool = False
    """List git's own files too."""
    system: bool = False
    """Instead of the project's files, those of the system of its image: what was installed or
    written in it. Paths begin with a slash."""


class UsageQuery(Query, frozen=True, kw_only=True):
    disk: bool = True
    """Also what it uses on disk, which takes longer to find."""


class UsageOfAllQuery(Query, frozen=True, kw_only=True):
    disk: bool = False


class Resident(Answer, frozen=True, kw_only=True):
    """An MCP server that a space was made with."""

    name: str
    state: InstanceState | None = None
    """None while it is not there: the space is stopped, or has only just begun."""
    instance: str = ""
    problem: Problem | None = None


class ShownTool(Answer, frozen=True, kw_only=True):
    """A toolchain in the home of the daemon's user that a space sees."""

    name: str
    paths: tuple[str, ...]


class NamedPort(Answer, frozen=True, kw_only=True):
    """A port that a project's file names. Nothing forwards it: see `carrel port`."""

    number: int
    label: str = ""


class ShownImage(Answer, frozen=True, kw_only=True):
    """The image of a space, and whom its commands run as. Without an `id` it has none, and `notes`
    says why."""

    id: str
    name: str
    user: str
    notes: tuple[str, ...] = ()
    """What was decided and why, what was left out, and what does not work here."""
    ports: tuple[NamedPort, ...] = ()


class SpaceInfo(Answer, frozen=True, kw_only=True):
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
    default_disk_bytes: int = 0
    """Its disk limit where none was asked for; 0: none."""
    enforced: tuple[LimitSupport, ...]
    labels: Mapping[str, str]
    env: Mapping[str, str]
    retention: Retention
    created_at: Moment
    updated_at: Moment
    active_at: Moment
    stopped_at: Moment | None = None
    removed_at: Moment | None = None
    problem: Problem | None = None
    restored_from: str = ""
    goes_on_with: Continuation | None = None
    """The conversation that it was forked with or put back to."""
    description: str = ""
    parent: str = ""
    agent: str = ""
    """The frontend that works in it."""
    ssh_agent: bool = False
    """Whether what runs in it may use the SSH agent of who comes by SSH and wants that."""
    wake: bool = False
    """A message to it begins a turn of its agent while that does nothing."""
    spent: AgentUsage = NOTHING_SPENT
    """By its agents, all turns together."""
    working: str = ""
    """The turn that runs in it now; empty when none does."""
    activity: Activity = Activity.NONE
    """Of its agent; empty when it has none."""
    doing: str = ""
    """More than `activity` says of what its agent does now, such as `retrying (503) for 2 min`;
    mostly empty."""
    since: Moment | None = None
    """When it began to do what it does now, its agent or without one the space itself."""
    mcp: tuple[Resident, ...] = ()
    """The MCP servers that it was made with."""
    live_runs: int = 0
    left_out: tuple[Skipped, ...] = ()
    """The first things of its project that it does not have, and why."""
    tools: tuple[ShownTool, ...] = ()
    """The toolchains in the home of the daemon's user that it sees; for its owner."""
    shown: tuple[str, ...] = ()
    """Other paths of the host that it was asked to show; for its owner."""
    sees: dict[str, str] = field(default_factory=dict)
    """Other spaces whose files it sees, by the path inside."""
    packages: tuple[str, ...] = ()
    """The files and variables by which it has the package managers' settings of the daemon's user;
    for its owner."""
    withheld: tuple[str, ...] = ()
    """What of those settings it was not given: credentials, and what could not be read."""
    image: ShownImage | None = None
    services: tuple[str, ...] = ()
    """What runs beside its commands, by a compose file of its project: see `services.list`."""
    """What its commands have instead of the host's toolchain."""
    downloads: str = ""
    """The name of the packages that it shares with other spaces of its project; empty: it shares
    none."""
    setup: tuple[str, ...] = ()
    """The set-up commands that have run on what its tree began with."""


class SpaceList(Answer, frozen=True, kw_only=True):
    spaces: tuple[SpaceInfo, ...]
    next: str
    """The `after` of the next page; empty on the last."""
    total: int


class ChangeList(Answer, frozen=True, kw_only=True):
    changes: tuple[Change, ...]
    total: int
    """How many there are of what was asked for, also when not all are listed."""
    files: int = 0
    """Changes of the project: neither ignored by git nor git's own. Folders are not counted."""
    ignored: int = 0
    git: int = 0
    commits: tuple[Commit, ...] = ()
    """That were made in it, newest first."""
    left_files: int = 0
    """Of `files`, those that nobody has copied out as they are now; without them and
    `left_commits` a removal needs no `force`."""
    left_commits: int = 0


class UsageInfo(Answer, frozen=True, kw_only=True):
    """What a space uses now; None where the machine cannot tell, or was not asked to."""

    space: str
    cpu_seconds: float | None = None
    memory_bytes: int | None = None
    memory_peak_bytes: int | None = None
    pids: int | None = None
    disk_bytes: int | None = None
    disk_files: int | None = None


class UsageList(Answer, frozen=True, kw_only=True):
    usage: tuple[UsageInfo, ...]


class ProofInfo(Answer, frozen=True, kw_only=True):
    """What was tried inside, and whether every attempt was refused."""

    space: str
    runtime: str
    holds: bool
    attempts: tuple[Attempt, ...]


class TrashedInfo(Answer, frozen=True, kw_only=True):
    space: SpaceInfo
    trashed_at: Moment
    bytes_kept: int
    changes: int
    system: int = 0
    """Files of its system, beside these: what was written over its image."""


class RemovalInfo(Answer, frozen=True, kw_only=True):
    space: str
    changes: int
    kept: TrashedInfo | None = None
    """What `undelete` can bring back."""
    lost: str = ""
    """Why nothing could be kept, or not what was written in its system, in a sentence."""


class TrashList(Answer, frozen=True, kw_only=True):
    trash: tuple[TrashedInfo, ...]
