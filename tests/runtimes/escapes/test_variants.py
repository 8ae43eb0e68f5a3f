"""The same attempts where a sandbox is less closed by design, or belongs to somebody else."""

from __future__ import annotations

import asyncio
import os

import pytest

from carrel.domain.runtimes import Network, Output, Sandbox
from tests.accounts import PYTEST, SOURCE, Account, run_as
from tests.conformance.runtime_rig import Rig, finish
from tests.runtimes.escapes.scripts import attempts, module_of, outcomes, script
from tests.runtimes.escapes.test_program_of_the_launcher import DOORS
from tests.runtimes.escapes.world import PYTHON, World

OPEN_BY_DESIGN = {
    "sockets.tcp_of_the_host",
    "sockets.tcp_by_other_names",
    "sockets.udp_of_the_host",
    "sockets.interfaces_of_the_host",
    "proc.sockets_of_the_host",
}
"""With an open network the host's loopback is the sandbox's, and the names of its abstract
sockets are to be seen, though not to be connected to."""
PERHAPS_OPEN = {"sockets.network"}
"""The machine itself may have no route."""

_TYPE_INTO_OWN_TERMINAL = """
import fcntl
for request in (0x5412, 0x541C):
    try:
        fcntl.ioctl(0, request, b"x")
        print("typed")
    except PermissionError:
        print("refused")
"""


async def _all(rig: Rig, sandbox: Sandbox, world: World) -> set[str]:
    """The names of all attempts that got through."""
    through = set()
    for module in sorted({module_of(one) for one in attempts()}):
        names = [one.name for one in attempts() if module_of(one) == module]
        done = await rig.run(sandbox, PYTHON, "-I", "-c", script(module, names, world.targets))
        assert done.exit.code == 0, done.err
        through |= {name for name, found in outcomes(done.out).items() if not found.refused}
    return through


def test_an_open_network_opens_nothing_else(
    sandbox: tuple[Rig, Sandbox, asyncio.Runner], world: World
) -> None:
    rig, _closed, runner = sandbox
    started = runner.run(rig.start(network=Network.OPEN))
    assert runner.run(_all(rig, started, world)) - PERHAPS_OPEN == OPEN_BY_DESIGN
    world.assert_untouched()


def test_a_terminal_of_its_own_cannot_be_typed_into(
    sandbox: tuple[Rig, Sandbox, asyncio.Runner],
) -> None:
    """Who reads on the other side of it is on the host."""
    rig, started, runner = sandbox
    command = (PYTHON, "-I", "-c", _TYPE_INTO_OWN_TERMINAL)
    run = runner.run(rig.begin(started, *command, output=Output.PTY))
    assert runner.run(finish(run)).out.split() == ["refused", "refused"]


@pytest.mark.skipif(os.geteuid() != 0, reason="the other tests of this folder are just that")
def test_an_ordinary_users_sandbox_refuses_them_too(ordinary_user: Account) -> None:
    """There the host user outside and inside is the same person."""
    folder = SOURCE / "tests" / "runtimes" / "escapes"
    names = ("test_escapes.py", "test_entering.py", "test_program_of_the_launcher.py")
    tests = [str(folder / name) for name in names]
    words = [*PYTEST, "-k", "sandbox_refuses", *tests]
    done = run_as(ordinary_user, words, cwd=SOURCE)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr
    assert f"{len(attempts()) + len(DOORS) + 1} passed" in done.stdout
