"""A stop whose daemon was killed does not hit what was started after it."""

from __future__ import annotations

import asyncio
import contextlib

from carrel.client import AsyncClient, AsyncSpace
from carrel.daemon import control
from carrel.domain.errors import CarrelError
from carrel.domain.spaces import SpaceState
from tests.faults.test_lost_input import kill
from tests.service.rig import RUN_S
from tests.soak.__main__ import soaked

STUBBORN = "trap '' TERM; echo begun; while :; do sleep 0.1; done"
GRACE_S = 6.0
"""Longer than a daemon that starts gives to what another one began to stop."""
STEP_S = 0.05


async def test_a_stale_stop() -> None:
    with soaked() as (data, _project):
        async with AsyncClient(data=data, autostart=False) as client:
            space = await client.create()
            run = await space.start_run(["sh", "-c", STUBBORN])
            async with asyncio.timeout(RUN_S):
                while not await run.read():
                    await asyncio.sleep(STEP_S)
            stopping = asyncio.create_task(space.stop(grace_s=GRACE_S))
            await _is(space, SpaceState.STOPPING)
            await asyncio.to_thread(kill, data)
            with contextlib.suppress(CarrelError):
                await stopping
            await asyncio.to_thread(control.start, data)
            await _is(space, SpaceState.STOPPED)
            await space.start()
            result = await space.run(["sh", "-c", f"sleep {GRACE_S:g}; echo whole"])
            assert (result.code, result.stdout) == (0, "whole\n"), result.run
            await space.remove()


async def _is(space: AsyncSpace, state: SpaceState) -> None:
    async with asyncio.timeout(RUN_S):
        while (await space.refresh()).state is not state:
            await asyncio.sleep(STEP_S)
