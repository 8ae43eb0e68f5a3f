"""Messages on the hub: what they carry, and what Carrel answers to those that are put to it.

A description is for agents, who see these types as arguments of tools (`carrel mcp`).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple

from msgspec import Meta

from carrel.api.types.common import Answer, Body

STRING = Meta(extra_json_schema={"type": "string"})
"""Of a choice: some clients of MCP want the type, too."""

Words = Annotated[str, Meta(min_length=1, max_length=100_000)]
Name = Annotated[str, Meta(min_length=1, max_length=200)]
ShortText = Annotated[str, Meta(max_length=200)]
Seq = Annotated[int, Meta(ge=0, lt=1 << 62)]
QuestionId = Annotated[str, Meta(max_length=128)]
Which = Annotated[str, Meta(description="Its id or name.")]
Choices = Annotated[tuple[Name, ...], Meta(max_length=50, description="Answers to choose from.")]


READ_BYTES = 128 * 1024
"""Of a file, in one answer: one has room for much that must be escaped."""


class Nothing(Body, frozen=True, kw_only=True):
    pass


# Kept


class SpawnMessage(Body, frozen=True, kw_only=True):
    name: Name
    description: str = ""
    project: str = ""
    initial_prompt: str = ""
    frontend: str = ""


class SpaceUpdateMessage(Body, frozen=True, kw_only=True):
    name: ShortText = ""
    description: str = ""


class LogProgress(Body, frozen=True, kw_only=True):
    message: Annotated[Words, Meta(description="What was done, or is being done.")]
    category: Annotated[Literal["info", "warn", "error", "milestone", "question"], STRING] = "info"
    percent: Annotated[float, Meta(ge=0, le=100)] | None = None


class ProgressMessage(LogProgress, frozen=True, kw_only=True):
    details: Any = None


class SignalUser(Body, frozen=True, kw_only=True):
    message: Annotated[Words, Meta(description="What the user should know.")]
    priority: Annotated[Literal["low", "medium", "high", "urgent"], STRING] = "medium"
    suggested_actions: Annotated[
        tuple[Name, ...], Meta(max_length=20, description="What the user might do.")
    ] = ()


class QuestionMessage(Body, frozen=True, kw_only=True):
    question: Words
    choices: Choices = ()
    review: bool = False
    """Somebody is asked to look at the work of the space; a landing answers it, too."""


class AnswerMessage(Body, frozen=True, kw_only=True):
    answer: Words


class SeenMessage(Body, frozen=True, kw_only=True):
    seq: Seq
    """Words to the user up to this one were read."""


class SpaceMessage(Body, frozen=True, kw_only=True):
    text: Words
    data: Any = None


class Walkthrough(Body, frozen=True, kw_only=True):
    content: Annotated[Words, Meta(description="Markdown.")]


# Requests to agents and editors


class AgentCommand(Body, frozen=True, kw_only=True):
    command: Words
    inject: Literal["terminal", "turn"] = "turn"


class AgentInterrupt(Body, frozen=True, kw_only=True):
    reason: str = ""


class IdeOperation(Body, frozen=True, kw_only=True):
    operation: Annotated[Name, Meta(description="Its name; editors have their own.")]
    arguments: Any = None


# Requests to Carrel itself


class SpaceStateRequest(Body, frozen=True, kw_only=True):
    space: str = ""


class SpaceChange(Body, frozen=True, kw_only=True):
    name: ShortText | None = None
    description: str | None = None


class UpdateSpace(SpaceChange, frozen=True, kw_only=True):
    space: str = ""


class WantedSpace(Body, frozen=True, kw_only=True):
    name: ShortText = ""
    description: str = ""
    initial_prompt: Annotated[
        str, Meta(max_length=100_000, description="The first message to its agent.")
    ] = ""
    frontend: Annotated[str, Meta(description="Which agent is to work in it.")] = ""
    project: Annotated[
        str, Meta(description="Folder or git URL. Inside a space it is that space's.")
    ] = ""
    wake: Annotated[
        bool, Meta(description="Messages to it begin turns of its agent: see message_space.")
    ] = False


class SpawnSpace(WantedSpace, frozen=True, kw_only=True):
    agreed: QuestionId = ""
    """The id of Carrel's own question about this agent, which a person answered with `yes`."""


class WaitForSpace(Body, frozen=True, kw_only=True):
    space: str
    states: Annotated[tuple[Name, ...], Meta(max_length=10)] = ()
    """None: until its agent has nothing to do any more."""
    seconds: Annotated[float, Meta(ge=0, le=3600)] = 60.0


class MessageSpace(SpaceMessage, frozen=True, kw_only=True):
    space: Which


class ListChanges(Body, frozen=True, kw_only=True):
    space: Which
    limit: Annotated[int, Meta(ge=1, le=1000)] = 200


class ReadFile(Body, frozen=True, kw_only=True):
    space: Which
    path: Annotated[
        str, Meta(min_length=1, max_length=4096, description="From the top of its project.")
    ]
    start: Annotated[int, Meta(ge=0, lt=1 << 62, description="The first byte.")] = 0
    size: Annotated[int, Meta(ge=1, le=READ_BYTES, description="Bytes at most.")] = READ_BYTES


