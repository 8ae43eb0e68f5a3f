"""What an ordinary login has: limits that hold, without a word from the user, and work that ends or
goes on with a logout as docs/daemon.md says."""

from __future__ import annotations

import pytest

from tests.vm.machine import EAT, Machine, together

UNITS = "/sys/fs/cgroup/user.slice/user-$(id -u).slice/user@$(id -u).service"
GROUP = f"{UNITS}/app.slice/carrel-*.scope/carrel/sp_*.family"
ENDS = {"dev": True, "ling": False}
"""Whether what runs ends with the user's last login."""


def logged_out(vm: Machine, user: str) -> None:
    vm.wait("root", f"! loginctl show-user {user} -p State 2>/dev/null | grep -qv lingering")


def test_limits_hold_in_a_plain_login(vm: Machine) -> None:
    limits_hold(vm)


def limits_hold(vm: Machine) -> None:
    """By memory, processes and processors; below a scope of systemd's, and nowhere else. And doctor
    says so."""
    forks = "for i in $(seq 100); do sleep 1000 >/dev/null 2>&1 & done"
    throttled = f"grep -E 'nr_throttled ([6-9]|[0-9]{{2,}})$' {GROUP}/cpu.stat"
    said = vm.script(
        "dev",
        "carrel new --empty --name plain --memory 200M --pids 40 --cpus 0.5",
        f"carrel exec plain -- {EAT}",
        "carrel exec plain -- sh -c 'while [ ! -e stop ]; do :; done' &",
        f"test \"$(cat {GROUP}/cpu.max)\" = '50000 100000'",
        f"until {throttled}; do sleep 1; done",
        "carrel exec plain -- touch stop",
        "wait",
        # Last: what it began goes on, and takes all processes that the space may have.
        f"carrel exec plain -- sh -c '{forks}' 2>&1 | grep 'Cannot fork'",
        f'test -z "$(ls -d {UNITS}/carrel {UNITS}/app.slice/carrel {UNITS}/carrel-self)"',
        "carrel doctor",
        "carrel rm --force plain",
    )
    for kind in ("memory", "cpu", "pids"):
        line = next(line for line in said.splitlines() if f" {kind}:" in line)
        assert "cgroup v2" in line and "ok" in line, said


def test_without_a_service_manager_it_is_said(vm: Machine) -> None:
    """As by su: no login, so no manager of the user's own."""
    logged_out(vm, "dev")
    as_dev = "runuser -u dev -- env -i HOME=/home/dev PATH=$PATH CARREL_DATA=/home/dev/other"
    made = vm.run("root", f"cd /; {as_dev} carrel new --empty --name bare --memory 200M")
    assert made.code == 0 and "not enforced here" in made.err and "memory" in made.err, made
    refused = vm.run("root", f"cd /; {as_dev} carrel new --empty --memory 200M --strict")
    assert refused.code != 0
    said = vm.run("root", f"cd /; {as_dev} carrel doctor").out
    assert "enable-linger dev" in said
    vm.run("root", f"cd /; {as_dev} carrel rm --force bare; {as_dev} carrel down").ok()


@pytest.mark.parametrize("kill", ["no", "yes"])
def test_a_logout(vm: Machine, kill: str) -> None:
    """Without lingering, what runs ends with the last login; files, limits and the log stay.
    KillUserProcesses changes nothing: it is about what sessions leave, and the scope is in none."""
    place = "/etc/systemd/logind.conf.d"
    setting = f"printf '[Login]\\nKillUserProcesses={kill}\\n' > {place}/kill.conf"
    vm.run("root", f"mkdir -p {place} && {setting} && systemctl restart systemd-logind").ok()
    together(lambda user: log_out(vm, user, first=kill == "no"), ENDS)


def log_out(vm: Machine, user: str, *, first: bool) -> None:
    started = vm.run(
        user,
        # The daemon starts in a session of this kind.
        "carrel down; carrel new --empty --name work --memory 200M --agent scripted"
        " && carrel exec work -- sh -c 'echo kept > file' && carrel send work 'say one' --wait"
        " && carrel send work --continue 'sleep 5000' && carrel exec -d work -- sleep 5000",
    )
    run = started.ok().splitlines()[-1]
    # Said once.
    assert ("enable-linger" in started.err) is (first and ENDS[user]), started.err
    logged_out(vm, user)
    vm.script(
        user,
        f"carrel run show {run} > shown",
        "carrel turns work >> shown",
        f"test $(grep -c running shown) = {0 if ENDS[user] else 2}",
        'test "$(carrel exec work -- cat file)" = kept',
        f"carrel exec work -- {EAT}",
        "carrel interrupt work || true",
        "carrel send work --wait --continue hello | grep -E 'turn [23]: hello'",
        "carrel rm --force work",
    )


def test_one_of_two_sessions_ends(vm: Machine) -> None:
    """What runs goes on, also without lingering, until the other one ends."""
    held = "systemd-run -q --unit held -p User=dev -p PAMName=login sleep infinity"
    vm.run("root", held).ok()
    made = "carrel new --empty --name two && carrel exec -d two -- sleep 5000"
    run = vm.run("dev", made).ok().splitlines()[-1]
    one = "test $(loginctl list-sessions --no-legend | grep -c ' dev ') = 1"
    vm.wait("root", f"{one} && loginctl show-user dev -p State | grep -qE 'online|active'")
    vm.script("dev", f"carrel run show {run} | grep running")
    vm.run("root", "systemctl stop held").ok()
    logged_out(vm, "dev")
    vm.script("dev", f"carrel run show {run} > shown", "! grep running shown", "carrel rm -f two")


def test_a_jump_of_the_clock(vm: Machine) -> None:
    """As after a suspend: nothing is taken for old because of it."""
    run = vm.run(
        "ling",
        "carrel new --empty --name clock && carrel exec --timeout 1h -d clock -- sleep 5000",
    ).ok()
    run = run.splitlines()[-1]
    vm.run("root", "date -s '+3 hours'").ok()
    try:
        assert vm.run("ling", "carrel exec clock -- echo here").ok() == "here"
        assert "running" in vm.run("ling", f"carrel run show {run}").ok()
    finally:
        vm.run("root", "date -s '-3 hours'").ok()
    assert vm.run("ling", "carrel exec clock -- echo still").ok() == "still"
    vm.run("ling", "carrel rm --force clock").ok()
