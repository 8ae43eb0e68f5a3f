"""A daemon's service that starts instances, and kills itself with SIGKILL at one of its writes:
see `tests.faults.child`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from carrel.app.service import Services, open_service
from carrel.config import Settings
from carrel.domain.access import LOCAL
from carrel.domain.instances import InstanceRequest, InstanceState, PortBy, Restart, Server
from carrel.domain.projects import Project, ProjectKind
from carrel.domain.spaces import SpaceRequest
from tests.faults.child import SCENARIO_S, Killer, tell
from tests.instances.rig import server, until
from tests.instances.small import FILE
from tests.launchers import fork_launchers

DIRECT = server(
    "takes-fd",
    *("--fd", "{fd}", "--token-from", "SECRET"),
    port_by=PortBy.SOCKET,
    takes_token="SECRET",
)
SMALL = Server("small", ("/usr/bin/python3", "-I", f"{{project}}/{FILE}", "http"))


async def gated(services: Services, killer: Killer, project: Path) -> None:
    killer.armed = True
    await _start_and_release(services, InstanceRequest(server("ok"), project_path=str(project)))


async def direct(services: Services, killer: Killer, project: Path) -> None:
    killer.armed = True
    await _start_and_release(services, InstanceRequest(DIRECT, project_path=str(project)))


async def in_space(services: Services, killer: Killer, project: Path) -> None:
    origin = SpaceRequest(Project(ProjectKind.FOLDER, str(project)))
    space = await services.spaces.create(LOCAL, origin)
    killer.armed = True
    await _start_and_release(services, InstanceRequest(SMALL, space_id=space.space_id))


async def again(services: Services, killer: Killer, project: Path) -> None:
    request = InstanceRequest(
        server("ok"), project_path=str(project), restart=Restart.ON_FAILURE, survive=True
    )
    instance = (await services.instances.start(LOCAL, request)).instance
    tell(ready=instance.instance_id)
    killer.armed = True
    os.kill(instance.pid, signal.SIGKILL)
    await until(services, instance.instance_id, InstanceState.RESTARTING)
    await until(services, instance.instance_id, InstanceState.READY)


async def _start_and_release(services: Services, request: InstanceRequest) -> None:
    handed = await services.instances.start(LOCAL, request)
    instance_id = handed.instance.instance_id
    tell(ready=instance_id)
    await services.instances.release(LOCAL, instance_id)
    tell(released=instance_id)


SCENARIOS: dict[str, Callable[[Services, Killer, Path], Awaitable[None]]] = {
    "gated": gated,
    "direct": direct,
    "in_space": in_space,
    "again": again,
}


async def main(data: Path, project: Path, scenario: str, killer: Killer) -> None:
    killer.install()
    async with asyncio.timeout(SCENARIO_S), open_service(Settings(data=data)) as services:
        await SCENARIOS[scenario](services, killer, project)
        killer.armed = False
        tell(writes=killer.count)


def play(
    nursery: str,
    told: str,
    folders: tuple[str, str],
    scenario: str,
    moment: str,
    number: int,
) -> None:
    """`told` is the file that is told; the folders are the daemon's and the project's."""
    fork_launchers(nursery)
    descriptor = os.open(told, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC)
    sys.stdout = os.fdopen(descriptor, "w")
    data, project = map(Path, folders)
    asyncio.run(main(data, project, scenario, Killer(moment, number)))
