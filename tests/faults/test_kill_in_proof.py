"""The daemon is killed while it tries out its walls: nothing of the trial is left."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from carrel.domain.access import LOCAL
from carrel.linux import cgroupfs
from carrel.runtimes.engine import LINGER_S
from tests.faults.rig import ending, run_to_its_death, serving
from tests.machine import groups
from tests.service.rig import leftovers, make

MARGIN_S = 10.0
"""For a loaded machine, over the time that an idle sandbox stays."""
_CHILD = """
import asyncio, os, signal, sys
from pathlib import Path
from carrel.app.service import open_service
from carrel.config import Settings
from carrel.runtimes.proof import Prover
from tests.service.rig import make

real = Prover._targets

def targets(self, name, spec):
    class Deadly:
        def __enter__(self_):
            print(spec.sandbox_id, flush=True)
            self_.opened = real(self, name, spec)
            self_.opened.__enter__()
            os.kill(os.getpid(), signal.SIGKILL)

        def __exit__(self_, *error):
            raise AssertionError("dead")

    return Deadly()

Prover._targets = targets

async def main():
    async with open_service(Settings(data=Path(sys.argv[1]))) as services:
        await make(services)

asyncio.run(main())
"""


@asynccontextmanager
async def _without_groups(space_id: str) -> AsyncIterator[None]:
    """A test that fails leaves none either."""
    try:
        yield
    finally:
        for group in list(groups()):
            if group.name == space_id:
                cgroupfs.remove(group)


async def test_killed_in_a_proof(data: Path) -> None:
    async with ending(data):
        trial = (await run_to_its_death(_CHILD, data)).split()[0]
        async with _without_groups(trial), serving(data) as services:
            space = await make(services)
            await services.spaces.remove(LOCAL, space.space_id)
            until = time.monotonic() + LINGER_S + MARGIN_S
            while left := _left(data, trial, space.space_id):
                assert time.monotonic() < until, left
                await asyncio.sleep(0.2)
                await services.reconciler.sweep()


def _left(data: Path, *space_ids: str) -> list[str]:
    return [*leftovers(data, *space_ids), *map(str, data.glob("proof-*"))]
