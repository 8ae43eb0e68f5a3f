"""Agents: the frontends by which they are run, and what the service needs for that."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from carrel.domain.turns import (
    KEY,
    AgentEvent,
    AgentEventType,
    AgentServer,
    AgentSetup,
    Attachment,
    Continuation,
    InteractionMode,
    LogKind,
    Permission,
    Provider,
    Told,
    Turn,
    TurnError,
    TurnRequest,
    TurnResult,
    Usage,
)

if TYPE_CHECKING:
    from pathlib import Path

    from carrel.domain.runtimes import Bind
    from carrel.domain.trees import Owner


__all__ = [
    "KEY",
    "AgentEvent",
    "AgentEventType",
    "AgentServer",
    "AgentSetup",
    "Attachment",
    "Continuation",
    "InteractionMode",
    "LogKind",
    "Permission",
    "Provider",
    "Told",
    "Turn",
    "TurnError",
    "TurnRequest",
    "TurnResult",
    "Usage",
]
"""Frontends of others have these from here, too."""


class FrontendKind(StrEnum):
    CLI = "cli"
    """A program with a headless mode of its own; what it writes is translated."""
    SDK = "sdk"
    ACP = "acp"


@dataclass(frozen=True)
class FoundFrontend:
    """One frontend on this machine."""

    name: str
    provider: str
    kind: FrontendKind
    installed: bool
    version: str = ""
    path: str = ""
    logged_in: bool | None = None
    """None: it needs no key, or that cannot be known."""
    credentials: tuple[str, ...] = ()
    """Names of the keys that it takes; one is enough."""
    models: tuple[str, ...] = ()
    default_model: str = ""
    install: str = ""
    """The command that installs it."""
    problem: str = ""
    imported: str = ""
    """When the owner's own set-up of it was imported; empty when it was not."""
    needs_network: bool = False
    """It must reach a model's API."""


@dataclass(frozen=True)
class Prepared:
    """One turn, ready to be started in `AgentSetup.workspace`. `files` are put into
    `AgentSetup.state` first, by relative path. `first` is written to standard input, which then
    stays open if `duplex` says so; else it is closed. Keys are in `env` and nowhere else: all else
    may be written down. An agent that takes its login from a file only has it in `secrets`."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    files: Mapping[str, bytes] = field(default_factory=dict)
    secrets: Mapping[str, bytes] = field(default_factory=dict)
    """More files, which are removed when the turn has ended."""
    keeps: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By folder of the state: what stays there from earlier turns. All else is removed before
    `files` are put: whatever ran in the space may have left settings for the one with the key."""
    first: bytes = b""
    duplex: bool = False
    again: tuple[str, ...] = ()
    """Of a terminal: the command that goes on with a conversation, where `KEY` stands for
    it."""
    conversation: str = ""
    """The key of the conversation that it will be; empty when the agent chooses."""
    silent: bool = False
    """Of a terminal: it does not tell when it is up, but asks nothing then either."""
    notes: tuple[str, ...] = ()
    """What the turn goes without, in sentences."""
    keys: tuple[str, ...] = ()
    """Names of the stored keys that are in its environment; filled in by who prepares a turn."""


class Translator(Protocol):
    """Turns what one turn of a frontend writes into events. No clock, no files: the same
    lines give the same events. Never raises: what it does not know becomes a `log`."""

    def line(self, line: bytes) -> Sequence[Told]:
        """One line of standard output, without its end."""
        ...

    def ended(self, code: int | None, stderr: str) -> TurnResult:
        """The process has ended: with a code, or None by a signal. `stderr` is the end of what
        it said there."""
        ...


