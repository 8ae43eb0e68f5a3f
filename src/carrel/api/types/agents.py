"""Agents and their turns: what is asked for, and what is told of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, TypedDict

from msgspec import Meta, field

from carrel.api.types.common import END, Answer, Body, Environment, Moment, Query, Span, Word
from carrel.api.types.spaces import FrontendName
from carrel.domain.agents import PREFIX_PATTERN, ContextFile, FoundFrontend
from carrel.domain.imports import ImportedServer, Login
from carrel.domain.invocations import Description, InvocationSpec, IoMode, Resolution
from carrel.domain.turns import (
    NOTHING_SPENT,
    Asked,
    Attachment,
    Continuation,
    InteractionMode,
    Permission,
    TurnResult,
    TurnState,
)
from carrel.domain.turns import Usage as AgentUsage

__all__ = ["Description", "FoundFrontend", "Resolution"]
"""Records of the domain that are told as they are; the rest is written here."""

MAX_WAIT_S = 60.0
HostPath = Annotated[str, Meta(min_length=1, max_length=4096)]


class ContinuationBody(Body, frozen=True, kw_only=True):
    """A conversation, as the end of an earlier turn told it."""

    provider: Annotated[str, Meta(min_length=1, max_length=32)]
    key: Annotated[str, Meta(min_length=1, max_length=1024)]


class AttachmentBody(Body, frozen=True, kw_only=True):
    """A file that goes with the prompt."""

    path: Annotated[str, Meta(min_length=1, max_length=4096)]
    """Relative to the tree; of a context file, its name."""
    folder: Literal["tree", "context"] = "tree"
    media_type: Annotated[str, Meta(max_length=200)] = ""


class NewTurn(Body, frozen=True, kw_only=True):
    prompt: Annotated[str, Meta(max_length=1_000_000)] = ""
    """May be empty in a terminal only."""
    terminal: bool = False
    """In the frontend's own terminal, for people to attach to: see `…/terminal`."""
    frontend: FrontendName | None = None
    """Null: the space's own agent."""
    model: Annotated[str, Meta(max_length=200)] = ""
    session: Word = ""
    """Your name for the conversation."""
    continuation: ContinuationBody | None = None
    permission: Permission | None = None
    """Null: `sandboxed` where the runtime confines, else `ask`."""
    env: Environment = field(default_factory=dict)
    attachments: Annotated[tuple[AttachmentBody, ...], Meta(max_length=100)] = ()
    system_prompt: Annotated[str, Meta(max_length=100_000)] = ""
    timeout_s: Span | None = None
    answer_s: Span | None = None
    """How long a permission waits for its answer; null: five minutes."""
    kits: Annotated[tuple[Word, ...], Meta(max_length=0)] = ()
    trust: bool = False
    """Agrees to what the project brings for the agent, as it is now; for administrators."""
    queue: bool = False
    """Where another turn runs, this one waits until that has ended. It goes on with the space's
    last conversation, and takes no `env`."""


class TurnOptions(TypedDict, total=False):
    """The same as Python says it: all about a turn beside what is to be done."""

    frontend: str
    model: str
    session: str
    continuation: Continuation | None
    permission: str
    env: Mapping[str, str]
    attachments: Sequence[Attachment]
    system_prompt: str
    timeout_s: float
    answer_s: float
    trust: bool
    queue: bool


class TurnListQuery(Query, frozen=True, kw_only=True):
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


class TurnQuery(Query, frozen=True, kw_only=True):
    wait_s: Annotated[float, Meta(ge=0, le=MAX_WAIT_S)] = 0.0
    """Until it has ended, or so long."""


class TerminalQuery(Query, frozen=True, kw_only=True):
    read_only: bool = False
    prefix: Annotated[str, Meta(pattern=rf"^({PREFIX_PATTERN})?{END}")] = ""
    """A further key that begins the commands of the terminal, such as C-a."""


class InputBody(Body, frozen=True, kw_only=True):
    text: Annotated[str, Meta(min_length=1, max_length=1_000_000)]


class DecisionBody(Body, frozen=True, kw_only=True):
    allow: bool


class TurnInfo(Answer, frozen=True, kw_only=True):
    """What an agent was given to do, and what came of it."""

    id: str
    """Also the id of the run that the agent is."""
    space: str
    session: str
    frontend: str
    provider: str
    prompt: str
    state: TurnState
    created_at: Moment
    model: str = ""
    terminal: bool = False
    permission: Permission = Permission.DENY
    permissions: tuple[Asked, ...] = ()
    """Those that wait for an answer now."""
    ended_at: Moment | None = None
    continuation: Continuation | None = None
    result: TurnResult | None = None
    usage: AgentUsage = NOTHING_SPENT
    notes: tuple[str, ...] = ()
    """What it goes without, in sentences."""
    after: int = 0
    """Its events come after this number in the log of its space."""

    @property
    def ended(self) -> bool:
        return self.state not in (TurnState.QUEUED, TurnState.RUNNING)


class TurnList(Answer, frozen=True, kw_only=True):
    turns: tuple[TurnInfo, ...]


class TerminalInfo(Answer, frozen=True, kw_only=True):
    """A command in the space, for a terminal: whoever runs it is attached as long as it runs."""

    turn: TurnInfo
    argv: tuple[str, ...]
    cwd: str


class TrustQuery(Query, frozen=True, kw_only=True):
    frontend: FrontendName | None = None


class TrustBody(Body, frozen=True, kw_only=True):
    digest: Annotated[str, Meta(pattern=rf"^([0-9a-f]{{64}})?{END}")]
    """Of what was looked at: another content is not agreed to."""
    trust: bool = True
    frontend: FrontendName | None = None
    """Null: the space's own agent."""


