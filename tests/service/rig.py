"""What tests of the whole service share."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path

from carrel.app.service import Services
from carrel.domain.access import LOCAL
from carrel.domain.projects import Project, ProjectKind
from carrel.domain.runs import RunRecord, Stream
from carrel.domain.runtimes import Command
from carrel.domain.spaces import Space, SpaceRequest
from carrel.linux import cgroupfs

RUN_S = 60.0
"""The commands of the tests take milliseconds; a loaded machine may need more."""


def request(project: Path | None = None, **options: object) -> SpaceRequest:
    kind = ProjectKind.EMPTY if project is None else ProjectKind.FOLDER
    location = "" if project is None else str(project)
    return SpaceRequest(Project(kind, location), **options)  # type: ignore[arg-type]


async def make(services: Services, project: Path | None = None, **options: object) -> Space:
    return await services.spaces.create(LOCAL, request(project, **options))


async def run(services: Services, space: Space, script: str) -> tuple[RunRecord, str]:
    """To its end; the record and all it said."""
    command = Command(("sh", "-c", script), timeout_s=RUN_S)
    record = await services.runs.start(space.space_id, command)
    async with asyncio.timeout(RUN_S):
        record = await services.runs.wait(record.run_id)
    return record, await output(services, record)


async def output(services: Services, record: RunRecord) -> str:
    said = b""
    for stream in Stream:
        said += (await services.runs.read(record, stream, 0, 1 << 20)).data
    return said.decode()


def leftovers(data: Path, *space_ids: str) -> list[str]:
    """What is on the machine of these spaces, beside their records."""
    found = [str(path) for path in (data / "spaces").iterdir()]
    found += [f"trash {path}" for path in _entries(data / "trash") if path.name not in space_ids]
    found += [f"user {path}" for path in _entries(data / "uids")]
    found += [f"holder {path}" for path in _entries(data / "launcher" / "holders")]
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    found += [line for line in mounts if str(data / "spaces") in line]
    for tree in cgroupfs.hierarchies():
        # Other tests' groups come and go meanwhile, which `glob` does not bear.
        for above, names, _files in os.walk(tree.mount):
            found += [f"group {above}/{name}" for name in names if name in space_ids]
    for space_id in space_ids:
        found += [f"process {pid}" for pid in _processes(space_id)]
    return found


def _entries(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


def _processes(space_id: str) -> list[int]:
    """Those that were started with the space's name in their environment."""
    wanted = f"CARREL_SPACE={space_id}\0".encode()
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                if wanted in Path(f"/proc/{name}/environ").read_bytes():
                    found.append(int(name))
    return found
