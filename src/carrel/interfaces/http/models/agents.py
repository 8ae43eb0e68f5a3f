"""Agents and their turns: what is asked for, and what is told of them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from carrel.interfaces.http.models.common import Answer, Body, Environment, Moment, Seconds, Word

FrontendName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9-]{0,62}$")]
CredentialName = Annotated[str, StringConstraints(max_length=63)]
PermissionName = Literal["ask", "sandboxed", "deny"]


class ContinuationBody(Body):
    """A conversation, as the end of an earlier turn told it."""

    provider: Annotated[str, StringConstraints(min_length=1, max_length=32)]
    key: Annotated[str, StringConstraints(min_length=1, max_length=1024)]


class AttachmentBody(Body):
    """A file that goes with the prompt."""

    path: Annotated[str, StringConstraints(min_length=1, max_length=4096)]
    """Relative to the tree; of a context file, its name."""
    folder: Literal["tree", "context"] = "tree"
    media_type: Annotated[str, StringConstraints(max_length=200)] = ""


class TurnBody(Body):
    prompt: Annotated[str, Field(max_length=1_000_000)] = ""
    """May be empty in a terminal only."""
    terminal: bool = False
    """In the frontend's own terminal, for people to attach to: see `…/terminal`."""
    frontend: FrontendName | None = None
    """Null: the space's own agent."""
    model: Annotated[str, StringConstraints(max_length=200)] = ""
    session: Word = ""
    """Your name for the conversation."""
    continuation: ContinuationBody | None = None
    permission: PermissionName | None = None
    """Null: `sandboxed` where the runtime confines, else `ask`."""
    env: Environment = Field(default_factory=dict)
    attachments: Annotated[list[AttachmentBody], Field(max_length=100)] = Field(
        default_factory=list
    )
    system_prompt: Annotated[str, Field(max_length=100_000)] = ""
    timeout_s: Annotated[Seconds, Field(gt=0)] | None = None
    answer_s: Annotated[Seconds, Field(gt=0)] | None = None
    """How long a permission waits for its answer; null: five minutes."""
    kits: Annotated[list[Word], Field(max_length=0)] = Field(default_factory=list)


class InputBody(Body):
    text: Annotated[str, Field(min_length=1, max_length=1_000_000)]


class DecisionBody(Body):
    allow: bool


class ContinuationView(Answer):
    provider: str
    key: str


class TurnErrorView(Answer):
    code: str
    message: str
    details: dict[str, Any]


class TurnResultView(Answer):
    success: bool
    final_output: str
    error: TurnErrorView | None


class SpentView(Answer):
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    cost_usd: float
    turns: int


class AskedView(Answer):
    """A permission that the agent waits for: for which tool, with what."""

    id: str
    name: str
    input: Any


class TurnView(Answer):
    id: str
    """Also the id of the run that the agent is."""
    space: str
    session: str
    frontend: str
    provider: str
    model: str
    permission: PermissionName
    permissions: list[AskedView]
    """Those that wait for an answer now."""
    prompt: str
    terminal: bool
    state: Literal["running", "complete", "error"]
    created_at: Moment
    ended_at: Moment | None
    continuation: ContinuationView | None
    result: TurnResultView | None
    usage: SpentView


class TerminalView(Answer):
    """How one attaches: a command in the space."""

    turn: TurnView
    argv: list[str]
    cwd: str


class TurnList(Answer):
    turns: list[TurnView]


class FrontendView(Answer):
    name: str
    provider: str
    kind: Literal["cli", "sdk", "acp"]
    installed: bool
    version: str
    path: str
    logged_in: bool | None
    """Whether a key that it takes is kept. Null: it takes none, or that cannot be known."""
    credentials: list[str]
    """The keys that it takes, by name; one is enough."""
    models: list[str]
    default_model: str
    install: str
    problem: str


class FrontendList(Answer):
    frontends: list[FrontendView]


class ContextFileView(Answer):
    name: str
    size: int


class ContextList(Answer):
    files: list[ContextFileView]


class CredentialBody(Body):
    value: Annotated[str, Field(min_length=1, max_length=65_536)]


class CredentialList(Answer):
    credentials: list[str]
    """Names only: a value is never told."""
