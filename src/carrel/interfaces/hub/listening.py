"""The sockets of the hub: one for this machine's user, and one in each space.

Whoever comes through a space's socket is that space, and nobody else comes through it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable
from pathlib import Path

from carrel.domain.access import LOCAL, Caller, Scope, ScopeKind
from carrel.domain.hub import HUB_SOCKET as SOCKET
from carrel.domain.trees import Owner
from carrel.hub.access import Identity
from carrel.hub.hub import Hub
from carrel.interfaces.hub.lines import LineConnection

BACKLOG = 64
_log = logging.getLogger("carrel.hub")


class Listening:
    """Sockets by the path of their folder."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._loop = asyncio.get_running_loop()
        self._sockets: dict[Path, socket.socket] = {}
        self._tasks: set[asyncio.Task[object]] = set()

    def open_local(self, folder: Path) -> None:
        """For whoever may enter the folder: its user, and root."""
        self._open(folder, Identity(LOCAL), None)

    def open_space(self, folder: Path, space_id: str, owner: Owner) -> None:
        """In a folder that the sandbox shows its commands, whose user is `owner`."""
        caller = Caller(f"space:{space_id}", Scope(ScopeKind.SPACE, space_id))
        self._open(folder, Identity(caller, inside=True), owner)

    def _open(self, folder: Path, identity: Identity, owner: Owner | None) -> None:
        if folder in self._sockets:
            return
        listener = _bind(folder, owner)
        self._sockets[folder] = listener
        self._loop.add_reader(listener, self._accept, listener, lambda: self._protocol(identity))

    def _protocol(self, identity: Identity) -> LineConnection:
        return LineConnection(self._hub, identity)

    def _accept(self, listener: socket.socket, protocol: Callable[[], LineConnection]) -> None:
        try:
            connection, _ = listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            _log.error("A client of the hub cannot be let in: %s", error)
            return
        connection.setblocking(False)
        task = self._loop.create_task(self._let_in(connection, protocol))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _let_in(
        self, connection: socket.socket, protocol: Callable[[], LineConnection]
    ) -> None:
        try:
            await self._loop.connect_accepted_socket(protocol, connection)
        except OSError:
            connection.close()

    def close(self, folder: Path) -> None:
        listener = self._sockets.pop(folder, None)
        if listener is None:
            return
        self._loop.remove_reader(listener)
        listener.close()
        with contextlib.suppress(OSError):
            (folder / SOCKET).unlink()

    def close_all(self) -> None:
        for folder in list(self._sockets):
            self.close(folder)


def _bind(folder: Path, owner: Owner | None) -> socket.socket:
    """Raises OSError. By a descriptor of the folder: the path itself may be too long."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    above = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(SOCKET, dir_fd=above)
        listener.bind(f"/proc/self/fd/{above}/{SOCKET}")
        os.chmod(SOCKET, 0o600, dir_fd=above)
        if owner is not None and os.geteuid() == 0:
            os.chown(SOCKET, owner.uid, owner.gid, dir_fd=above, follow_symlinks=False)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    finally:
        os.close(above)
    return listener
