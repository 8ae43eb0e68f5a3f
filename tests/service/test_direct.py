"""Spaces whose tree is a folder of the host: what is made there stays there."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from carrel.app.service import Services, open_service
from carrel.config import Settings
from carrel.domain.access import LOCAL, Caller, Scope, ScopeKind
from carrel.domain.errors import Forbidden, SpaceInvalid, TreeDamaged, TreeUnavailable
from carrel.domain.spaces import Retention, Space, SpaceState
from carrel.domain.trees import DIRECT, ReviewQuery
from carrel.service import creation, removal
from carrel.service.spaces import SpaceChanges
from tests.accounts import Account
from tests.etc import share_etc
from tests.load.clearing import end_everything
from tests.service.rig import RUN_S, leftovers, make, request, run
from tests.trees.again import run_again


async def make_in(services: Services, folder: Path, **options: Any) -> Space:
    return await make(services, driver=DIRECT, place=str(folder), **options)


def content(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in folder.rglob("*")
        if path.is_file()
    }


async def test_it_works_in_the_folder_itself(
    services: Services, project: Path, data: Path, tmp_path: Path
) -> None:
    if os.geteuid() == 0:
        for path in (project, *project.rglob("*")):
            os.chown(path, 4711, 4712)
    space = await make_in(services, project)
    assert (space.driver, space.place) == (DIRECT, str(project))
    record, said = await run(services, space, "cat greet.py; echo made > made; rm -r notes; pwd")
    assert record.exit is not None and record.exit.code == 0
    assert said == "print('hello')\n/workspace\n"
    assert content(project) == {"greet.py": "print('hello')\n", "made": "made\n"}
    owner = project.stat()
    made = (project / "made").stat()
    assert (made.st_uid, made.st_gid) == (owner.st_uid, owner.st_gid)
    # It can write nowhere else.
    (tmp_path / "beside").mkdir()
    await run(services, space, f"echo x > {tmp_path}/beside/x; echo x > ../x")
    assert content(tmp_path / "beside") == {}
    found = await services.spaces.review(LOCAL, space.space_id, ReviewQuery(most=10))
    assert [(one.path, str(one.kind)) for one in found.listed] == [
        ("made", "added"),
        ("notes/a.txt", "deleted"),
    ]
    assert (await services.spaces.usage(LOCAL, space)).tree is not None


async def test_removing_it_neither_refuses_nor_keeps(
    services: Services, project: Path, data: Path
) -> None:
    space = await make_in(services, project)
    await run(services, space, "echo made > made")
    before = content(project)
    assert await services.spaces.unexported(space) == 0
    removal = await services.spaces.remove(LOCAL, space.space_id)
    assert (removal.changes, removal.kept, removal.lost) == (0, None, "")
    assert content(project) == before and before["made"] == "made\n"
    assert await services.spaces.trashed(LOCAL) == []
    assert leftovers(data, space.space_id) == []


async def test_clean_up_removes_it_whatever_it_changed(services: Services, project: Path) -> None:
    space = await make_in(services, project)
    await run(services, space, "echo made > made")
    short = SpaceChanges(retention=Retention(ttl_s=0.001))
    await services.spaces.update(LOCAL, space.space_id, short)
    await services.collector.run(LOCAL)
    assert (await services.spaces.get(LOCAL, space.space_id)).state is SpaceState.REMOVED
    assert content(project)["made"] == "made\n"


async def test_it_is_stopped_and_started(services: Services, project: Path) -> None:
    space = await make_in(services, project)
    await services.spaces.stop(LOCAL, space.space_id)
    await services.spaces.start(LOCAL, space.space_id)
    assert (await run(services, space, "cat notes/a.txt"))[1] == "a\n"


async def test_a_folder_that_was_swapped_is_not_worked_in(
    services: Services, project: Path
) -> None:
    space = await make_in(services, project)
    await services.spaces.stop(LOCAL, space.space_id)
    project.rename(project.with_name("aside"))
    project.mkdir()
    with pytest.raises(TreeDamaged):
        await services.spaces.start(LOCAL, space.space_id)
    await services.spaces.remove(LOCAL, space.space_id)
    assert content(project) == {}
    assert "greet.py" in content(project.with_name("aside"))


async def test_callers_cannot_ask_for_it(services: Services, project: Path, data: Path) -> None:
    with pytest.raises(SpaceInvalid, match="direct"):
        await make(services, driver=DIRECT)
    with pytest.raises(SpaceInvalid):
        await make(services, project, driver=DIRECT)
    with pytest.raises(SpaceInvalid):
        await make(services, place=str(project))
    bound = Caller("bound", Scope(ScopeKind.LABEL, "team=blue"))
    with pytest.raises(Forbidden):
        await services.spaces.create(bound, request(driver=DIRECT, place=str(project)))
    assert leftovers(data) == []
    diagnosis = await services.operations.cleanup.examine(LOCAL)
    assert DIRECT not in {finding.name for finding in diagnosis.findings}
    assert diagnosis.driver != DIRECT


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user is whom the folder belongs to")
@pytest.mark.parametrize("runtime", ["landlock", "process"])
async def test_root_needs_a_runtime_with_mounts(
    services: Services, project: Path, data: Path, runtime: str
) -> None:
    with pytest.raises(TreeUnavailable, match="mounts"):
        await make_in(services, project, runtime=runtime)
    assert leftovers(data) == []


@pytest.mark.parametrize("step", [creation.TREE, creation.SANDBOX, removal.TREE + "!"])
async def test_a_daemon_that_was_killed_meanwhile(
    data: Path, project: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one removes what there is of the space, and nothing of the folder."""
    before = content(project)
    share_etc(data)
    try:
        async with open_service(Settings(data=data)) as services:
            space = await _interrupted(services, project, step, monkeypatch)
        monkeypatch.undo()
        async with open_service(Settings(data=data)) as services:
            async with asyncio.timeout(RUN_S):
                await services.reconciler.cleared()
            there = await services.spaces.get(LOCAL, space)
            assert there.state is SpaceState.REMOVED
            assert content(project) == before
            assert leftovers(data, space) == []
    finally:
        await asyncio.to_thread(end_everything, data)


