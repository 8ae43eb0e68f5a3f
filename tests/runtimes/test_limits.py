"""Limits by rlimit and by looking at the disk, and what is said of each."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import math
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from carrel.domain.availability import Availability
from carrel.domain.limits import LimitKind, Limits
from carrel.domain.runtimes import Sandbox, SandboxSpec
from carrel.domain.trees import Owner
from carrel.linux.reserve import Free
from carrel.runtimes.limits import disk
from carrel.runtimes.limits import watch as watch_module
from carrel.runtimes.limits.cgroups import Cgroups, Survey
from carrel.runtimes.limits.disk import (
    MAX_DEPTH,
    TOO_DEEP,
    ProjectQuotas,
    Use,
    disk_bytes,
    unlinked_use,
)
from carrel.runtimes.limits.enforcement import QUOTA, Enforcement, Rlimit, rlimits, support_for
from carrel.runtimes.limits.watch import (
    CALM_S,
    QUICKEST_S,
    REST_S,
    DiskWatch,
    Inhabitants,
    LimitWatch,
    Remembered,
)
from tests.accounts import PYTHON, Account, run_as

INFINITE = resource.RLIM_INFINITY
MIB = 1 << 20
WAIT_S = 30.0


def no_groups() -> Cgroups:
    return Cgroups(lambda: Survey((), ("There are none.",)))


# rlimits


def test_core_dumps_are_always_off() -> None:
    found = rlimits(Limits(), pids_by_cgroup=True, own_user=True)
    assert found == ((resource.RLIMIT_CORE, 1, 1),)


@pytest.mark.parametrize(("asked", "given"), [(None, 500), (600, 500), (20, 20)])
def test_on_our_own_account_we_may_have_more_than_a_sandbox(asked: int | None, given: int) -> None:
    found = rlimits(
        Limits(open_files=asked), pids_by_cgroup=True, current=lambda which: (100, 1000)
    )
    assert found[1:] == (
        (resource.RLIMIT_NOFILE, given, given),
        (resource.RLIMIT_SIGPENDING, 500, 500),
    )


def test_hard_limits_are_never_raised() -> None:
    asked = Limits(file_bytes=5000, open_files=9000, pids=40)
    found = rlimits(asked, pids_by_cgroup=False, own_user=True, current=lambda which: (100, 1000))
    assert found[1:] == (
        (resource.RLIMIT_FSIZE, 1000, 1000),
        (resource.RLIMIT_NOFILE, 1000, 1000),
        (resource.RLIMIT_NPROC, 40, 40),
    )
    free = rlimits(asked, pids_by_cgroup=True, current=lambda which: (INFINITE, INFINITE))
    assert free[1:] == (
        (resource.RLIMIT_FSIZE, 5000, 5000),
        (resource.RLIMIT_NOFILE, 9000, 9000),
    )


@pytest.mark.parametrize(("by_cgroup", "own_user"), [(True, True), (False, False), (True, False)])
def test_processes_are_counted_only_for_a_user_of_its_own(by_cgroup: bool, own_user: bool) -> None:
    found = rlimits(Limits(pids=5), pids_by_cgroup=by_cgroup, own_user=own_user)
    assert resource.RLIMIT_NPROC not in {which for which, _, _ in found}


def limited(limits: Iterable[Rlimit], code: str, account: Account | None = None) -> int:
    """Runs code with the limits set; answers its exit status."""
    setting = f"""
import os, resource, signal, sys, threading
for which, soft, hard in {list(limits)!r}:
    resource.setrlimit(which, (soft, hard))
identity = {tuple(account) if account is not None and os.geteuid() == 0 else None!r}
if identity:
    os.setgroups([]); os.setresgid(*[identity[1]] * 3); os.setresuid(*[identity[0]] * 3)
try:
{code}
except OSError as error:
    os._exit(error.errno)
