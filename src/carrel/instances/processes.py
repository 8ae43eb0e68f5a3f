"""What the kernel tells of processes: on what they listen, and when they end."""

from __future__ import annotations

import asyncio
import contextlib
import glob
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from carrel.linux import processes

_LISTEN, _ESTABLISHED = "0A", "01"
"""States of a TCP socket, as `/proc/net/tcp` writes them."""
PROC = Path("/proc")
WHOLE_S = 0.25
"""The longest between two looks at the whole table."""


@dataclass(frozen=True, order=True)
class Endpoint:
    """`host` is an address; all zeros stand for every one of the machine."""

    host: str
    port: int

    @property
    def is_open(self) -> bool:
        """Others than this machine may reach it."""
        return not (self.host.startswith("127.") or self.host == "::1")


def endpoints(pids: Iterable[int]) -> frozenset[Endpoint]:
    """On what these processes listen together. Those that have ended, or are not ours to see, have
    none. Processes in different network namespaces are looked at in their own."""
    found: set[Endpoint] = set()
    tables: dict[str, dict[str, Endpoint]] = {}
    for pid in pids:
        inodes = _sockets(pid)
        if not inodes:
            continue
        namespace = _namespace(pid)
        if namespace not in tables:
            tables[namespace] = _table(pid)
        found.update(tables[namespace][inode] for inode in inodes & tables[namespace].keys())
    return frozenset(found)


def in_network(pid: int) -> frozenset[Endpoint]:
    """All that listens in the network of this process, whosever it is."""
    return frozenset(_table(pid).values())


def connections(ports: frozenset[int]) -> dict[int, int]:
    """How many are open to each of these ports of the network that we are in."""
    found = dict.fromkeys(ports, 0)
    for name in ("tcp", "tcp6"):
        for words in _rows(PROC / "self" / "net" / name, _ESTABLISHED):
            port = int(words[1].rpartition(":")[2], 16)
            if port in found:
                found[port] += 1
    return found


class PortWatch:
    """Watches on what a server listens while it starts. The table of sockets
    takes milliseconds where the kernel has room for many, so it is read when there are other
    sockets than before, and now and then for those who went away from their parents."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._had: object = None
        self._until = 0.0
        self._found: frozenset[Endpoint] = frozenset()

    def look(self, *, whole_network: bool) -> frozenset[Endpoint]:
        """The whole network is that of its sandbox, where few come and go: how many there are is
        told at once."""
        pids = [] if whole_network else tree(self._pid)
        has = (
            _counts(self._pid) if whole_network else {one for pid in pids for one in _sockets(pid)}
        )
        now = time.monotonic()
        if has != self._had or now >= self._until:
            self._found = in_network(self._pid) if whole_network else endpoints(pids)
            self._had, self._until = has, now + WHOLE_S
        return self._found


def tree(pid: int) -> list[int]:
    """The process and all below it. Any thread may have made a child."""
    found, pending = [], [pid]
    while pending:
        current = pending.pop()
        found.append(current)
        for task in glob.iglob(f"{PROC}/{current}/task/*/children"):
            with contextlib.suppress(OSError), open(task) as file:
                pending += [int(word) for word in file.read().split()]
    return found


def _rows(path: Path, state: str) -> Iterator[list[str]]:
    with contextlib.suppress(OSError):
        for line in path.read_text().splitlines()[1:]:
            words = line.split()
            if len(words) > 9 and words[3] == state:
                yield words


def _sockets(pid: int) -> set[str]:
    """By inode."""
    found: set[str] = set()
    with contextlib.suppress(OSError), os.scandir(PROC / str(pid) / "fd") as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                target = os.readlink(entry.path)
                if target.startswith("socket:["):
                    found.add(target[8:-1])
    return found


def _counts(pid: int) -> list[str]:
    """Of the sockets in its network: `TCP: inuse 1 …`, whose other figures are the machine's."""
    found = []
    for name in ("sockstat", "sockstat6"):
        with contextlib.suppress(OSError):
            lines = (PROC / str(pid) / "net" / name).read_text().splitlines()
            found += [line.split()[2] for line in lines if line.startswith("TCP")]
    return found


def _namespace(pid: int) -> str:
    try:
        return os.readlink(PROC / str(pid) / "ns" / "net")
    except OSError:
        return ""


def _table(pid: int) -> dict[str, Endpoint]:
    """What listens in its network, by inode."""
    found: dict[str, Endpoint] = {}
    for name, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for words in _rows(PROC / str(pid) / "net" / name, _LISTEN):
            found[words[9]] = _endpoint(words[1], family)
    return found


def _endpoint(text: str, family: socket.AddressFamily) -> Endpoint:
    """Addresses are written word by word, each in the order of the machine."""
    address, _, port = text.partition(":")
    raw = bytes.fromhex(address)
    words = [raw[start : start + 4][::-1] for start in range(0, len(raw), 4)]
    return Endpoint(socket.inet_ntop(family, b"".join(words)), int(port, 16))


# The end of other processes


class ProcessOwners:
    """Implements `carrel.domain.server_adapter.Owners`."""

    def started(self, pid: int) -> int | None:
        return processes.start_time(pid) if pid > 0 else None

    def uid(self, pid: int) -> int | None:
        try:
            return os.stat(f"/proc/{pid}").st_uid
        except OSError:
            return None

    def on_end(self, pid: int, started: int, then: Callable[[], None]) -> Callable[[], None]:
        loop = asyncio.get_running_loop()
        try:
            descriptor = os.pidfd_open(pid)
        except OSError:
            return loop.call_soon(then).cancel
        if processes.start_time(pid) != started:
            # Its number was given to another one before we opened it.
            os.close(descriptor)
            return loop.call_soon(then).cancel
        open_now = True

        def take_back() -> None:
            nonlocal open_now
            if open_now:
                open_now = False
                loop.remove_reader(descriptor)
                os.close(descriptor)

        def ended() -> None:
            take_back()
            then()

        loop.add_reader(descriptor, ended)
        return take_back
