"""Spaces: what is asked for, and the record that is kept of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from carrel.domain.environments import NO_SETTINGS, NO_TOOLS, HomeTools, PackageSettings
from carrel.domain.limits import NO_LIMITS, Limits, LimitSupport
from carrel.domain.projects import Project
from carrel.domain.runtimes import Network
from carrel.domain.systems import SpaceEnvironment, SpaceImage, SpaceService
from carrel.domain.trees import Owner, Skipped
from carrel.domain.turns import NOTHING_SPENT, Continuation, Turn
from carrel.domain.turns import Usage as AgentUsage

AUTO = "auto"


class SpaceState(StrEnum):
    """The legal moves between them are in `carrel.lifecycle`."""

    CREATING = "creating"
    READY = "ready"
    RUNNING = "running"
    """At least one command runs."""
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"
    REMOVING = "removing"
    REMOVED = "removed"


@dataclass(frozen=True)
class Retention:
    """When a space goes by itself. None: as the daemon's settings say; 0: never.

    With `discard`, clean-up may remove it although it has changes that nobody took out.
    """

    ttl_s: float | None = None
    """Removed so long after it was created."""
    idle_s: float | None = None
    """Stopped after so long without a command."""
    keep_s: float | None = None
    """Removed so long after it was stopped."""
    discard: bool = False


@dataclass(frozen=True)
class RaceRules:
    """What holds for each space of a race."""

    check: str = ""
    """A command for the shell; empty: none."""
    check_s: float = 600.0


@dataclass(frozen=True)
class SpaceRequest:
    """All that a caller says about a new space."""

    project: Project
    base_id: str = ""
    """A base that is ready: then the project is not looked at again."""
    name: str = ""
    """Empty: one is made from the project's name."""
    exclude: tuple[str, ...] = ()
    max_bytes: int | None = None
    max_files: int | None = None
    runtime: str = AUTO
    driver: str = AUTO
    network: Network = Network.NONE
    tier: str = ""
    limits: Limits = NO_LIMITS
    """On top of the tier's."""
    labels: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    retention: Retention = Retention()
    description: str = ""
    """What it is for, in a person's or an agent's words."""
    parent: str = ""
    """The space whose agent asked for this one."""
    family: str = ""
    """The space whose limits it shares; never a caller's own word."""
    agent: str = ""
    """The frontend that is to work in it."""
    model: str = ""
    """The model that its turns will name: looked at before anything is made, and not kept."""
    wake: bool = False
    """A message to it begins a turn of its agent while that does nothing."""
    network_asked: bool = False
    """The network was said; else it is what the agent needs."""
    mcp: tuple[str, ...] = ()
    """The MCP servers that its agent is to have, by name."""
    place: str = ""
    """A real folder of the host that is to be its tree, with the driver for that. Never a
    caller's own word: the service has checked it."""
    named: str = ""
    """That folder as its caller named it, if by a way with links."""
    space_id: str = ""
    """Given by who has written it down already; never a caller's own word either."""
    transient: bool = False
    """Nothing is kept of it when it goes: no changes in the trash, no record."""
    setting_up: bool = False
    """Set-up commands run in it, whose result others begin with, or a landing is checked. Never a
    caller's own word."""
    unwatched: bool = False
    """Nobody sees its progress, so no image is built for it that nobody asked for. Never a caller's
    own word."""
    follow_git: bool = False
    """Take what git needs from repositories outside that the project names."""
    home_tools: bool = True
    """Show the toolchains in the owner's home."""
    show: tuple[str, ...] = ()
    """Other paths of the host that it is to be shown, read-only."""
    see: tuple[str, ...] = ()
    """Other spaces whose files it is to be shown, read-only."""
    sees: Mapping[str, str] = field(default_factory=dict)
    """The same as paths inside and ids of spaces. Never a caller's own word."""
    with_credentials: bool = False
    """Give it the passwords and tokens in the owner's settings for package managers too."""
    share_downloads: bool = True
    """Let it have, and give, packages that spaces of its project have fetched."""
    run_setup: bool | None = None
    """Let it begin with what the project's set-up commands have made; None: if the project is a
    folder of the owner's that says so itself."""
    race: RaceRules | None = None
    """Of a space that is one of a race; never a caller's own word."""
    race_begins: bool = False
    """The others of the race are being made."""
    image: str = ""
    """The image that commands are to have: a name, an id, or an archive or folder; `auto`: what the
    project's files describe, if it can be had; `none`, or empty: none."""
    dockerfile: str = ""
    """Instead: built from this file of the project."""
    devcontainer: str = ""
    """Instead: by this devcontainer.json of the project."""
    by_devcontainer: bool = False
    """Instead: by the first devcontainer.json of the project."""
    services: str = ""
    """Which services it is to have: `auto`, those of the project's compose file; `none`; or the
    path of a compose file. Empty: those that go with an image that the project's files name."""
    environment: SpaceEnvironment | None = None
    """What was found for these. Never a caller's own word."""
    guest: bool = False
    """Who asked has less than the owner's rights: the project is read with nothing of the
    owner's. Never a caller's own word."""
    realm: str = field(default="", repr=False)
    """Whose name it is to have. Never a caller's own word, and no part of what is asked for: the
    same request of the same caller has the same."""
    account: str = field(default="", repr=False)
    """Whose share of the machine it takes; as `realm`, never a caller's own word."""


@dataclass(frozen=True)
class Problem:
    """Why a space failed: the step, and the error as its caller got it."""

    step: str
    code: str
    message: str
    hint: str = ""