"""
    argv = [sys.executable, "-S", "-c", setting]
    return subprocess.run(argv, timeout=60, check=False).returncode


def test_files_cannot_grow_beyond_the_limit(tmp_path: Path) -> None:
    wanted = rlimits(Limits(file_bytes=MIB), pids_by_cgroup=True)
    write = f"    open({str(tmp_path / 'file')!r}, 'wb').write(bytes(2 << 20))"
    # Python ignores the signal that comes first, and sees the error.
    assert limited(wanted, write) == errno.EFBIG
    assert (tmp_path / "file").stat().st_size <= MIB
    kept = "    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)\n" + write
    assert limited(wanted, kept) == -signal.SIGXFSZ


def test_open_files_are_limited() -> None:
    wanted = rlimits(Limits(open_files=32), pids_by_cgroup=True)
    assert limited(wanted, "    [os.dup(1) for _ in range(100)]") == errno.EMFILE


def test_processes_of_a_user_are_limited(ordinary_user: Account) -> None:
    if os.geteuid() != 0:
        pytest.skip("the tests' own user has other processes")
    wanted = rlimits(Limits(pids=4), pids_by_cgroup=False, own_user=True)
    code = """
    children = []
    try:
        while len(children) < 20:
            children.append(os.fork())
            if children[-1] == 0:
                signal.pause()
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
"""
    status = limited(wanted, code, ordinary_user)
    assert status == errno.EAGAIN


# Disk use


def fill(folder: Path) -> None:
    (folder / "a/b").mkdir(parents=True)
    (folder / "a/file").write_bytes(b"x" * 100_000)
    (folder / "a/b/other").write_bytes(b"y" * 5000)
    os.link(folder / "a/file", folder / "a/b/hard")
    (folder / "link").symlink_to("/usr")
    with (folder / "sparse").open("wb") as file:
        file.truncate(1 << 30)
    os.mkfifo(folder / "fifo")
    (folder / os.fsdecode(b"odd\xff\nname")).write_text("z")


def du(*folders: Path) -> int:
    argv = ["du", "-cxs", "--block-size=1", *map(str, folders)]
    said = subprocess.run(argv, check=True, capture_output=True, text=True, timeout=30).stdout
    return int(said.splitlines()[-1].split()[0])


def test_disk_use_is_what_du_says(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        fill(tmp_path / name)
    os.link(tmp_path / "one/a/file", tmp_path / "two/shared")
    both = (tmp_path / "one", tmp_path / "two")
    assert disk_bytes(both) == du(*both)
    assert disk_bytes([tmp_path / "nowhere", tmp_path / "one/sparse"]) == 0


def test_what_is_mounted_inside_does_not_count(data: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    fill(data)
    before = disk_bytes([data])
    (data / "mounted").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(data / "mounted")], check=True)
    (data / "mounted/big").write_bytes(bytes(MIB))
    assert disk_bytes([data]) < before + MIB // 2


def test_subvolumes_of_btrfs_count(data: Path) -> None:
    if os.geteuid() != 0 or shutil.which("mkfs.btrfs") is None:
        pytest.skip("needs root and btrfs-progs")
    image, volume = data / "image", data / "volume"
    with image.open("wb") as file:
        file.truncate(160 * MIB)
    volume.mkdir()
    for argv in (
        ["mkfs.btrfs", "-q", str(image)],
        ["mount", "-o", "loop", str(image), str(volume)],
        ["btrfs", "-q", "subvolume", "create", str(volume / "tree")],
    ):
        subprocess.run(argv, check=True, timeout=60, capture_output=True)
    (volume / "tree/big").write_bytes(os.urandom(4 * MIB))
    os.sync()
    assert disk_bytes([volume]) >= 4 * MIB


def test_what_is_too_deep_counts_as_over(tmp_path: Path) -> None:
    """Names of 200 letters: the path is far longer than the kernel takes in one piece."""
    above = os.open(tmp_path, os.O_RDONLY)
    try:
        for _ in range(MAX_DEPTH + 2):
            os.mkdir("d" * 200, dir_fd=above)
            below = os.open("d" * 200, os.O_RDONLY, dir_fd=above)
            os.close(above)
            above = below
    finally:
        os.close(above)
    descriptors = set(os.listdir("/proc/self/fd"))
    assert disk.disk_use([tmp_path]).bytes == TOO_DEEP
    with pytest.raises(OSError, match="too deep"):
        disk_bytes([tmp_path])
    assert set(os.listdir("/proc/self/fd")) == descriptors
    subprocess.run(["rm", "-rf", str(tmp_path / ("d" * 200))], check=True, timeout=30)


def test_a_folder_that_is_moved_ahead_of_the_walk_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever follows the walk could else have it go on for as long as there are names."""
    places = [tmp_path / str(number) for number in range(50)]
    for place in places:
        place.mkdir()
    moved = places[0] / "many"
    moved.mkdir()
    scandir, walked = os.scandir, list[str]()

    def ahead(folder: Any) -> Any:
        nonlocal moved
        walked.append(os.readlink(f"/proc/self/fd/{folder}"))
        left = [place for place in places if str(place) not in walked]
        if walked[-1] == str(moved) and left:
            moved = moved.rename(left[0] / "many")
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", ahead)
    disk.disk_use([tmp_path])
    assert sum(path.endswith("many") for path in walked) == 1