class Frontend(Protocol):
    """One way to drive an agent. Made once; keeps nothing of a turn."""

    @property
    def name(self) -> str: ...

    @property
    def provider(self) -> Provider: ...

    @property
    def kind(self) -> FrontendKind: ...

    @property
    def needs_network(self) -> bool:
        """It must reach a model's API."""
        ...

    @property
    def credentials(self) -> tuple[str, ...]:
        """Names of what it is given from `carrel auth`."""
        ...

    def find(self) -> FoundFrontend:
        """Looks for it on this machine; blocking."""
        ...

    def binds(self) -> tuple[str, ...]:
        """Host paths that a sandbox must show, at the same place, for it to run."""
        ...

    def prepare(self, request: TurnRequest, setup: AgentSetup) -> Prepared:
        """Raises `FrontendNotInstalled`, `ProviderMismatch`, `ModelNotSupported`,
        `ContinuationNotFound`, `ResolveFailed`. Blocking, quick."""
        ...

    def translator(self, request: TurnRequest) -> Translator: ...


@runtime_checkable
class Interactive(Protocol):
    """Of frontends with a terminal of their own, beside `Frontend`."""

    def prepare_terminal(self, request: TurnRequest, setup: AgentSetup) -> Prepared:
        """As `prepare`. The program says what it does by hooks (`carrel.agents.terminals`)."""
        ...


@runtime_checkable
class KeepsLogin(Protocol):
    """Of frontends whose agent can be logged in by a person in its space, beside `Frontend`."""

    @property
    def login_file(self) -> str:
        """Of its state: there when it is logged in."""
        ...


PROJECT_SETTINGS = (
    *(".claude", ".mcp.json", ".codex", ".gemini", ".pi", ".goose", ".env"),
    *(".amazonq", ".kiro"),
    *(".opencode", "opencode.json", "opencode.jsonc"),
)
"""What the agents that are known read in a project: for those that are not."""


@runtime_checkable
class Confiding(Protocol):
    """Of frontends that say what their agent reads in a project, beside `Frontend`. Of the others
    it is believed that they read all that is known, and cannot be kept from it."""

    @property
    def brought(self) -> tuple[str, ...]:
        """Files and folders of a project by which it can have the agent run code, or say where
        its key goes. What is only text for the model is not among them."""
        ...

    @property
    def goes_without(self) -> bool:
        """It can be started so that it does not read them (`AgentSetup.untrusted`); else the turn
        is refused."""
        ...


@dataclass(frozen=True)
class Brought:
    """What a project brings for an agent: the paths of `Confiding.brought` that there are, all
    files of them, and a digest of their names and bytes. `problem` says why nobody can agree to
    it. `agreed`: None when nobody was asked."""

    frontend: str
    paths: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    digest: str = ""
    problem: str = ""
    agreed: bool | None = None
    elsewhere: bool = False
    """The tree's `.git` leads to another checkout, as a linked worktree's does. An agent may take
    settings that lie there for the project's own, and those nobody has looked at."""

    @property
    def trusted(self) -> bool:
        return not self.paths or self.agreed is True


class Agreements(Protocol):
    """What a person has said to what projects bring, by digest. Blocking, quick."""

    def said(self, digest: str) -> bool | None: ...

    def say(self, digest: str, agreed: bool) -> None: ...


# What the service needs for turns, beside frontends


class Frontends(Protocol):
    """All that this machine knows."""

    def get(self, name: str) -> Frontend:
        """Raises `UnsupportedFrontend`."""
        ...

    def require(self, name: str) -> Frontend:
        """One that is on this machine. Raises `UnsupportedFrontend`, `FrontendNotInstalled`.
        Looks for files, and starts nothing."""
        ...

    def in_terminal(self, name: str) -> Frontend:
        """The same, in a terminal of its own. Raises `UnsupportedFrontend`."""
        ...

    def check_model(self, name: str, model: str, env: Mapping[str, str]) -> None:
        """As far as that can be known before it starts. Raises `ModelNotSupported`."""
        ...

    def attaching(self, state: str, *, read_only: bool, prefix: str) -> Attaching:
        """How one attaches to the terminal of the agent whose state that is; see `PREFIX`."""
        ...

    def found(self) -> Sequence[FoundFrontend]:
        """All of them as they are on this machine; blocking."""
        ...

    def look(self, path: str) -> None:
        """Finds those that are missing on this PATH of the owner's from now on, if it has them
        where only the owner and root can write; blocking."""
        ...


