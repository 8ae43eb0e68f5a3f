"""The types of messages: what each carries, whether it is kept, who answers it.

A type that is not here is refused, but for those that begin with `custom_` or
`buffer_custom_`: they carry any object, and are for programs that know each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec

from carrel.domain.errors import MessageInvalid
from carrel.domain.hub import BUFFER, MOST_TOGETHER, ClientKind
from carrel.hub.envelopes import Said

Words = Annotated[str, msgspec.Meta(min_length=1, max_length=100_000)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
Pattern = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
SpaceName = Annotated[str, msgspec.Meta(min_length=1, max_length=100)]
Seq = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]


class Payload(msgspec.Struct, forbid_unknown_fields=True):
    """Of one type; what is not in it is refused."""


# To the hub itself


class Subscriptions(Payload):
    types: Annotated[tuple[Pattern, ...], msgspec.Meta(max_length=100)] = ()
    spaces: Annotated[tuple[SpaceName, ...], msgspec.Meta(max_length=1000)] = ()
    """Ids, or `*` for all that may be seen."""


class Register(Payload):
    kind: Literal["app", "agent", "ide", "cli"]
    name: Annotated[str, msgspec.Meta(max_length=200)] = ""
    capabilities: Annotated[tuple[Name, ...], msgspec.Meta(max_length=100)] = ()
    """Types of requests that this client answers; none: all that are for its kind."""
    subscriptions: Subscriptions = msgspec.field(default_factory=Subscriptions)
    consumer: Annotated[str, msgspec.Meta(max_length=200)] = ""
    """A durable consumer's name: what it has not acknowledged is sent again."""


class Update(Payload):
    subscriptions: Subscriptions | None = None
    capabilities: Annotated[tuple[Name, ...], msgspec.Meta(max_length=100)] | None = None


class Replay(Payload):
    space: str = ""
    seq: Seq | None = None
    since: float | None = None


class Acknowledge(Payload):
    space: str
    seq: Seq


class Publish(Payload):
    messages: Annotated[list[Said], msgspec.Meta(min_length=1, max_length=MOST_TOGETHER)]


class Error(Payload):
    code: Name
    message: str = ""


class Response(msgspec.Struct):
    status: Literal["success", "error", "pending"]
    data: Any = None
    error: Any = None


class Nothing(Payload):
    pass


class Disconnect(Payload):
    reason: Annotated[str, msgspec.Meta(max_length=200)] = ""


class ListClients(Payload):
    space: str = ""


# Kept


class Spawn(Payload):
    name: Name
    description: str = ""
    project: str = ""
    initial_prompt: str = ""
    frontend: str = ""


class SpaceUpdate(Payload):
    name: Annotated[str, msgspec.Meta(max_length=200)] = ""
    description: str = ""


class Progress(Payload):
    message: Words
    category: Literal["info", "warn", "error", "milestone", "question"] = "info"
    percent: Annotated[float, msgspec.Meta(ge=0, le=100)] | None = None
    details: Any = None


class SignalUser(Payload):
    message: Words
    priority: Literal["low", "medium", "high", "urgent"] = "medium"
    suggested_actions: Annotated[tuple[Name, ...], msgspec.Meta(max_length=20)] = ()


class Question(Payload):
    question: Words
    choices: Annotated[tuple[Name, ...], msgspec.Meta(max_length=50)] = ()


class Answer(Payload):
    answer: Words


class Seen(Payload):
    seq: Seq
    """Words to the user up to this one were read."""


class SpaceMessage(Payload):
    text: Words
    data: Any = None


class Walkthrough(Payload):
    content: Words


# Requests


class AgentCommand(Payload):
    command: Words
    inject: Literal["terminal", "turn"] = "turn"


class AgentInterrupt(Payload):
    reason: str = ""


class IdeOperation(Payload):
    operation: Name
    arguments: Any = None


# Requests to Carrel itself


class SpaceState(Payload):
    space: str = ""


class ListSpaces(Payload):
    pass


class UpdateSpace(Payload):
    space: str = ""
    name: Annotated[str, msgspec.Meta(max_length=200)] | None = None
    description: str | None = None


