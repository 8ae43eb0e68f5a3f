"""What a client says is looked at here before it goes anywhere."""

from __future__ import annotations

from msgspec import Raw

from carrel.domain.errors import Forbidden, MessageInvalid
from carrel.domain.hub import ClientKind, is_kept
from carrel.hub import access, types
from carrel.hub.access import Spaces
from carrel.hub.client import ALL, Client
from carrel.hub.envelopes import Received, Said


def admit(spaces: Spaces, client: Client, type: types.Type, space: str) -> None:
    """Whether it may say this of that space. Raises `SpaceNotFound` and `Forbidden`."""
    assert client.kind is not None
    access.check_speaks(spaces, client.identity, client.kind, type, space)
    if client.kind is ClientKind.IDE and not client.spaces & {space, ALL}:
        raise Forbidden(
            "An editor speaks to the spaces that it is connected to.", hint="Subscribe first."
        )


def check(type: types.Type, payload: Raw, reply_to: str) -> None:
    """Raises `MessageInvalid`."""
    types.check(type, payload)
    if type.needs_reply_to and not reply_to:
        raise MessageInvalid("An answer names what it answers.", hint="Set `reply_to`.")


def many(spaces: Spaces, client: Client, received: Received, id: str) -> list[Said]:
    """Of a `buffer_publish`: all of them, or what is wrong with the first that cannot be
    kept. Those without an id are named after `id`."""
    wanted: types.Publish = types.parse(types.Publish, received.payload)
    known: dict[str, types.Type] = {}
    number = 0
    try:
        for number, said in enumerate(wanted.messages):
            type = known.get(said.type)
            if type is None:
                type = known[said.type] = _kept(said.type)
                admit(spaces, client, type, received.space)
            check(type, said.payload, said.reply_to)
            if not said.id:
                said.id = f"{id}.{number}"
    except MessageInvalid as error:
        raise MessageInvalid(f"Message {number}: {error.message}", hint=error.hint) from None
    return wanted.messages


def _kept(name: str) -> types.Type:
    if not is_kept(name):
        raise MessageInvalid(
            f"{name[: types.MAX_TYPE]!r} is not kept.", hint="Send live messages one by one."
        )
    return types.look_up(name)
