"""Limits by rlimit, and what is said of each limit."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from carrel.domain.availability import Availability
from carrel.domain.limits import LimitKind, Limits
from carrel.domain.trees import Owner
from carrel.runtimes.limits.cgroups import Cgroups, Survey
from carrel.runtimes.limits.disk import (
    ProjectQuotas,
)
from carrel.runtimes.limits.enforcement import QUOTA, Rlimit, rlimits, support_for
from tests.accounts import Account

INFINITE = resource.RLIM_INFINITY
MIB = 1 << 20


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


@pytest.mark.parametrize(("asked", "own_user", "given"), [(5, False, 10), (None, True, 4096)])
def test_processes_of_a_namespace_are_counted_too(
    asked: int | None, own_user: bool, given: int
) -> None:
    """With those that hold the sandbox, which have the same user then."""
    found = rlimits(Limits(pids=asked), pids_by_cgroup=False, own_user=own_user, counted_apart=True)
    assert (resource.RLIMIT_NPROC, given, given) in found


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
