"""Who hears what, found by space; who answers which question."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from msgspec import Raw

from carrel.domain.errors import Forbidden, MessageInvalid
from carrel.domain.hub import ClientKind, is_kept
from carrel.hub import access, types
from carrel.hub.access import VisibleSpaces
from carrel.hub.client import ALL, Client, Patterns
from carrel.hub.envelopes import Received, Said
from carrel.hub.types import Subscriptions


class HearingClients:
    def __init__(self, spaces: VisibleSpaces) -> None:
        self._spaces = spaces
        self._by_space: dict[str, set[Client]] = {}
        self._everywhere: set[Client] = set()

    def check(self, client: Client, wanted: Subscriptions) -> None:
        """Raises `SpaceNotFound`."""
        named = [space for space in wanted.spaces if space != ALL]
        access.check_seen(self._spaces, client.identity, named)

    def join(self, client: Client, wanted: Subscriptions, types: Patterns) -> None:
        """Instead of what it subscribed to before. `types` are those of `wanted`. Raises
        `SpaceNotFound`."""
        self.check(client, wanted)
        self.leave(client)
        client.subscribe(types, wanted.spaces)
        for space in client.spaces - {ALL}:
            self._by_space.setdefault(space, set()).add(client)
        if ALL in client.spaces:
            self._everywhere.add(client)

    def leave(self, client: Client) -> None:
        self._everywhere.discard(client)
        for space in client.spaces:
            hearing = self._by_space.get(space)
            if hearing is not None:
                hearing.discard(client)
                if not hearing:
                    del self._by_space[space]

    def anybody(self, space: str) -> bool:
        """Whether somebody may hear of it; cheap."""
        return bool(self._everywhere) or space in self._by_space

    def of(self, space: str, type: str) -> Iterator[Client]:
        for client in self._by_space.get(space, ()):
            if client.types.fit(type):
                yield client
        for client in self._everywhere:
            if (
                client.types.fit(type)
                and space not in client.spaces
                and access.may_see(self._spaces, client.identity, space)
            ):
                yield client


# What a client says is looked at here before it goes anywhere.


def admit(spaces: VisibleSpaces, client: Client, type: types.Type, space: str) -> None:
    """Whether it may say this of that space. Raises `SpaceNotFound` and `Forbidden`."""
    assert client.kind is not None
    access.check_speaks(spaces, client.identity, client.kind, type, space)
    if client.kind is ClientKind.IDE and not client.spaces & {space, ALL}:
        raise Forbidden(
            "An editor may send only to spaces that it is subscribed to.", hint="Subscribe first."
        )


def check(type: types.Type, payload: Raw, reply_to: str) -> None:
    """Raises `MessageInvalid`."""
    types.check(type, payload)
    if type.needs_reply_to and not reply_to:
        raise MessageInvalid(
            "An answer must name the message that it answers.", hint="Set `reply_to`."
        )


def many(spaces: VisibleSpaces, client: Client, received: Received, id: str) -> list[Said]:
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
            f"Messages of type {name[: types.MAX_TYPE]!r} are not kept, so they cannot be "
            "sent in a batch.",
            hint="Send live messages one by one.",
        )
    return types.look_up(name)


# Requests from client to client: each gets one answer, in time or not at all.

DEADLINE_MS = 30_000
MAX_DEADLINE_MS = 3_600_000
"""What takes longer is answered with `pending`, and its outcome is a message of its own."""
MAX_OPEN = 1000
"""Of one client: it waits for its answers."""


@dataclass(frozen=True)
class Open:
    """`original` is the id that the asker gave it."""

    asker: Client
    receiver: Client
    original: str
    timer: asyncio.TimerHandle


class OpenQuestions:
    def __init__(self) -> None:
        self._open: dict[str, Open] = {}
        self._asked: dict[str, int] = {}
        self.late = 0
        """Answers that nobody waited for any more."""

    def __len__(self) -> int:
        return len(self._open)

    def open_of(self, client: Client) -> int:
        return self._asked.get(client.client_id, 0)

    def add(
        self,
        asker: Client,
        receiver: Client,
        original: str,
        seconds: float,
        passed: Callable[[Open], None],
    ) -> str:
        """Gives the id under which the receiver knows it."""
        number = f"rq_{secrets.token_hex(8)}"

        def expire() -> None:
            found = self._take(number)
            if found is not None:
                passed(found)

        timer = asyncio.get_running_loop().call_later(seconds, expire)
        self._open[number] = Open(asker, receiver, original, timer)
        self._asked[asker.client_id] = self.open_of(asker) + 1
        return number

    def answered(self, number: str, by: Client) -> Open | None:
        """The request, once; None when it is not there (any more) or was not put to this
        client."""
        found = self._open.get(number)
        if found is None or found.receiver is not by:
            self.late += 1
            return None
        return self._take(number)

    def drop(self, client: Client) -> Iterator[Open]:
        """Its client has gone: those that it asked, and those that were put to it. The
        latter are given, for their askers to be told."""
        for number, one in list(self._open.items()):
            if one.asker is client:
                self._take(number)
            elif one.receiver is client:
                self._take(number)
                yield one

    def _take(self, number: str) -> Open | None:
        found = self._open.pop(number, None)
        if found is None:
            return None
        found.timer.cancel()
        left = self.open_of(found.asker) - 1
        if left:
            self._asked[found.asker.client_id] = left
        else:
            self._asked.pop(found.asker.client_id, None)
        return found
