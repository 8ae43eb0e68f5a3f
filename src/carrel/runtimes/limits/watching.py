"""Tells of limits that a sandbox hits: an event with the figure, never a silent kill."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

from carrel.domain.limits import LimitKind
from carrel.domain.runtimes import Exit, ExitReason, LimitHit, Sandbox
from carrel.runtimes.limits.cgroups import CgroupHandle
from carrel.runtimes.limits.disk import DiskWatch
from carrel.runtimes.limits.enforcing import Enforcement

Kill = Callable[[str, str], Coroutine[None, None, None]]
OnEvent = Callable[[LimitHit], None]


class LimitWatch:
    """Of one sandbox. Counters are compared when a command ends; disk use is measured once a
    second while any runs, unless a quota does it."""

    def __init__(
        self,
        sandbox: Sandbox,
        enforcement: Enforcement,
        on_event: OnEvent,
        kill: Kill,
    ) -> None:
        self._sandbox = sandbox
        self._enforcement = enforcement
        self._cgroups = enforcement.cgroups
        self._group = enforcement.group(sandbox)
        self._on_event = on_event
        self._kill = kill
        self._running: set[str] = set()
        self._disk: asyncio.Task[None] | None = None
        self._killing: set[asyncio.Task[None]] = set()
        limits = sandbox.spec.limits
        self._counted = limits.pids is not None or limits.cpus is not None
        self._refused_forks = self._count(self._cgroups.pids_events)
        self._throttled = self._count(self._cgroups.cpu_throttled)

    def _count(self, read: Callable[[CgroupHandle], int | None]) -> int:
        return read(self._group) or 0

    def started(self, run_id: str) -> None:
        self._running.add(run_id)
        limit = self._sandbox.spec.limits.disk_bytes
        if limit is None or self._disk is not None:
            return
        if self._enforcement.has_quota(self._sandbox.spec):
            return
        watch = DiskWatch([self._sandbox.spec.folder], limit, self._over_disk)
        self._disk = asyncio.get_running_loop().create_task(watch.run())

    def ended(self, run_id: str, ended: Exit) -> None:
        self._running.discard(run_id)
        if not self._running and self._disk is not None:
            self._disk.cancel()
            self._disk = None
        limits = self._sandbox.spec.limits
        if ended.reason is ExitReason.MEMORY and limits.memory_bytes is not None:
            self._tell(
                LimitKind.MEMORY, limits.memory_bytes, run_id, "was killed at its memory limit"
            )
        if ended.reason is ExitReason.TIMEOUT and limits.wall_seconds is not None:
            took = ended.ended_at - ended.started_at
            if took >= limits.wall_seconds:
                self._tell(LimitKind.WALL_TIME, limits.wall_seconds, run_id, "ran out of time")
        if self._counted:
            self._compare(run_id)

    def _compare(self, run_id: str) -> None:
        limits = self._sandbox.spec.limits
        refused = self._count(self._cgroups.pids_events)
        if limits.pids is not None and refused > self._refused_forks:
            self._tell(LimitKind.PIDS, limits.pids, run_id, "was refused further processes")
        throttled = self._count(self._cgroups.cpu_throttled)
        if limits.cpus is not None and throttled > self._throttled:
            self._tell(LimitKind.CPU, limits.cpus, run_id, "had to wait for its share of the CPU")
        self._refused_forks, self._throttled = refused, throttled

    def _over_disk(self, used: int) -> None:
        limit = self._sandbox.spec.limits.disk_bytes or 0
        for run_id in sorted(self._running):
            self._tell(LimitKind.DISK, limit, run_id, f"is stopped: {used} bytes are in use")
            killing = asyncio.get_running_loop().create_task(self._kill(run_id, "disk"))
            self._killing.add(killing)
            killing.add_done_callback(self._killing.discard)

    def _tell(self, kind: LimitKind, figure: float, run_id: str, what: str) -> None:
        message = f"{run_id} {what} ({kind} {figure:g})."
        self._on_event(LimitHit(self._sandbox.spec.sandbox_id, kind, figure, run_id, message))

    def close(self) -> None:
        if self._disk is not None:
            self._disk.cancel()
            self._disk = None