class TakeChanges(Body, frozen=True, kw_only=True):
    space: Which
    paths: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=4096)], ...],
        Meta(max_length=1000, description="Files or folders; none: all that it has changed."),
    ] = ()
    replace: Annotated[
        bool, Meta(description="Also what you have changed yourself, which is lost then.")
    ] = False


class KeepState(Body, frozen=True, kw_only=True):
    message: Annotated[
        str, Meta(max_length=1000, description="What was done, or what comes next.")
    ] = ""


class ReadMessages(Body, frozen=True, kw_only=True):
    after: Annotated[Seq, Meta(description="Only later ones; `next` of before.")] = 0
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


class DeleteSpace(Body, frozen=True, kw_only=True):
    space: str = ""
    agreed: QuestionId = ""
    """The id of a question that names the space, and that a person answered with `yes`."""


# What Carrel answers. Times are numbers here.


class HubSpace(Answer, frozen=True, kw_only=True):
    id: str
    name: str
    state: str
    description: str = ""
    parent: str = ""
    """The space whose agent asked for it."""
    project: str = ""
    network: str = ""
    created_at: float | None = None
    problem: str | None = None


class HubSpaceState(HubSpace, frozen=True, kw_only=True):
    children: tuple[str, ...] = ()


class SpaceAnswer(Answer, frozen=True, kw_only=True):
    space: HubSpace


class SpaceStateAnswer(Answer, frozen=True, kw_only=True):
    space: HubSpaceState


class SpacesAnswer(Answer, frozen=True, kw_only=True):
    spaces: tuple[HubSpace, ...]


class HubTurn(Answer, frozen=True, kw_only=True):
    """One that has ended."""

    id: str
    state: str
    """`complete` or `error`."""
    result: str = ""
    """What its agent said at the end, 100,000 characters of it at most."""
    problem: str | None = None


class WaitAnswer(Answer, frozen=True, kw_only=True):
    """`reached` is false when the time was over before. `turn` is the last of its agent, when that
    was waited for."""

    space: HubSpace
    reached: bool
    turn: HubTurn | None = None


class KeptAnswer(Answer, frozen=True, kw_only=True):
    """It is in the log of the space, under this number."""

    seq: int


class SentAnswer(KeptAnswer, frozen=True, kw_only=True):
    turn: str = ""
    """The turn that it begins, or that waits until the agent is free; empty: none."""


class HelperChange(Answer, frozen=True, kw_only=True):
    path: str
    kind: str
    """`added`, `modified`, `deleted`, `renamed`, `mode` or `type`."""
    old_path: str | None = None
    size: int = 0


class ChangesAnswer(Answer, frozen=True, kw_only=True):
    """Without what git ignores, and git's own files."""

    changes: tuple[HelperChange, ...]
    total: int
    commits: int


class FileAnswer(Answer, frozen=True, kw_only=True):
    """`text`, or `base64` when it is no UTF-8. `next`: where the rest begins; None: that is all."""

    text: str | None = None
    base64: str | None = None
    next: int | None = None


class LeftFile(Answer, frozen=True, kw_only=True):
    path: str
    why: str


class TakenAnswer(Answer, frozen=True, kw_only=True):
    """Paths in your own space."""

    written: tuple[str, ...]
    deleted: tuple[str, ...]
    left: tuple[LeftFile, ...]
    """What was not taken, and why."""


class KeptState(Answer, frozen=True, kw_only=True):
    """A checkpoint of the files: what the user can go back to."""

    id: str
    files: int
    """That differ from what the space began with."""
    changed: int
    """Since the checkpoint before."""


class MessagesAnswer(Answer, frozen=True, kw_only=True):
    """`next` is what `after` is to be for those that follow."""

    messages: tuple[dict[str, Any], ...]
    """Whole envelopes, as they are in the log."""
    next: int


class RemovedAnswer(Answer, frozen=True, kw_only=True):
    removed: str


class SystemRequest(NamedTuple):
    payload: type[Body]
    answer: type[Answer]


SYSTEM_REQUESTS = {
    "system_space_state": SystemRequest(SpaceStateRequest, SpaceStateAnswer),
    "system_list_spaces": SystemRequest(Nothing, SpacesAnswer),
    "system_update_space": SystemRequest(UpdateSpace, SpaceAnswer),
    "system_spawn_space": SystemRequest(SpawnSpace, SpaceAnswer),
    "system_wait_for_space": SystemRequest(WaitForSpace, WaitAnswer),
    "system_message_space": SystemRequest(MessageSpace, SentAnswer),
    "system_list_changes": SystemRequest(ListChanges, ChangesAnswer),
    "system_read_file": SystemRequest(ReadFile, FileAnswer),
    "system_take_changes": SystemRequest(TakeChanges, TakenAnswer),
    "system_checkpoint": SystemRequest(KeepState, KeptState),
    "system_read_messages": SystemRequest(ReadMessages, MessagesAnswer),
    "system_delete_space": SystemRequest(DeleteSpace, RemovedAnswer),
}
"""Each is answered by the method of its name of `SystemRequests` (`interfaces/hub/system.py`)."""