PLENTY = 1 << 40


class Stage:
    """Time and disk for a watch: every pause is written down and ends at once."""

    def __init__(self, sizes: list[int], walk_s: float = 0.0, free: int = PLENTY) -> None:
        self.sizes = sizes
        self.walk_s = walk_s
        self.now = 0.0
        self.pauses: list[float] = []
        self.hits: list[int] = []
        self.walks = 0
        self.free = free
        self.limit = Use(10 * MIB, 1000)
        self.pauses_at: list[float] = []
        """When the space had to stand still."""
        self.real: int | None = 0
        """What is found when it does."""
        self.others = 0
        """What others write during a walk."""

    async def measure(self, still: bool) -> Use | None:
        self.walks += 1
        self.free -= self.others * MIB
        self.now += self.walk_s
        if still:
            self.pauses_at.append(self.now)
            return None if self.real is None else Use(self.real * MIB, 1)
        return Use(self.sizes.pop(0) * MIB, 1)

    async def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds

    async def needed(self) -> bool:
        return bool(self.sizes)

    def watch(self, before: Remembered | None = None) -> DiskWatch:
        return DiskWatch(
            self.measure,
            lambda: Free(self.free, PLENTY),
            self.limit,
            lambda used, _why: self.hits.append(used.bytes // MIB),
            before=before,
            pause=self.pause,
            clock=lambda: self.now,
        )

    async def run(self) -> None:
        await self.watch().run(self.needed)


async def test_going_over_is_told_and_then_only_what_grows() -> None:
    """Who is over the limit may make room, and is ended when it takes more."""
    stage = Stage([5, 10, 11, 12, 14, 13, 13, 15, 9, 30, 31])
    stage.limit = Use(10 * MIB, 1)
    await stage.run()
    assert stage.hits == [11, 14, 15, 30]
    assert sum(stage.pauses) == pytest.approx(11.0)


@pytest.mark.parametrize(("lost", "hits"), [(0, []), (5, [20])])
async def test_what_was_over_before_is_told_when_the_disk_has_lost_room(
    lost: int, hits: list[int]
) -> None:
    stage = Stage([20])
    watch = stage.watch()
    stage.free -= lost * MIB
    await watch.look()
    assert stage.hits == hits


async def test_who_was_ended_does_not_pay_for_what_others_write() -> None:
    """What it has when all of it has ended is what it may keep, and take no more."""
    stage = Stage([5, 20])
    stage.real = 20
    watch = stage.watch()
    await watch.look()
    stage.free -= 15 * MIB
    await watch.look()
    assert stage.hits == [20]
    stage.others = 5
    stage.sizes = [20, 20, 22]
    for _ in range(3):
        await watch.look()
    assert stage.hits == [20, 22]


@pytest.mark.parametrize("again", [False, True])
async def test_a_command_does_not_pay_for_what_one_wrote_that_is_gone(again: bool) -> None:
    """It was too quick to be looked at. The next one, which makes room, may be the first of a new
    watch, and may not take more."""
    stage = Stage([5])
    watch = stage.watch()
    await watch.look()
    stage.free -= 15 * MIB
    assert watch.may_be_over
    if again:
        watch = stage.watch(watch.remembered)
    else:
        watch.rest()
    stage.sizes = [20, 20, 12, 14]
    for expected in ([], [], [], [14]):
        await watch.look()
        assert stage.hits == expected


async def test_a_new_sandbox_is_walked_through_when_its_first_command_lasts() -> None:
    stage = Stage([5, 20])
    made = Remembered(free=Free(stage.free, PLENTY), is_new=True)
    watch = stage.watch(made)
    await watch.look()
    assert stage.walks == 0
    stage.now += 1.0
    await watch.look()
    assert stage.walks == 1 and stage.hits == []
    stage.free -= 15 * MIB
    stage.real = 20
    await watch.look()
    assert stage.hits == [20]


@pytest.mark.parametrize("lost", [5, 15])
async def test_a_new_sandbox_that_may_be_large_is_walked_through_at_once(lost: int) -> None:
    """Somebody has copied much into it, or others have written: what is there is no growth."""
    stage = Stage([20, 20, 23])
    made = Remembered(free=Free(stage.free, PLENTY), is_new=True)
    stage.free -= lost * MIB
    watch = stage.watch(made)
    await watch.look()
    assert stage.walks == 1 and stage.hits == []


async def test_files_are_walked_through_when_the_disk_has_lost_enough() -> None:
    stage = Stage([1, 2, 3, 4])
    watch = stage.watch()
    await watch.look()
    await watch.look()
    assert stage.walks == 1
    stage.free -= 2 * MIB
    await watch.look()
    assert stage.walks == 1
    stage.free -= 5 * MIB
    await watch.look()
    assert stage.walks == 2
    stage.now += watch_module.REST_S
    await watch.look()
    assert stage.walks == 3


async def test_who_goes_on_to_write_on_a_full_disk_is_told() -> None:
    stage = Stage([1, 1, 3, 3], free=0)
    await stage.run()
    assert stage.hits == [3]


async def test_who_takes_little_at_once_of_a_full_disk_is_told_too() -> None:
    """Else it would get all of the reserve, which is given up in pieces."""
    stage = Stage([1, 2, 3, 3], free=0)
    await stage.run()
    assert stage.hits == [3]


async def test_what_cannot_be_measured_may_not_grow() -> None:
    deep = TOO_DEEP // MIB + 1
    stage = Stage([1, deep, deep, deep, deep])
    watch = stage.watch()
    for lost in (0, 0, 0, 5, 0):
        stage.now += watch_module.REST_S
        stage.free -= lost * MIB
        await watch.look()
    assert len(stage.hits) == 2


class Hiding(Stage):
    """A space that shows one MiB to whoever walks through it, whatever it has, and a disk whose
    every change somebody may have made."""

    def __init__(self, real: int | None, walk_s: float = 0.0) -> None:
        super().__init__([], walk_s)
        self.real = real

    async def measure(self, still: bool) -> Use | None:
        self.sizes = [1]
        return await super().measure(still)

    async def loses(self, watch: DiskWatch, *lost: int) -> None:
        """A walk after each."""
        for one in lost:
            self.free -= one * MIB
            self.now += watch_module.REST_S
            await watch.look()


@pytest.mark.parametrize(("real", "hits"), [(9, []), (11, [11]), (None, [1])])
async def test_who_may_hide_more_than_its_limit_has_to_stand_still(
    real: int | None, hits: list[int]
) -> None:
    """And is judged by what was found then; one that does not do so is over its limit."""
    stage = Hiding(real)
    watch = stage.watch()
    await stage.loses(watch, 0, 6)
    assert stage.pauses_at == []
    await stage.loses(watch, 6)
    assert len(stage.pauses_at) == 1 and stage.hits == hits


async def test_it_adds_up_and_what_others_remove_takes_nothing_from_it() -> None:
    stage = Hiding(2)
    watch = stage.watch()
    await stage.loses(watch, 0, 4, -100, 3, -100)
    assert stage.pauses_at == []
    assert watch.remembered is not None and watch.remembered.most == Use(8 * MIB, 1)
    await stage.loses(watch, 4, 0, 0, 6)
    assert len(stage.pauses_at) == 1
    assert stage.hits == []
    await stage.loses(watch, 2)
    assert len(stage.pauses_at) == 2


async def test_who_writes_what_is_found_never_stands_still() -> None:
    """Nor when it removes and writes again."""
    stage = Stage([1, 4, 9, 2, 9, 9, 3, 9])
    watch = stage.watch()
    before = 1
    for size in list(stage.sizes):
        stage.free -= (size - before) * MIB
        before = size
        stage.now += watch_module.REST_S
        await watch.look()
    assert stage.walks == 8 and stage.pauses_at == [] and stage.hits == []
    assert watch.remembered is None


async def test_nobody_stands_still_for_long() -> None:
    """Where others write without an end: for a twentieth of the time."""
    stage = Hiding(1, walk_s=5.0)
    watch = stage.watch()
    await stage.loses(watch, *[20] * 100)
    for one, next_one in zip(stage.pauses_at, stage.pauses_at[1:], strict=False):
        assert next_one - one >= 5.0 * watch_module.STILL_SHARE
    assert (
        10
        < len(stage.pauses_at)
        <= 100 * (watch_module.REST_S + 10) / (5.0 * watch_module.STILL_SHARE)
    )


async def test_who_was_over_its_limit_stands_still_next_time() -> None:
    """What it had then may be hidden now. The same goes for what was remembered of it."""
    stage = Hiding(12)
    watch = stage.watch()
    await stage.loses(watch, 12)
    assert stage.hits == [12]
    await stage.loses(watch, 0)
    assert len(stage.pauses_at) == 2
    remembered = DiskWatch(
        *(stage.measure, lambda: Free(PLENTY, PLENTY), stage.limit),
        lambda used, _why: stage.hits.append(used.bytes // MIB),
        before=Remembered(Use(10 * MIB, 1)),
    )
    await remembered.look()
    assert len(stage.pauses_at) == 3


async def test_what_comes_from_outside_counts_though_others_free_as_much() -> None:
    stage = Stage([0])
    watch = stage.watch()
    stage.now = watch_module.REST_S
    for written in (0, 4, 4):
        assert await watch.excess(far=False, written=written * MIB) is None
    assert await watch.excess(far=False, written=4 * MIB) == Use(12 * MIB, 1)
    assert stage.walks == 1


async def test_who_hides_on_a_full_disk_stands_still() -> None:
    stage = Hiding(4)
    watch = stage.watch()
    await stage.loses(watch, 0)
    stage.free = 4 * MIB
    await stage.loses(watch, 0)
    stage.real = 8
    stage.free = 0
    await stage.loses(watch, 0)
    assert stage.hits == [8]


def test_what_was_found_in_time_counts(tmp_path: Path) -> None:
    fill(tmp_path)
    whole = disk.disk_use([tmp_path])
    assert disk.disk_use([tmp_path], until=math.inf) == whole
    part = disk.disk_use([tmp_path], until=0.0)
    assert 0 < part.files < whole.files and part.bytes <= whole.bytes
    with pytest.raises(TimeoutError):
        disk_bytes([tmp_path], 0.0)


async def test_who_waited_for_its_turn_is_not_looked_at_later_for_it() -> None:
    stage = Stage([5, 5])

    @contextlib.asynccontextmanager
    async def turn() -> AsyncIterator[None]:
        stage.now += 15.0
        yield

    watch = DiskWatch(
        *(stage.measure, lambda: Free(stage.free, PLENTY), stage.limit, lambda _used, _why: None),
        turn=turn,
        pause=stage.pause,
        clock=lambda: stage.now,
    )
    await watch.run(stage.needed)
    assert sum(stage.pauses) == pytest.approx(REST_S + 1.0)


async def test_a_long_walk_is_followed_by_a_long_pause() -> None:
    quick = Stage([1], walk_s=0.1)
    await quick.run()
    assert sum(quick.pauses) == pytest.approx(0.9)
    slow = Stage([1], walk_s=3.0)
    await slow.run()
    assert sum(slow.pauses) == pytest.approx(12.0)


async def test_who_writes_in_a_long_pause_is_looked_at() -> None:
    """A space can make looks take long, and would have four times as long to itself."""
    stage = Stage([5, 20], walk_s=3.0)

    async def pause(seconds: float) -> None:
        await stage.pause(seconds)
        if len(stage.pauses) == 2:
            stage.free -= 15 * MIB

    watch = DiskWatch(
        *(stage.measure, lambda: Free(stage.free, PLENTY), stage.limit),
        lambda used, _why: stage.hits.append(used.bytes // MIB),
        pause=pause,
        clock=lambda: stage.now,
    )
    await watch.run(stage.needed)
    assert stage.hits == [20] and stage.walks == 2
    # As long as the look took, and all of it after the next.
    assert sum(stage.pauses) == pytest.approx(3.0 + 12.0, abs=2 * CALM_S)


async def test_who_has_little_room_left_is_looked_at_soon() -> None:
    """And nobody all the time: neither who writes nothing, nor many at once."""
    near, far, many = Stage([5, 20]), Stage([5]), Stage([5])
    near.limit, far.limit, many.limit = (Use(room * MIB, 1000) for room in (10, 10_000, 10))

    async def pause(seconds: float) -> None:
        await near.pause(seconds)
        near.free -= 3 * MIB

    def watch(stage: Stage, watched: int = 1) -> DiskWatch:
        free, over = lambda: Free(stage.free, PLENTY), lambda _used, _why: stage.hits.append(1)
        paused = pause if stage is near else stage.pause
        return DiskWatch(
            *(stage.measure, free, stage.limit, over),
            watched=lambda: watched,
            pause=paused,
            clock=lambda: stage.now,
        )

    await watch(near).run(near.needed)
    assert near.hits == [1] and near.pauses[:3] == [QUICKEST_S] * 3
    await watch(far).run(far.needed)
    assert far.pauses == [1.0]
    await watch(many, 50).run(many.needed)
    assert many.pauses == [0.5, 0.5]


def test_a_descriptor_of_the_same_file_costs_little(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """And what takes too long to be looked at is too much."""
    asked = list[str]()
    readlink = os.readlink

    def noted(path: str) -> str:
        asked.append(path)
        return readlink(path)

    monkeypatch.setattr(os, "readlink", noted)
    with (tmp_path / "gone").open("wb") as file:
        (tmp_path / "gone").unlink()
        copies = [os.dup(file.fileno()) for _ in range(50)]
        assert unlinked_use([os.getpid()], tmp_path).files >= 1
        assert sum(str(tmp_path) in os.fsdecode(readlink(path)) for path in asked) == 1
        monkeypatch.setattr(disk, "LINKS_S", -1.0)
        assert unlinked_use([os.getpid()], tmp_path).bytes == TOO_DEEP
        for copy in copies:
            os.close(copy)


def test_as_many_files_as_blocks_and_not_half_of_the_disk(tmp_path: Path) -> None:
    assert disk.limit_of(4 << 30, tmp_path) == Use(4 << 30, 1 << 20)
    assert disk.limit_of(MIB, tmp_path) == Use(MIB, disk.LEAST_FILES)
    total = os.statvfs(tmp_path).f_files
    if total:
        assert disk.limit_of(1 << 60, tmp_path).files == total // 2


def test_files_without_a_name_count(tmp_path: Path) -> None:
    """Open, in a thread of its own, or only mapped; not those that are in memory."""
    code = """
import mmap, os, sys, threading
def hole(name):
    fd = os.open(name, os.O_RDWR | os.O_CREAT)
    os.write(fd, bytes(1 << 20))
    os.unlink(name)
    return fd
kept = hole("open")
mapped = hole("mapped")
page = mmap.mmap(mapped, 4096)
os.close(mapped)
memory = os.memfd_create("memory")
os.write(memory, bytes(1 << 20))
def alone():
    import ctypes
    ctypes.CDLL(None).unshare(0x400)
    hole("hidden")
    ready.set()
    done.wait()
ready, done = threading.Event(), threading.Event()
threading.Thread(target=alone, daemon=True).start()
ready.wait()
print("ready", flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline() == b"ready\n"
        found = unlinked_use([process.pid], tmp_path)
        process.stdin.close()
    files = 3 if os.geteuid() == 0 else 2
    assert found == Use(files * MIB, files)


def test_files_without_a_name_count_below_any_path(data: Path) -> None:
    """The kernel tells no path of more than a page. A folder that is gone takes room as well."""
    code = """
import os, sys
for _ in range(20):
    os.mkdir("d" * 230)
    os.chdir("d" * 230)
file = os.open("file", os.O_WRONLY | os.O_CREAT)
os.unlink("file")
os.write(file, bytes(1 << 20))
os.mkdir("gone")
folder = os.open("gone", os.O_RDONLY)
os.rmdir("gone")
print("ready", flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=data,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline() == b"ready\n"
        found = unlinked_use([process.pid], data)
        process.stdin.close()
    subprocess.run(["rm", "-rf", str(data / ("d" * 230))], check=True, timeout=30)
    assert found.files == 2 and MIB <= found.bytes <= MIB + 65536


def test_files_without_a_name_count_where_shared_memory_is_a_folder(data: Path) -> None:
    """As in a sandbox of Landlock's."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    script = """
mount --bind "$1" /dev/shm && exec 3<> /dev/shm/file && rm /dev/shm/file
head -c 1048576 /dev/zero >&3 && echo ready && read -r end
"""
    with subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", script, "sh", str(data)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        assert unlinked_use([process.pid], data) == Use(MIB, 1)


async def test_walks_of_one_account_keep_no_other_waiting(tmp_path: Path) -> None:
    enforcement = Enforcement(no_groups(), ProjectQuotas())
    spec = SandboxSpec("sp_1", tmp_path, tmp_path, Owner(1, 1), account="team=blue")
    same = replace(spec, sandbox_id="sp_2")
    other = replace(spec, sandbox_id="sp_3", account="team=red")
    async with enforcement.measuring(spec):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05), enforcement.measuring(same):
                pass
        async with asyncio.timeout(WAIT_S), enforcement.measuring(other):
            pass
    async with asyncio.timeout(WAIT_S), enforcement.measuring(same):
        pass


async def test_a_walk_that_nobody_waits_for_ends_and_has_its_turn_until_then(data: Path) -> None:
    """Else commands that are started and stopped have one walk more each time."""
    walking, let_go = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def family(_name: str) -> list[Path]:
        loop.call_soon_threadsafe(walking.set)
        let_go.wait(WAIT_S)
        # A walk through these takes longer than it may.
        return [data / "other"] * 1_000_000

    async def nobody() -> list[int]:
        return []

    async def yes() -> bool:
        return True

    async def end(_reason: str) -> None:
        pass

    (data / "other").mkdir()
    enforcement = Enforcement(no_groups(), ProjectQuotas())
    enforcement.folders_of = family
    spec = SandboxSpec(
        *("sp_1", data, data, Owner(1, 1)), family="sp_1", limits=Limits(disk_bytes=MIB)
    )
    inhabitants = Inhabitants(nobody, nobody, nobody, end, yes, yes)
    watch = LimitWatch(Sandbox("any", spec), enforcement, lambda _hit: None, inhabitants)
    watch.started("ru_1")
    async with asyncio.timeout(WAIT_S):
        await walking.wait()
    assert "disk_use" in _functions()
    watch.close()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2), enforcement.measuring(spec):
            pass
    let_go.set()
    async with asyncio.timeout(watch_module.WALK_S / 2), enforcement.measuring(spec):
        while "disk_use" in _functions():
            await asyncio.sleep(0)


def _functions() -> set[str]:
    """What all threads are in."""
    found = set()
    for frame in sys._current_frames().values():
        found |= {one.name for one in traceback.extract_stack(frame)}
    return found


def test_a_look_that_is_given_up_ends_at_its_next_step(tmp_path: Path) -> None:
    fill(tmp_path)
    steps = disk.Steps()
    steps.given_up = True
    assert disk.disk_use([tmp_path], steps=steps).files < disk.disk_use([tmp_path]).files
    unlinked_use([os.getpid()], tmp_path, steps)
    assert steps.taken < 10


def test_more_descriptors_than_can_be_looked_at(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(disk, "MOST_LINKS", 1)
    assert unlinked_use([os.getpid()], tmp_path).bytes == TOO_DEEP


def test_every_name_of_a_file_counts(tmp_path: Path) -> None:
    """Else a space with many of them keeps all others from being looked at."""
    (tmp_path / "first").write_bytes(bytes(MIB))
    for number in range(9):
        os.link(tmp_path / "first", tmp_path / str(number))
    found = disk.disk_use([tmp_path])
    assert found.files == 10 and MIB <= found.bytes < 2 * MIB


@pytest.mark.parametrize("mode", ["0", "0o400", "0o100"])
def test_what_its_owner_may_not_read_counts(ordinary_user: Account, data: Path, mode: str) -> None:
    """Without a change of any mode, and each folder once."""
    os.chown(data, ordinary_user.uid, ordinary_user.gid)
    code = f"""
import os
from pathlib import Path
from carrel.runtimes.limits import disk
from carrel.runtimes.limits.disk import disk_use
os.chdir({str(data)!r})
os.makedirs("a/b/c")
Path("a/b/big").write_bytes(bytes(1 << 20))
before = disk_use([Path("a")])
os.chmod("a/b/c", {mode})
os.chmod("a/b", {mode})
after = disk_use([Path("a")])
assert os.stat("a/b").st_mode & 0o777 == {mode}
print(after.bytes >= before.bytes >= 1 << 20, after.files, before.files)
os.chmod("a/b", 0o700)
"""
    done = run_as(ordinary_user, [PYTHON, "-c", code])
    assert done.stdout.split() == ["True", "3", "3"], done


def test_who_reads_for_its_owner_is_killed_in_time(ordinary_user: Account, data: Path) -> None:
    """When it is given up, or its time is over: what it cannot count in a long time is too much,
    and in a short one what was found without it counts. Here it stops itself as it starts."""
    os.chown(data, ordinary_user.uid, ordinary_user.gid)
    stop = "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"
    (data / "sitecustomize.py").write_text(stop)
    code = f"""
import math, os, threading, time
from pathlib import Path
from carrel.runtimes.limits import disk
os.chdir({str(data)!r})
os.environ["PYTHONPATH"] = os.getcwd()
os.makedirs("a/b")
os.chmod("a/b", 0)

def ask(least_s, until, given_up=False):
    disk._READER_S, steps, found = least_s, disk.Steps(), []
    look = lambda: found.append(disk.disk_use([Path("a")], until=until, steps=steps))
    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    while given_up and not steps.asks:
        time.sleep(0)
    steps.given_up = given_up
    thread.join(10.0)
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        print(found[0].bytes == disk.TOO_DEEP)

ask(0.0, math.inf, True)
ask(0.0, time.monotonic() + 0.5)
ask(9.0, time.monotonic() + 0.5)
os.chmod("a/b", 0o700)
"""
    done = run_as(ordinary_user, [PYTHON, "-c", code])
    assert done.stdout.split() == ["True", "True", "False"], done


# What is said


def test_only_what_was_asked_is_answered(tmp_path: Path) -> None:
    assert support_for(Limits(), no_groups(), tmp_path) == ()


def test_every_limit_has_an_answer(tmp_path: Path) -> None:
    asked = Limits(
        memory_bytes=MIB,
        cpus=1,
        pids=5,
        disk_bytes=MIB,
        file_bytes=MIB,
        open_files=10,
        wall_seconds=1,
    )
    found = support_for(asked, no_groups(), tmp_path)
    assert {one.kind for one in found} == set(LimitKind)
    missing = {one.kind: one.how for one in found if not one.enforced}
    assert missing.keys() == {LimitKind.MEMORY, LimitKind.CPU, LimitKind.PIDS}
    assert all("There are none." in how for how in missing.values())


def test_processes_without_groups_but_with_a_user_of_its_own(tmp_path: Path) -> None:
    other = Owner(os.geteuid() + 1, os.getegid() + 1)
    (found,) = support_for(Limits(pids=5), no_groups(), tmp_path, other)
    assert found.enforced and "rlimit" in found.how


class Quotas(ProjectQuotas):
    def available(self, folder: Path, owner: Owner) -> Availability:
        return Availability(True, "tried")


def test_disk_by_quota_or_by_looking(tmp_path: Path) -> None:
    other = Owner(os.geteuid() + 1, os.getegid() + 1)
    asked = Limits(disk_bytes=MIB)
    (quota,) = support_for(asked, no_groups(), tmp_path, other, quotas=Quotas())
    assert quota.enforced and quota.how == QUOTA
    (same,) = support_for(asked, no_groups(), tmp_path, quotas=Quotas())
    assert same.enforced and "watched" in same.how


def test_a_ceiling_of_the_machine_is_told(tmp_path: Path) -> None:
    asked = Limits(open_files=5000)
    other = Owner(os.geteuid() + 1, os.getegid() + 1)
    for owner, most in ((other, "1000"), (None, "500")):
        (found,) = support_for(
            asked, no_groups(), tmp_path, owner, current=lambda which: (10, 1000)
        )
        assert found.enforced and most in found.how
