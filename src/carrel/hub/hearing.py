"""Who hears what: found by space, so that those who did not ask cost nothing."""

from __future__ import annotations

from collections.abc import Iterator

from carrel.hub import access
from carrel.hub.access import Spaces
from carrel.hub.client import ALL, Client
from carrel.hub.types import Subscriptions


class Hearing:
    def __init__(self, spaces: Spaces) -> None:
        self._spaces = spaces
        self._by_space: dict[str, set[Client]] = {}
        self._everywhere: set[Client] = set()

    def check(self, client: Client, wanted: Subscriptions) -> None:
        """Raises `SpaceNotFound`."""
        named = [space for space in wanted.spaces if space != ALL]
        access.check_seen(self._spaces, client.identity, named)

    def join(self, client: Client, wanted: Subscriptions) -> None:
        """Instead of what it subscribed to before. Raises `SpaceNotFound`."""
        self.check(client, wanted)
        self.leave(client)
        client.subscribe(wanted)
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
