"""A daemon's service that kills itself with SIGKILL at one of its writes: `play`, in a process
of its own.

What was acknowledged is told to a file, a line of JSON each, right away: whoever started this
knows what must not be lost. `MOMENT` is `before` or `after` the write of that
number; with 0 nothing is killed, and the last line says how many writes there were.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from carrel.app.service import Services, open_service
from carrel.config import Settings
from carrel.domain.access import LOCAL
from carrel.domain.events import Event
from carrel.domain.projects import Project, ProjectKind
from carrel.domain.runtimes import Command
from carrel.domain.spaces import Space, SpaceRequest
from carrel.domain.store import Record
from carrel.store.sqlite import SqliteStore
from tests.faults.rig import interrupt
from tests.launchers import fork_launchers

SCENARIO_S = 60.0

Scenario = Callable[[Services], Awaitable[None]]


def tell(**said: object) -> None:
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()


class Killer:
    """Counts writes from when it is armed, and dies at one of them."""

    def __init__(self, moment: str, number: int) -> None:
        self.moment = moment
        self.number = number
        self.count = 0
        self.armed = False

    def install(self) -> None:
        real = SqliteStore.write
        killer = self

        async def write(store: SqliteStore, *records: Record) -> Sequence[Event]:
            if not killer.armed:
                return await real(store, *records)
            killer.count += 1
            mine = killer.count == killer.number
            if mine and killer.moment == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            result = await real(store, *records)
            if mine:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        SqliteStore.write = write  # type: ignore[assignment, method-assign]


async def _new(services: Services, name: str) -> Space:
    empty = SpaceRequest(Project(ProjectKind.EMPTY), name=name)
    space = await services.spaces.create(LOCAL, empty)
    tell(created=space.space_id)
    return space


async def create(services: Services, killer: Killer) -> None:
    killer.armed = True
    await _new(services, "made")


async def run(services: Services, killer: Killer) -> None:
    space = await _new(services, "made")
    killer.armed = True
    script = "echo out; echo err >&2; echo kept > kept.txt; exit 7"
    record = await services.runs.start(space.space_id, Command(("sh", "-c", script)))
    tell(started=record.run_id)
    record = await services.runs.wait(record.run_id)
    tell(ended=record.run_id)


async def run_on(services: Services, killer: Killer) -> None:
    """Commands that go on while the daemon dies: one says nothing until it is told to."""
    space = await _new(services, "made")
    waiting = "until [ -e go ]; do sleep 0.02; done"
    script = "i=0; while [ $i -lt 2000 ]; do echo line $i; i=$((i+1)); done; exit 9"
    slow = await services.runs.start(space.space_id, Command(("sh", "-c", f"{waiting}; {script}")))
    tell(started=slow.run_id)
    killer.armed = True
    record = await services.runs.start(space.space_id, Command(("true",)))
    tell(started=record.run_id)
    await services.runs.wait(record.run_id)


async def stop(services: Services, killer: Killer) -> None:
    space = await _new(services, "made")
    record = await services.runs.start(space.space_id, Command(("sleep", "1000")))
    tell(started=record.run_id)
    killer.armed = True
    await services.spaces.stop(LOCAL, space.space_id, 0.2)
    tell(stopped=space.space_id)


async def start(services: Services, killer: Killer) -> None:
    space = await _new(services, "made")
    await services.spaces.stop(LOCAL, space.space_id, 0.2)
    killer.armed = True
    await services.spaces.start(LOCAL, space.space_id)
    tell(begun=space.space_id)


async def remove(services: Services, killer: Killer) -> None:
    space = await _new(services, "made")
    command = Command(("sh", "-c", "echo precious > work.txt"))
    record = await services.runs.start(space.space_id, command)
    await services.runs.wait(record.run_id)
    tell(wrote=space.space_id)
    killer.armed = True
    await services.spaces.remove(LOCAL, space.space_id, force=True, grace_s=0.2)
    tell(removed=space.space_id)


async def carry_on(services: Services, killer: Killer) -> None:
    """Of a removal that an earlier daemon began."""
    space = await _new(services, "made")
    command = Command(("sh", "-c", "echo precious > work.txt"))
    record = await services.runs.start(space.space_id, command)
    await services.runs.wait(record.run_id)
    tell(wrote=space.space_id)
    await interrupt(services, space)
    killer.armed = True
    await services.reconciler.settle()
    tell(removed=space.space_id)


async def undelete(services: Services, killer: Killer) -> None:
    space = await _new(services, "made")
    command = Command(("sh", "-c", "echo precious > work.txt"))
    record = await services.runs.start(space.space_id, command)
    await services.runs.wait(record.run_id)
    await services.spaces.remove(LOCAL, space.space_id, force=True, grace_s=0.2)
    tell(removed=space.space_id, wrote=space.space_id)
    killer.armed = True
    back = await services.spaces.undelete(LOCAL, space.space_id)
    tell(created=back.space_id, restored=space.space_id)


SCENARIOS: dict[str, Callable[[Services, Killer], Awaitable[None]]] = {
    "create": create,
    "run": run,
    "run_on": run_on,
    "stop": stop,
    "start": start,
    "remove": remove,
    "carry_on": carry_on,
    "undelete": undelete,
}


async def main(data: Path, scenario: str, moment: str, number: int) -> None:
    killer = Killer(moment, number)
    killer.install()
    async with (
        asyncio.timeout(SCENARIO_S),
        open_service(Settings(data=data, request_agent="scripted")) as services,
    ):
        await SCENARIOS[scenario](services, killer)
        killer.armed = False
        tell(writes=killer.count)


def play(nursery: str, told: str, data: str, scenario: str, moment: str, number: int) -> None:
    """`told` is the file that is told."""
    fork_launchers(nursery)
    descriptor = os.open(told, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC)
    sys.stdout = os.fdopen(descriptor, "w")
    asyncio.run(main(Path(data), scenario, moment, number))
