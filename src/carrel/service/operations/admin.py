"""Bases, clean-up, the state of the machine and the daemon itself, mostly for administrators."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from carrel import __version__
from carrel.api.types import admin
from carrel.api.types.common import moment
from carrel.domain.access import Caller
from carrel.domain.cleanup import DiskReport, Report
from carrel.domain.collaborators import Bases
from carrel.domain.projects import BaseRequest, GitReach
from carrel.domain.runtimes import Network
from carrel.domain.spaces import AUTO, SpaceState
from carrel.domain.store import Store
from carrel.domain.trees import Base
from carrel.service.access import is_owner, require_admin
from carrel.service.cleanup import Collector
from carrel.service.disk_use import DiskUse
from carrel.service.doctor import Doctor
from carrel.service.feed import Feed
from carrel.service.operations.spaces import project_of
from carrel.service.space_requests import TIERS, check_project

API = "v1"
MANY = 1_000_000
"""More commands than a machine can run."""


class BaseOperations:
    """Bases tell of projects that not everybody may see."""

    def __init__(self, bases: Bases) -> None:
        self._bases = bases

    async def list(self, caller: Caller) -> admin.BaseList:
        require_admin(caller)
        found = await asyncio.to_thread(self._bases.list)
        return admin.BaseList(bases=tuple(_base(one) for one in found))

    async def build(self, caller: Caller, new: admin.NewBase) -> admin.BaseInfo:
        require_admin(caller)
        project = project_of(new.project)
        check_project(project)
        wanted = BaseRequest(
            project=project,
            exclude=new.exclude,
            max_bytes=new.max_bytes,
            max_files=new.max_files,
            allow_changing=new.allow_changing,
            git_reach=GitReach.AGREE if new.follow_git else GitReach.AGREED,
        )
        return _base(await asyncio.to_thread(self._bases.build, wanted))


def _base(base: Base) -> admin.BaseInfo:
    return admin.BaseInfo(
        id=base.base_id,
        project=base.project,
        entries=base.entries,
        size_bytes=base.size_bytes,
        created_at=moment(base.created_at),
        has_git=base.has_git,
        skipped=base.skipped,
        unstable=base.unstable,
    )


class CleanUpOperations:
    def __init__(self, collector: Collector, disk_use: DiskUse, doctor: Doctor) -> None:
        self._collector = collector
        self._disk_use = disk_use
        self._doctor = doctor

    async def collect(self, caller: Caller, asked: admin.CollectBody) -> Report:
        return await self._collector.run(caller, dry_run=asked.dry_run, all_bases=asked.bases)

    async def disk_use(self, caller: Caller) -> DiskReport:
        return await self._disk_use.report(caller)

    async def examine(self, caller: Caller) -> admin.Diagnosis:
        require_admin(caller)
        return await self._doctor.examine()


@dataclass(frozen=True)
class Figures:
    """What the daemon counts, for its metrics."""

    spaces: Mapping[SpaceState, int]
    """By state."""
    live_runs: int
    last_event: int
    started_at: float


class DaemonOperations:
    """The daemon itself. `idle_s` and `keep_s` are what spaces get that say nothing themselves."""

    def __init__(self, store: Store, feed: Feed, data: Path, idle_s: float, keep_s: float) -> None:
        self._store = store
        self._feed = feed
        self._data = data
        self._idle_s = idle_s
        self._keep_s = keep_s
        self._started_at = time.time()

    async def info(self, caller: Caller) -> admin.Info:
        owner = is_owner(caller)
        return admin.Info(
            version=__version__,
            api=API,
            pid=os.getpid() if owner else None,
            uid=os.geteuid() if owner else None,
            data=str(self._data) if owner else None,
            started_at=moment(self._started_at),
            scope=str(caller.scope),
            defaults={
                "runtime": AUTO,
                "driver": AUTO,
                "network": Network.NONE,
                "tier": "",
                "idle_s": self._idle_s,
                "keep_s": self._keep_s,
            },
            tiers=TIERS,
        )

    async def figures(self, caller: Caller) -> Figures:
        require_admin(caller)
        live = await self._store.runs(live=True, limit=MANY)
        return Figures(
            spaces=await self._store.count(),
            live_runs=len(live),
            last_event=await self._feed.last(),
            started_at=self._started_at,
        )

    async def shutdown(self, caller: Caller) -> admin.Ending:
        """Says whether the caller may end the daemon; whoever serves the answer ends it then."""
        require_admin(caller)
        return admin.Ending(ending=True)
