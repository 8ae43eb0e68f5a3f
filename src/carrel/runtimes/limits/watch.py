"""Watches the limits of a sandbox, and tells when one is hit: an event, never a silent kill.

Where the disk has no quota, looking finds out that a sandbox went over its limit, and can only end
what runs then. Looking is cheap as long as the disk has not lost as much room as a sandbox has
left: only then its files are walked through. The less room is left, the more often the disk is
asked, so that a fast writer does not come far beyond the limit.

Code in the sandbox can follow the walk, and move its files from where it has not been yet to where
it was. What the disk has lost and the walk has not found tells of that: when it would take the
sandbox over its limit, its files are walked through again while all of its processes stand still.
"""

from __future__ import annotations

import asyncio
import logging
import math
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from carrel.domain.errors import CarrelError, InsufficientDisk
from carrel.domain.limits import LimitKind
from carrel.domain.runtimes import Exit, ExitReason, LimitHit, Sandbox
from carrel.linux.processes import group_members
from carrel.linux.reserve import Free, free_room, is_short
from carrel.runtimes.limits.cgroups import CgroupHandle
from carrel.runtimes.limits.disk import LOOK_S, TOO_DEEP, Steps, Use, limit_of
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
FASTEST = 4 << 30
"""Bytes that one sandbox writes in a second at most, as memory takes them. While it has room for
more than that, a look each second is enough."""
QUICKEST_S, CALM_S = 0.01, 0.02
"""Between two looks at the disk for all sandboxes together, where little room is left, and while it
loses nothing. A look takes some 200 µs: one percent of one processor."""
_SHARE = 4
"""A walk that takes long is followed by a pause this many times as long, so that looking
never takes more than a fifth of one processor."""
REST_S = 30.0
"""So often files are walked through though the disk has hardly lost room: what one sandbox
wrote, another may have deleted."""
_REST_SHARE = 50
"""… unless a walk takes long: then it may take a fiftieth of one processor."""
STILL_SHARE = 20
"""A sandbox goes on for at least so many times as long as it has stood still: others that write
much on the same disk make it stand still, too."""
SLACK_BYTES = 1 << 20
"""Who is over the limit may run commands that make room; these write a little themselves."""
SLACK_FILES = 100
FAR_BYTES = 1 << 30
"""Each command that is ended has written for a second or so. Above twice the limit and this much,
none is begun that could add to it."""
FAR_FILES = 100_000
OnEvent = Callable[[LimitHit], None]
_log = logging.getLogger("carrel")


class _Bound:
    """One figure. Over the limit, what is in use may shrink, and not grow any more."""

    def __init__(self, limit: int, slack: int) -> None:
        self.limit = limit
        self._slack = slack
        self._allowed: int | None = None

    def forgive(self) -> None:
        """What is in use at the next look, which nobody wrote who could be ended for it."""
        self._allowed = sys.maxsize

    def forget(self) -> None:
        self._allowed = None

    def crossed(self, used: int, lost: int) -> bool:
        """`lost` is what went from the disk since somebody could have written; it decides at
        the first look, when nobody knows how much was in use before."""
        if used <= self.limit:
            self._allowed = self.limit
            return False
        crossed = lost > self._slack if self._allowed is None else used > self._allowed
        now = used + self._slack
        self._allowed = now if self._allowed is None else min(self._allowed, now)
        return crossed


class Remembered(NamedTuple):
    """Of a sandbox that was watched, or has just been made: what may be hidden in it, what was
    found, and what was free on the disk then."""

    most: Use = Use(0, 0)
    found: Use | None = None
    free: Free | None = None
    is_new: bool = False


