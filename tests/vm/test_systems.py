"""Other systems than the one that the rest of the tests are in: as they come, with AppArmor as it
is set there. Each is a machine of its own."""

from __future__ import annotations

import pytest

from tests.vm import image
from tests.vm.image import OTHERS, System
from tests.vm.machine import Machine, machine, together
from tests.vm.test_login import ENDS, limits_hold, log_out, logged_out
from tests.vm.test_service import agree
from tests.vm.test_suites import demo

WALLS = {"jammy": "landlock"}
"""Its bubblewrap is too old. Elsewhere it is bubblewrap."""


@pytest.mark.parametrize("system", OTHERS, ids=lambda system: system.release)
def test_another_system(
    system: System, needs_qemu: None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    try:
        image.build(system)
    except image.NoMirror as error:
        pytest.skip(str(error))
    with machine(tmp_path_factory.mktemp("vm"), system) as vm:
        said = vm.script("dev", "carrel new --empty --name low", "carrel show low", "carrel doctor")
        if system.release == "noble":
            # AppArmor forbids namespaces.
            assert "landlock" in said.partition("machine:")[0], said
        if system.release == "jammy":
            assert "Install bubblewrap 0.8 or newer" in said, said
        _mend(vm, said)
        vm.script(
            "dev",
            "carrel rm --force low",
            "carrel new --empty --name one",
            f"carrel show one | grep {WALLS.get(system.release, 'bubblewrap')}",
            "carrel rm --force one",
        )
        limits_hold(vm)
        together(lambda user: log_out(vm, user, first=True), ENDS)
        agree(vm, "ling")
        demo(vm, "dev")


def _mend(vm: Machine, said: str) -> None:
    """As doctor has it: for AppArmor, and where users' managers have no controller of processors,
    as before systemd 252."""
    mends = [line.partition(": ")[2] for line in said.splitlines() if "mend it: sudo" in line]
    mends += [line.partition(": ")[2] for line in said.splitlines() if "mend it: printf" in line]
    vm.script("root", *(mend.partition("; then")[0] for mend in mends))
    vm.script("dev", "carrel down")
    logged_out(vm, "dev")