@dataclass(frozen=True)
class Space:
    """The record of one space: what was asked for, what was resolved, and where it stands.

    What is resolved while it is created is empty before. Times are seconds since 1970.
    """

    space_id: str
    name: str
    state: SpaceState
    project: Project
    created_at: float
    updated_at: float
    active_at: float
    """When a command last began or ended, or somebody changed the space."""
    runtime: str = AUTO
    driver: str = AUTO
    base_id: str = ""
    owner: Owner | None = None
    tree_created_ns: int = 0
    """Of the tree's own record: with the driver and the base it is all of a `Tree`."""
    network: Network = Network.NONE
    tier: str = ""
    limits: Limits = NO_LIMITS
    enforced: tuple[LimitSupport, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    retention: Retention = Retention()
    stopped_at: float | None = None
    removed_at: float | None = None
    problem: Problem | None = None
    restored_from: str = ""
    """The space whose changes this one was given: a removed one, or the one it was forked from."""
    description: str = ""
    parent: str = ""
    """The space whose agent asked for this one."""
    family: str = ""
    """The first space of its family, whose limits hold for all of them together, also when it
    is gone; empty: it is the first itself."""
    agent: str = ""
    """The frontend whose programs its sandbox shows."""
    wake: bool = False
    """A message to it begins a turn of its agent while that does nothing."""
    ssh_agent: bool = False
    """What runs in it may use the SSH agent of who comes by SSH and wants that."""
    shows: tuple[str, ...] = ()
    """What its sandbox shows for servers that run in it: paths of the host, read-only."""
    tools: HomeTools = NO_TOOLS
    """The toolchains in the owner's home that its sandbox shows."""
    shown: Mapping[str, str] = field(default_factory=dict)
    """What else of the host its owner wanted shown: the path inside, and the real path."""
    sees: Mapping[str, str] = field(default_factory=dict)
    """Other spaces whose files its sandbox shows: the path inside, and the space's id."""
    packages: PackageSettings = NO_SETTINGS
    """What it has of its owner's settings for package managers, credentials included if it was
    asked for with them."""
    image: SpaceImage | None = None
    """What its commands have instead of the host's toolchain."""
    image_notes: tuple[str, ...] = ()
    """Why it has an image or none, and what was left out, in sentences."""
    services: tuple[SpaceService, ...] = ()
    """What runs beside its commands, in the order in which it is started."""
    downloads: str = ""
    """The key of the packages that it shares with other spaces of its project; empty: none."""
    setup: tuple[str, ...] = ()
    """The set-up commands that have run on what its tree began with."""
    network_asked: bool = False
    agent_exited: bool = False
    """The agent was in a terminal, which has ended."""
    spent: AgentUsage = NOTHING_SPENT
    """By its agents, all turns together."""
    mcp: tuple[str, ...] = ()
    """The MCP servers that live in it as long as it does, by name."""
    place: str = ""
    """The folder of the host that is its tree."""
    named: str = ""
    """That folder as its caller named it, if by a way with links."""
    transient: bool = False
    """Nothing is kept of it when it goes."""
    setting_up: bool = False
    """Set-up commands run in it, whose result others begin with, or a landing is checked: only the
    service works in it."""
    left_out: tuple[Skipped, ...] = ()
    """The first things of the project that it does not have."""
    guest: bool = False
    """It was made for a caller with less than the owner's rights, and so were its variables."""
    realm: str = ""
    """Who gave it its name: empty for the owner, else a token's label or space, or the space that
    asked for it. A name is taken within its realm only, so that nobody learns the others'."""
    account: str = ""
    """The token's label whose share of the machine it takes, with all others that were made with
    that and all that came of them; empty: its family has one of its own."""
    rewound_at: float = 0.0
    """Turns before then are no part of its conversation any more …"""
    goes_on_with: Continuation | None = None
    """… but for what this names."""
    default_disk_bytes: int = 0
    """Its disk limit where none was asked for; 0: none."""
    merged: Mapping[str, str] = field(default_factory=dict)
    """Files of which its agent was given the project's version to merge, and the commit that has
    it: see `carrel land --resolve`."""
    race: RaceRules | None = None
    """Of one that the label `carrel.race` names a race of."""
    race_begins: bool = False
    """The others of the race are being made: without them this one goes again."""
    asked: Mapping[str, Any] = field(default_factory=dict)
    """What its maker said of it, without keys; for people to read."""

    def continuation_of(self, turn: Turn) -> Continuation | None:
        """What the conversation can be gone on with after this turn of it."""
        found = turn.continuation
        return found if turn.created_at > self.rewound_at or found == self.goes_on_with else None

    @property
    def counts_for(self) -> str:
        return self.account or self.family or self.space_id


@dataclass(frozen=True)
class SpaceQuery:
    """Which spaces, and which part of the list: newest first, `after` the cursor of the
    last page. Removed ones are listed only when their state is asked for."""

    states: frozenset[SpaceState] = frozenset()
    labels: Mapping[str, str] = field(default_factory=dict)
    name: str = ""
    space_ids: frozenset[str] | None = None
    limit: int = 50
    after: str = ""


@dataclass(frozen=True)
class SpacePage:
    spaces: tuple[Space, ...]
    next: str = ""
    """The cursor of the next page; empty on the last."""
    total: int = 0
    """All that match, on every page together."""


@dataclass(frozen=True)
class Trashed:
    """What is kept of a removed space for a while: its changes, in one file."""

    space: Space
    trashed_at: float
    bytes_kept: int
    changes: int
    system: int = 0
    """Files that are kept of its system, beside these."""
    system_bytes: int = 0
    """Of `bytes_kept`, what these take."""


@dataclass(frozen=True)
class Removal:
    """What a removal did. `kept` is what `undelete` can bring back, if there was something
    to keep; `lost` says in a sentence why there is not, or not all of it."""

    space_id: str
    changes: int
    kept: Trashed | None = None
    lost: str = ""
