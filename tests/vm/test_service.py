"""One daemon, one way to live: as a service of systemd, or started by the first command."""

from __future__ import annotations

import json

import pytest

from tests.vm.machine import Machine


def _started(vm: Machine, user: str, name: str) -> str:
    made = f"carrel new --empty --name {name} && carrel exec -d {name} -- sleep 5000"
    return vm.run(user, made).ok().splitlines()[-1]


@pytest.mark.parametrize("user", ["ling", "root"])
def test_a_service_and_commands_agree(vm: Machine, user: str) -> None:
    run = _started(vm, user, "served")
    control = "systemctl" if user == "root" else "systemctl --user"

    def goes_on() -> None:
        assert "running" in vm.run(user, f"carrel run show {run}").ok()

    assert "no service" in vm.run(user, "carrel service status").ok()
    assert "active" in vm.run(user, "carrel service install").ok()
    goes_on()
    vm.run(user, f"{control} restart carrel").ok()
    goes_on()
    vm.run(user, "carrel down").ok()
    assert vm.run(user, f"{control} is-active carrel").out.strip() == "inactive"
    vm.run(user, f"{control} stop carrel").ok()
    goes_on()
    # A command has started the service, not a daemon of its own.
    assert vm.run(user, f"{control} is-active carrel").ok() == "active"
    vm.run(user, f"{control} stop carrel").ok()
    assert "No daemon runs" in vm.run(user, "carrel down").err
    vm.run(user, f"{control} start carrel && {control} daemon-reexec").ok()
    goes_on()
    pid = json.loads(vm.run(user, "carrel status --json").ok())["pid"]
    vm.run(user, f"kill -9 {pid}").ok()
    goes_on()
    vm.run(user, "carrel service remove").ok()
    goes_on()
    assert "no service" in vm.run(user, "carrel service status").ok()
    vm.run(user, "carrel rm --force served").ok()


def test_a_reboot(vm: Machine) -> None:
    """The service is back by itself; files are read back, and limits hold again."""
    kept = "--memory 200M && carrel exec kept -- sh -c 'echo kept > file'"
    for user in ("dev", "ling"):
        vm.run(user, f"carrel new --empty --name kept {kept}").ok()
    run = vm.run("ling", "carrel exec -d kept -- sleep 5000").ok().splitlines()[-1]
    vm.run("ling", "carrel service install").ok()
    vm.reboot()
    vm.wait("ling", "systemctl --user is-active -q carrel")
    assert "running" not in vm.run("ling", f"carrel run show {run}").ok()
    for user in ("dev", "ling"):
        vm.run(user, "carrel start kept").ok()
        assert vm.run(user, "carrel exec kept -- cat file").ok() == "kept"
        eaten = vm.run(user, "carrel exec kept -- python3 -c 'x = bytearray(400 << 20)'")
        assert eaten.code == 137
        vm.run(user, "carrel rm --force kept").ok()
    vm.run("ling", "carrel service remove").ok()
