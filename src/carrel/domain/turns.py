"""One turn of an agent: what it is asked, the events of it, what it answers; and how an agent is
spoken to meanwhile.

The caller owns conversations. A turn goes on with one only when a continuation was passed in;
nothing is ever resumed because its id looks familiar.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    # A driver in a sandbox would spend as long on it as on all else.
    from carrel.domain.imports import Imported


class Provider(StrEnum):
    """Whose models a frontend speaks to; a continuation is of one."""

    ANTHROPIC = "anthropic"
    OPENAI = "openai"
    ANY = "any"


class InteractionMode(StrEnum):
    INTERACTIVE = "interactive"
    """With a person, in a terminal."""
    HEADLESS = "headless"
    """One turn; what it does is told as it goes on."""
    NON_INTERACTIVE = "non_interactive"
    """One turn; only its outcome counts."""


class Permission(StrEnum):
    """What an agent may do without asking."""

    ASK = "ask"
    """Whoever runs the turn is asked; no answer in time is a no."""
    SANDBOXED = "sandboxed"
    """Everything: for where walls confine it."""
    DENY = "deny"
    """Nothing that needs a permission."""


@dataclass(frozen=True)
class Continuation:
    """A conversation that can be gone on with."""

    provider: str
    key: str


class AgentEventType(StrEnum):
    STATE = "state"
    """`state`: running, complete or error; with `error` when it is that. In a terminal also
    each change of `activity`, with how many are `attached`."""
    MESSAGE = "message"
    """`text`, `role`: what the agent said, whole."""
    MESSAGE_DELTA = "message_delta"
    """`text`: a part of a message that is not whole yet."""
    TOOL_CALL = "tool_call"
    """`id`, `name`, `input`."""
    TOOL_RESULT = "tool_result"
    """`id`, `output`, `is_error`."""
    USAGE = "usage"
    """Tokens, and `cost_usd` where it is known."""
    PERMISSION = "permission"
    """`id`, `name`, `input`, and `decision` once there is one."""
    LOG = "log"
    """What has no other place: `text`, with the `kind` of it where that is one of `LogKind`, or
    `raw` as the frontend said it."""
    COMPLETE = "complete"
    """The last one: `result`."""


class LogKind(StrEnum):
    THINKING = "thinking"
    RETRY = "retry"
    """The model's API failed, and is asked again; with `status` where it is known."""
    ERROR = "error"


@dataclass(frozen=True)
class Told:
    """What a frontend told, before it has its place. `key` is the conversation's, in whatever
    first shows it."""

    type: AgentEventType
    payload: Mapping[str, object] = field(default_factory=dict)
    key: str = ""


@dataclass(frozen=True)
class AgentEvent:
    """One event of a turn; `seq` counts from 1 within it."""

    type: AgentEventType
    ts: float
    seq: int
    session_id: str
    run_id: str
    payload: Mapping[str, object] = field(default_factory=dict)
    continuation: Continuation | None = None


@dataclass(frozen=True)
class Usage:
    """Summed over turns. What a frontend does not tell is 0."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    """Of the input, those that were read from a cache."""
    cost_usd: float = 0.0
    turns: int = 0


NOTHING_SPENT = Usage()


@dataclass(frozen=True)
class TurnError:
    code: str
    message: str
    details: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class TurnResult:
    success: bool
    final_output: str = ""
    error: TurnError | None = None


@dataclass(frozen=True)
class Attachment:
    """A file that goes with a prompt. `path` is where the agent sees it; asked for in a space,
    it is relative to the tree or, `in_context`, the name of a context file."""

    path: str
    media_type: str = ""
    in_context: bool = False


@dataclass(frozen=True)
class TurnRequest:
    """One turn. `session_id` is the caller's name for the conversation, `run_id` for this
    turn of it. `kits` must be empty for now."""

    frontend: str
    prompt: str
    session_id: str = ""
    run_id: str = ""
    model: str = ""
    continuation: Continuation | None = None
    permission: Permission | None = None
    """None: `sandboxed` where a runtime confines, else `ask`."""
    env: Mapping[str, str] = field(default_factory=dict)
    attachments: tuple[Attachment, ...] = ()
    system_prompt: str = ""
    """Added to the frontend's own."""
    timeout_s: float | None = None
    answer_s: float | None = None
    """How long a permission waits for its answer; None: as long as a person may need."""
    kits: tuple[str, ...] = ()
    mode: InteractionMode = InteractionMode.HEADLESS
    """Interactive: in a terminal that people attach to; the prompt may be empty then."""
    trust: bool = False
    """The owner agrees to what the project brings for the agent, as it is when this begins."""
    queue: bool = False
    """It waits where another turn runs, and goes on with the conversation of that."""


class Activity(StrEnum):
    """What the agent of a space is doing."""

    NONE = ""
    """There is none."""
    IDLE = "idle"
    """It has nothing to do."""
    WORKING = "working"
    INPUT = "waiting for input"
    """It has said something, or asked, and it is a person's turn."""
    WAITING = "waiting for permission"
    EXITED = "exited"
    """Its terminal has ended."""


