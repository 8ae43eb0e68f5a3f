"""Suites that need what this machine has and others lack: quotas, control groups of version 2."""

from __future__ import annotations

from tests.vm.image import ENVIRONMENT, PLACE
from tests.vm.machine import Machine

SUITES = ("tests/linux/test_quota.py", "tests/runtimes/test_cgroups.py")


def test_quotas_and_control_groups(vm: Machine) -> None:
    words = f"{ENVIRONMENT}/bin/python -m pytest -q -rs -p no:cacheprovider --timeout=600"
    done = vm.run("root", f"cd {PLACE} && {words} {' '.join(SUITES)}", timeout=1100)
    assert done.code == 0, done.out[-3000:]
    assert "project quotas" not in done.out and "no controllers" not in done.out, done.out[-3000:]


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
    assert filled.code == 1 and "quota" in filled.err.lower(), filled
    vm.run("root", f"{carrel} rm --force full && {carrel} down").ok()


def test_the_demo(vm: Machine) -> None:
    done = vm.run(
        "dev", f"cd {PLACE} && python3 -V && {ENVIRONMENT}/bin/python examples/demo.py", 900
    )
    assert done.code == 0 and "Nothing is left" in done.out, (done.out[-2000:], done.err[-2000:])


def test_namespaces_are_forbidden(vm: Machine) -> None:
    """Landlock takes over, and doctor has the command that allows them again."""
    carrel = "CARREL_DATA=$HOME/walls carrel"
    vm.run("root", "sysctl -qw kernel.unprivileged_userns_clone=0").ok()
    try:
        said = vm.run("dev", f"{carrel} doctor").out
        assert "sudo sysctl -w kernel.unprivileged_userns_clone=1" in said, said
        vm.run("dev", f"{carrel} new --empty --name low").ok()
        assert "landlock" in vm.run("dev", f"{carrel} show low").ok()
        vm.run("dev", f"{carrel} rm --force low && {carrel} down").ok()
    finally:
        vm.run("root", "sysctl -qw kernel.unprivileged_userns_clone=1").ok()
