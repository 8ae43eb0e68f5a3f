"""What a sandbox must show for servers to run in it."""

from __future__ import annotations

from collections.abc import Sequence

from carrel.domain.instances import Found, Server, Servers
from carrel.domain.reception import Reception


class Needs:
    """Blocking, quick."""

    def __init__(self, servers: Servers, reception: Reception) -> None:
        self._servers = servers
        self._reception = reception

    def of(self, server: Server) -> tuple[str, ...]:
        """Raises `ServerNotInstalled`."""
        return self.by(server, self._servers.locate(server))

    def by(self, server: Server, found: Found) -> tuple[str, ...]:
        """Of one whose program was located."""
        paths = (*found.binds, *server.binds, *self._reception.shown())
        return tuple(dict.fromkeys(paths))

    def named(self, names: Sequence[str]) -> tuple[str, ...]:
        """Of all of them. Raises `ServerNotFound`, `ServerNotInstalled`."""
        paths = [path for name in names for path in self.of(self._servers.get(name))]
        return tuple(dict.fromkeys(paths))
