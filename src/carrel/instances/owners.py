"""Whether a connection on the loopback was made by the owner's own processes, outside of spaces.

Who connects shows no token: the kernel is asked. The user alone says little: what runs in a space
with the machine's network may have the same. So the processes that hold the other end are looked
up, and each of them has to be as free as the daemon itself is. What runs in a space never is: it
has other namespaces, or a filter of system calls and no way to new privileges, none of which a
process can undo. Where nothing confines it (the runtime `process`), it is below the launcher. What
the daemon itself has open it was sent out of a space, by a Unix socket.

A look goes through all processes, so those who come meanwhile are looked at together, and in the
order of their coming: however often what runs in a space connects, the owner's turn comes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Collection, Sequence
from pathlib import Path

from carrel.instances.inside.gate import Peers
from carrel.instances.sockets import diag_socket
from carrel.linux import processes

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
        self._asked: list[tuple[socket.socket, asyncio.Future[bool]]] = []
        self._looking: asyncio.Task[None] | None = None

    def close(self) -> None:
        self._peers.close()

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
        """Whether the launcher has started it, or we have, or it is one of us: the connections that
        we hold were sent to us out of spaces. What loses its parent there becomes the launcher's
        child."""
        if pid == os.getpid():
            return True
        # The first process of a container has all orphans there.
        ours = {os.getpid()} - {1}
        with contextlib.suppress(FileNotFoundError):
            ours.add(int(self._launcher.read_text()))
        above: int | None = pid
        while above and above not in ours:
            above = processes.parent(above)
        return above in ours


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