class TrustInfo(Answer, frozen=True, kw_only=True):
    """What the project of a space brings for an agent, beside texts."""

    frontend: str
    paths: tuple[str, ...]
    files: tuple[str, ...]
    """All of them, in those paths."""
    digest: str
    problem: str
    """Why nobody can agree to it."""
    agreed: bool | None
    """What was said to this content; null when nobody was asked."""
    elsewhere: bool = False
    """The tree's `.git` leads to another checkout, as a linked worktree's does."""
    trusted: bool
    """It is used: somebody has agreed to it, or there is nothing."""


class ProviderInfo(Answer, frozen=True, kw_only=True):
    """Whose models there are, and by which frontends."""

    id: str
    frontends: tuple[str, ...]
    models: tuple[str, ...]


class FrontendList(Answer, frozen=True, kw_only=True):
    frontends: tuple[FoundFrontend, ...]
    providers: tuple[ProviderInfo, ...] = ()


class NewInvocation(Body, frozen=True, kw_only=True):
    """A program of an agent that the caller starts itself, on the daemon's machine."""

    frontend: FrontendName
    prompt: Annotated[str, Meta(max_length=1_000_000)] = ""
    cwd: HostPath
    """Absolute: where it works."""
    state: HostPath
    """Absolute: its own folder, made if need be, with its settings and conversations. To go on
    with one, name the same."""
    interaction_mode: InteractionMode = InteractionMode.INTERACTIVE
    io_mode: IoMode | None = None
    """Null: `pty` for an interactive one, else `pipes`."""
    model: Annotated[str, Meta(max_length=200)] = ""
    session: Word = ""
    continuation: ContinuationBody | None = None
    permission: Permission | None = None
    """Null: `ask`. `sandboxed` is refused: Carrel does not confine what the caller starts."""
    env: Environment = field(default_factory=dict)
    attachments: Annotated[tuple[HostPath, ...], Meta(max_length=100)] = ()
    """Paths as the agent sees them."""
    system_prompt: Annotated[str, Meta(max_length=100_000)] = ""
    kits: Annotated[tuple[Word, ...], Meta(max_length=100)] = ()
    trust: bool = False
    """Uses what the project brings for the agent."""


class InvocationInfo(Answer, frozen=True, kw_only=True):
    """How to start it. No stored key is in it."""

    spec: InvocationSpec
    warnings: tuple[str, ...]
    stdin: str | None
    """What it reads first; null: its input is a person's."""
    keeps_stdin: bool
    """Its input stays open after that, for answers to what it asks; else it ends there."""
    credentials: Mapping[str, tuple[str, ...]]
    """Keys that it takes and that are not in `env`: by name, the variables of each."""


class KitsBody(Body, frozen=True, kw_only=True):
    kits: Annotated[tuple[Word, ...], Meta(max_length=100)]
    frontend: FrontendName | None = None


class PathBody(Body, frozen=True, kw_only=True):
    path: Annotated[str, Meta(max_length=65_536)]
    """The variable of who calls, on the daemon's own machine."""


class ImportBody(Body, frozen=True, kw_only=True):
    """The owner's own set-up of an agent, as `carrel agents import` finds it."""

    files: Mapping[str, bytes] = field(default_factory=dict)
    """By their path in the agent's folder; in base64."""
    servers: Mapping[str, ImportedServer] = field(default_factory=dict)
    settings: Mapping[str, str | bool] = field(default_factory=dict)
    keys: Annotated[Mapping[str, str], Meta(max_length=256)] = field(default_factory=dict)
    """Values of variables that the servers take."""
    login: Login | None = None
    login_only: bool = False
    """All else stays as it was imported before."""
    endpoints: Annotated[tuple[str, ...], Meta(max_length=32)] | None = None
    """Where the login may go besides its provider's own address. Null: as before."""


class ContextList(Answer, frozen=True, kw_only=True):
    files: tuple[ContextFile, ...]


class CredentialBody(Body, frozen=True, kw_only=True):
    value: Annotated[str, Meta(min_length=1, max_length=65_536)] | None = None
    """Null: the key stays as it is."""
    endpoints: (
        Annotated[
            tuple[Annotated[str, Meta(min_length=1, max_length=2000)], ...], Meta(max_length=32)
        ]
        | None
    ) = None
    """The addresses besides its provider's own to which it may go. Null: as they are."""


class CredentialList(Answer, frozen=True, kw_only=True):
    credentials: tuple[str, ...]
    """Names only: a value is never told."""
    endpoints: Mapping[str, tuple[str, ...]]
    """By name."""


# What waits for a person


class AnswerBody(Body, frozen=True, kw_only=True):
    answer: Annotated[str, Meta(min_length=1, max_length=100_000)]
    space: Word | None = None
    """Needed only when two spaces asked under the same id."""


class Answered(Answer, frozen=True, kw_only=True):
    seq: int
    """Of the answer, in the log of the space; 0 for a permission."""


class Seen(Answer, frozen=True, kw_only=True):
    seen: int
    """How many words to the user there were."""


class InboxItem(Answer, frozen=True, kw_only=True):
    id: str
    space: str
    name: str = ""
    """Of the space."""
    seq: int
    """In the log of the space; 0 for a permission."""
    at: Moment
    kind: Literal["question", "permission", "signal"]
    """A permission is answered with `yes` or `no`."""
    text: str
    choices: tuple[str, ...] = ()
    priority: str = ""
    """Of a signal: `low`, `medium`, `high`, `urgent`."""
    own: bool = False
    """These are Carrel's own words, and not those of somebody in the space."""
    review: bool = False
    """A question that asks for a look at the work of the space; a landing answers it, too."""


class InboxList(Answer, frozen=True, kw_only=True):
    items: tuple[InboxItem, ...]
