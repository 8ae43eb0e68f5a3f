"""Tells of limits that a sandbox hits: an event with the figure, never a silent kill."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

from carrel.domain.limits import LimitKind
from carrel.domain.runtimes import Exit, ExitReason, LimitHit, Sandbox
from carrel.runtimes.limits.cgroups import CgroupHandle
from carrel.runtimes.limits.disk import DiskWatch
from carrel.runtimes.limits.enforcing import Enforcement

PERIOD_S = 1.0
"""Between two looks at what the kernel killed: each reads one small file."""
Kill = Callable[[str, str], Coroutine[None, None, None]]
OnEvent = Callable[[LimitHit], None]


class LimitWatch:
    """Of one sandbox. Counters are compared when a command ends. While any runs, so is once a
    second the number of processes that the kernel killed at the memory limit, for those need not
    be commands themselves; and disk use is measured, unless a quota does it."""

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
        self._next_look: asyncio.TimerHandle | None = None
        limits = sandbox.spec.limits
        self._counted = limits.pids is not None or limits.cpus is not None
        self._refused_forks = self._count(self._cgroups.pids_events)
        self._throttled = self._count(self._cgroups.cpu_throttled)
        self._killed = self._count(self._cgroups.memory_events)
        """At the memory limit, as far as that was told."""

    def _count(self, read: Callable[[CgroupHandle], int | None]) -> int:
        return read(self._group) or 0

    def started(self, run_id: str) -> None:
        if not self._running and self._sandbox.spec.limits.memory_bytes is not None:
            # What commands left running was looked at by nobody.
            self._look()
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
        if not self._running:
            self.close()
        limits = self._sandbox.spec.limits
        if ended.reason is ExitReason.MEMORY:
            self._compare_killed(run_id, "was killed at its memory limit", itself=True)
        else:
            self._compare_killed(run_id if not self._running else None)
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

    def _look(self) -> None:
        """What runs alone has lost it; of several, nobody knows which."""
        self._next_look = asyncio.get_running_loop().call_later(PERIOD_S, self._look)
        self._compare_killed(next(iter(self._running)) if len(self._running) == 1 else None)

    def _compare_killed(
        self,
        run_id: str | None,
        what: str = "lost a process at its memory limit",
        *,
        itself: bool = False,
    ) -> None:
        """Told once for each growth: that a command was killed may be seen before its end is.
        Where the kernel cannot be asked any more, what it died of itself is known."""
        limit = self._sandbox.spec.limits.memory_bytes
        if limit is None:
            return
        killed = self._cgroups.memory_events(self._group)
        if itself if killed is None else killed > self._killed:
            self._tell(LimitKind.MEMORY, limit, run_id, what)
        if killed is not None:
            self._killed = killed

    def _over_disk(self, used: int) -> None:
        limit = self._sandbox.spec.limits.disk_bytes or 0
        for run_id in sorted(self._running):
            self._tell(LimitKind.DISK, limit, run_id, f"is stopped: {used} bytes are in use")
            killing = asyncio.get_running_loop().create_task(self._kill(run_id, "disk"))
            self._killing.add(killing)
            killing.add_done_callback(self._killing.discard)

    def _tell(self, kind: LimitKind, figure: float, run_id: str | None, what: str) -> None:
        sandbox_id = self._sandbox.spec.sandbox_id
        message = f"{run_id or sandbox_id} {what} ({kind} {figure:g})."
        self._on_event(LimitHit(sandbox_id, kind, figure, run_id, message))

    def close(self) -> None:
        if self._next_look is not None:
            self._next_look.cancel()
            self._next_look = None
        if self._disk is not None:
            self._disk.cancel()
            self._disk = None
