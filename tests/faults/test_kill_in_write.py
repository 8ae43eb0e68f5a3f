"""The daemon is killed in the middle of writing a file: the tree has the old one, and no more."""

from __future__ import annotations

from pathlib import Path

from carrel.domain.access import LOCAL
from carrel.domain.files import Files
from tests.faults.rig import (
    assert_works,
    ending,
    everything,
    remove_all,
    run_to_its_death,
    serving,
)

_CHILD = """
import asyncio, os, signal, sys
from pathlib import Path
from carrel.app.service import open_service
from carrel.config import Settings
from carrel.domain.access import LOCAL
from tests.service.rig import make

def chunks():
    yield b"new " * 10000
    os.kill(os.getpid(), signal.SIGKILL)

async def main():
    async with open_service(Settings(data=Path(sys.argv[1]))) as services:
        space = await make(services)
        for content in (b"old\\n", chunks()):
            await services.files.use(
                LOCAL, space.space_id, lambda files: files.write("file", content), writes=True
            )

asyncio.run(main())
"""


async def test_killed_in_a_write(data: Path) -> None:
    async with ending(data):
        await run_to_its_death(_CHILD, data)
        async with serving(data) as services:
            (space,) = await everything(services)
            await assert_works(services, space, "cat file", "old\n")

            def names(files: Files) -> list[str]:
                return [file.name for file in files.list()]

            assert await services.files.use(LOCAL, space.space_id, names) == ["file"]
            await remove_all(services, data)