class SpawnSpace(Payload):
    name: Annotated[str, msgspec.Meta(max_length=200)] = ""
    description: str = ""
    project: str = ""
    initial_prompt: Annotated[str, msgspec.Meta(max_length=100_000)] = ""
    frontend: str = ""


class WaitForSpace(Payload):
    space: str
    states: Annotated[tuple[Name, ...], msgspec.Meta(max_length=10)] = ("stopped", "failed")
    seconds: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 60.0


class MessageSpace(Payload):
    space: str
    text: Words
    data: Any = None


class ReadMessages(Payload):
    after: Seq = 0
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 100


class DeleteSpace(Payload):
    space: str = ""
    agreed: Annotated[str, msgspec.Meta(max_length=128)] = ""
    """The id of a question that names the space, and that a person answered with `yes`."""


@dataclass(frozen=True)
class Type:
    """`to` is who answers, for requests. `people`: agents may not say it."""

    payload: type[Payload] | None
    """None: any object."""
    to: ClientKind | None = None
    people: bool = False
    needs_reply_to: bool = False


TYPES: dict[str, Type] = {
    "buffer_taskspace_spawn": Type(Spawn),
    "buffer_taskspace_update": Type(SpaceUpdate),
    "buffer_taskspace_progress": Type(Progress),
    "buffer_taskspace_signal_user": Type(SignalUser),
    "buffer_user_question": Type(Question),
    "buffer_user_answer": Type(Answer, people=True, needs_reply_to=True),
    "buffer_user_seen": Type(Seen, people=True),
    "buffer_space_message": Type(SpaceMessage),
    "buffer_walkthrough": Type(Walkthrough),
    "agent_command": Type(AgentCommand, ClientKind.AGENT, people=True),
    "agent_interrupt": Type(AgentInterrupt, ClientKind.AGENT, people=True),
    "ide_get_selection": Type(Nothing, ClientKind.IDE),
    "ide_operation": Type(IdeOperation, ClientKind.IDE),
    "system_space_state": Type(SpaceState, ClientKind.SYSTEM),
    "system_list_spaces": Type(ListSpaces, ClientKind.SYSTEM),
    "system_update_space": Type(UpdateSpace, ClientKind.SYSTEM),
    "system_spawn_space": Type(SpawnSpace, ClientKind.SYSTEM),
    "system_wait_for_space": Type(WaitForSpace, ClientKind.SYSTEM),
    "system_message_space": Type(MessageSpace, ClientKind.SYSTEM),
    "system_read_messages": Type(ReadMessages, ClientKind.SYSTEM),
    "system_delete_space": Type(DeleteSpace, ClientKind.SYSTEM),
}
CUSTOM = Type(None)
CUSTOM_PREFIXES = ("custom_", f"{BUFFER}custom_")
MAX_TYPE = 100
_object = msgspec.json.Decoder(dict[str, Any])
_decoders: dict[type[Any], msgspec.json.Decoder[Any]] = {}


def look_up(name: str) -> Type:
    """Raises `MessageInvalid`."""
    found = TYPES.get(name)
    if found is not None:
        return found
    if name.startswith(CUSTOM_PREFIXES) and len(name) <= MAX_TYPE:
        return CUSTOM
    raise MessageInvalid(
        f"There is no type {name[:MAX_TYPE]!r}.",
        hint="Types of your own begin with `custom_`, or `buffer_custom_` to be kept.",
    )


def check(type: Type, payload: msgspec.Raw) -> None:
    """Raises `MessageInvalid`."""
    if type.payload is None:
        _convert(_object, payload)
    else:
        parse(type.payload, payload)


def parse(kind: type[Any], payload: msgspec.Raw) -> Any:
    """Raises `MessageInvalid`."""
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.json.Decoder(kind)
    return _convert(decoder, payload)


def _convert(decoder: msgspec.json.Decoder[Any], payload: msgspec.Raw) -> Any:
    try:
        return decoder.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MessageInvalid(f"The payload does not fit its type: {error}.") from None
