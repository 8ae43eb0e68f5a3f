"""The daemon's sockets: made, served, and closed with care."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import os
import resource
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path
from typing import Any, Protocol

from uvicorn import Config
from uvicorn.server import ServerState

from carrel.daemon import places
from carrel.domain.errors import DaemonUnavailable
from carrel.interfaces.http.access import LOCAL_STATE
from carrel.interfaces.http.body_limits import MAX_JSON
from carrel.interfaces.http.connections import (
    KEEP_ALIVE_S,
    OWNERS,
    ROOM,
    ConnectionLimits,
    HttpConnection,
    connection_maker,
)
from carrel.interfaces.http.lifetime import Shutdown
from carrel.interfaces.http.socket_connections import PING_S, SocketConnection

BACKLOG = 1024
MAX_PORT = 65535
GRACE_S = 5.0
"""For requests that are under way when the daemon ends. What they asked for is done to its end
by the service; they only miss the answer."""
_STEP_S = 0.02
_log = logging.getLogger("carrel.daemon")


class _State(ServerState):
    """What all connections share. The date is made when it is needed, not by a clock."""

    def __init__(self) -> None:
        self._second = 0
        self._headers: list[tuple[bytes, bytes]] = []
        super().__init__()

    @property
    def default_headers(self) -> list[tuple[bytes, bytes]]:
        now = int(time.time())
        if now != self._second:
            self._second = now
            self._headers = [(b"date", formatdate(now, usegmt=True).encode())]
        return self._headers

    @default_headers.setter
    def default_headers(self, _headers: list[tuple[bytes, bytes]]) -> None:
        """uvicorn sets it once, to nothing."""


@dataclass(frozen=True)
class Bound:
    sockets: tuple[socket.socket, ...]
    address: str = ""
    """HOST:PORT of TCP, if it listens there."""
    older: socket.socket | None = None
    """The port of the older API, if there is one."""


@asynccontextmanager
async def bound(data: Path, listen: str, older_port: int = 0) -> AsyncIterator[Bound]:
    """The sockets, made; afterwards their files are gone. The caller holds the lock, so what
    is there before is of a daemon that was killed. Raises `DaemonUnavailable`."""
    sockets = [_bind_unix(data)]
    try:
        address = ""
        if listen:
            sockets.append(_bind_tcp(listen))
            address = _shown(sockets[-1])
            _write(places.address(data), address)
            _warn_of_others(sockets[-1], address)
        else:
            _remove(places.address(data))
        tokened = tuple(sockets)
        if older_port:
            sockets.append(_bind_older(older_port))
        yield Bound(tokened, address, sockets[-1] if older_port else None)
    finally:
        for one in sockets:
            one.close()
        _remove(places.socket(data))
        _remove(places.address(data))


class Closable(Protocol):
    """What listens."""

    def close(self) -> None: ...


class DaemonServer:
    """Serves one application on several sockets."""

    def __init__(self, app: Any, closing: Shutdown, tcp_connections: int = 2048) -> None:
        self._closing = closing
        # The rest is for who comes by the Unix socket, and for what runs.
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._room = ConnectionLimits(max(1, min(tcp_connections, descriptors // 4)))
        self._state = _State()
        self._servers: list[Closable] = []
        self._config = Config(
            app,
            http=HttpConnection,
            ws=SocketConnection,
            ws_max_size=MAX_JSON,
            ws_ping_interval=PING_S,
            ws_ping_timeout=PING_S,
            ws_per_message_deflate=False,
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            # Whoever stands before us is not believed who the caller is.
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
        )
        self._config.load()

    async def open(self, sockets: tuple[socket.socket, ...]) -> None:
        for one in sockets:
            await self._open(one, {LOCAL_STATE: one.family == socket.AF_UNIX})

    async def open_older(self, listener: socket.socket, data: Path) -> None:
        """Where the owner's own processes need no token."""
        from carrel.daemon.older_port import OlderListener
        from carrel.instances.owners import OwnersConnections

        owners = OwnersConnections(data)
        state = {OWNERS: owners, ROOM: self._room}
        make = connection_maker(self._config, self._state, state)
        self._servers.append(OlderListener(listener, owners, make))

    async def _open(self, listener: socket.socket, state: dict[str, Any]) -> None:
        loop = asyncio.get_running_loop()
        make = connection_maker(self._config, self._state, {**state, ROOM: self._room})
        local = listener.family == socket.AF_UNIX
        create = loop.create_unix_server if local else loop.create_server
        self._servers.append(await create(make, sock=listener, backlog=BACKLOG))

    async def close(self, grace_s: float = GRACE_S) -> None:
        """Nobody new; streams end and say why; requests get their time; then all goes."""
        for server in self._servers:
            server.close()
        self._closing.begin()
        for connection in list(self._state.connections):
            if isinstance(connection, HttpConnection):
                connection.shutdown()
        loop = asyncio.get_running_loop()
        until = loop.time() + grace_s
        while (self._state.connections or self._state.tasks) and loop.time() < until:
            await asyncio.sleep(_STEP_S)
        for connection in list(self._state.connections):
            connection.transport.abort()
        left = list(self._state.tasks)
        if left:
            _log.warning("%d requests did not end in time", len(left))
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=grace_s)


def _bind_unix(data: Path) -> socket.socket:
    """Through the folder's descriptor when the path is longer than an address may be."""
    path = places.socket(data)
    _remove(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    above = -1
    try:
        name = path
        if len(os.fsencode(path)) > places.MAX_ADDRESS:
            above = os.open(places.folder(data), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            name = f"/proc/self/fd/{above}/{places.SOCKET}"
        listener.bind(name)
        os.chmod(path, 0o600)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise DaemonUnavailable(
            f"The socket {path} cannot be made: {error.strerror}.",
            hint="Choose another data folder: CARREL_DATA.",
        ) from error
    finally:
        if above >= 0:
            os.close(above)
    return listener


def _bind_tcp(listen: str) -> socket.socket:
    host, colon, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    known = colon and host and port.isascii() and port.isdigit()
    # The resolver would take what is left of a larger number.
    if not known or int(port[:6]) > MAX_PORT:
        raise DaemonUnavailable(
            f"{listen!r} is not an address to listen on.",
            hint="Write HOST:PORT, such as 127.0.0.1:0.",
        )
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            host, int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except (OSError, OverflowError) as error:
        raise _cannot_listen(listen, error) from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise _cannot_listen(listen, error) from error
    return listener


def _bind_older(port: int) -> socket.socket:
    from carrel.daemon import older_port

    try:
        return older_port.listen(port)
    except OSError as error:
        raise DaemonUnavailable(
            f"The daemon cannot listen on {older_port.HOST}:{port}: {error.strerror}.",
            hint="Choose another `legacy_port` in `[instances]` of the settings, or 0 for none.",
        ) from error


def _warn_of_others(listener: socket.socket, address: str) -> None:
    host = str(listener.getsockname()[0]).partition("%")[0]
    if not ipaddress.ip_address(host).is_loopback:
        _log.warning("%s can be reached by others, and tokens go there unencrypted", address)


def _cannot_listen(listen: str, error: Exception) -> DaemonUnavailable:
    why = getattr(error, "strerror", None) or str(error)
    return DaemonUnavailable(
        f"The daemon cannot listen on {listen}: {why}.",
        hint="Choose another port; port 0 takes any free one.",
    )


def _shown(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, f"{text}\n".encode())
    finally:
        os.close(descriptor)


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
