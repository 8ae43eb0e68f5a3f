"""What Landlock alone would leave to the whole machine: shared memory."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from carrel.linux import landlock, namespaces
from tests.conformance.runtime_rig import Rig, open_rig

pytestmark = pytest.mark.skipif(landlock.abi() == 0, reason="this kernel has no Landlock")
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user's has no shared memory")
LOCK = "import multiprocessing; multiprocessing.Lock(); print('locked')"


@pytest.fixture
async def rig(data: Path) -> AsyncIterator[Rig]:
    async with open_rig(data, "landlock") as opened:
        yield opened


@AS_ROOT
async def test_shared_memory_is_the_sandboxes_own(rig: Rig) -> None:
    name = f"carrel-test-{os.getpid()}"
    planted = Path("/dev/shm") / f"{name}-planted"
    planted.write_text("of the host")
    planted.chmod(0o666)
    try:
        one, other = await rig.start(), await rig.start()
        made = await rig.sh(one, f"umask 0; echo one > /dev/shm/{name} && ls /dev/shm")
        assert made.out.split() == [name], made
        # The next command of the same sandbox has it, as in any other.
        assert (await rig.sh(one, f"cat /dev/shm/{name}")).out == "one\n"
        assert (await rig.run(one, "/usr/bin/python3", "-I", "-c", LOCK)).out == "locked\n"
        seen = await rig.sh(other, f"ls /dev/shm; cat /dev/shm/{name} {planted}")
        assert seen.out == "" and seen.exit.code != 0
        assert not (Path("/dev/shm") / name).exists()
        # Nor by the folder that it is on the host.
        folder = one.spec.folder / "shm"
        assert (folder / name).read_text() == "one\n"
        assert (await rig.sh(other, f"cat {folder}/{name}")).out == ""
        await rig.runtime.stop(one)
        assert list(folder.iterdir()) == []
    finally:
        planted.unlink()


async def test_there_is_none_where_it_would_be_the_machines(rig: Rig) -> None:
    """An ordinary user's, and root's where nothing can be mounted; `test_auto` runs this there."""
    if _can_mount():
        pytest.skip("here it is the sandbox's own")
    sandbox = await rig.start()
    done = await rig.sh(sandbox, "echo x > /dev/shm/carrel-test-x")
    assert done.exit.code != 0 and not Path("/dev/shm/carrel-test-x").exists()
    assert any("shared memory is" in gap for gap in rig.runtime.capabilities.uncovered)


def _can_mount() -> bool:
    child = os.fork()
    if child == 0:
        try:
            namespaces.unshare(namespaces.CLONE_NEWNS)
        except OSError:
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0