async def _interrupted(
    services: Services, project: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> str:
    """What a kill leaves: a step that was written down, and nothing that undoes it."""

    class Killed(BaseException):
        pass

    async def nothing(*_args: object) -> None:
        pass

    def kill(*_args: object, **_more: object) -> None:
        raise Killed

    driver = services.app.direct
    if step == creation.TREE:
        monkeypatch.setattr(type(driver), "create", kill)
    elif step == creation.SANDBOX:
        monkeypatch.setattr(type(driver), "mount", kill)
    monkeypatch.setattr(removal.Remover, "_undo", nothing)
    if step != removal.TREE + "!":
        with pytest.raises(Killed):
            await make_in(services, project)
        (space,) = services.journal.all()
        return space.space_id
    made = await make_in(services, project)
    monkeypatch.setattr(type(driver), "drop", kill)
    with pytest.raises(Killed):
        await services.spaces.remove(LOCAL, made.space_id)
    return made.space_id


@pytest.mark.skipif(os.geteuid() != 0, reason="is already an ordinary user's run")
def test_as_an_ordinary_user(ordinary_user: Account, data: Path) -> None:
    run_again(__file__, ordinary_user, data, "-k", "works_in_the_folder or neither or swapped")


SET_IDS = """
import os, stat
for bits in (0o4755, 0o2755, 0o6755):
    open('made', 'w').close()
    for way in (
        lambda: os.chmod('made', bits),
        lambda: os.fchmod(os.open('made', os.O_RDONLY), bits),
        lambda: os.chmod('made', bits, dir_fd=os.open('.', os.O_RDONLY)),
        lambda: os.open(f'new{bits}', os.O_CREAT | os.O_WRONLY, bits),
        lambda: os.open('.', os.O_TMPFILE | os.O_WRONLY, bits),
        lambda: os.mknod(f'node{bits}', stat.S_IFREG | bits),
    ):
        try:
            way()
            print('made')
        except PermissionError:
            print('refused')
os.chmod('made', 0o750)
os.open('plain', os.O_CREAT | os.O_WRONLY, 0o640)
"""


async def test_nobody_becomes_its_owner(services: Services, project: Path) -> None:
    """A file with the set-user-id bit would run as whoever the folder belongs to."""
    (project / "try.py").write_text(SET_IDS)
    space = await make_in(services, project)
    record, said = await run(services, space, "umask 0; python3 try.py")
    assert record.exit is not None and record.exit.code == 0, said
    assert said.split() == ["refused"] * 18
    modes = {path.name: path.stat().st_mode for path in project.iterdir()}
    assert not [name for name, mode in modes.items() if mode & 0o6000]
    assert (modes["made"] & 0o777, modes["plain"] & 0o777) == (0o750, 0o640)
