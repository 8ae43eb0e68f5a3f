"""The ports of sandboxes: what listens there, and connections to it from outside.

A sandbox with a network of its own is looked at through the eyes of one of its processes, and
reached by sockets that the launcher makes in that network. Where sandboxes are in the host's
network, what their processes hold open is all that tells their ports from others.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Awaitable, Callable, Iterable

from carrel.domain.errors import PortUnavailable, SandboxUnavailable
from carrel.domain.launching import LauncherPort
from carrel.domain.runtimes import Listening, ListeningPort, Sandbox
from carrel.linux import processes, tcp
from carrel.runtimes.requests import as_error

CONNECT_S = 10.0
"""For a server that takes none now, and may again: its queue is full."""
AT_ONCE = 24
"""Connections whose sockets are made together: two each, as many as one packet takes."""
LOOKED_S = 1.0
"""So long a look at a shared network counts for the connections that come meanwhile."""
PLACES = {socket.AF_INET: "127.0.0.1", socket.AF_INET6: "::1"}
SHARED = (
    "The space is in the machine's network: listed is what its own processes have open, as far as"
    " the daemon may see that."
)
_NOWHERE = (errno.EADDRNOTAVAIL, errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ECONNREFUSED)

Members = Callable[[Sandbox], Awaitable[tuple[list[int], str]]]


class SandboxPorts:
    """Of one runtime. `members` gives all processes of a sandbox, those that hold it too, and the
    network of its pod: who sets a container up is in that of the container for a moment."""

    def __init__(self, launcher: LauncherPort, members: Members) -> None:
        self._launcher = launcher
        self._members = members
        self._holders: dict[str, tuple[int, int]] = {}
        """A process in the network of each sandbox that was looked at, and when it began."""
        self._waiting: dict[str, list[asyncio.Future[list[socket.socket]]]] = {}
        self._making: set[asyncio.Task[None]] = set()
        self._looked: dict[str, tuple[float, frozenset[int]]] = {}

    # Looking

    async def listening(
        self, sandbox: Sandbox, before: Listening | None, *, private: bool
    ) -> Listening:
        sandbox_id = sandbox.spec.sandbox_id
        known = self._holders.get(sandbox_id)
        if private and before is not None and known is not None:
            mark = await asyncio.to_thread(_mark, known)
            if mark and mark == before.mark:
                return before
        pids, network = await self._members(sandbox)
        if not private:
            return Listening(await asyncio.to_thread(_held, pids), caution=SHARED)
        holder = await asyncio.to_thread(_inside, pids, network)
        if holder is None:
            self._holders.pop(sandbox_id, None)
            return Listening()
        self._holders[sandbox_id] = holder
        return await asyncio.to_thread(_network, holder, pids)

    def forget(self, sandbox_id: str) -> None:
        self._holders.pop(sandbox_id, None)
        self._looked.pop(sandbox_id, None)

    # Connecting

    async def connect(self, sandbox: Sandbox, port: int, *, private: bool) -> socket.socket:
        if private:
            made = await self._sockets(sandbox.spec.sandbox_id)
        else:
            await self._check_own(sandbox, port)
            made = _of_the_host()
        try:
            for one in made:
                if await _connected(one, port):
                    made.remove(one)
                    return one
        finally:
            _close_all(made)
        raise nothing_listens(port)

    async def _check_own(self, sandbox: Sandbox, port: int) -> None:
        """What others of this machine listen on is not forwarded."""
        loop, sandbox_id = asyncio.get_running_loop(), sandbox.spec.sandbox_id
        until, ports = self._looked.get(sandbox_id, (0.0, frozenset()))
        if loop.time() >= until or port not in ports:
            found = await self.listening(sandbox, None, private=False)
            ports = frozenset(one.port for one in found.ports)
            self._looked[sandbox_id] = (loop.time() + LOOKED_S, ports)
        if port not in ports:
            raise nothing_listens(port)

    async def _sockets(self, sandbox_id: str) -> list[socket.socket]:
        """One for each family, none where it is not set up. Those who ask at the same time are
        served by one child."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[list[socket.socket]] = loop.create_future()
        waiting = self._waiting.get(sandbox_id)
        if waiting is None:
            self._waiting[sandbox_id] = [answer]
            task = loop.create_task(self._make_all(sandbox_id))
            self._making.add(task)
            task.add_done_callback(self._making.discard)
        else:
            waiting.append(answer)
        try:
            return await answer
        except asyncio.CancelledError:
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                _close_all(answer.result())
            raise

    async def _make_all(self, sandbox_id: str) -> None:
        while waiting := self._waiting[sandbox_id]:
            served, self._waiting[sandbox_id] = waiting[:AT_ONCE], waiting[AT_ONCE:]
            try:
                made = await self._make(sandbox_id, len(served))
            except Exception as error:
                for answer in served:
                    if not answer.done():
                        answer.set_exception(error)
                continue
            each = len(made) // len(served)
            for number, answer in enumerate(served):
                own = made[number * each : (number + 1) * each]
                if answer.done():
                    _close_all(own)
                else:
                    answer.set_result(own)
        del self._waiting[sandbox_id]

    async def _make(self, sandbox_id: str, count: int) -> list[socket.socket]:
        fields = {"sandbox_id": sandbox_id, "families": [*map(int, PLACES)] * count}
        reply, received = await self._launcher.ask("sockets", fields, [])
        problem = reply.get("problem")
        if problem is None:
            return [socket.socket(fileno=one) for one in received]
        if problem["step"] == "cold":
            # Nothing runs in it, so nothing listens.
            return []
        if problem["step"] == "request":
            raise SandboxUnavailable(
                "The launcher is of an earlier version, and cannot connect to a space.",
                hint="Stop the spaces that run, and: carrel down",
            )
        raise as_error(problem)


