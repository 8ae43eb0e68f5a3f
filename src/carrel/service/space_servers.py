"""The MCP servers that spaces were made with: started with a space, and gone with it.

There is one instance for each name and space, whose caller is the space itself. They are started
beside everything else, so a space is ready before they are; its agent waits for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from carrel.domain.access import Caller, Scope, ScopeKind
from carrel.domain.errors import CarrelError, SpaceInvalid
from carrel.domain.events import EventType
from carrel.domain.instances import (
    Handed,
    InstanceRequest,
    InstanceState,
    Restart,
    Server,
    Transport,
)
from carrel.domain.spaces import Problem, Space
from carrel.domain.turns import AgentServer
from carrel.lifecycle.table import LIVE
from carrel.service.instances.draft import Needs
from carrel.service.journal import Journal, problem_of

if TYPE_CHECKING:
    from carrel.service.instances import Instances

OWN = "carrel"
"""The name of the tools that every agent in a space has."""
MOST = 16
MORE_S = 10.0
"""Beyond the time that a server has to be ready: others may be started before it."""
AGAIN_S = 10.0
"""For one that failed before: every turn tries it again, and it may never come."""


@dataclass(frozen=True)
class Given:
    """What an agent is given; `notes` say what it goes without, in sentences."""

    servers: tuple[AgentServer, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ResidentServer:
    """How one of a space's servers is. `state` is None while it is not there."""

    name: str
    state: InstanceState | None = None
    instance_id: str = ""
    problem: Problem | None = None


