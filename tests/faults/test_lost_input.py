"""The daemon is killed while a client's input is on its way to a command."""

from __future__ import annotations

import asyncio
import os
import select
import signal
from pathlib import Path

import pytest

from carrel.client import AsyncClient, AsyncSpace
from carrel.daemon import control
from tests.service.rig import RUN_S
from tests.soak.__main__ import soaked

LATE = "until [ -e go ]; do sleep 0.05; done; exec cat"
"""Takes its input only when somebody says so."""
STEP_S = 0.05
ARRIVE_S = 0.5
"""More than enough for what can be delivered to be delivered."""


@pytest.mark.parametrize("size", [10_000, 100_000, 1_000_000])
async def test_input_is_whole(size: int) -> None:
    with soaked() as (data, _project):
        content = os.urandom(size)
        async with AsyncClient(data=data, autostart=False) as client:
            space = await client.create()
            feeding = asyncio.create_task(
                space.run(["sh", "-c", LATE], stdin=content, timeout_s=RUN_S)
            )
            await _started(space)
            # So long, so that the client has sent what it can; not for the command's sake.
            await asyncio.sleep(ARRIVE_S)
            await asyncio.to_thread(kill, data)
            await asyncio.to_thread(control.start, data)
            await space.files.write("go", b"")
            result = await feeding
            assert (result.code, len(result.stdout_bytes)) == (0, size)
            whole = result.stdout_bytes == content
            assert whole
            await space.remove(force=True)


async def _started(space: AsyncSpace) -> None:
    async with asyncio.timeout(RUN_S):
        while not any(run.info.pid for run in await space.runs()):
            await asyncio.sleep(STEP_S)


def kill(data: Path) -> None:
    """Returns when it is gone."""
    descriptor = os.pidfd_open(control.status(data).pid)
    try:
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        assert select.select([descriptor], [], [], RUN_S)[0]
    finally:
        os.close(descriptor)
