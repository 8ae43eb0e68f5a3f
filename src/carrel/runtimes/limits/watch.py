"""Watches the limits of a sandbox, and tells when one is hit: an event, never a silent kill."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial

from carrel.domain.errors import CarrelError, InsufficientDisk
from carrel.domain.limits import LimitKind
from carrel.domain.runtimes import Exit, ExitReason, LimitHit, Sandbox
from carrel.linux.processes import group_members
from carrel.linux.reserve import free_room
from carrel.runtimes.limits.cgroups import CgroupHandle
from carrel.runtimes.limits.disk import TOO_DEEP, Steps, Use, limit_of
from carrel.runtimes.limits.disk_watch import SLACK_BYTES, DiskWatch, Remembered
from carrel.runtimes.limits.enforcement import Enforcement
from carrel.runtimes.threads import in_own_thread

PERIOD_S = 1.0
"""Between two looks at what the kernel killed: each reads one small file."""
STILL_S = 5.0
"""A sandbox stands still for its files to be counted for so long at most: some million files."""
PAUSE_S = 2 * STILL_S
"""After this it goes on though nobody has said so: whoever paused it has died, or is stuck."""
STUCK_S, STUCK_LOOKS = 2.0, 3
"""A walk that has not come to the next file in so many times this, while the disk lost room, is
kept from it by a process that holds a folder's lock, in a write that waits for its own memory say.
It could go on for ever, and all others would wait for their turn."""
WALK_S = 20.0
"""A walk while commands go on ends after this, and what it found counts. It is enough for some
million files; who makes new ones ahead of it could have it go on for ever, and all others would
wait for their turn."""
AGAIN_S = 2.0
"""After a look that failed: a machine without processes or time for it is no better at once."""
OnEvent = Callable[[LimitHit], None]
_log = logging.getLogger("carrel")


@dataclass(frozen=True)
class Inhabitants:
    """The processes of one sandbox, as the launcher knows them."""

    find: Callable[[], Awaitable[Sequence[int]]]
    """By their numbers on the host, also those that commands have left behind."""
    all: Callable[[], Awaitable[Sequence[int]]]
    """Also those that hold it, and one that waits for the next command: code in there can take
    over what holds it."""
    relatives: Callable[[], Awaitable[Sequence[int]]]
    """All of all sandboxes that have their limits together with it, and its own."""
    end: Callable[[str], Coroutine[None, None, None]]
    """All of them, at once; commands end with this reason."""
    pause: Callable[[], Awaitable[bool]]
    """Those of all that have their limits together. Whether they stand still then."""
    resume: Callable[[], Awaitable[bool]]
    """Whether they have stood still until now."""


class LimitWatch:
    """Of one sandbox. Counters are compared when a command ends. While any runs, so is once a
    second the number of processes that the kernel killed at the memory limit, for those need not
    be commands themselves. Disk use is looked at as long as there is any process."""

    def __init__(
        self,
        sandbox: Sandbox,
        enforcement: Enforcement,
        on_event: OnEvent,
        inhabitants: Inhabitants,
        before: Remembered | None = None,
    ) -> None:
        """`before` is what was `remembered` when it was watched last."""
        self._sandbox = sandbox
        self._enforcement = enforcement
        self._cgroups = enforcement.cgroups
        self._group = enforcement.group(sandbox)
        self._on_event = on_event
        self._inhabitants = inhabitants
        self._running: set[str] = set()
        self._since: set[str] = set()
        """All that ran since the counts of the kernel were last compared."""
        self._disk = self._disk_watch(before)
        self._looking: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None
        self.endings = 0
        """How often all of it was ended."""
        self._next_look: asyncio.TimerHandle | None = None
        limits = sandbox.spec.limits
        self._counted = limits.pids is not None or limits.cpus is not None
        self._refused_forks = self._count(self._cgroups.pids_events) if self._counted else 0
        self._throttled = self._count(self._cgroups.cpu_throttled) if self._counted else 0
        has_limit = limits.memory_bytes is not None
        self._killed = self._count(self._cgroups.memory_events) if has_limit else 0
        """At the memory limit, as far as that was told."""

    @property
    def sandbox(self) -> Sandbox:
        return self._sandbox

    def _count(self, read: Callable[[CgroupHandle], int | None]) -> int:
        return read(self._group) or 0

    async def settled(self) -> None:
        """When nothing is being ended: what comes now would be ended with it. Nor for what
        commands wrote that are gone, though nobody has looked since."""
        await self._ended_all()
        if self._disk is None or self._running or not self._disk.may_be_over:
            return
        if await self._inhabitants.find():
            return
        found, begun = None, time.monotonic()
        with contextlib.suppress(CarrelError, OSError, RuntimeError):
            found = await self._disk.at_rest()
        if not self._running and not await self._inhabitants.find():
            # A walk that had no time to come to its end has seen too little.
            whole = time.monotonic() - begun < WALK_S
            self._disk.rest(found if whole else None)

    async def _ended_all(self) -> None:
        if self._ending is not None:
            await asyncio.wait([self._ending])

    async def check_room(self, *, far: bool = True, written: int = 0) -> None:
        """Raises `InsufficientDisk` when the sandbox is above its limit; or, `far`, so far that no
        command may add to it. `written`: see `DiskWatch.excess`."""
        excess = None
        if self._disk is not None:
            excess = await self._disk.excess(far=far, written=written)
        if excess is not None:
            most = f"its disk limit of {self._sandbox.spec.limits.disk_bytes} bytes"
            until = "it runs no more commands until there is room"
            raise InsufficientDisk(
                f"The space has {excess.bytes} bytes and {excess.files} files, "
                + (f"far above {most}: {until}." if far else f"above {most}."),
                hint="Delete files of it (DELETE /v1/spaces/SPACE/files), remove the space, or"
                " have its owner make room: carrel exec SPACE -- rm FILE",
            )

    def started(self, run_id: str) -> None:
        if not self._running and self._sandbox.spec.limits.memory_bytes is not None:
            # What commands left running was looked at by nobody.
            self._look()
        self._running.add(run_id)
        self._since.add(run_id)
        self.look_at_disk()

    def look_at_disk(self) -> None:
        """Until the sandbox has no process any more."""
        if self._disk is not None and (self._looking is None or self._looking.done()):
            work = self._see_to_disk(self._disk)
            self._looking = asyncio.get_running_loop().create_task(work)

    async def _see_to_disk(self, watch: DiskWatch) -> None:
        """What fails is tried again: commands that take all processes of the machine, or all of its
        time, would else be rid of their limit for as long as they run."""
        spec, is_told = self._sandbox.spec, False
        self._enforcement.watched += 1
        try:
            while True:
                try:
                    await watch.run(self._is_inhabited)
                    return
                except (CarrelError, OSError, RuntimeError) as error:
                    # The last is a thread that cannot be started.
                    if not spec.folder.is_dir():
                        return
                    if not is_told:
                        _log.warning("no look at the disk use of %s: %s", spec.sandbox_id, error)
                    is_told = True
                await asyncio.sleep(AGAIN_S)
        finally:
            self._enforcement.watched -= 1

    async def _is_inhabited(self) -> bool:
        await self._ended_all()
        if self._running or (self._group.tracking and group_members(self._group.tracking)):
            return True
        return bool(await self._inhabitants.all())

    @property
    def remembered(self) -> Remembered | None:
        return None if self._disk is None else self._disk.remembered

    def _disk_watch(self, before: Remembered | None) -> DiskWatch | None:
        spec = self._sandbox.spec
        if spec.limits.disk_bytes is None or not spec.folder.is_dir():
            return None
        return DiskWatch(
            self._measure_disk,
            lambda: free_room(spec.folder),
            limit_of(spec.limits.disk_bytes, spec.folder),
            self._over_disk,
            turn=lambda: self._enforcement.measuring(spec),
            before=before,
            watched=lambda: self._enforcement.watched,
        )

    async def _measure_disk(self, still: bool) -> Use | None:
        if still and not self._enforcement.has_quota(self._sandbox.spec):
            return await self._measure_still()
        pids = await self._inhabitants.relatives()
        return await self._walk(pids, time.monotonic() + WALK_S)

    async def _measure_still(self) -> Use | None:
        stood = False
        try:
            stood = await self._inhabitants.pause()
            pids = await self._inhabitants.relatives()
            until = time.monotonic() + STILL_S
            found = await self._walk(pids, until)
        finally:
            stood = await self._inhabitants.resume() and stood
        return found if stood else None

    async def _walk(self, pids: Sequence[int], until: float) -> Use:
        """What is in use. Whoever keeps the walk from coming further is over its limit. The turn
        belongs to the walk: who is cancelled gives the walk up and keeps the turn until the thread
        has ended. That is at once, unless the kernel holds it, where it takes no processor."""
        spec, steps = self._sandbox.spec, Steps()
        use = self._enforcement.disk_use
        walk = asyncio.ensure_future(in_own_thread(partial(use, spec, pids, until, steps)))
        walk.add_done_callback(lambda done: done.cancelled() or done.exception())
        free, taken, stuck = free_room(spec.folder).bytes, -1, 0
        begun = time.monotonic()
        try:
            while not (await asyncio.wait({walk}, timeout=STUCK_S))[0]:
                # Not on a machine that keeps us from looking: there it is not the sandbox's doing.
                in_time = time.monotonic() - begun < 2 * STUCK_S
                lost = free - free_room(spec.folder).bytes
                is_stuck = taken == steps.taken and not steps.asks and lost > SLACK_BYTES
                stuck = stuck + 1 if is_stuck and in_time else 0
                if stuck >= STUCK_LOOKS:
                    steps.given_up = True
                    return Use(TOO_DEEP, 0)
                taken, begun = steps.taken, time.monotonic()
        except asyncio.CancelledError:
            steps.given_up = True
            await asyncio.wait({walk}, timeout=STUCK_S)
            raise
        return walk.result()

    def ended(self, run_id: str, ended: Exit) -> None:
        self._running.discard(run_id)
        if not self._running:
            self._close_look()
        limits = self._sandbox.spec.limits
        # The kernel counts for the sandbox: of several runs, nobody knows which it was.
        alone = run_id if self._since == {run_id} else None
        self._since = set(self._running)
        if ended.reason is ExitReason.MEMORY:
            self._compare_killed(run_id, "was killed at its memory limit", itself=True)
        else:
            self._compare_killed(alone)
        if ended.reason is ExitReason.TIMEOUT and limits.wall_seconds is not None:
            took = ended.ended_at - ended.started_at
            if took >= limits.wall_seconds:
                self._tell(LimitKind.WALL_TIME, limits.wall_seconds, run_id, "ran out of time")
        if self._counted:
            self._compare(alone)

    def _compare(self, run_id: str | None) -> None:
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

    def _over_disk(self, used: Use, why: str) -> None:
        limit = self._sandbox.spec.limits.disk_bytes or 0
        what = f"is stopped, for its space {why}: {used.bytes} bytes, {used.files} files"
        told: list[str | None] = [*sorted(self._running)]
        for run_id in told or [None]:
            self._tell(LimitKind.DISK, limit, run_id, what)
        self.endings += 1
        self._ending = asyncio.get_running_loop().create_task(self._inhabitants.end("disk"))

    def _tell(self, kind: LimitKind, figure: float, run_id: str | None, what: str) -> None:
        sandbox_id = self._sandbox.spec.sandbox_id
        message = f"{run_id or sandbox_id} {what} ({kind} {figure:g})."
        self._on_event(LimitHit(sandbox_id, kind, figure, run_id, message))

    def close(self) -> None:
        """Ends what is going on, also a walk."""
        self._close_look()
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None

    def _close_look(self) -> None:
        if self._next_look is not None:
            self._next_look.cancel()
            self._next_look = None