class SpaceServers:
    def __init__(self, needs: Needs, journal: Journal) -> None:
        self._needs = needs
        self._journal = journal
        self._starts: dict[str, asyncio.Task[None]] = {}
        self._problems: dict[str, dict[str, Problem]] = {}
        """Of those that could not be started, by space and name."""
        self.instances: Instances | None = None
        """Given when there are some: they need spaces, which need this."""

    # Before there is a space

    def needs(self, names: Sequence[str]) -> tuple[str, ...]:
        """What the sandbox of a space with these must show. Blocking. Raises `SpaceInvalid`,
        `ServerNotFound`, `ServerNotInstalled`."""
        if OWN in names:
            raise SpaceInvalid(
                f"Every agent in a space has {OWN!r} already.", hint="Leave it out of --mcp."
            )
        if len(names) > MOST:
            raise SpaceInvalid(f"A space has at most {MOST} servers.", hint="Leave some out.")
        return self._needs.named(names)

    # While there is one

    def begin_all(self, spaces: Sequence[Space]) -> None:
        """When the daemon starts, and has taken up what there was."""
        for space in spaces:
            self.begin(space)

    def begin(self, space: Space) -> asyncio.Task[None] | None:
        """Those that are missing are started, once; the task is over when all are there, or
        failed. None: nothing is missing."""
        if self.instances is None or not space.mcp or space.state not in LIVE:
            return None
        known = self._starts.get(space.space_id)
        if known is not None and not known.done():
            return known
        there = self._living(space.space_id)
        missing = [name for name in space.mcp if name not in there]
        if not missing:
            return None
        task = asyncio.create_task(self._start(space, missing))
        self._starts[space.space_id] = task
        task.add_done_callback(lambda _: self._started(space.space_id, task))
        return task

    def _started(self, space_id: str, task: asyncio.Task[None]) -> None:
        if self._starts.get(space_id) is task:
            del self._starts[space_id]

    async def _start(self, space: Space, names: list[str]) -> None:
        assert self.instances is not None
        with contextlib.suppress(CarrelError):
            # At once, for it cannot be done when one of them runs.
            await self.instances.equip(space.space_id, names)
        await asyncio.gather(*(self._start_one(space.space_id, name) for name in names))

    async def _start_one(self, space_id: str, name: str) -> None:
        assert self.instances is not None
        request = InstanceRequest(name, space_id=space_id, survive=True, restart=Restart.ON_FAILURE)
        problems = self._problems.setdefault(space_id, {})
        try:
            await self.instances.start(_caller(space_id), request)
        except (CarrelError, OSError) as error:
            problems[name] = problem = problem_of("start", error)
            data = {"server": name, "problem": dataclasses.asdict(problem)}
            failed = self._journal.event(EventType.SERVER_FAILED, space_id, **data)
            with contextlib.suppress(CarrelError):
                await self._journal.write(failed)
        else:
            problems.pop(name, None)

    def _living(self, space_id: str) -> dict[str, Handed]:
        """By name."""
        assert self.instances is not None
        found = self.instances.of_caller(_caller(space_id).name)
        return {handed.instance.server.name: handed for handed in found}

    def residents(self, space: Space) -> list[ResidentServer]:
        if self.instances is None or not space.mcp:
            return []
        there, problems = self._living(space.space_id), self._problems.get(space.space_id, {})
        return [_resident(name, there.get(name), problems.get(name)) for name in space.mcp]

    # For an agent

    async def given(self, space_id: str) -> Given:
        """As soon as all are ready, or will not be for now. Never raises for one of them."""
        space = self._journal.current(space_id)
        if self.instances is None or not space.mcp:
            return Given()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._patience(space)):
                if (start := self.begin(space)) is not None:
                    await asyncio.wait({start})
                for handed in self._living(space_id).values():
                    await self.instances.settled_down(handed.instance.instance_id)
        return self._gathered(space)

    def _patience(self, space: Space) -> float:
        problems = self._problems.get(space.space_id, {})
        states = {one.name: one.state for one in self.residents(space)}
        missing = [name for name, state in states.items() if state is not InstanceState.READY]
        if missing and all(name in problems for name in missing):
            return AGAIN_S
        return max((self._ready_s(name) for name in space.mcp), default=0.0) + MORE_S

    def _ready_s(self, name: str) -> float:
        assert self.instances is not None
        try:
            return self.instances.servers.get(name).ready_s
        except CarrelError:
            return 0.0

    def _gathered(self, space: Space) -> Given:
        there = self._living(space.space_id)
        servers: list[AgentServer] = []
        env: dict[str, str] = {}
        notes: list[str] = []
        for one in self.residents(space):
            if one.state is InstanceState.READY:
                server, tokens = _given_server(there[one.name])
                servers.append(server)
                env |= tokens
            else:
                why = one.problem.message if one.problem is not None else "It is not ready yet."
                notes.append(f"The MCP server {one.name} is left out: {why}")
        return Given(tuple(servers), env, tuple(notes))

    # At its end

    async def give_up(self, space_id: str) -> None:
        """What is being started, which would keep the space from being stopped."""
        task = self._starts.get(space_id)
        if task is not None:
            task.cancel()
            await asyncio.wait({task})

    async def leave(self, space_id: str) -> None:
        """All of them are gone, for the sandbox is about to be."""
        self._problems.pop(space_id, None)
        if self.instances is None:
            return
        found = [handed.instance.instance_id for handed in self._living(space_id).values()]
        going = [self.instances.release(_caller(space_id), one) for one in found]
        # What does not go now goes with the sandbox.
        await asyncio.gather(*going, return_exceptions=True)

    async def close(self) -> None:
        """The daemon ends; those that are ready go on."""
        for space_id in list(self._starts):
            await self.give_up(space_id)


def _caller(space_id: str) -> Caller:
    return Caller(f"space:{space_id}", Scope(ScopeKind.SPACE, space_id))


def _resident(name: str, handed: Handed | None, problem: Problem | None) -> ResidentServer:
    if handed is not None:
        one = handed.instance
        return ResidentServer(name, one.state, one.instance_id, one.problem)
    return ResidentServer(name, None if problem is None else InstanceState.FAILED, "", problem)


def _given_server(handed: Handed) -> tuple[AgentServer, dict[str, str]]:
    """With its token, where there is no way in that asks for none."""
    instance = handed.instance
    name, sse = instance.server.name, _is_older(instance.server)
    if instance.inside_url:
        return AgentServer(name, instance.inside_url, sse), {}
    if not handed.token:
        return AgentServer(name, instance.url, sse), {}
    variable = f"CARREL_MCP_{name.upper().replace('-', '_')}_TOKEN"
    return AgentServer(name, instance.url, sse, variable), {variable: handed.token}


def _is_older(server: Server) -> bool:
    return server.transport is Transport.SSE
