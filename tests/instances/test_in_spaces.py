"""Instances in a space: in its sandbox, on its tree, and gone with it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from carrel.app.service import Services
from carrel.domain.access import LOCAL
from carrel.domain.errors import InstanceFailed, MessageInvalid, StateConflict
from carrel.domain.instances import (
    Handed,
    InstanceRequest,
    InstanceState,
    PortBy,
    Released,
    Restart,
    Server,
)
from carrel.domain.limits import Limits
from carrel.domain.spaces import Space
from tests.instances.installed import require
from tests.instances.rig import WAIT_S, call, until
from tests.instances.small import put_small
from tests.service.rig import make, run

SMALL = Server("small", ("/usr/bin/python3", "-I", "{project}/small.py", "http"))
OVER = (InstanceState.ENDED, InstanceState.FAILED)


@pytest.fixture
async def space(services: Services, tmp_path: Path) -> AsyncIterator[Space]:
    """Removed afterwards: an ordinary user's launcher stays as long as it holds a tree."""
    put_small(tmp_path)
    made = await make(services, tmp_path)
    yield made
    await services.spaces.remove(LOCAL, made.space_id, force=True, grace_s=0.2)


async def begin(services: Services, space: Space, server: str | Server, **more: object) -> Handed:
    request = InstanceRequest(server=server, space_id=space.space_id, **more)  # type: ignore[arg-type]
    async with asyncio.timeout(WAIT_S):
        return await services.instances.start(LOCAL, request)


async def test_from_outside_and_from_inside(services: Services, space: Space) -> None:
    handed = await begin(services, space, SMALL)
    await call(handed, "echo", text="from outside")
    message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}}
    ask = (
        "import sys, urllib.request as u; r = u.Request(sys.argv[1], sys.argv[2].encode());"
        " print(u.urlopen(r, timeout=20).read().decode())"
    )
    words = f"python3 -c '{ask}' {handed.instance.inside_url} '{json.dumps(message)}'"
    _, said = await run(services, space, words)
    assert json.loads(said)["result"]["serverInfo"]["name"] == "small"


async def test_it_works_on_the_copy(services: Services, space: Space, tmp_path: Path) -> None:
    write = "import sys; open(sys.argv[1] + '/made', 'w').write('x'); sys.exit(9)"
    wanted = Server("writes", ("/usr/bin/python3", "-I", "-c", write, "{project}"))
    with pytest.raises(Exception, match="code 9"):
        await begin(services, space, wanted)
    _, said = await run(services, space, "cat /workspace/made")
    assert said == "x"
    assert not (tmp_path / "made").exists()


async def test_its_release_leaves_the_space_alone(services: Services, space: Space) -> None:
    wanted = Server(
        "leaves",
        ("/bin/sh", "-c", "setsid sleep 300 & exec python3 -I {project}/small.py http"),
        port_by=PortBy.PROCESS,
    )
    other = await begin(services, space, SMALL)
    instance = (await begin(services, space, wanted)).instance
    _, before = await run(services, space, "pgrep -c sleep; ls -A ~/.instances")
    assert before.split()[0] == "1" and instance.instance_id in before
    assert await services.instances.release(LOCAL, instance.instance_id) is Released.TERMINATED
    _, after = await run(services, space, "pgrep -c sleep; ls -A ~/.instances")
    assert after.split()[0] == "0" and instance.instance_id not in after
    await call(other, "echo", text="still there")


async def test_it_ends_with_its_space(services: Services, space: Space) -> None:
    handed = await begin(services, space, SMALL, restart=Restart.ON_FAILURE)
    await services.spaces.stop(LOCAL, space.space_id)
    ended = await until(services, handed.instance.instance_id, *OVER)
    assert ended.problem is not None and ended.problem.code == "space_stopped"
    with pytest.raises(StateConflict):
        await begin(services, space, SMALL)


async def test_it_does_not_keep_its_space_busy(services: Services, space: Space) -> None:
    """It is no command: the space is idle when nobody works in it."""
    await begin(services, space, SMALL)
    assert str(services.journal.current(space.space_id).state) == "ready"


async def test_a_crash_in_a_space(services: Services, space: Space) -> None:
    handed = await begin(services, space, SMALL, restart=Restart.ON_FAILURE)
    await run(services, space, "pkill -9 -f small.py")
    await until(services, handed.instance.instance_id, InstanceState.RESTARTING)
    after = await until(services, handed.instance.instance_id, InstanceState.READY)
    assert after.port == handed.instance.port
    await call(handed, "echo", text="again")


async def test_what_a_space_decides(services: Services, space: Space) -> None:
    for more in ({"limits": Limits(memory_bytes=1 << 30)}, {"confined": False}):
        with pytest.raises(MessageInvalid):
            await begin(services, space, SMALL, **more)


@pytest.mark.parametrize("name", ["everything", "serena"])
async def test_real_ones(services: Services, space: Space, name: str) -> None:
    require(name)
    handed = await begin(services, space, name)
    assert handed.instance.inside_port
    assert await services.instances.release(LOCAL, handed.instance.instance_id) == "terminated"


async def test_the_port_of_another_is_not_its_own(services: Services, space: Space) -> None:
    """All servers of a space are in one network."""
    await begin(services, space, SMALL)
    with pytest.raises(InstanceFailed, match="did not answer"):
        await begin(services, space, Server("deaf", ("/bin/sleep", "60")), ready_s=0.5)
