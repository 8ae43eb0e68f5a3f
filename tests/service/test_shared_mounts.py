"""Where every mount is shared, as systemd makes them, what is mounted for a space shows nowhere
else, and what the host mounts later does not come in. The scene runs in a mount namespace of its
own."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

from carrel.domain.access import LOCAL
from carrel.linux import namespaces
from tests.accounts import PYTHON, RUN_TIMEOUT_S, SOURCE, Account, run_as
from tests.launcher.disks import root_only
from tests.service.rig import leftovers, make, opened, run

MODULE = "tests.service.test_shared_mounts"
MOUNTS = Path("/proc/self/mountinfo")


@root_only
def test_nothing_of_a_space_is_mounted_on_the_host(data: Path) -> None:
    _play(data)


@root_only
def test_as_an_ordinary_user(data: Path, ordinary_user: Account) -> None:
    os.chown(data, *ordinary_user)
    _play(data, *map(str, ordinary_user))


def _play(*words: object) -> None:
    before = ("unshare", "--mount", "--propagation", "shared", sys.executable, "-m", MODULE)
    done = subprocess.run(
        [*before, *map(str, words)],
        cwd=SOURCE,
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr


async def scene(folder: Path) -> None:
    assert "shared:" in MOUNTS.read_text()
    before = _shown_below(folder)
    data, project, shown = folder / "data", folder / "project", folder / "shown"
    for one in (data, project, shown):
        one.mkdir(mode=0o711)
    async with opened(data) as services:
        spaces = []
        # The second one is begun before its tree is there.
        for number in range(2):
            space = await make(services, project, show=(str(shown),))
            spaces.append(space)
            record, table = await run(services, space, f"echo > {project}/file; {_TABLE}")
            assert record.exit is not None and record.exit.code == 0, table
            assert "shared:" not in table and "master:" not in table, table
            own = {f" {place} " for place in ("/tmp", "/home/user", "/workspace", project, shown)}
            assert all(any(place in line for line in table.splitlines()) for place in own), table
            points = [point for point in _shown_below(data) if point not in before]
            assert all(point.endswith("/project") for point in points), points
            _mount_later(shown / f"later{number}")
            assert str(shown / "later") not in (await run(services, space, _TABLE))[1]
            await services.spaces.remove(LOCAL, space.space_id, force=True, grace_s=0.2)
        assert leftovers(data, *(space.space_id for space in spaces)) == []
        assert not (project / "file").exists()


_TABLE = "cat /proc/self/mountinfo"


def _mount_later(place: Path) -> None:
    """An ordinary user cannot; what is mounted in its sandboxes tells the same."""
    place.mkdir()
    try:
        namespaces.mount_tmpfs(str(place), "size=4096")
    except PermissionError:
        return
    assert str(place) in MOUNTS.read_text()


def _shown_below(folder: Path) -> list[str]:
    points = [line.split()[4] for line in MOUNTS.read_text().splitlines()]
    return [point for point in points if point.startswith(f"{folder}/")]


def main(folder: str, uid: str = "", gid: str = "") -> None:
    if not uid:
        asyncio.run(scene(Path(folder)))
        return
    done = run_as(Account(int(uid), int(gid)), [PYTHON, "-m", MODULE, folder], cwd=SOURCE)
    sys.exit(done.stderr if done.returncode else None)


if __name__ == "__main__":
    main(*sys.argv[1:])
