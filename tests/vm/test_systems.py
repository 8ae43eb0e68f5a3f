"""Other systems than the one that the rest of the tests are in: as they come, with AppArmor as it
is set there. Each is a machine of its own."""

from __future__ import annotations

import pytest

from tests.vm import image
from tests.vm.image import OTHERS, System
from tests.vm.machine import Machine, machine, together
from tests.vm.test_login import ENDS, limits_hold, log_out
from tests.vm.test_service import agree
from tests.vm.test_suites import demo

FORBIDS = "/proc/sys/kernel/apparmor_restrict_unprivileged_userns"
"""Ubuntu's, since 23.10."""


@pytest.mark.parametrize("system", OTHERS, ids=lambda system: system.release)
def test_another_system(
    system: System, needs_qemu: None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    try:
        image.build(system)
    except image.NoMirror as error:
        pytest.skip(str(error))
    with machine(tmp_path_factory.mktemp("vm"), system) as vm:
        if vm.run("root", f"grep -q 1 {FORBIDS}").code == 0:
            _allow_namespaces(vm)
        vm.script(
            "dev",
            "carrel new --empty --name one",
            "carrel show one | grep bubblewrap",
            "carrel rm --force one",
        )
        limits_hold(vm)
        together(lambda user: log_out(vm, user, first=True), ENDS)
        agree(vm, "ling")
        demo(vm, "dev")


def _allow_namespaces(vm: Machine) -> None:
    """Landlock takes over until somebody has done what doctor says."""
    vm.run("dev", "carrel new --empty --name low").ok()
    assert "landlock" in vm.run("dev", "carrel show low").ok()
    said = vm.run("dev", "carrel doctor").out
    command = next(line for line in said.splitlines() if "apparmor_parser" in line)
    vm.script("root", command.partition(": ")[2])
    vm.script("dev", "carrel rm --force low", "carrel down")