class DiskWatch:
    """Looks at a sandbox once a second, and sooner when the disk loses as much as it has left.
    Calls `on_over` with the figures and why when it has gone over its limit, or goes on to write
    on a disk that is full.

    `measure` is called with whether the sandbox has to stand still meanwhile, and answers None
    when it did not. It is called in a `turn`: sandboxes take turns, and what waits for one has not
    taken long itself. `before` is what was `remembered` when it was watched last. `watched` is how
    many sandboxes are. `pause` and `clock` are for tests.
    """

    def __init__(
        self,
        measure: Callable[[bool], Awaitable[Use | None]],
        free: Callable[[], Free],
        limit: Use,
        on_over: Callable[[Use, str], None],
        *,
        turn: Callable[[], AbstractAsyncContextManager[None]] = nullcontext,
        before: Remembered | None = None,
        watched: Callable[[], int] = lambda: 1,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Made before the first command starts: what the disk loses from now on counts."""
        self._measure = measure
        self._turn = turn
        self._free = free
        self._limit = limit
        self._on_over = on_over
        self._watched = watched
        self._pause = pause
        self._clock = clock
        self._bytes = _Bound(limit.bytes, SLACK_BYTES)
        self._files = _Bound(limit.files, SLACK_FILES)
        self._known: Use | None = None
        before = before or Remembered()
        self._most = before.most
        """What is in use if all was its own that the disk has lost since it stood still."""
        self._found, self._found_with = before.found, before.free
        """At the last measurement, be it of an earlier watch."""
        self._written = 0
        """From outside since then: the disk does not tell of it when others free as much."""
        self._checked_at = -math.inf
        self._deep: int | None = None
        """What was free when its folders were found to be too deep."""
        self._when_full: Use | None = None
        """What was in use when the disk was found to be full, and when it was so last."""
        self._full_at = 0.0
        self._then = free()
        if before.found is not None:
            self._forgive()
        self._told = False
        self._measured_at = 0.0
        if before.is_new and before.free is not None and self._is_small(before.free):
            # The next look measures it, if its first command takes that long.
            self._known, self._measured_at = Use(0, 0), clock() - REST_S + LOOK_S
        self._took = 0.0
        self._still_at = -math.inf
        self._still_for = 0.0

    def _is_small(self, free: Free) -> bool:
        """Of one that was made when so much was free: whether it is far below its limit."""
        return not self._exceeds(Use(0, 0), free, self._then)

    def _exceeds(self, used: Use, before: Free, free: Free) -> bool:
        """Whether it may be over its limit by what the disk has lost since it had so much."""
        # Twice: a disk may tell late what it has lost.
        lost = max(0, before.bytes - free.bytes) * 2 + SLACK_BYTES
        made = max(0, before.files - free.files) * 2 + SLACK_FILES
        return used.bytes + lost > self._limit.bytes or used.files + made > self._limit.files

    async def run(self, needed: Callable[[], Awaitable[bool]]) -> None:
        """As long as it is `needed`, which is asked before each look."""
        pace = QUICKEST_S
        while await needed():
            took = await self.look()
            looked = self._clock()
            until = looked + max(LOOK_S - took, took * _SHARE)
            # Though never more than half of one processor, or a fifth while looks are short.
            soonest = looked + max(took, min(took * _SHARE, LOOK_S))
            room = self._room()
            while (left := until - self._clock()) > 0:
                quick = min(pace * self._watched(), LOOK_S)
                await self._pause(min(left, max(quick, min(room / FASTEST, LOOK_S))))
                before, room = room, self._room()
                pace = QUICKEST_S if room < before else min(2 * pace, CALM_S)
                if self._clock() >= soonest and room < 0:
                    break

    def _room(self) -> float:
        """What the sandbox has left if all was its own that the disk has lost since it was
        measured; below nothing it is to be measured, or the pause after a look would be its chance
        to write as much as it likes."""
        if self._known is None or self._told:
            return math.inf
        lost = self._then.bytes - self._free().bytes
        return max(self._limit.bytes - self._known.bytes, 0) + SLACK_BYTES - lost

    async def look(self) -> float:
        """Answers how long that took."""
        free = self._free()
        anew = self._told
        if anew:
            # What was written until all had ended is no growth of what comes after.
            self._told, self._known, self._when_full, self._then = False, None, None, free
            self._bytes.forget()
            self._files.forget()
            self._deep = None if self._deep is None else free.bytes
            self._most = Use(sys.maxsize, sys.maxsize)
        if not self._is_due(free):
            return 0.0
        async with self._turn():
            return await self._look(self._free(), anew)

    async def _look(self, free: Free, anew: bool) -> float:
        began, self._written = self._clock(), 0
        used = await self._measure(False)
        assert used is not None
        self._most = self._possible(used, free)
        if self._may_hide(used, free):
            free, before = self._free(), self._clock()
            found = await self._measure(True)
            self._still_at = self._clock()
            self._still_for = self._still_at - before
            if found is None:
                self._tell(used, "does not stand still to be measured")
                return self._still_at - began
            used = self._most = Use(max(used.bytes, found.bytes), max(used.files, found.files))
        self._measured_at = self._clock()
        self._took = self._measured_at - began
        self._judge(used, free, anew)
        self._known = self._found = used
        self._then = self._found_with = free
        return self._took

    @property
    def may_be_over(self) -> bool:
        """If all was its own that the disk has lost since it was measured; or the disk is full."""
        free = self._free()
        return is_short(free) or _is_above(self._with_lost(free), self._limit)

    def rest(self) -> None:
        """Nobody is in the sandbox: what was written until now is no growth of what comes after,
        the command that makes room say, and nobody moves files away from the walk."""
        free = self._free()
        self._forgive()
        self._known, self._when_full, self._then, self._most = None, None, free, Use(0, 0)
        self._deep = None if self._deep is None else free.bytes

    def _forgive(self) -> None:
        self._bytes.forgive()
        self._files.forgive()

    async def excess(self, *, far: bool, written: int = 0) -> Use | None:
        """What is in use, when it is above the limit, or `far` above it. Where it may be, it is
        measured: more may have been written since, and room may have been made. `written`: bytes
        that came from outside since this was asked last."""
        self._written += written
        free, most, now = self._free(), self._limit, self._clock()
        if far:
            most = Use(2 * most.bytes + FAR_BYTES, 2 * most.files + FAR_FILES)
        # Nobody looks now and then at what comes while no command runs.
        stale = not far and now - max(self._measured_at, self._checked_at) >= REST_S
        if not stale and not _is_above(self._with_lost(free), most):
            return None
        if stale or now - self._checked_at >= max(LOOK_S, self._took * _SHARE):
            async with self._turn():
                free, self._written = self._free(), 0
                self._found, self._found_with = await self._measure(False), free
            self._checked_at = self._clock()
        found = self._found if far else self._with_lost(self._free())
        return found if found and _is_above(found, most) else None

    def _with_lost(self, free: Free) -> Use:
        """What was found last, and what the disk has lost since, or was written from outside."""
        found, before = self._found or Use(0, 0), self._found_with or self._then
        lost = Use(max(self._written, before.bytes - free.bytes), before.files - free.files)
        return Use(found.bytes + lost.bytes, found.files + max(0, lost.files))

    @property
    def remembered(self) -> Remembered | None:
        """None: it is nowhere near its limit, and hides nothing."""
        hides = _grew(self._known or Use(0, 0), self._most)
        if not hides and not _is_above(self._with_lost(self._free()), self._limit):
            return None
        return Remembered(self._most if hides else Use(0, 0), self._found, self._found_with)

    def _possible(self, used: Use, free: Free) -> Use:
        """It becomes less only by what was found to be less, and is free now. Others may have
        removed something, too, while it hid as much."""
        before = self._known or used
        lost = (self._then.bytes - free.bytes, self._then.files - free.files)
        figures = zip(used, before, self._most, lost, strict=True)
        return Use(
            *(max(now, most + max(gone, min(0, now - was))) for now, was, most, gone in figures)
        )

    def _may_hide(self, used: Use, free: Free) -> bool:
        """Whether what was not found could take it over its limit, or grows on a full disk."""
        if used.bytes >= TOO_DEEP or not self._may_pause():
            return False
        slack = (SLACK_BYTES, SLACK_FILES)
        return any(
            most > found + some and (most + some > limit or is_short(free))
            for most, found, limit, some in zip(self._most, used, self._limit, slack, strict=True)
        )

    def _may_pause(self) -> bool:
        return self._clock() - self._still_at >= self._still_for * STILL_SHARE

    def _is_due(self, free: Free) -> bool:
        if self._known is None or is_short(free):
            return True
        if self._clock() - self._measured_at >= max(REST_S, self._took * _REST_SHARE):
            return True
        return self._exceeds(self._most if self._may_pause() else self._known, self._then, free)

    def _judge(self, used: Use, before: Free, anew: bool) -> None:
        """`before` is what was free before it was measured. `anew`: all of it has just ended, and
        what the disk loses meanwhile others take."""
        free = self._free()
        if used.bytes >= TOO_DEEP:
            self._judge_too_deep(used, free)
            return
        self._deep = None
        crossed = [
            self._bytes.crossed(used.bytes, 0 if anew else self._then.bytes - free.bytes),
            self._files.crossed(used.files, 0 if anew else self._then.files - free.files),
        ]
        if any(crossed):
            self._tell(used, "is over its limit")
        elif is_short(before) and self._grows_on_a_full_disk(used):
            self._tell(used, "goes on to write, and the disk is full")

    def _grows_on_a_full_disk(self, used: Use) -> bool:
        """Since it became full: what is given up of a reserve in small pieces is not for whoever
        takes little at once."""
        now = self._clock()
        if self._when_full is None or now - self._full_at > REST_S:
            self._when_full = self._known or used
        self._full_at = now
        return _grew(self._when_full, used)

    def _judge_too_deep(self, used: Use, free: Free) -> None:
        """Whether that grows only the disk can tell."""
        if self._deep is None or self._deep - free.bytes > SLACK_BYTES:
            self._deep = free.bytes
            self._tell(used, "is too deep to be measured")

    def _tell(self, used: Use, why: str) -> None:
        self._told = True
        self._on_over(used, why)


def _is_above(used: Use, limit: Use) -> bool:
    return used.bytes > limit.bytes or used.files > limit.files


def _grew(before: Use, now: Use) -> bool:
    return now.bytes > before.bytes + SLACK_BYTES or now.files > before.files + SLACK_FILES


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
        if not await self._inhabitants.find():
            self._disk.rest()

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
        self._enforcement.watched += 1
        try:
            await watch.run(self._is_inhabited)
        except (CarrelError, OSError):
            # The next command begins it again; the launcher, or the folder, is gone.
            _log.warning("the disk use of %s is not watched", self._sandbox.spec.sandbox_id)
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
