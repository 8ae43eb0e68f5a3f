"""Ports of spaces: what listens there, and which of them are on the host's loopback.

A forward is the daemon's: it lasts until somebody stops it, or its space stops, and the next daemon
takes it up on the same port of the host. It is written down in `ports.json` in the folder of its
space. What begins and ends to listen is told while somebody looks, or a port is forwarded: nobody
looks at other spaces.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from carrel.domain.access import Caller
from carrel.domain.errors import (
    CarrelError,
    PortNotForwarded,
    PortUnavailable,
    SandboxUnavailable,
    StateConflict,
)
from carrel.domain.events import Event, EventType
from carrel.domain.ports import Forward, Forwarder
from carrel.domain.runtimes import Listening, ListeningPort, ReachableRuntime, Sandbox
from carrel.domain.spaces import Space
from carrel.lifecycle.table import LIVE
from carrel.service.access import require_admin
from carrel.service.journal import Journal
from carrel.service.open_spaces import OpenSpace, OpenSpaces
from carrel.service.shared import Errands, Shared
from carrel.service.spaces import Spaces

NAME = "ports.json"
LOOK_S = 1.0
"""Between two looks at a space that somebody watches."""
WHOLE = 10
"""Each so many looks all is looked at: one that ends while another begins leaves no mark."""
WATCHED_S = 30.0
"""So long after somebody has looked, what changes is told."""
MOST_FORWARDS = 64
"""Of one space."""
USED_S = 60.0
"""A space whose forward is used is in use; it is written down so often at most."""
NOT_REACHABLE = "This runtime does not tell what listens in its spaces."


@dataclasses.dataclass
class WatchedPorts:
    """What was told of the ports of one space."""

    until: float
    found: Listening = dataclasses.field(default_factory=Listening)
    looks: int = 0


class Ports:
    def __init__(
        self,
        journal: Journal,
        spaces: Spaces,
        open_spaces: OpenSpaces,
        shared: Shared,
        forwarder: Forwarder,
    ) -> None:
        self._journal = journal
        self._spaces = spaces
        self._open_spaces = open_spaces
        self._locks = shared.locks
        self._tasks = shared.tasks
        self._forwarder = forwarder
        self._forwards: dict[str, dict[int, Forward]] = {}
        """By space and port."""
        self._problems: dict[str, str] = {}
        """Why the last connection of a forward was reset."""
        self._watched: dict[str, WatchedPorts] = {}
        self._used: dict[str, float] = {}
        self._looking: asyncio.Task[None] | None = None
        self._errands = Errands(lambda _error: None)
        self._noting = asyncio.Lock()

    # Looking

    async def listening(self, caller: Caller, word: str) -> tuple[Space, Listening]:
        """From now on it is told for a while when that changes."""
        space = await self._spaces.existing(caller, word)
        if space.state not in LIVE:
            return space, Listening()
        watched = self._watched.get(space.space_id)
        if watched is None:
            watched = await self._watch(space.space_id)
        else:
            await self._look(space.space_id, watched)
        watched.until = asyncio.get_running_loop().time() + WATCHED_S
        return space, watched.found

    async def look(self, space: Space) -> Listening:
        """Once, and nothing is told later."""
        watched = self._watched.get(space.space_id)
        before = None if watched is None else watched.found
        return await self._found(space.space_id, before) if space.state in LIVE else Listening()

    def forwards(self, space_id: str) -> Sequence[tuple[Forward, int, str]]:
        """With how many connections each has now, and why its last one was reset, if it was."""
        found = self._forwards.get(space_id, {})
        return [
            (one, self._forwarder.connections(one), self._problems.get(one.key, ""))
            for _, one in sorted(found.items())
        ]

    async def _watch(self, space_id: str) -> WatchedPorts:
        """What listens already is not told as new."""
        found = await self._found(space_id, None)
        watched = self._watched.setdefault(space_id, WatchedPorts(0.0, found))
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look_again_and_again())
        return watched

    async def _found(self, space_id: str, before: Listening | None) -> Listening:
        space = self._journal.current(space_id)
        opened = await self._open_spaces.of(space)
        if not isinstance(opened.runtime, ReachableRuntime):
            return Listening(caution=NOT_REACHABLE)
        return await _listening(opened.runtime, opened.sandboxes, before)

    # Forwarding

    async def forward(self, caller: Caller, word: str, port: int, local: int = 0) -> Forward:
        """On `local`, or on a free port where it is 0; what is there already is given again. It
        need not listen yet. Raises `Forbidden` for all but administrators, who may be whoever gets
        in; `StateConflict`, `PortUnavailable`."""
        require_admin(caller)
        space = await self._spaces.existing(caller, word)
        return await self._tasks.see_through(self._forward(space.space_id, port, local))

    async def _forward(self, space_id: str, port: int, local: int) -> Forward:
        async with self._locks.shared(space_id):
            space = self._journal.current(space_id)
            if space.state not in LIVE:
                raise StateConflict(
                    f"{space.name} is {space.state}; nothing can listen in it.",
                    hint=f"Start it: carrel start {space.name}",
                    state=str(space.state),
                )
            there = self._forwards.get(space_id, {})
            if (found := there.get(port)) is not None:
                if local in (0, found.local):
                    return found
                raise PortUnavailable(
                    f"Port {port} of {space.name} is forwarded already, as {found.local}.",
                    hint=f"Stop that one: carrel port {space.name} {port} --stop",
                    port=port,
                )
            if len(there) >= MOST_FORWARDS:
                raise PortUnavailable(
                    f"{space.name} has {MOST_FORWARDS} forwards, and gets no more.",
                    hint="Stop some of them: carrel port SPACE PORT --stop",
                    port=port,
                )
            opened = await self._open_spaces.of(space)
            if not isinstance(opened.runtime, ReachableRuntime):
                raise SandboxUnavailable(
                    f"The runtime {space.runtime} cannot be connected to.",
                    hint="Make the space with another one.",
                )
            await self._watch(space_id)
            made = self._begin(opened, Forward(space_id, port, local, self._journal.clock()))
            await self._note(space_id)
            data = {"port": port, "local": made.local}
            await self._tell(EventType.FORWARD_BEGUN, space_id, data)
        return made

    def _begin(self, opened: OpenSpace, forward: Forward) -> Forward:
        runtime, space = opened.runtime, opened.space
        assert isinstance(runtime, ReachableRuntime)

        async def connect() -> Any:
            try:
                connection = await _connected(runtime, opened.sandboxes, forward.port)
            except CarrelError as error:
                # Who connects only sees a reset.
                self._problems[forward.key] = error.message
                raise
            self._problems.pop(forward.key, None)
            self._use(space.space_id)
            return connection

        made = self._forwarder.open(forward, space.counts_for, connect)
        self._forwards.setdefault(space.space_id, {})[made.port] = made
        return made

    def _use(self, space_id: str) -> None:
        now = self._journal.clock()
        if now - self._used.get(space_id, 0.0) >= USED_S:
            self._used[space_id] = now
            with contextlib.suppress(CarrelError):
                self._errands.begin(
                    self._journal.write(self._journal.amend(space_id, active_at=now))
                )

    async def stop(self, caller: Caller, word: str, port: int) -> Forward:
        """Its connections end. Raises `Forbidden`, `PortNotForwarded`."""
        require_admin(caller)
        space = await self._spaces.existing(caller, word)
        found = self._forwards.get(space.space_id, {}).get(port)
        if found is None:
            raise PortNotForwarded(
                f"Port {port} of {space.name} is not forwarded.",
                hint=f"`carrel port {space.name}` lists what is.",
                port=port,
            )
        self._drop(space.space_id, [found])
        await self._tasks.see_through(self._say_ended(space.space_id, [found]))
        return found

    def _drop(self, space_id: str, ended: Sequence[Forward]) -> None:
        there = self._forwards.get(space_id, {})
        for forward in ended:
            self._forwarder.end(forward)
            there.pop(forward.port, None)
            self._problems.pop(forward.key, None)
        if not there:
            self._forwards.pop(space_id, None)
            self._used.pop(space_id, None)

    async def _say_ended(self, space_id: str, ended: Sequence[Forward], why: str = "") -> None:
        await self._note(space_id)
        for forward in ended:
            data: dict[str, Any] = {"port": forward.port, "local": forward.local}
            if why:
                data["problem"] = {"message": why}
            await self._tell(EventType.FORWARD_ENDED, space_id, data)

    def heard(self, events: Sequence[Event]) -> None:
        """Forwards end with the sandbox that they lead to."""
        for event in events:
            if event.type != EventType.SPACE_STATE or event.data.get("to") in LIVE:
                continue
            self._watched.pop(event.space_id, None)
            if ended := list(self._forwards.get(event.space_id, {}).values()):
                self._drop(event.space_id, ended)
                why = f"The space is {event.data.get('to')}."
                self._errands.begin(self._say_ended(event.space_id, ended, why))

    async def _tell(self, type: EventType, space_id: str, data: dict[str, Any]) -> None:
        with contextlib.suppress(CarrelError):
            await self._journal.write(self._journal.event(type, space_id, **data))

    # Written down

    async def _note(self, space_id: str) -> None:
        path = self._open_spaces.folder(space_id) / NAME
        # A space that is going has no folder; a disk that is full keeps no forward from anything.
        async with self._noting:
            forwards = list(self._forwards.get(space_id, {}).values())
            with contextlib.suppress(OSError):
                await asyncio.to_thread(_write, path, forwards)

    async def take_up(self) -> None:
        """Those of an earlier daemon, each on the port that it had."""
        for space in self._journal.all():
            path = self._open_spaces.folder(space.space_id) / NAME
            for forward in await asyncio.to_thread(_read, path, space.space_id):
                await self._take_up(space, forward)

    async def _take_up(self, space: Space, forward: Forward) -> None:
        why = f"The space is {space.state}."
        if space.state in LIVE:
            try:
                opened = await self._open_spaces.of(space)
                self._begin(opened, forward)
            except CarrelError as error:
                why = error.message
            else:
                with contextlib.suppress(CarrelError):
                    await self._watch(space.space_id)
                return
        await self._say_ended(space.space_id, [forward], why)

    # Watching

    async def _look_again_and_again(self) -> None:
        """Ends when nobody watches any more."""
        loop = asyncio.get_running_loop()
        while self._watched:
            await asyncio.sleep(LOOK_S)
            for space_id, watched in list(self._watched.items()):
                if space_id not in self._forwards and loop.time() >= watched.until:
                    self._watched.pop(space_id, None)
                    continue
                with contextlib.suppress(CarrelError, OSError):
                    await self._look(space_id, watched)

    async def _look(self, space_id: str, watched: WatchedPorts) -> None:
        watched.looks += 1
        before = watched.found
        found = await self._found(space_id, before if watched.looks % WHOLE else None)
        if found is before or self._watched.get(space_id) is not watched:
            return
        watched.found = found
        for one in _new(found, before):
            data = {"port": one.port, "host": one.host, "program": one.program}
            await self._tell(EventType.PORT_LISTENS, space_id, data)
        for one in _new(before, found):
            await self._tell(EventType.PORT_CLOSED, space_id, {"port": one.port, "host": one.host})

    async def close(self) -> None:
        """The daemon ends; its successor takes up the forwards."""
        if self._looking is not None:
            self._looking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._looking
        await self._errands.close()
        self._forwarder.close()


async def _listening(
    runtime: ReachableRuntime, sandboxes: Sequence[Sandbox], before: Listening | None
) -> Listening:
    """Those of a space with an image have one network: each tells of its own processes which has
    what open. Any of them may have ended, as nothing runs in it."""
    looks = []
    for one in sandboxes:
        look = await runtime.listening(one, before)
        if before is not None and look is before:
            return before
        looks.append(look)
    by_place: dict[tuple[int, str], ListeningPort] = {}
    for port in (port for look in looks for port in look.ports):
        known = by_place.get((port.port, port.host))
        if known is None or not known.pid:
            by_place[port.port, port.host] = port
    mark = next((look.mark for look in looks if look.mark), ())
    caution = next((look.caution for look in looks if look.caution), "")
    return Listening(tuple(sorted(by_place.values())), mark, caution)


async def _connected(
    runtime: ReachableRuntime, sandboxes: Sequence[Sandbox], port: int
) -> socket.socket:
    *others, last = sandboxes
    for one in others:
        with contextlib.suppress(PortUnavailable):
            return await runtime.connect(one, port)
    return await runtime.connect(last, port)


def _new(found: Listening, before: Listening) -> list[ListeningPort]:
    known = {(one.port, one.host) for one in before.ports}
    return [one for one in found.ports if (one.port, one.host) not in known]


def _write(path: Path, forwards: Sequence[Forward]) -> None:
    if not forwards:
        path.unlink(missing_ok=True)
        return
    told = [{"port": one.port, "local": one.local, "at": one.created_at} for one in forwards]
    new = path.with_name(f".{NAME}.new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "w") as file:
        json.dump(told, file)
    os.replace(new, path)


def _read(path: Path, space_id: str) -> list[Forward]:
    """What cannot be read was not there: a disk may have lost it."""
    try:
        told = json.loads(path.read_text())
        return [
            Forward(space_id, int(one["port"]), int(one["local"]), float(one["at"])) for one in told
        ]
    except (OSError, ValueError, KeyError, TypeError):
        return []
