"""Agents of a daemon that was started for the benchmark, and the same program without Carrel's
turns: in the same sandbox, with the same arguments."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from bench.own_spaces import Daemon
from carrel.agents import programs
from carrel.agents.folders import CONTEXT, HUB, STATE, WORKSPACE
from carrel.agents.programs import Locator
from carrel.agents.registry import Registry
from carrel.client import AsyncClient, Space
from carrel.domain.hub import HUB_SOCKET
from carrel.domain.turns import AgentSetup, TurnRequest

PROGRAMS = Path(__file__).resolve().parent.parent / "tools" / "agents"
"""Where `make setup` puts the pinned ones."""
TURN_S = 120.0
"""Longer than any turn here."""


@dataclass(frozen=True)
class Agent:
    """`env` is what leads it to the stand-in for the model."""

    name: str
    env: Mapping[str, str]
    prompt: str = "hello"
    model: str = ""


def install(daemon: Daemon, names: list[str]) -> None:
    """The pinned programs, as if `carrel agents install` had put them there."""
    own = daemon.data / "agents"
    own.mkdir(exist_ok=True)
    for name in names:
        (own / name).symlink_to(PROGRAMS, target_is_directory=True)


BARE = AgentSetup(WORKSPACE, STATE, CONTEXT, confined=True)
EQUIPPED = replace(
    BARE,
    mcp=programs.python("carrel.cli.main", "mcp"),
    mcp_env={"CARREL_HUB": f"{HUB}/{HUB_SOCKET}"},
)
"""With the space's MCP server, as agents in spaces have it: programs take their time with any."""


class Raw:
    """The program itself, as a command."""

    def __init__(self, daemon: Daemon, agent: Agent, setup: AgentSetup = BARE) -> None:
        self._setup = setup
        self._frontend = Registry(Locator(daemon.data / "agents")).get(agent.name)
        self._agent = agent
        self._count = 0

    def turn(self, space: Space) -> float:
        self._count += 1
        request = TurnRequest(
            self._agent.name,
            self._agent.prompt,
            session_id=f"raw{self._count}",
            run_id=f"raw{os.getpid()}-{id(self)}-{self._count}",
            model=self._agent.model,
            env=self._agent.env,
        )
        prepared = self._frontend.prepare(request, self._setup)
        begun = time.perf_counter()
        done = space.run(prepared.argv, env=prepared.env, stdin=prepared.first, timeout_s=TURN_S)
        took_s = time.perf_counter() - begun
        if done.code != 0:
            raise RuntimeError(f"{self._agent.name} ended with {done.code}: {done.stderr[-500:]}")
        return took_s


def turn(space: Space, agent: Agent) -> float:
    begun = time.perf_counter()
    ended = space.send(agent.prompt, env=dict(agent.env), model=agent.model)
    took_s = time.perf_counter() - begun
    if ended.result is None or not ended.result.success:
        raise RuntimeError(f"{agent.name}: {ended.result}")
    return took_s


def first_replies(daemon: Daemon, agent: Agent, count: int) -> list[float]:
    """Seconds from asking for a space to its agent's first reply; so many at once."""
    return asyncio.run(_first_replies(daemon, agent, count))


async def _first_replies(daemon: Daemon, agent: Agent, count: int) -> list[float]:
    async with AsyncClient(data=daemon.data) as client:

        async def one() -> float:
            begun = time.perf_counter()
            space = await client.create(base=daemon.base, agent=agent.name)
            ended = await space.send(agent.prompt, env=dict(agent.env), model=agent.model)
            took_s = time.perf_counter() - begun
            if ended.result is None or not ended.result.success:
                raise RuntimeError(f"{agent.name}: {ended.result}")
            await space.remove(force=True)
            return took_s

        return list(await asyncio.gather(*(one() for _ in range(count))))
