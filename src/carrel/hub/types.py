"""The types of messages: what each carries, whether it is kept, who answers it.

A type that is not here is refused, but for those that begin with `custom_` or
`buffer_custom_`: they carry any object, and are for programs that know each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec

from carrel.api.types import hub as contract
from carrel.api.types.common import Body
from carrel.api.types.hub import SYSTEM_REQUESTS, Name, Seq
from carrel.domain.errors import MessageInvalid
from carrel.domain.hub import BUFFER, MOST_TOGETHER, ClientKind
from carrel.hub.envelopes import Said

Pattern = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
SpaceName = Annotated[str, msgspec.Meta(min_length=1, max_length=100)]

# To the hub itself


class Subscriptions(Body, frozen=True, kw_only=True):
    types: Annotated[tuple[Pattern, ...], msgspec.Meta(max_length=100)] = ()
    spaces: Annotated[tuple[SpaceName, ...], msgspec.Meta(max_length=1000)] = ()
    """Ids, or `*` for all that may be seen."""


class Register(Body, frozen=True, kw_only=True):
    kind: Literal["app", "agent", "ide", "cli"]
    name: Annotated[str, msgspec.Meta(max_length=200)] = ""
    capabilities: Annotated[tuple[Name, ...], msgspec.Meta(max_length=100)] = ()
    """Types of requests that this client answers; none: all that are for its kind."""
    subscriptions: Subscriptions = msgspec.field(default_factory=Subscriptions)
    consumer: Annotated[str, msgspec.Meta(max_length=200, pattern="^[^\\x00-\\x1f]*$")] = ""
    """A durable consumer's name: what it has not acknowledged is sent again."""


class UpdateMessage(Body, frozen=True, kw_only=True):
    subscriptions: Subscriptions | None = None
    capabilities: Annotated[tuple[Name, ...], msgspec.Meta(max_length=100)] | None = None


class ReplayMessage(Body, frozen=True, kw_only=True):
    space: str = ""
    seq: Seq | None = None
    since: float | None = None


class AcknowledgeMessage(Body, frozen=True, kw_only=True):
    space: str
    seq: Seq


class Publish(Body, frozen=True, kw_only=True):
    messages: Annotated[list[Said], msgspec.Meta(min_length=1, max_length=MOST_TOGETHER)]


class Response(msgspec.Struct):
    status: Literal["success", "error", "pending"]
    data: Any = None
    error: Any = None


class Disconnect(Body, frozen=True, kw_only=True):
    reason: Annotated[str, msgspec.Meta(max_length=200)] = ""


class ListClients(Body, frozen=True, kw_only=True):
    space: str = ""


@dataclass(frozen=True)
class Type:
    """`to` is who answers, for requests. `people`: agents may not say it."""

    payload: type[Body] | None
    """None: any object."""
    to: ClientKind | None = None
    people: bool = False
    needs_reply_to: bool = False


TYPES: dict[str, Type] = {
    "buffer_taskspace_spawn": Type(contract.SpawnMessage),
    "buffer_taskspace_update": Type(contract.SpaceUpdateMessage),
    "buffer_taskspace_progress": Type(contract.ProgressMessage),
    "buffer_taskspace_signal_user": Type(contract.SignalUser),
    "buffer_user_question": Type(contract.QuestionMessage),
    "buffer_user_answer": Type(contract.AnswerMessage, people=True, needs_reply_to=True),
    "buffer_user_seen": Type(contract.SeenMessage, people=True),
    "buffer_space_message": Type(contract.SpaceMessage),
    "buffer_walkthrough": Type(contract.Walkthrough),
    "agent_command": Type(contract.AgentCommand, ClientKind.AGENT, people=True),
    "agent_interrupt": Type(contract.AgentInterrupt, ClientKind.AGENT, people=True),
    "ide_get_selection": Type(contract.Nothing, ClientKind.IDE),
    "ide_operation": Type(contract.IdeOperation, ClientKind.IDE),
    **{name: Type(row.payload, ClientKind.SYSTEM) for name, row in SYSTEM_REQUESTS.items()},
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
