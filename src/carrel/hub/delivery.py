"""Who hears what, found by space; what may be said; what people have not answered."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Raw

from carrel.domain.errors import Forbidden, MessageInvalid, TooManyQuestions
from carrel.domain.hub import ANSWER, NOT_YOURS, QUESTION, ClientKind, is_kept
from carrel.hub import access, types
from carrel.hub.access import Identity, VisibleSpaces
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
        if not types.patterns:
            # Who only speaks is not looked at with each message.
            return
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

    def of(self, space: str, type: str) -> list[Client]:
        return self._seeing(space, [one for one in self._named(space) if one.types.fit(type)])

    def at(self, space: str) -> list[Client]:
        """Those who hear of it, whatever the type."""
        return self._seeing(space, self._named(space))

    def _named(self, space: str) -> list[Client]:
        others = [one for one in self._everywhere if space not in one.spaces]
        return [*self._by_space.get(space, ()), *others]

    def _seeing(self, space: str, clients: list[Client]) -> list[Client]:
        """A space may have left the reach of who subscribed to it."""
        return [one for one in clients if access.may_see(self._spaces, one.identity, space)]


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


# Questions to a person


SPACES = 5
"""All spaces of one account together may have so many times as many as one: each is in memory, and
all are told at once."""


class PersonQuestions:
    """The ids of those that nobody has answered, by space."""

    def __init__(self, spaces: VisibleSpaces, most: int) -> None:
        """`most` is of one space, beside Carrel's own."""
        self._spaces = spaces
        self._most = most
        self._open: dict[str, set[str]] = {}
        self._own: dict[str, set[str]] = {}
        """Those of Carrel itself."""

    def check_answers(self, identity: Identity, space: str, said: Sequence[Said]) -> None:
        """Raises `Forbidden` for an answer that would not count: the question stays open for who
        may answer it."""
        own = self._own.get(space)
        answered = own and not own.isdisjoint(one.reply_to for one in said if one.type == ANSWER)
        if answered and not self._spaces.may_agree(identity.caller, space):
            raise Forbidden(NOT_YOURS, hint="Ask the owner.")

    def ask(self, space: str, said: Sequence[Said]) -> set[str]:
        """The questions among them that are new. Raises `TooManyQuestions`."""
        asked = {one.id for one in said if one.type == QUESTION}
        if not asked:
            return asked
        known = self._open.setdefault(space, set())
        asked -= known
        if asked and len(known) + len(asked) > self._most:
            raise TooManyQuestions(
                f"{len(known)} questions of this space wait for an answer already.",
                hint="Wait until some are answered: `carrel inbox`.",
            )
        if asked and self._of_account(space) + len(asked) > SPACES * self._most:
            raise TooManyQuestions(
                "Too many questions of this and related spaces wait for an answer already.",
                hint="Wait until some are answered: `carrel inbox`.",
            )
        known |= asked
        return asked

    def _of_account(self, space: str) -> int:
        account = self._spaces.account(space)
        others = ((one, ids) for one, ids in self._open.items() if ids)
        return sum(len(ids) for one, ids in others if self._spaces.account(one) == account)

    def take_back(self, space: str, asked: set[str]) -> None:
        self._open.get(space, set()).difference_update(asked)

    def kept(self, space: str, said: Sequence[Said], *, ours: bool) -> None:
        """What was put into the log."""
        if ours and (asked := {one.id for one in said if one.type == QUESTION}):
            self._own.setdefault(space, set()).update(asked)
        for known in (self._open, self._own):
            if waiting := known.get(space):
                waiting -= {one.reply_to for one in said if one.type == ANSWER}

    def recall(self, space: str, type: str, envelope: Mapping[str, Any]) -> None:
        """A question or an answer that was kept earlier."""
        if type == ANSWER:
            for known in (self._open, self._own):
                known.get(space, set()).discard(envelope.get("reply_to", ""))
        elif number := envelope.get("id"):
            ours = envelope["sender"]["kind"] == ClientKind.SYSTEM
            (self._own if ours else self._open).setdefault(space, set()).add(number)

    def forget(self, is_gone: Callable[[str], bool]) -> None:
        for known in (self._open, self._own):
            for space in [one for one in known if is_gone(one)]:
                del known[space]