@dataclass(frozen=True)
class Asked:
    """A permission that an agent waits for: for which tool, with what."""

    id: str
    name: str
    input: object = None


class TurnState(StrEnum):
    QUEUED = "queued"
    """It begins when those before it have ended."""
    RUNNING = "running"
    COMPLETE = "complete"
    ERROR = "error"


@dataclass(frozen=True)
class Turn:
    """The record of a turn in a space. `run_id` is also the run that the agent is."""

    run_id: str
    space_id: str
    session_id: str
    frontend: str
    provider: str
    prompt: str
    state: TurnState
    created_at: float
    model: str = ""
    asked: Continuation | None = None
    """What was to be gone on with."""
    continuation: Continuation | None = None
    """What it can be gone on with."""
    result: TurnResult | None = None
    usage: Usage = NOTHING_SPENT
    ended_at: float | None = None
    after: int = 0
    """The number in the space's log after which its events come."""
    permission: Permission = Permission.DENY
    system_prompt: str = ""
    timeout_s: float | None = None
    mode: InteractionMode = InteractionMode.HEADLESS
    first: bytes = b""
    """What the agent hears first, for who takes the turn up; empty when it has ended. Its
    environment may hold keys, and is written down nowhere."""
    duplex: bool = False
    notes: tuple[str, ...] = ()
    """Told right after its beginning: what it goes without."""
    keys: tuple[str, ...] = ()
    """Names of the stored keys that it was given, and of an import."""
    secrets: tuple[str, ...] = ()
    """Files of the agent's state that hold a login, and go when the turn has ended."""
    answer_s: float | None = None
    attachments: tuple[Attachment, ...] = ()
    owner: bool = False
    """Whether the owner asked for it, in a space of his own."""
    caller: str = ""
    """Who did, of one that waits for its turn."""

    @property
    def ended(self) -> bool:
        return self.state not in (TurnState.QUEUED, TurnState.RUNNING)


# How a frontend is run in a space


@dataclass(frozen=True)
class AgentServer:
    """An MCP server that an agent is given. `token` names the variable that holds its bearer
    token; empty: it takes none."""

    name: str
    url: str
    sse: bool = False
    """It speaks the older transport."""
    token: str = ""


@dataclass(frozen=True)
class AgentSetup:
    """What an agent is given for a turn: its folders, MCP servers and keys. Paths are as the agent
    sees them. `state` is its own folder, and outlives the turn; `context` it may only read, and is
    empty when nothing is there. `mcp` is the command of the space's MCP server, empty when there
    is none. `confined` says that a sandbox holds it."""

    workspace: str
    state: str
    context: str = ""
    confined: bool = False
    mcp: tuple[str, ...] = ()
    mcp_env: Mapping[str, str] = field(default_factory=dict)
    credentials: Mapping[str, str] = field(default_factory=dict)
    """By name; only those that the frontend names."""
    servers: tuple[AgentServer, ...] = ()
    """Beside the space's own."""
    server_env: Mapping[str, str] = field(default_factory=dict)
    """Their tokens, by variable."""
    untrusted: tuple[str, ...] = ()
    """Of what the project brings for the agent, the paths that nobody has agreed to: the agent
    goes without. `.git` stands for what lies in the checkout that it leads to."""
    agreed: tuple[str, ...] = ()
    """Those that somebody has."""
    also_read: tuple[str, ...] = ()
    """Folders beside its workspace that it is shown, read-only."""
    imported: Imported | None = None
    """The owner's own set-up of the agent; with its login only where that is to be used."""


KEY = "{conversation}"
"""In a command, where the key of a conversation will stand."""


# Agents that are spoken to while they run


class ControlKind(StrEnum):
    INPUT = "input"
    """`text`: said to the agent as soon as it listens."""
    INTERRUPT = "interrupt"
    PERMISSION = "permission"
    """`id`, `allow`: the answer to a `permission` event."""
    STOP = "stop"
    """Of a terminal: the agent is ended, and not started again."""


@dataclass(frozen=True)
class Control:
    kind: ControlKind
    text: str = ""
    id: str = ""
    allow: bool = False

    @classmethod
    def interrupt(cls) -> Control:
        return cls(ControlKind.INTERRUPT)


class Stage(Protocol):
    """What a driver has of whoever runs the turn."""

    def tell(self, told: Told) -> None:
        """Never raises, never waits."""
        ...

    async def control(self) -> Control:
        """The next thing that is said to the agent from outside; waits for it."""
        ...


class Driver(Protocol):
    """Speaks with an agent for one turn, in the process that it is called in. Cancelling it
    ends everything it started. What went wrong is in the result; it raises only what is a
    mistake of Carrel's own."""

    async def __call__(
        self, request: TurnRequest, setup: AgentSetup, stage: Stage
    ) -> TurnResult: ...
