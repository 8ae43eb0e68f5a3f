"""The port of the older API, where a client shows no token: who connects is told by the kernel.

The user alone says little: what runs in a space with the machine's network may have the same. So
the processes that hold the other end are looked up, and each of them has to be as free as the
daemon itself is. What runs in a space never is: it has other namespaces, or a filter of system
calls and no way to new privileges, none of which a process can undo. Where nothing confines it
(the runtime `process`), it is below the launcher.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from carrel.instances.inside.gate import Peers
from carrel.instances.sockets import diag_socket
from carrel.linux import processes

HOST = "127.0.0.1"
_NAMESPACES = ("user", "pid")
_RESTRAINTS = ("NoNewPrivs", "Seccomp", "Seccomp_filters")
"""As /proc has them; each only ever grows, and children inherit it."""


class OwnersConnections:
    """Says of a connection whether the owner's own processes made it, outside of spaces."""

    def __init__(self, data: Path) -> None:
        self._launcher = data / "launcher" / "lock"
        self._peers = Peers(diag_socket().detach(), frozenset({os.geteuid(), 0}))
        self._namespaces = _namespaces("/proc/self")
        self._restraints = _restraints("/proc/self")
        self._one_at_a_time = asyncio.Lock()

    async def __call__(self, connection: socket.socket) -> bool:
        async with self._one_at_a_time:
            return await asyncio.to_thread(self._is_owners, connection)

    def _is_owners(self, connection: socket.socket) -> bool:
        try:
            inode = self._peers.inode(connection)
            held = [self._is_free(pid) for pid in _holders(inode)] if inode else []
            # The same ones, still: else we may have looked at another's.
            return bool(held) and all(held) and self._peers.inode(connection) == inode
        except (OSError, ValueError):
            return False

    def _is_free(self, pid: int) -> bool:
        """OSError when the process is gone, or may not be looked at."""
        about = os.open(f"/proc/{pid}", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # By the descriptor: the number may be another's by now.
            here = f"/proc/self/fd/{about}"
            found = zip(_restraints(here), self._restraints, strict=True)
            same = _namespaces(here) == self._namespaces
            return same and all(its <= ours for its, ours in found) and not self._is_run(pid)
        finally:
            os.close(about)

    def _is_run(self, pid: int) -> bool:
        """Whether the launcher has started it. What loses its parent there becomes its child."""
        try:
            launcher = int(self._launcher.read_text())
        except FileNotFoundError:
            return False
        above: int | None = pid
        while above and above != launcher:
            above = processes.parent(above)
        return above == launcher


def listen(port: int) -> socket.socket:
    """On the loopback alone. OSError."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((HOST, port))
        listener.listen()
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def _holders(inode: int) -> Iterator[int]:
    """Of a socket, among all processes that we may look at."""
    wanted = f"socket:[{inode}]"
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            for number in os.listdir(f"/proc/{name}/fd"):
                if _link(f"/proc/{name}/fd/{number}") == wanted:
                    yield int(name)
                    break


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _namespaces(process: str) -> tuple[str, ...]:
    return tuple(os.readlink(f"{process}/ns/{kind}") for kind in _NAMESPACES)


def _restraints(process: str) -> tuple[int, ...]:
    """Those of the first thread. Older kernels do not count filters."""
    with open(f"{process}/status", encoding="utf-8", errors="replace") as file:
        said = dict(line.partition(":\t")[::2] for line in file)
    return tuple(int(said.get(name, "0")) for name in _RESTRAINTS)
