"""Spaces that agents work in: their sandboxes show the agent's programs and folders."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from carrel.domain.access import Caller
from carrel.domain.agents import Frontend, Frontends
from carrel.domain.errors import (
    FrontendNotInstalled,
    KeyMissing,
    LoginExpired,
    NetworkNeeded,
    StateConflict,
    VariableRefused,
)
from carrel.domain.keys import names_address
from carrel.domain.runtimes import Network
from carrel.domain.spaces import Space, SpaceRequest
from carrel.lifecycle.table import LIVE
from carrel.service.access import is_owner
from carrel.service.credentials import AgentKeys
from carrel.service.journal import Journal
from carrel.service.open_spaces import OpenSpace, OpenSpaces
from carrel.service.runs import Runs
from carrel.service.shared import Shared

if TYPE_CHECKING:
    from carrel.service.space_servers import SpaceServers


class AgentSpaces:
    def __init__(
        self,
        journal: Journal,
        open_spaces: OpenSpaces,
        runs: Runs,
        servers: SpaceServers,
        shared: Shared,
    ) -> None:
        self._journal = journal
        self._servers = servers
        self._open_spaces = open_spaces
        self._runs = runs
        self._locks = shared.locks

    async def opened(self, space_id: str) -> OpenSpace:
        return await self._open_spaces.of(self._journal.current(space_id))

    def folder(self, space_id: str) -> Path:
        return self._open_spaces.folder(space_id)

    async def equip(self, space_id: str, frontend: Frontend) -> OpenSpace:
        """The space with all that this frontend needs. One that was made for another has its
        sandbox set up anew, for which nothing may run in it: `StateConflict`."""
        if self._journal.current(space_id).agent == frontend.name:
            return await self.opened(space_id)
        await self._servers.give_up(space_id)
        # What is refused anyway keeps nobody waiting behind it.
        self._check(self._journal.current(space_id))
        async with self._locks.alone(space_id):
            space = self._journal.current(space_id)
            self._check(space)
            network = network_for(frontend, space.network, space.network_asked)
            if space.services and network is not space.network:
                raise StateConflict(
                    f"{frontend.name} needs the machine's network, and the services of {space.name}"
                    " are in one of their own.",
                    hint=f"Make a space for it: carrel new --agent {frontend.name} --services auto",
                )
            before = await self._open_spaces.of(space)
            await self._servers.leave(space_id)
            await before.stop(services=False)
            self._open_spaces.make_agent_folders(space_id, before.sandbox.spec.owner)
            equipped = self._journal.amend(space_id, agent=frontend.name, network=network)
            await self._journal.write(equipped)
            return await self._open_spaces.of(equipped)

    def _check(self, space: Space) -> None:
        if space.state not in LIVE:
            raise StateConflict(
                f"{space.name} is {space.state}; agents work in a space that is ready.",
                hint=f"Start it: carrel start {space.name}",
                state=str(space.state),
            )
        if self._runs.live_of(space.space_id):
            raise StateConflict(
                f"{space.name} was made without this agent, and commands run in it.",
                hint="Let them end first, or make a space with --agent.",
            )


def network_for(frontend: Frontend, network: Network, asked: bool) -> Network:
    """Open where the agent must reach a model's API, unless somebody said otherwise."""
    return Network.OPEN if frontend.needs_network and not asked else network


def check_network(frontend: Frontend, network: Network, env: Mapping[str, str]) -> None:
    """An agent that cannot reach its model would try for minutes. One with an address of its own
    may have its model in the space. Raises `NetworkNeeded`."""
    needed = frontend.needs_network and frontend.credentials
    if needed and network is Network.NONE and not names_address(env):
        raise NetworkNeeded(
            f"{frontend.name} must reach its model, and this space has no network.",
            hint="Make the space with --network open.",
        )


USUAL = ("claude-code", "codex-cli", "agent-sdk", "pi-sdk")
"""Frontends that a caller who names none is given, the first that can be had."""


def usual_agent(
    frontends: Frontends, keys: AgentKeys, caller: Caller, env: Mapping[str, str]
) -> str:
    """The first that is here and can log in; never `scripted`, which only does what it is told.
    Raises what is in the way of the first that is here, else of the first. Blocking, quick."""
    owner, problems = is_owner(caller), []
    for name in USUAL:
        try:
            frontend = frontends.require(name)
            given = keys.given(frontend, env, owner=owner)
            keys.check_some(frontend, env, given, owner=owner)
        except (FrontendNotInstalled, KeyMissing, LoginExpired, VariableRefused) as error:
            problems.append(error)
        else:
            return name
    raise min(problems, key=lambda one: isinstance(one, FrontendNotInstalled))


def resolve(frontends: Frontends, request: SpaceRequest) -> SpaceRequest:
    """What an agent makes of a request for a space. Nothing is made for one that is not here:
    `UnsupportedFrontend`, `FrontendNotInstalled`, `ModelNotSupported`."""
    if not request.agent:
        return request
    frontend = frontends.require(request.agent)
    frontends.check_model(request.agent, request.model, request.env)
    network = network_for(frontend, request.network, request.network_asked)
    return dataclasses.replace(request, network=network)
