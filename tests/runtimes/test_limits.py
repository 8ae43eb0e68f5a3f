"""Limits by rlimit and by looking at the disk, and what is said of each."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from carrel.domain.availability import Availability
from carrel.domain.limits import LimitKind, Limits
from carrel.domain.trees import Owner
from carrel.runtimes.limits import (
    QUOTA,
    Cgroups,
    DiskWatch,
    ProjectQuotas,
    disk_bytes,
    rlimits,
    support_for,
)
from carrel.runtimes.limits.disk import MAX_DEPTH, TOO_DEEP
from carrel.runtimes.limits.rlimits import Rlimit
from carrel.runtimes.limits.sites import Survey
from tests.accounts import Account

INFINITE = resource.RLIM_INFINITY
MIB = 1 << 20


def no_groups() -> Cgroups:
    return Cgroups(lambda: Survey((), ("There are none.",)))


# rlimits


def test_core_dumps_are_always_off() -> None:
    assert rlimits(Limits(), pids_by_cgroup=True) == ((resource.RLIMIT_CORE, 1, 1),)


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
    assert disk_bytes([tmp_path]) == TOO_DEEP
    assert set(os.listdir("/proc/self/fd")) == descriptors
    subprocess.run(["rm", "-rf", str(tmp_path / ("d" * 200))], check=True, timeout=30)


class Stage:
    """Time and disk for a watch: every pause is written down and ends at once."""

    def __init__(self, sizes: list[int], walk_s: float = 0.0) -> None:
        self.sizes = sizes
        self.walk_s = walk_s
        self.now = 0.0
        self.pauses: list[float] = []
        self.hits: list[int] = []

    def measure(self, folders: Iterable[Path]) -> int:
        self.now += self.walk_s
        return self.sizes.pop(0)

    async def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        if not self.sizes:
            raise asyncio.CancelledError

    async def run(self, limit: int) -> None:
        watch = DiskWatch(
            [Path("/nowhere")],
            limit,
            self.hits.append,
            pause=self.pause,
            measure=self.measure,
            clock=lambda: self.now,
        )
        with pytest.raises(asyncio.CancelledError):
            await watch.run()


async def test_going_over_is_told_once_until_it_is_below_again() -> None:
    stage = Stage([5, 10, 11, 12, 9, 30, 31])
    await stage.run(10)
    assert stage.hits == [11, 30]
    assert stage.pauses == [1.0] * 7


async def test_a_long_walk_is_followed_by_a_long_pause() -> None:
    quick = Stage([1], walk_s=0.1)
    await quick.run(10)
    assert quick.pauses == [pytest.approx(0.9)]
    slow = Stage([1], walk_s=3.0)
    await slow.run(10)
    assert slow.pauses == [12.0]


async def test_a_real_folder_is_watched(tmp_path: Path) -> None:
    hit = asyncio.Event()
    watch = DiskWatch([tmp_path], MIB, lambda used: hit.set(), pause=lambda _: asyncio.sleep(0))
    task = asyncio.create_task(watch.run())
    try:
        (tmp_path / "big").write_bytes(bytes(2 * MIB))
        await asyncio.wait_for(hit.wait(), 20)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


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
    (found,) = support_for(
        Limits(open_files=5000), no_groups(), tmp_path, current=lambda which: (10, 1000)
    )
    assert found.enforced and "1000" in found.how
