"""Suites that need what this machine has and others lack: quotas, control groups of version 2,
scopes that systemd has delegated."""

from __future__ import annotations

import pytest

from tests.load.patience import SLOWER_VARIABLE
from tests.vm.image import ENVIRONMENT, PLACE
from tests.vm.machine import PATIENCE, SCRIPT_S, Machine, together

QUOTAS = "tests/linux/test_quota.py"
GROUPS = "tests/runtimes/test_cgroups.py"
LIMITS = "tests/runtimes/test_limit_events.py"
NAMED = "-k 'test_quota or test_cgroups or test_memory or test_processes or test_cpu'"
"""Of the limits, those by control groups."""
SUITES = {"root": (LIMITS, QUOTAS, GROUPS), "dev": (LIMITS,), "ling": (LIMITS,)}
THERE = f"cd {PLACE} && {SLOWER_VARIABLE}={PATIENCE}"
"""Waits of tests have the same bounds inside as here."""
EXPECTED = "there is no version 1 here"
"""Why alone a test may be skipped in it."""


def _in_scope(user: str, command: str) -> str:
    """As what the daemon is in, for tests that make control groups themselves."""
    manager = "" if user == "root" else "--user "
    return f"{THERE} systemd-run {manager}--scope -q -p Delegate=yes {command}"


def test_limits_quotas_and_control_groups(vm: Machine) -> None:
    together(lambda user: _suite(vm, user), SUITES)


def _suite(vm: Machine, user: str) -> None:
    tests = " ".join(SUITES[user])
    pytest = f"{ENVIRONMENT}/bin/python -m pytest -q -rs -p no:cacheprovider"
    done = vm.run(user, _in_scope(user, f"{pytest} {NAMED} {tests}"), SCRIPT_S)
    assert done.code == 0, done.out[-3000:] + done.err[-1000:]
    skipped = [line for line in done.out.splitlines() if line.startswith("SKIPPED")]
    assert all(EXPECTED in line for line in skipped), skipped
    vm.tell(f"{tests} as {user}: {done.out.splitlines()[-1]}")


def test_kills(vm: Machine) -> None:
    together(lambda user: _kills(vm, user), SUITES)


def _kills(vm: Machine, user: str) -> None:
    kills = f"{ENVIRONMENT}/bin/python -m tests.faults.kills --moments 2 --clients 2 --seed 1"
    done = vm.run(user, f"{THERE} {kills}", SCRIPT_S)
    assert done.code == 0, done.out[-3000:] + done.err[-1000:]
    vm.tell(f"as {user}: {done.out.splitlines()[-3]}")


def test_the_kernel_enforces_a_disk_limit(vm: Machine) -> None:
    """And doctor says so."""
    carrel = "CARREL_DATA=/data/carrel carrel"
    disk = next(
        line
        for line in vm.run("root", f"{carrel} doctor").out.splitlines()
        if " disk:" in line and "free" not in line
    )
    assert "project quota" in disk, disk
    vm.run("root", f"{carrel} new --empty --name full --disk 50M").ok()
    filled = vm.run("root", f"{carrel} exec full -- dd if=/dev/zero of=big bs=1M count=100")
    # The kernel refuses to write more; where that is seen first, the command is ended.
    assert filled.code in (1, 143), filled
    assert "No space left on device" in filled.err or "reached the disk limit" in filled.err, filled
    size = int(vm.run("root", f"{carrel} exec full -- stat -c %s big").out)
    assert 40 << 20 < size <= 50 << 20, size
    vm.run("root", f"{carrel} rm --force full && {carrel} down").ok()


def test_the_demo(vm: Machine) -> None:
    together(lambda user: demo(vm, user), SUITES)


def demo(vm: Machine, user: str) -> None:
    done = vm.run(user, f"cd {PLACE} && {ENVIRONMENT}/bin/python examples/demo.py", SCRIPT_S)
    assert done.code == 0 and "Nothing is left" in done.out, (done.out[-2000:], done.err[-2000:])


@pytest.mark.parametrize(
    ("setting", "allowed"),
    [("kernel.unprivileged_userns_clone", 1), ("user.max_user_namespaces", 15000)],
)
def test_namespaces_are_forbidden(vm: Machine, setting: str, allowed: int) -> None:
    """Landlock takes over, and doctor has the command that allows them again."""
    carrel = "CARREL_DATA=$HOME/walls carrel"
    vm.run("root", f"sysctl -qw {setting}=0").ok()
    try:
        said = vm.run("dev", f"{carrel} doctor").out
        assert f"sudo sysctl -w {setting}={allowed}" in said, said
        vm.run("dev", f"{carrel} new --empty --name low").ok()
        assert "landlock" in vm.run("dev", f"{carrel} show low").ok()
        vm.run("dev", f"{carrel} rm --force low && {carrel} down").ok()
    finally:
        vm.run("root", f"sysctl -qw {setting}={allowed}").ok()
