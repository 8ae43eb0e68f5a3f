"""What an ordinary login has: limits that hold, without a word from the user, and work that ends or
goes on with a logout as docs/daemon.md says."""

from __future__ import annotations

import pytest

from tests.vm.machine import Machine

EAT = "python3 -c 'x = bytearray(400 << 20)'"
UNITS = "/sys/fs/cgroup/user.slice/user-$(id -u).slice/user@$(id -u).service"


def _logged_out(vm: Machine, user: str) -> None:
    vm.wait("root", f"! loginctl show-user {user} -p State 2>/dev/null | grep -qv lingering")


def test_limits_hold_in_a_plain_login(vm: Machine) -> None:
    """By memory, processes and processors; below a scope of systemd's, and nowhere else."""
    vm.run("dev", "carrel new --empty --name plain --memory 200M --pids 40 --cpus 0.5").ok()
    eaten = vm.run("dev", f"carrel exec plain -- {EAT}")
    assert eaten.code == 137 and "memory limit" in eaten.err
    forks = "for i in $(seq 100); do sleep 100 & done; echo done"
    refused = vm.run("dev", f"carrel exec plain -- timeout 20 bash -c '{forks}'")
    assert "Resource temporarily unavailable" in refused.err
    found = vm.run(
        "dev", f"cd {UNITS} && find . -name cpu.max | grep /sp_ | xargs grep -l ^50000"
    ).ok()
    assert "/app.slice/carrel-" in found and ".scope/carrel/" in found
    beside = vm.run("dev", f"ls -d {UNITS}/carrel {UNITS}/app.slice/carrel {UNITS}/carrel-self")
    assert not beside.out.strip()


def test_doctor_says_what_is_enforced(vm: Machine) -> None:
    said = vm.run("dev", "carrel doctor").ok()
    for kind in ("memory", "cpu", "pids"):
        line = next(line for line in said.splitlines() if f" {kind}:" in line)
        assert "cgroup v2" in line and "ok" in line, said


def test_without_a_service_manager_it_is_said(vm: Machine) -> None:
    """As by su: no login, so no manager of the user's own."""
    _logged_out(vm, "dev")
    as_dev = "runuser -u dev -- env -i HOME=/home/dev PATH=$PATH CARREL_DATA=/home/dev/other"
    made = vm.run("root", f"cd /; {as_dev} carrel new --empty --name bare --memory 200M")
    assert made.code == 0 and "not enforced here" in made.err and "memory" in made.err, made
    refused = vm.run("root", f"cd /; {as_dev} carrel new --empty --memory 200M --strict")
    assert refused.code != 0
    said = vm.run("root", f"cd /; {as_dev} carrel doctor").out
    assert "enable-linger dev" in said
    vm.run("root", f"cd /; {as_dev} carrel rm --force bare; {as_dev} carrel down").ok()


@pytest.mark.parametrize(("user", "ends"), [("dev", True), ("ling", False)])
def test_a_logout(vm: Machine, user: str, ends: bool) -> None:
    """Without lingering what runs ends with the last login; files, limits and the log stay."""
    started = vm.run(
        user,
        "carrel new --empty --name work --memory 200M && rm -f ~/.local/share/carrel/daemon/told-*"
        " && carrel exec work -- sh -c 'echo kept > file' && carrel exec -d work -- sleep 5000",
    )
    run = started.ok().splitlines()[-1]
    assert ("enable-linger" in started.err) is ends
    _logged_out(vm, user)
    shown = vm.run(user, f"carrel run show {run}").ok()
    assert ("running" in shown) is not ends, shown
    assert vm.run(user, "carrel exec work -- cat file").ok() == "kept"
    assert vm.run(user, f"carrel exec work -- {EAT}").code == 137
    again = vm.run(user, "carrel exec -d work -- sleep 5000")
    assert "enable-linger" not in again.err, "it is said once"
    vm.run(user, "carrel rm --force work").ok()


def test_processes_of_sessions_that_are_killed(vm: Machine) -> None:
    """KillUserProcesses ends what a session leaves, and what lingers is none of it."""
    place = "/etc/systemd/logind.conf.d"
    setting = f"mkdir -p {place} && printf '[Login]\\nKillUserProcesses=yes\\n' > {place}/kill.conf"
    vm.run("root", f"{setting} && systemctl restart systemd-logind").ok()
    try:
        run = vm.run(
            "ling",
            "carrel down; carrel new --empty --name hard && carrel exec -d hard -- sleep 5000",
        ).ok()
        run = run.splitlines()[-1]
        _logged_out(vm, "ling")
        assert "running" in vm.run("ling", f"carrel run show {run}").ok()
    finally:
        vm.run("root", f"rm {place}/kill.conf && systemctl restart systemd-logind").ok()
        vm.run("ling", "carrel rm --force hard")


def test_a_jump_of_the_clock(vm: Machine) -> None:
    """As after a suspend: nothing is taken for old because of it."""
    run = vm.run(
        "ling", "carrel new --empty --name clock && carrel exec -d clock -- sleep 5000"
    ).ok()
    run = run.splitlines()[-1]
    vm.run("root", "date -s '+3 hours'").ok()
    try:
        assert "running" in vm.run("ling", f"carrel run show {run}").ok()
        assert vm.run("ling", "carrel exec clock -- echo here").ok() == "here"
    finally:
        vm.run("root", "date -s '-3 hours'").ok()
    assert vm.run("ling", "carrel exec clock -- echo still").ok() == "still"
    vm.run("ling", "carrel rm --force clock").ok()
