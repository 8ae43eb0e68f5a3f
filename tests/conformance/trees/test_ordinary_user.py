"""The suite again, as an ordinary user, on a file system that root prepares: all of it on
overlays, which have another way for him, and some of its files on each other driver; when
exhaustive, all of it on each."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from tests.accounts import PYTEST, SOURCE, Account, run_as
from tests.conformance.tree_rig import DRIVERS, VOLUMES, volume_variable
from tests.sampling import EXHAUSTIVE
from tests.volumes import volume

TIMEOUT_S = 200.0
"""A quarter of the suite takes ten seconds; the rest is for a loaded machine."""

pytestmark = [
    pytest.mark.timeout(TIMEOUT_S + 20),
    pytest.mark.skipif(os.geteuid() != 0, reason="is already an ordinary user's run"),
]


@pytest.mark.parametrize("name", DRIVERS)
def test_trees(ordinary_user: Account, data: Path, name: str) -> None:
    os.chown(data, *ordinary_user)
    env = {"TMPDIR": str(data), "HOME": str(data)}
    words = [*PYTEST, "-k", name]
    files = files_for(name)
    with contextlib.ExitStack() as stack:
        if name in VOLUMES:
            own = stack.enter_context(volume(VOLUMES[name])) / "own"
            own.mkdir(mode=0o755)
            os.chown(own, *ordinary_user)
            env[volume_variable(name)] = str(own)
        done = run_as(ordinary_user, [*words, *files], env=env, cwd=SOURCE, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    # Whose files become whose is asked of root alone.
    of_root = sum({"test_traffic": 1, "test_views": 2}.get(Path(file).stem, 0) for file in files)
    skipped = f", {of_root} skipped" if of_root else ""
    assert f" passed{skipped}, " in done.stdout, done.stdout[-3000:]


def files_for(driver: str) -> list[str]:
    found = sorted(str(path) for path in Path(__file__).parent.glob("test_*.py"))
    found.remove(__file__)
    others = [name for name in DRIVERS if name != "overlay"]
    if EXHAUSTIVE or driver == "overlay":
        return found
    return found[others.index(driver) :: 2 * len(others)]
