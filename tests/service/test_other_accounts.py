"""What another account of the machine sees of spaces: nothing but that they are there."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from carrel.app.service import Services, open_service
from carrel.config import Settings
from carrel.domain.runtimes import Command
from carrel.domain.spaces import Space
from tests.accounts import PYTHON, SOURCE, Account, run_as
from tests.machine import inhabitants
from tests.service.rig import make, run

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
PUBLIC = {"etc", "boot"}
"""In the data folder: parts of /etc that everybody can read there too, and a start's number."""

LOOK = """
import json, os, socket, sys
about, got = json.loads(sys.argv[1]), []

def connect(path):
    with socket.socket(socket.AF_UNIX) as one:
        one.connect(path)

def attempt(name, act, path):
    try:
        act(path)
    except (OSError, ValueError):
        return
    got.append(f'{name} {path}')

def enter(path):
    os.chdir(path)
    os.chdir('/')

places = list(about['paths'])
for pid in about['pids']:
    doors = ('root', 'cwd', 'root/workspace', 'root/tmp', 'cwd/greet.py', 'environ', 'maps', 'fd')
    places += [f'/proc/{pid}/{door}' for door in doors]
with open('/proc/mounts') as mounts:
    places += [point for _, point, *_ in map(str.split, mounts) if point.startswith(about['data'])]
for path in places:
    attempt('listed', os.listdir, path)
    attempt('entered', enter, path)
    attempt('read', lambda path: os.read(os.open(path, os.O_RDONLY | os.O_NONBLOCK), 1), path)
    attempt('opened', lambda path: os.open(path, os.O_WRONLY | os.O_NONBLOCK), path)
    attempt('made', lambda path: os.mkdir(path + '/made-by-another'), path)
    attempt('linked', lambda path: os.link(path, '/tmp/carrel-linked'), path)
    attempt('connected', connect, path)
print(json.dumps(got))
"""