def nothing_listens(port: int) -> PortUnavailable:
    return PortUnavailable(
        f"Nothing listens on port {port} in the space.",
        hint="Start your server; `carrel ps SPACE` shows what listens.",
        port=port,
    )


async def _connected(one: socket.socket, port: int) -> bool:
    place = PLACES[socket.AddressFamily(one.family)]
    try:
        async with asyncio.timeout(CONNECT_S):
            await asyncio.get_running_loop().sock_connect(one, (place, port))
    except TimeoutError:
        return False
    except OSError as error:
        if error.errno in _NOWHERE:
            return False
        raise SandboxUnavailable(f"The space cannot be connected to: {error.strerror}.") from None
    return True


def _of_the_host() -> list[socket.socket]:
    made = []
    for family in PLACES:
        with contextlib.suppress(OSError):
            made.append(socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK))
    return made


def _close_all(sockets: Iterable[socket.socket]) -> None:
    for one in sockets:
        one.close()


# In threads


def _inside(pids: list[int], network: str) -> tuple[int, int] | None:
    """The oldest of them that is in that network, and when it began: the others come and go. Where
    no network is named, that is another one than ours."""
    other = ("", tcp.network_of("self"))

    def fits(found: str) -> bool:
        return found == network if network else found not in other

    began = {pid: processes.start_time(pid) for pid in pids if fits(tcp.network_of(pid))}
    living = [(started, pid) for pid, started in began.items() if started is not None]
    return min(living)[::-1] if living else None


def _mark(holder: tuple[int, int]) -> tuple[str, ...]:
    """Empty when that process is gone."""
    mark = (*map(str, holder), *tcp.counts(holder[0]))
    return mark if processes.is_alive(*holder) else ()


def _network(holder: tuple[int, int], pids: list[int]) -> Listening:
    """All of it. The mark is older than what was found, so nothing is missed."""
    mark = _mark(holder)
    table = tcp.listeners(holder[0])
    found = {inode: (0, one) for inode, one in table.items()}
    for pid in pids if found else ():
        for inode in tcp.sockets_of(pid) & found.keys():
            found[inode] = (pid, table[inode])
    return Listening(_ports(found.values()), mark)


def _held(pids: list[int]) -> tuple[ListeningPort, ...]:
    found: dict[str, tuple[int, tcp.Endpoint]] = {}
    for pid, held in tcp.held_by(pids).items():
        found.update({inode: (pid, one) for inode, one in held.items()})
    return _ports(found.values())


def _ports(found: Iterable[tuple[int, tcp.Endpoint]]) -> tuple[ListeningPort, ...]:
    """One for each address: what several processes share is told once."""
    by_place = {one: pid for pid, one in found}
    ports = [ListeningPort(at.port, at.host, pid, _program(pid)) for at, pid in by_place.items()]
    return tuple(sorted(ports))


def _program(pid: int) -> str:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/comm", errors="replace") as file:
        return file.read(64).strip()
    return ""
