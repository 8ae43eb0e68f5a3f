"""The sockets by which clients reach a server. They are made in the host's network and passed into
the sandbox, which has nothing else of that network."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from functools import cache
from pathlib import Path

from carrel.instances.servers import HOST
from carrel.linux.sockets import only_listens

BACKLOG = 4096
"""Strangers can come, too, and who finds it full tries again after a second, then after three."""
NETLINK_SOCK_DIAG = 4
"""By which the kernel tells whose a connection is."""


class TcpSockets:
    """Implements `carrel.domain.server_adapter.ClientSockets`."""

    def __init__(self, port: int, *, gated: bool) -> None:
        self._gated = gated
        self._listener = _listener(port)
        self._asking: socket.socket | None = None
        self.port: int = self._listener.getsockname()[1]
        if gated:
            try:
                self._asking = diag_socket()
            except OSError:
                self._listener.close()
                raise

    @property
    def given(self) -> tuple[int, ...]:
        return () if self._gated else (self._listener.fileno(),)

    @property
    def gate(self) -> tuple[int, ...]:
        if self._asking is None:
            return ()
        return (self._listener.fileno(), self._asking.fileno())

    def close(self) -> None:
        self._listener.close()
        if self._asking is not None:
            self._asking.close()


class UnixSockets:
    """A Unix socket that only this user may connect to."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self.port = 0
        self.gate: tuple[int, ...] = ()
        folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # Through the descriptor: the path itself may be too long for an address.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            self._listener.bind(f"/proc/self/fd/{folder}/{path.name}")
            os.chmod(path, stat.S_IRUSR | stat.S_IWUSR)
            self._listener.listen(1)
        except OSError:
            self._listener.close()
            raise
        finally:
            os.close(folder)

    @property
    def given(self) -> tuple[int, ...]:
        return (self._listener.fileno(),)

    def close(self) -> None:
        self._listener.close()


class NoSockets:
    """No sockets: the server binds a port of the host itself."""

    port = 0
    given: tuple[int, ...] = ()
    gate: tuple[int, ...] = ()

    def close(self) -> None:
        return None


class ReservedSockets:
    """A port of the host that nobody else is given until the server has bound it."""

    given: tuple[int, ...] = ()
    gate: tuple[int, ...] = ()

    def __init__(self, reserved: Reserved) -> None:
        self._reserved = reserved
        self.port = 0

    def close(self) -> None:
        self._reserved.close()


@cache
def can_pass() -> bool:
    """Whether a socket of the host can be made to do nothing but listen: only then a server in
    another network may be given it, for it would be a way out. Some kernels refuse that to
    ordinary users."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as trial:
        try:
            only_listens(trial)
        except OSError:
            return False
    return True


def _listener(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((HOST, port))
        listener.listen(BACKLOG)
        with contextlib.suppress(OSError):
            # Where that is refused, see `can_pass`.
            only_listens(listener)
    except OSError:
        listener.close()
        raise
    return listener


def diag_socket() -> socket.socket:
    asking = socket.socket(
        socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, NETLINK_SOCK_DIAG
    )
    asking.bind((0, 0))
    return asking


# A port for a server that can only be told one


class Reserved:
    """A port that nobody else is given while this is open; the system chooses it unless it is
    named. A server that sets SO_REUSEADDR, as nearly all do, binds it all the same, for nobody
    listens here."""

    def __init__(self, port: int = 0) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind((HOST, port))
        except OSError:
            self._socket.close()
            raise
        self.port: int = self._socket.getsockname()[1]

    @classmethod
    def again(cls, port: int) -> Reserved:
        """Reserves that port if it is free, else another."""
        try:
            return cls(port)
        except OSError:
            return cls()

    def close(self) -> None:
        """Idempotent."""
        self._socket.close()
