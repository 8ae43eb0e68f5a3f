"""What the kernel tells of processes: on what they listen, and when they end."""

from __future__ import annotations

import asyncio
import contextlib
import glob
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from carrel.linux import processes, tcp
from carrel.linux.tcp import Endpoint

_ESTABLISHED = "01"
"""The state of a TCP socket, as `/proc/net/tcp` writes it."""
PROC = Path("/proc")
WHOLE_S = 0.25
"""The longest between two looks at the whole table."""


def endpoints(pids: Iterable[int]) -> frozenset[Endpoint]:
    """On what these processes listen together. Those that have ended, or are not ours to see, have
    none. Processes in different network namespaces are looked at in their own."""
    return frozenset(one for held in tcp.held_by(pids).values() for one in held.values())


def in_network(pid: int) -> frozenset[Endpoint]:
    """All that listens in the network of this process, whosever it is."""
    return frozenset(tcp.listeners(pid).values())


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
            tcp.counts(self._pid)
            if whole_network
            else {one for pid in pids for one in tcp.sockets_of(pid)}
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
