"""What tests of the whole service share."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from carrel.app.service import Services, open_service
from carrel.config import parse_settings
from carrel.domain.access import LOCAL
from carrel.domain.projects import Project, ProjectKind
from carrel.domain.runs import RunRecord, Stream
from carrel.domain.runtimes import Command
from carrel.domain.spaces import Space, SpaceRequest
from carrel.service.family import Family
from tests.launchers import forked_launchers
from tests.load.clearing import end_everything
from tests.machine import groups, inhabitants

RUN_S = 60.0
"""The commands of the tests take milliseconds; a loaded machine may need more."""


@contextlib.asynccontextmanager
async def opened(data: Path, **settings: object) -> AsyncIterator[Services]:
    """A service with these settings; nothing of it stays."""
    try:
        with forked_launchers():
            async with open_service(
                parse_settings({"data": data, "request_agent": "scripted", **settings})
            ) as services:
                yield services
    finally:
        await asyncio.to_thread(end_everything, data)


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


def family_of(services: Services) -> Family:
    parts = (services.spaces, services.journal, services.feed, services.turns, services.inbox)
    return Family(*parts, services.spaces._frontends)


def leftovers(data: Path, *space_ids: str) -> list[str]:
    """What is on the machine of these spaces, beside their records."""
    found = [str(path) for path in (data / "spaces").iterdir()]
    found += [f"trash {path}" for path in _entries(data / "trash") if path.name not in space_ids]
    found += [f"user {path}" for path in _entries(data / "uids")]
    found += [f"holder {path}" for path in _entries(data / "launcher" / "holders")]
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    found += [line for line in mounts if str(data / "spaces") in line]
    found += [f"group {group}" for group in groups() if group.name in space_ids]
    found += [f"process {pid}" for pid in inhabitants(space_ids)]
    return found


def _entries(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []
