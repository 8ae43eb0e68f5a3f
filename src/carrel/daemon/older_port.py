"""The port of the older API, where a client shows no token: who connects is told by the kernel.

The user alone says little: what runs in a space with the machine's network may have the same. So
the processes that hold the other end are looked up, and each of them has to be as free as the
daemon itself is. What runs in a space never is: it has other namespaces, or a filter of system
calls and no way to new privileges, none of which a process can undo. Where nothing confines it
(the runtime `process`), it is below the launcher.

A look goes through all processes, so those who come meanwhile are looked at together, and in the
order of their coming: however often what runs in a space connects, the owner's turn comes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections import deque
from collections.abc import Callable, Collection, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import cast

from carrel.instances.inside.gate import Peers
from carrel.instances.sockets import diag_socket
from carrel.interfaces.http.connections import last_answer, not_owners
from carrel.linux import processes

HOST = "127.0.0.1"
_NAMESPACES = ("user", "pid")
_RESTRAINTS = ("NoNewPrivs", "Seccomp", "Seccomp_filters")
"""As /proc has them; each only ever grows, and children inherit it."""
BACKLOG = 4096
"""Who finds it full tries again after a second, then after three."""
MOST_UNKNOWN = 256
"""Connections that are looked at together; the others wait in the kernel, the oldest first."""
MOST_REFUSED = 256
"""Connections that may still read that they are refused; one more, and the oldest goes."""
MOST_UNREAD = 1 << 20
"""Bytes that are taken of one of them."""
AGAIN_S = 0.1
"""Until the next try when there was no descriptor for a connection."""


class OwnersConnections:
    """Says of a connection whether the owner's own processes made it, outside of spaces."""

    def __init__(self, data: Path) -> None:
        self._launcher = data / "launcher" / "lock"
        self._peers = Peers(diag_socket().detach(), frozenset({os.geteuid(), 0}))
        self._namespaces = _namespaces("/proc/self")
        self._restraints = _restraints("/proc/self")
        self._asked: list[tuple[socket.socket, asyncio.Future[bool]]] = []
        self._looking: asyncio.Task[None] | None = None

    async def __call__(self, connection: socket.socket) -> bool:
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._asked.append((connection, answer))
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        return await answer

    async def _look(self) -> None:
        while self._asked:
            asked, self._asked = self._asked, []
            found = await asyncio.to_thread(self._owners, [one for one, _ in asked])
            for (_, answer), is_owners in zip(asked, found, strict=True):
                if not answer.done():
                    answer.set_result(is_owners)

    def _owners(self, connections: Sequence[socket.socket]) -> list[bool]:
        inodes = [self._inode(one) for one in connections]
        near: list[int] = []
        far: list[int] = []
        for pid in _processes():
            (near if self._is_near(pid) else far).append(pid)
        held = _held(set(inodes) - {0}, near)
        free = {pid: self._is_free(pid) for pids in held.values() for pid in pids}
        good = {inode for inode, pids in held.items() if all(free[pid] for pid in pids)}
        # What no free process has is refused, however much is open elsewhere.
        good -= _held(good, far).keys()
        # The same ones, still: else we may have looked at another's.
        return [
            inode in good and self._inode(one) == inode
            for one, inode in zip(connections, inodes, strict=True)
        ]

    def _inode(self, connection: socket.socket) -> int:
        """Of the other end; 0: it has gone, or is not of our user."""
        try:
            return self._peers.inode(connection)
        except OSError:
            return 0

    def _is_near(self, pid: int) -> bool:
        """In our namespaces; False also when the process is gone, or may not be looked at."""
        try:
            return _namespaces(f"/proc/{pid}") == self._namespaces
        except OSError:
            return False

    def _is_free(self, pid: int) -> bool:
        """False also when the process is gone, or may not be looked at."""
        try:
            about = os.open(f"/proc/{pid}", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            # By the descriptor: the number may be another's by now.
            here = f"/proc/self/fd/{about}"
            found = zip(_restraints(here), self._restraints, strict=True)
            same = _namespaces(here) == self._namespaces
            return same and all(its <= ours for its, ours in found) and not self._is_run(pid)
        except (OSError, ValueError):
            return False
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


class OlderListener:
    """Accepts connections, and has each looked at before it takes a place among those of the
    daemon."""

    def __init__(
        self,
        listener: socket.socket,
        owners: OwnersConnections,
        make: Callable[[], asyncio.Protocol],
    ) -> None:
        """`make` is for the owner's connections; others only hear that they are refused."""
        self._listener = listener
        self._owners = owners
        self._make = make
        self._loop = asyncio.get_running_loop()
        self._unknown: set[asyncio.Task[None]] = set()
        self._refused: deque[asyncio.Transport] = deque()
        self._closed = False
        self._listen()

    def close(self) -> None:
        """Idempotent."""
        self._closed = True
        self._loop.remove_reader(self._listener)
        self._listener.close()
        for task in self._unknown:
            task.cancel()
        for transport in self._refused:
            transport.abort()

    def _listen(self) -> None:
        if not self._closed:
            self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        """All who wait, so that one look is for many."""
        while len(self._unknown) < MOST_UNKNOWN:
            try:
                came, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError:
                self._loop.remove_reader(self._listener)
                self._loop.call_later(AGAIN_S, self._listen)
                return
            came.setblocking(False)
            task = self._loop.create_task(self._admit(came))
            self._unknown.add(task)
            task.add_done_callback(self._admitted)
        self._loop.remove_reader(self._listener)

    def _admitted(self, task: asyncio.Task[None]) -> None:
        self._unknown.discard(task)
        if not self._unknown:
            self._listen()

    async def _admit(self, came: socket.socket) -> None:
        try:
            make = self._make if await self._owners(came) else _Refusal
            transport, protocol = await self._loop.connect_accepted_socket(make, came)
            if isinstance(protocol, _Refusal):
                self._refused.append(transport)
            while len(self._refused) > MOST_REFUSED:
                self._refused.popleft().abort()
        except OSError:
            came.close()
        except asyncio.CancelledError:
            came.close()
            raise


class _Refusal(asyncio.Protocol):
    """Says that this is not for the one who came, and takes what that one still sends: who is cut
    off in the middle of it might not read why."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._left = MOST_UNREAD
        self._answered = False

    def data_received(self, data: bytes) -> None:
        self._left -= len(data)
        if self._left < 0:
            self._transport.abort()
        elif not self._answered:
            self._answered = True
            self._transport.write(last_answer(not_owners(), HTTPStatus.FORBIDDEN))
            self._transport.write_eof()


def listen(port: int) -> socket.socket:
    """On the loopback alone. OSError."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((HOST, port))
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def _processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _held(inodes: Collection[int], pids: Sequence[int]) -> dict[int, set[int]]:
    """Which of these processes have which of the sockets open; of what we may look at."""
    wanted = {f"socket:[{inode}]": inode for inode in inodes}
    found: dict[int, set[int]] = {}
    for pid in pids if wanted else ():
        with contextlib.suppress(OSError):
            for number in os.listdir(f"/proc/{pid}/fd"):
                if inode := wanted.get(_link(f"/proc/{pid}/fd/{number}")):
                    found.setdefault(inode, set()).add(pid)
    return found


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