def _looked(data: Path, pids: list[int]) -> set[str]:
    """What an account that nobody else has got at, of all that is in a data folder."""
    paths = [
        str(path)
        for path in (data, *data.rglob("*"))
        if not PUBLIC.intersection(path.relative_to(data).parts)
    ]
    assert len(paths) > 20
    about = json.dumps({"data": str(data), "paths": paths, "pids": pids})
    other = Account(1_700_000_000, 1_700_000_000)
    done = run_as(other, ["/usr/bin/python3", "-I", "-c", LOOK, about])
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Open to all, in a folder that is not."""
    folder = tmp_path / "greet"
    folder.mkdir()
    folder.chmod(0o755)
    (folder / "greet.py").write_text("print('hello')\n")
    (folder / "greet.py").chmod(0o644)
    return folder


async def _busy(services: Services, space: Space) -> list[int]:
    """Has left something everywhere that it can, and runs."""
    script = "umask 0; for f in . ~ $TMPDIR; do echo mine > $f/mine; chmod 777 $f || :; done; pwd"
    record, said = await run(services, space, script)
    assert record.exit is not None and record.exit.code == 0, said
    await services.runs.start(space.space_id, Command(("sleep", "60")))
    pids = inhabitants([space.space_id])
    assert pids
    return list(pids)


@AS_ROOT
@pytest.mark.parametrize(
    ("runtime", "driver"),
    [("bubblewrap", "overlay"), ("bubblewrap", "copy"), ("landlock", "copy"), ("process", "copy")],
)
async def test_of_a_root_daemon(
    services: Services, project: Path, data: Path, runtime: str, driver: str
) -> None:
    space = await make(services, project, runtime=runtime, driver=driver)
    # The data folder can be passed, and what is in it cannot.
    assert _looked(data, await _busy(services, space)) <= {
        f"entered {data}",
        f"entered {data}/spaces",
    }
    spaces, folder = data / "spaces", data / "spaces" / space.space_id
    assert folder.stat().st_uid == 0
    walked = runtime != "bubblewrap"
    assert stat.S_IMODE(spaces.stat().st_mode) == (0o711 if walked else 0o700)
    assert stat.S_IMODE(folder.stat().st_mode) == (0o710 if walked else 0o700)
    if walked:
        assert space.owner is not None and folder.stat().st_gid == space.owner.gid


@AS_ROOT
async def test_looking_what_works_here_opens_nothing(services: Services, data: Path) -> None:
    for runtime in services.app.runtimes:
        await runtime.probe()
    assert stat.S_IMODE((data / "spaces").stat().st_mode) == 0o700


@AS_ROOT
async def test_one_space_as_a_process_does_not_reach_another(
    services: Services, project: Path
) -> None:
    """Without walls, its own user is all that confines it."""
    mine = await make(services, project, runtime="process", driver="copy")
    theirs = await make(services, project, runtime="process", driver="copy")
    folder = services.open_spaces.folder(theirs.space_id)
    script = (
        f"ls {folder}; cat {folder}/project/greet.py; echo x > {folder}/tmp/x; ls {folder.parent}"
    )
    _record, said = await run(services, mine, script)
    assert "hello" not in said and "project" not in said.replace(f"{folder}/project", "")
    assert not (folder / "tmp" / "x").exists()


@AS_ROOT
async def test_what_an_earlier_version_left_open_is_closed(
    services: Services, project: Path, data: Path
) -> None:
    held = await make(services, project, driver="copy")
    walked = await make(services, project, runtime="landlock", driver="copy")
    folders = {one.space_id: data / "spaces" / one.space_id for one in (held, walked)}
    for folder in (data / "spaces", data / "instances", *folders.values()):
        folder.chmod(0o711)
    (data / "compiled").mkdir(mode=0o755)
    async with open_service(Settings(data=data)):
        modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (data / "spaces").iterdir()}
        assert set(modes.values()) == {0o700}
        for name in ("spaces", "instances", "compiled"):
            assert stat.S_IMODE((data / name).stat().st_mode) == 0o700, name
    # The next command that walks there is let in again.
    record, said = await run(services, walked, "cat greet.py")
    assert record.exit is not None and record.exit.code == 0, said
    async with open_service(Settings(data=data)):
        assert stat.S_IMODE(folders[walked.space_id].stat().st_mode) == 0o710
        record, said = await run(services, walked, "cat greet.py")
        assert record.exit is not None and record.exit.code == 0, said


MAKE = """
import asyncio, os, sys
from pathlib import Path
os.umask(int(sys.argv[3], 8))
from carrel.app.service import open_service
from carrel.config import Settings
from tests.load.clearing import end_everything
from tests.service.rig import make, run

async def main(data, project):
    async with open_service(Settings(data=data)) as services:
        space = await make(services, project)
        script = "umask 0; for f in . ~ /tmp; do echo mine > $f/mine; chmod 777 $f || :; done"
        record, said = await run(services, space, script)
        assert record.exit.code == 0, said

data = Path(sys.argv[1])
try:
    asyncio.run(main(data, Path(sys.argv[2])))
finally:
    end_everything(data)
"""


@AS_ROOT
@pytest.mark.parametrize("umask", ["0", "22"])
def test_of_an_ordinary_users_daemon(ordinary_user: Account, data: Path, umask: str) -> None:
    """In a folder that the user has left open, under any umask."""
    data.chmod(0o755)
    os.chown(data, *ordinary_user)
    project = data / "project"
    project.mkdir()
    (project / "greet.py").write_text("print('hello')\n")
    where = data / "data"
    words = [PYTHON, "-c", MAKE, str(where), str(project), umask]
    done = run_as(ordinary_user, words, cwd=SOURCE, env={"HOME": str(data)})
    assert done.returncode == 0, done.stdout + done.stderr
    assert stat.S_IMODE(where.stat().st_mode) == 0o700
    assert stat.S_IMODE((where / "spaces").stat().st_mode) == 0o700
    assert _looked(where, []) == set()
    # Nor in a data folder whose mode is the user's own choice.
    where.chmod(0o755)
    allowed = {"listed", "entered", "read"}
    seen = _looked(where, [])
    assert {one for one in seen if one.split()[0] not in allowed or "spaces/" in one} == set()
    assert not [one for one in seen if one.startswith("read")], seen
