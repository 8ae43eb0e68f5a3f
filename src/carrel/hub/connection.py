"""One client's side of the hub: the orders that it gives, and what it says."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from carrel.domain.errors import (
    CarrelError,
    Forbidden,
    MessageInvalid,
    RateLimited,
    SpaceNotFound,
)
from carrel.domain.hub import ClientKind
from carrel.hub import access, types
from carrel.hub.client import Client, Patterns
from carrel.hub.envelopes import Received, check_depth, decode

if TYPE_CHECKING:
    from carrel.hub.hub import HubServer

FLOOD = 1000
"""Refusals in a row after which a client that does not slow down is cut off."""


class Connection:
    """What a transport holds of one client."""

    def __init__(self, hub: HubServer, client: Client) -> None:
        self._hub = hub
        self._client = client
        self._orders: dict[str, Callable[[Received], None]] = {
            "client_register": self._register,
            "client_update": self._update,
            "client_list": self._list,
            "client_disconnect": self._leave,
            "heartbeat": lambda received: hub.respond(client, received.id, {}),
            "system_status": self._status,
            "buffer_replay": self._replay,
            "buffer_acknowledge": self._acknowledge,
            "buffer_publish": self._publish,
            "response": lambda received: hub.requests.answer(client, received),
        }

    @property
    def client_id(self) -> str:
        return self._client.client_id

    @property
    def is_behind(self) -> bool:
        """Too much of what it said is not kept or answered yet for more to be `received`."""
        return self._client.is_behind

    def when_settled(self, go_on: Callable[[], None]) -> None:
        """What is called when it is not behind any more."""
        self._client.on_settled = go_on

    def received(self, line: bytes) -> None:
        """One envelope. What is wrong with it is told to the client."""
        hub, client = self._hub, self._client
        if client.closed:
            return
        now = client.heard_at = time.monotonic()
        number = ""
        try:
            received = decode(line)
            number = received.id
            check_depth(line)
            self._check(received, now)
            order = self._orders.get(received.type)
            if order is not None:
                order(received)
            else:
                hub.publish(client, received)
        except CarrelError as error:
            hub.refuse(client, error, number)

    def _check(self, received: Received, now: float) -> None:
        client = self._client
        if client.kind is None and received.type != "client_register":
            raise Forbidden(
                "This client is not registered yet.", hint="Send `client_register` first."
            )
        self._take(1, now)
        if received.sender is not None and not _is_own(client, received.sender):
            raise Forbidden("A client may not set another sender.", hint="Leave `sender` out.")

    def _take(self, messages: int, now: float) -> None:
        client = self._client
        if wait := client.bucket.take(now, messages):
            client.refused += 1
            error = RateLimited(
                "Too many messages.",
                hint="Send fewer messages a second.",
                retry_after_ms=int(wait * 1000) + 1,
            )
            if client.refused >= FLOOD:
                self._hub.cut_off(client, "flood", error)
            raise error
        client.refused = 0

    def refused(self, error: CarrelError) -> None:
        """The transport met something that is no envelope, and ends the connection."""
        self._hub.cut_off(self._client, "message_invalid", error)

    def ending(self) -> None:
        """The daemon ends."""
        self._hub.cut_off(self._client, "daemon_shutdown")

    def closed(self, reason: str = "connection_lost") -> None:
        self._hub.gone(self._client, reason)

    # Orders

    def _register(self, received: Received) -> None:
        hub, client = self._hub, self._client
        wanted: types.Register = types.parse(types.Register, received.payload)
        if client.kind is not None:
            raise Forbidden("You are registered already.", hint="Send `client_update`.")
        kind = ClientKind(wanted.kind)
        access.admit_kind(client.identity, kind)
        hub.hearing.check(client, wanted.subscriptions)
        # Now, and not in a task: what it costs is the time of who says it.
        types_heard = hub.patterns(client, wanted.subscriptions)
        client.capabilities = frozenset(wanted.capabilities)
        client.register(kind, wanted.name)
        number = received.id or "client_register"
        if wanted.consumer:
            hub.take_over(client, client.identity.consumer(wanted.consumer))
            hub.spawn(self._consume(number, wanted.subscriptions, types_heard, self._welcome()))
        else:
            hub.respond(client, number, {**self._welcome(), **hub.replayed({})})
            hub.hearing.join(client, wanted.subscriptions, types_heard)

    def _welcome(self) -> dict[str, object]:
        hub, client = self._hub, self._client
        return {
            "client_id": client.client_id,
            "heartbeat_s": hub.options.heartbeat_s,
            "sync": hub.options.sync,
            "space": client.identity.space_id,
        }

    async def _consume(
        self,
        number: str,
        wanted: types.Subscriptions,
        types_heard: Patterns,
        told: dict[str, object],
    ) -> None:
        """For a consumer: the answer, what it has not acknowledged of spaces that it did not
        hear before, and then what comes."""
        hub, client = self._hub, self._client
        try:
            await hub.keeper.settled()
            cursors = await hub.log.cursors(client.consumer)
            if client.closed:
                return
            before = set(hub.wanted_spaces(client))
            hub.hearing.join(client, wanted, types_heard)
            added = set(hub.wanted_spaces(client)) - before - client.reading
            hub.begin_reading(client, added)
            starts = {space: cursors.get(space, 0) for space in sorted(added)}
            hub.respond(client, number, {**told, **hub.replayed(starts)})
            client.flush()
            for space, after in starts.items():
                await hub.replay(client, space, after)
        except SpaceNotFound as error:
            # It went since we looked.
            hub.refuse(client, error, number)
        except CarrelError as error:
            # It comes again, and gets what it missed.
            hub.cut_off(client, "internal", error)

    def _update(self, received: Received) -> None:
        hub, client = self._hub, self._client
        wanted: types.UpdateMessage = types.parse(types.UpdateMessage, received.payload)
        if wanted.capabilities is not None:
            client.capabilities = frozenset(wanted.capabilities)
        if wanted.subscriptions is None:
            hub.respond(client, received.id, hub.replayed({}))
            return
        hub.hearing.check(client, wanted.subscriptions)
        types_heard = hub.patterns(client, wanted.subscriptions)
        if client.consumer:
            hub.spawn(self._consume(received.id, wanted.subscriptions, types_heard, {}))
            return
        hub.hearing.join(client, wanted.subscriptions, types_heard)
        hub.respond(client, received.id, hub.replayed({}))

    def _list(self, received: Received) -> None:
        wanted: types.ListClients = types.parse(types.ListClients, received.payload)
        if wanted.space:
            self._hub.check_seen(self._client, wanted.space)
        found = self._hub.clients(self._client, wanted.space)
        self._hub.respond(self._client, received.id, {"clients": found})

    def _leave(self, received: Received) -> None:
        types.parse(types.Disconnect, received.payload)
        self._hub.respond(self._client, received.id, {})
        self._client.flush()
        self._hub.cut_off(self._client, "client_shutdown")

    def _status(self, received: Received) -> None:
        self._hub.respond(self._client, received.id, self._hub.status())

    def _replay(self, received: Received) -> None:
        hub, client = self._hub, self._client
        wanted: types.ReplayMessage = types.parse(types.ReplayMessage, received.payload)
        if wanted.seq is not None and not wanted.space:
            raise MessageInvalid("A sequence number needs a space.", hint="Name the `space`.")
        if wanted.space:
            hub.check_seen(client, wanted.space)
        spaces = [wanted.space] if wanted.space else hub.wanted_spaces(client)
        busy = client.reading.intersection(spaces)
        if busy:
            raise Forbidden(f"{sorted(busy)[0]} is being replayed already.", hint="Wait for it.")
        hub.begin_reading(client, spaces)
        hub.spawn(self._replay_all(received.id, spaces, wanted))

    async def _replay_all(
        self, number: str, spaces: list[str], wanted: types.ReplayMessage
    ) -> None:
        hub, client = self._hub, self._client
        left = set(spaces)
        try:
            # What has happened is in the log before anybody reads it there.
            await hub.keeper.settled()
            starts: dict[str, int] = {}
            for space in spaces:
                starts[space] = wanted.seq or 0
                if wanted.since is not None:
                    starts[space] = max(starts[space], await hub.log.since(space, wanted.since))
            hub.respond(client, number, hub.replayed(starts))
            client.flush()
            for space, after in starts.items():
                # Afterwards it is not ours any more: another replay of it may begin.
                left.discard(space)
                await hub.replay(client, space, after)
        except CarrelError as error:
            hub.refuse(client, error, number)
        finally:
            client.reading -= left

    def _publish(self, received: Received) -> None:
        # One of them was taken for the envelope.
        heard_at = self._client.heard_at
        self._hub.publish_many(
            self._client, received, lambda count: self._take(count - 1, heard_at)
        )

    def _acknowledge(self, received: Received) -> None:
        client = self._client
        wanted: types.AcknowledgeMessage = types.parse(types.AcknowledgeMessage, received.payload)
        if not client.consumer:
            raise MessageInvalid(
                "Only a durable consumer may acknowledge messages.",
                hint="Register with a `consumer`.",
            )
        self._hub.check_seen(client, wanted.space)
        self._hub.spawn(self._acknowledged(received.id, wanted))

    async def _acknowledged(self, number: str, wanted: types.AcknowledgeMessage) -> None:
        hub, client = self._hub, self._client
        try:
            reached = await hub.log.acknowledge(client.consumer, wanted.space, wanted.seq)
        except CarrelError as error:
            hub.refuse(client, error, number)
            return
        hub.respond(client, number, {"seq": reached})


def _is_own(client: Client, claimed: dict[str, object]) -> bool:
    """Whether it is this client's. Who is the owner need not say so."""
    known: dict[str, object] = {"client_id": client.client_id, "kind": str(client.kind or "")}
    if client.identity.space_id:
        known["space"] = client.identity.space_id
    owner = access.is_admin(client.identity)
    return claimed == known or (owner and claimed == {**known, "owner": True})
