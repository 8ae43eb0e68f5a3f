"""The clients that are connected: how many there may be, who is at a space, what others see of
them."""

from __future__ import annotations

from collections import Counter
from collections.abc import ValuesView

from carrel.domain.access import LOCAL
from carrel.domain.errors import MessageInvalid, TooManyClients
from carrel.hub import access
from carrel.hub.access import Identity, VisibleSpaces
from carrel.hub.client import ALL, INNER_OF_ACCOUNT, Client, Patterns
from carrel.hub.envelopes import Received

SHARES = 4
"""One account has at most such a part of the places for clients."""
FEW = 250
"""And such a part of them also where none is left: somebody's many spaces have them."""


class ConnectedClients:
    """In the order in which they came."""

    def __init__(self, spaces: VisibleSpaces, most: int, most_in_space: int) -> None:
        """`most` is beside those of the daemon's own user, who has so many too."""
        self._spaces = spaces
        self._most = most
        self._most_in_space = most_in_space
        self._by_id: dict[str, Client] = {}
        self._by_account: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, client_id: str) -> bool:
        return client_id in self._by_id

    def values(self) -> ValuesView[Client]:
        return self._by_id.values()

    def get(self, client_id: str) -> Client | None:
        return self._by_id.get(client_id)

    def add(self, client: Client) -> None:
        self._by_id[client.client_id] = client
        self._by_account[client.identity.caller.account] += 1

    def remove(self, client: Client) -> None:
        self._by_id.pop(client.client_id, None)
        mine = client.identity.caller.account
        self._by_account[mine] -= 1
        if not self._by_account[mine]:
            del self._by_account[mine]

    def check_room(self, identity: Identity) -> None:
        """Nobody takes all of it: neither a space nor tokens of a label, be it with many
        spaces, and all together not that of the daemon's own user. Raises `TooManyClients`."""
        mine, most = identity.caller.account, self._most
        others = len(self._by_id) - self._by_account[LOCAL.account]
        share = max(1, most // SHARES)
        if mine == LOCAL.account:
            others, share = 0, most
        elif identity.inside:
            share = self._most_in_space
        if self._by_account[mine] >= share:
            raise TooManyClients(
                f"{self._by_account[mine]} of your clients are connected already.",
                hint="Disconnect some of them.",
            )
        if others >= most and self._by_account[mine] >= max(1, most // FEW):
            raise TooManyClients(
                f"{others} clients are connected already.",
                hint="Disconnect some of them, or raise `hub_clients`.",
            )

    def check_patterns(self, client: Client, wanted: Patterns) -> None:
        """Counts them for the client, instead of those that it had. Raises `MessageInvalid`."""
        mine = client.identity.counts_for
        known = (one for one in self._by_id.values() if one is not client)
        tried = sum(one.tried for one in known if one.tried and one.identity.counts_for == mine)
        if wanted.tried and mine != LOCAL.account and tried + wanted.tried > INNER_OF_ACCOUNT:
            raise MessageInvalid(
                f"Your clients have {tried} types with a `*` before their end already.",
                hint="Subscribe to whole types and to beginnings, such as `custom_*`.",
                field="types",
            )
        client.tried = wanted.tried

    # Who is where

    def receiver(self, asker: Client, received: Received, to: str) -> Client | None:
        """The one that is named, or the newest of the kind that is connected to the space."""
        for client in reversed(self._by_id.values()):
            if client is asker or client.kind is None or to not in (client.client_id, client.kind):
                continue
            if self._is_at(client, received.space) and client.answers(received.type):
                return client
        return None

    def _is_at(self, client: Client, space: str) -> bool:
        if client.identity.space_id:
            return client.identity.space_id == space
        seen = access.may_see(self._spaces, client.identity, space)
        return seen and bool(client.spaces & {space, ALL})

    # What others see of them

    def seen_by(self, viewer: Client, space: str) -> list[dict[str, object]]:
        """Those at a space, or all that it may know of."""
        return [
            self._told(viewer, client)
            for client in self._by_id.values()
            if client.kind is not None and self._shows(viewer, client, space)
        ]

    def _told(self, viewer: Client, client: Client) -> dict[str, object]:
        return {
            "client_id": client.client_id,
            "kind": str(client.kind),
            "name": client.name,
            "space": client.identity.space_id,
            "capabilities": sorted(client.capabilities),
            "consumer": access.consumer_name(client.consumer),
            "types": list(client.types.patterns),
            "spaces": self._hears(viewer, client),
            "waiting": client.sink.waiting(),
        }

    def _hears(self, viewer: Client, client: Client) -> list[str]:
        """What it hears, as far as the other one may know of that."""
        may_see, who = access.may_see, viewer.identity
        return sorted(s for s in client.spaces if s == ALL or may_see(self._spaces, who, s))

    def _shows(self, viewer: Client, client: Client, space: str) -> bool:
        if space:
            return self._is_at(client, space)
        if client is viewer:
            return True
        if client.identity.space_id:
            return access.may_see(self._spaces, viewer.identity, client.identity.space_id)
        return access.is_admin(viewer.identity)