PREFIX = "C-b"
"""The key that begins the commands of an agent's terminal. Another may be added to it, for who sits
in a tmux already."""


PREFIX_PATTERN = r"[CM]-([a-z]|Space)"


@dataclass(frozen=True)
class Attaching:
    """A command in the space, for a terminal: whoever runs it is attached as long as it runs."""

    argv: tuple[str, ...]
    cwd: str


class Events(Protocol):
    """Gives what is told its place, and hands it on."""

    @property
    def continuation(self) -> Continuation | None: ...

    def start(self) -> None: ...

    def tell(self, told: Told) -> None: ...

    def finish(self, result: TurnResult) -> None: ...


class MakeEvents(Protocol):
    def __call__(
        self, request: TurnRequest, provider: str, hearers: Sequence[Callable[[AgentEvent], object]]
    ) -> Events: ...


class TurnLog(Protocol):
    """Where the events of turns go: the log of the space."""

    def last(self, space_id: str) -> int:
        """The number of its newest message."""
        ...

    async def tell(self, space_id: str, events: Sequence[AgentEvent]) -> None:
        """Returns when they are kept; parts of messages are only told."""
        ...

    async def alert(self, space_id: str, text: str) -> None:
        """A person is told that the agent waits."""
        ...

    async def told(self, turn: Turn) -> int:
        """The greatest `seq` of this turn's events that is in the log."""
        ...


class AgentFolders(Protocol):
    """The folders of agents in their spaces. Blocking."""

    def make(self, folder: Path, owner: Owner) -> None:
        """The folders of the agent of the space in `folder`; idempotent, quick."""
        ...

    def binds(self, folder: Path, frontend: str) -> tuple[Bind, ...]:
        """What a sandbox shows, for that agent. Touches nothing; quick."""
        ...

    def documents(self, folder: Path) -> Bind:
        """What was given to the agent to read, for the commands that it runs elsewhere."""
        ...

    def setup(self, place: SetupRequest) -> AgentSetup:
        """Makes the folders that are missing."""
        ...

    def put(self, place: SetupRequest, prepared: Prepared) -> None:
        """Leaves in the agent's state what it keeps, and puts its files there, whatever the agent
        has made of it. `ResolveFailed`."""
        ...

    def has(self, folder: Path, path: str) -> bool:
        """Whether there is a file in the state of the agent in that space's folder."""
        ...

    def remove(self, folder: Path, paths: Sequence[str]) -> None:
        """Removes files of the state of the agent in that space's folder. No error when they are
        gone."""
        ...


@dataclass(frozen=True)
class SetupRequest:
    """Asks for the setup of an agent in the space in `folder`, whose tree is at `tree`.
    `own_paths`: its sandbox has names of its own for them."""

    folder: Path
    tree: Path
    owner: Owner
    frontend: Frontend
    own_paths: bool
    confined: bool


@dataclass(frozen=True)
class ContextFile:
    name: str
    size: int


class ContextStore(Protocol):
    """What the agent of the space in `folder` may read, by name. Blocking. Raises
    `PathInvalid`, `PathNotFound` and `TooLarge`."""

    def list(self, folder: Path) -> Sequence[ContextFile]: ...

    def read(self, folder: Path, name: str) -> bytes: ...

    def put(self, folder: Path, name: str, data: bytes) -> None: ...

    def remove(self, folder: Path, name: str) -> None: ...


class CredentialStore(Protocol):
    """Keys by name. Blocking, quick; nothing but `given` tells a value."""

    def names(self) -> Sequence[str]: ...

    def set(self, name: str, value: str | None, endpoints: Sequence[str] | None) -> None:
        """None: as it is. Raises `MessageInvalid`, and `CredentialNotFound` when there is no
        value yet."""
        ...

    def endpoints(self, name: str) -> Sequence[str]:
        """The addresses besides the provider's own to which it may go."""
        ...

    def remove(self, name: str) -> None:
        """Raises `CredentialNotFound`."""
        ...

    def given(self, names: Sequence[str]) -> Mapping[str, str]: ...
