"""What tests of a machine that misbehaves share."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from carrel.app.service import Services, open_service
from carrel.config import Settings
from carrel.domain.access import LOCAL
from carrel.domain.events import EventQuery, EventType
from carrel.domain.spaces import Space, SpaceQuery, SpaceState
from carrel.launcher.client import Launcher
from carrel.lifecycle.table import SETTLED
from carrel.service.removal import KEEP, OPERATION
from tests.etc import share_etc
from tests.load.clearing import end_everything
from tests.service.rig import RUN_S, leftovers, run

ROOT = Path(__file__).resolve().parents[2]

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount and unmount")


@asynccontextmanager
async def serving(data: Path) -> AsyncIterator[Services]:
    """A service on the folder, whose launcher stays."""
    share_etc(data)
    async with open_service(Settings(data=data, request_agent="scripted")) as services:
        yield services


@asynccontextmanager
async def ending(data: Path) -> AsyncIterator[None]:
    """Whatever happens inside, no process of the folder is left."""
    try:
        yield
    finally:
        await asyncio.to_thread(end_everything, data)


async def everything(services: Services) -> list[Space]:
    """All spaces that are not removed."""
    return list((await services.spaces.list(LOCAL, SpaceQuery(limit=1000))).spaces)


async def assert_sound(services: Services, data: Path, *kept: Space) -> None:
    """Clean-up leaves exactly these spaces, settled, and nothing else on the machine."""
    await services.collector.run(LOCAL)
    there = await everything(services)
    assert {space.space_id: space.state for space in there if space.state not in SETTLED} == {}
    known = {space.space_id for space in kept}
    others = [space for space in there if space.space_id not in known]
    assert others == [], others
    assert known == {space.space_id for space in there}
    ids = {space.space_id for space in kept}
    gone = [space_id for space_id in await _removed(services) if space_id not in ids]
    strays = [one for one in leftovers(data, *gone) if not any(space_id in one for space_id in ids)]
    # A claim on a user names its space in a link, a sandbox that is set up in a file.
    users = [one for one in strays if one.startswith("user ")]
    assert len(users) <= len(ids), users
    strays = [one for one in strays if one not in users]
    assert strays == [], strays


async def _removed(services: Services) -> list[str]:
    query = SpaceQuery(states=frozenset({SpaceState.REMOVED}), limit=1000)
    return [space.space_id for space in (await services.spaces.list(LOCAL, query)).spaces]


async def assert_works(services: Services, space: Space, script: str, said: str) -> None:
    record, text = await run(services, space, script)
    assert record.exit is not None
    if record.exit.code != 0:
        hits = EventQuery(types=frozenset({EventType.LIMIT_HIT}))
        told = [event.data for event in await services.store.events(hits)]
        pytest.fail(f"{record} {text} {told}")
    assert text == said, (text, record)


async def remove_all(services: Services, data: Path) -> None:
    for space in await everything(services):
        await services.spaces.remove(LOCAL, space.space_id, force=True, grace_s=0.2)
    await assert_sound(services, data)


async def interrupt(services: Services, space: Space) -> None:
    """As far as a daemon comes that is killed when it has begun to remove it."""
    await services.spaces.stop(LOCAL, space.space_id, 0.2)
    records = services.journal.moved(space.space_id, SpaceState.REMOVING)
    await services.journal.operation(space.space_id, OPERATION).begin(KEEP, *records)


async def run_to_its_death(program: str, data: Path) -> str:
    """A Python program that kills itself while it serves the folder; what it said before."""
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", program, str(data)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    return str(done.stdout)


def launcher_pid(data: Path) -> int:
    launcher = Launcher(data)
    try:
        reply, _ = launcher.call("hello", {}, [])
    finally:
        launcher.close()
    return int(reply["pid"])
