"""Disks that are full or read-only, folders and mounts that somebody took away."""

from __future__ import annotations

import os
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from carrel.app.service import Services
from carrel.daemon import control
from carrel.domain.access import LOCAL
from carrel.domain.errors import CarrelError, DaemonUnavailable, InsufficientDisk
from carrel.domain.files import Files
from carrel.domain.spaces import Removal, Space, SpaceState
from carrel.domain.trees import ReviewQuery
from carrel.lifecycle.table import SETTLED
from tests.accounts import PYTHON, Account, run_as
from tests.faults.disks import disk, make_room, remount, take_room, unmount
from tests.faults.rig import (
    assert_sound,
    assert_works,
    ending,
    everything,
    needs_root,
    remove_all,
    serving,
)
from tests.folders import mounts_below, remove_folder
from tests.sampling import every
from tests.service.rig import leftovers, make, run

FREE_BLOCKS = (0, 1, 2, 3, 4, 6, 8, 11, 16, 24, 48, 96)
"""How much is left on the disk: with each, another step of an operation has no room."""

Operation = Callable[[Services, Space], Awaitable[object]]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "read.me").write_text("hello\n")
    return folder


# A full disk


@needs_root
@pytest.mark.parametrize("kind", ["tmpfs", "xfs"])
async def test_no_room_for_a_new_space(kind: str, project: Path) -> None:
    """Whatever step has no room: the caller hears of it, nothing is left, all goes on."""
    with disk(kind) as data:
        async with ending(data), serving(data) as services:
            kept = await make(services, project, name="kept")
            await run(services, kept, "echo work > work.txt")
            refused = 0
            for blocks in every(2, FREE_BLOCKS):
                take_room(data, leave_blocks=blocks)
                try:
                    made = await make(services, project)
                except InsufficientDisk as error:
                    assert error.hint
                    refused += 1
                else:
                    make_room(data)
                    await services.spaces.remove(LOCAL, made.space_id, force=True)
                make_room(data)
                await assert_sound(services, data, kept)
            assert refused
            await assert_works(services, kept, "cat work.txt read.me", "work\nhello\n")
            again = await make(services, project)
            await assert_works(services, again, "cat read.me", "hello\n")
            await remove_all(services, data)


async def _run(services: Services, space: Space) -> None:
    await run(services, space, "cat work.txt")


async def _stop(services: Services, space: Space) -> None:
    await services.spaces.stop(LOCAL, space.space_id, 0.2)


async def _restart(services: Services, space: Space) -> None:
    await services.spaces.stop(LOCAL, space.space_id, 0.2)
    await services.spaces.start(LOCAL, space.space_id)


async def _remove(services: Services, space: Space) -> Removal:
    return await services.spaces.remove(LOCAL, space.space_id, force=True, grace_s=0.2)


@needs_root
@pytest.mark.parametrize(
    ("operation", "first"), [(_run, 0), (_stop, 1), (_restart, 2), (_remove, 0)]
)
async def test_no_room_for_what_is_done_with_a_space(
    operation: Operation, first: int, project: Path
) -> None:
    """It is refused or done. When there is room again, the space is as good as before, with
    all that was in it."""
    with disk("tmpfs") as data:
        async with ending(data), serving(data) as services:
            for blocks in every(3, FREE_BLOCKS, first):
                space = await make(services, project)
                await run(services, space, "echo work > work.txt")
                take_room(data, leave_blocks=blocks)
                done: object = None
                try:
                    done = await operation(services, space)
                except InsufficientDisk as error:
                    assert error.hint
                make_room(data)
                # Whoever removes by force on a full disk is told that nothing could be kept.
                if not (isinstance(done, Removal) and done.lost):
                    await _assert_not_lost(services, space)
                await remove_all(services, data)


async def _assert_not_lost(services: Services, space: Space) -> None:
    """It is somewhere, settled: it works, or can be removed and comes back."""
    await services.collector.run(LOCAL)
    there = await everything(services)
    assert all(one.state in SETTLED for one in there), there
    if there and there[0].state is SpaceState.FAILED:
        await services.spaces.remove(LOCAL, space.space_id, force=True, grace_s=0.2)
        there = []
    if not there:
        space = await services.spaces.undelete(LOCAL, space.space_id)
    elif there[0].state is SpaceState.STOPPED:
        await services.spaces.start(LOCAL, space.space_id)
    await assert_works(services, space, "cat work.txt", "work\n")
    await services.spaces.stop(LOCAL, space.space_id, 0.2)


@needs_root
async def test_a_base_that_does_not_fit(project: Path) -> None:
    (project / "large.bin").write_bytes(os.urandom(30 << 20))
    with disk("tmpfs") as data:
        async with ending(data), serving(data) as services:
            with pytest.raises(InsufficientDisk) as caught:
                await make(services, project)
            assert caught.value.hint
            assert await everything(services) == []
            assert leftovers(data) == []
            (project / "large.bin").unlink()
            made = await make(services, project)
            await assert_works(services, made, "cat read.me", "hello\n")
            await remove_all(services, data)


# Read-only


@needs_root
async def test_a_read_only_disk(project: Path) -> None:
    """The daemon does not start, says why, and harms nothing."""
    with disk("tmpfs") as data:
        async with ending(data), serving(data) as services:
            space = await make(services, project)
            await run(services, space, "echo work > work.txt")
        for point in mounts_below(data / "spaces"):
            unmount(point)
        remount(data, "ro")
        with pytest.raises(DaemonUnavailable) as caught:
            control.start(data)
        assert "read-only" in str(caught.value).lower()
        with pytest.raises(CarrelError) as refused:
            async with serving(data):
                pass
        assert refused.value.code != "internal" and refused.value.hint
        remount(data, "rw")
        async with ending(data), serving(data) as services:
            await assert_works(services, space, "cat work.txt", "work\n")
            await remove_all(services, data)


def test_a_data_folder_that_may_not_be_written(ordinary_user: Account, data: Path) -> None:
    """As somebody who is not root: the program ends with a sentence, not with a trace."""
    folder = data / "theirs"
    folder.mkdir()
    os.chown(folder, ordinary_user.uid, ordinary_user.gid)
    folder.chmod(0o500)
    done = run_as(ordinary_user, [PYTHON, "-m", "carrel.daemon", "--data", str(folder)])
    assert done.returncode == 1
    assert str(folder) in done.stderr
    assert "Traceback" not in done.stderr
    assert list(folder.iterdir()) == []


# Taken away


@needs_root
async def test_a_tree_that_was_unmounted(data: Path, project: Path) -> None:
    """Behind its back: the next who needs it mounts it again."""
    async with ending(data), serving(data) as services:
        space = await make(services, project)
        await run(services, space, "echo work > work.txt")
        folder = data / "spaces" / space.space_id
        for used in (_by_command, _by_file, _by_changes):
            for point in mounts_below(folder):
                unmount(point)
            assert mounts_below(folder) == []
            await used(services, space)
        for point in mounts_below(folder):
            unmount(point)
        await remove_all(services, data)


async def _by_command(services: Services, space: Space) -> None:
    await assert_works(services, space, "cat work.txt read.me", "work\nhello\n")


async def _by_file(services: Services, space: Space) -> None:
    name = space.space_id

    def read(files: Files) -> bytes:
        with files.open_read("work.txt") as file:
            return file.read()

    assert await services.files.use(LOCAL, name, read) == b"work\n"


async def _by_changes(services: Services, space: Space) -> None:
    found = await services.spaces.review(LOCAL, space.space_id, ReviewQuery(most=10))
    assert [change.path for change in found.listed] == ["work.txt"]


@needs_root
async def test_unmounted_while_no_daemon_runs(data: Path, project: Path) -> None:
    async with ending(data):
        async with serving(data) as services:
            space = await make(services, project)
            await run(services, space, "echo work > work.txt")
        for point in mounts_below(data / "spaces"):
            unmount(point)
        async with serving(data) as services:
            await assert_works(services, space, "cat work.txt read.me", "work\nhello\n")
            await remove_all(services, data)


async def test_folders_that_were_deleted(data: Path, project: Path) -> None:
    """The space is marked as failed, says why, and can be removed; others are not touched."""
    async with ending(data), serving(data) as services:
        gone, other = await make(services, project), await make(services, project)
        remove_folder(data / "spaces" / gone.space_id)
        with pytest.raises(CarrelError) as caught:
            await run(services, gone, "true")
        assert caught.value.code != "internal" and caught.value.hint
        await services.reconciler.check()
        failed = await services.spaces.get(LOCAL, gone.space_id)
        assert failed.state is SpaceState.FAILED
        assert failed.problem is not None and failed.problem.code == "folder_missing"
        with pytest.raises(CarrelError) as caught:
            await services.spaces.start(LOCAL, gone.space_id)
        assert caught.value.code != "internal"
        await services.spaces.remove(LOCAL, gone.space_id)
        await assert_works(services, other, "cat read.me", "hello\n")
        await assert_sound(services, data, other)
        await remove_all(services, data)


async def test_folders_that_were_deleted_while_no_daemon_ran(data: Path, project: Path) -> None:
    async with ending(data):
        async with serving(data) as services:
            gone = await make(services, project)
            other = await make(services, project)
        remove_folder(data / "spaces" / gone.space_id)
        async with serving(data) as services:
            await services.reconciler.check()
            failed = await services.spaces.get(LOCAL, gone.space_id)
            assert failed.state is SpaceState.FAILED
            await services.spaces.remove(LOCAL, gone.space_id, force=True)
            await assert_works(services, other, "cat read.me", "hello\n")
            await assert_sound(services, data, other)
            await remove_all(services, data)


@needs_root
async def test_a_base_that_was_deleted(data: Path, project: Path) -> None:
    """What stands on it cannot be used, but removed; the project gets a new one."""
    async with ending(data), serving(data) as services:
        space = await make(services, project)
        await run(services, space, "echo work > work.txt")
        await services.spaces.stop(LOCAL, space.space_id, 0.2)
        for point in mounts_below(data / "spaces"):
            unmount(point)
        shutil.rmtree(data / "bases" / space.base_id)
        with pytest.raises(CarrelError) as caught:
            await services.spaces.start(LOCAL, space.space_id)
        assert caught.value.code != "internal" and caught.value.message
        fresh = await make(services, project)
        await assert_works(services, fresh, "cat read.me", "hello\n")
        await remove_all(services, data)


# Stale


async def test_stale_files_of_a_daemon_that_is_gone(data: Path) -> None:
    """A lock that names a dead or another process, and sockets nobody listens on."""
    folder = data / "daemon"
    folder.mkdir(mode=0o700)
    for content in (f"{os.getpid()} 1\n", "999999999 12345\n", "nonsense", ""):
        (folder / "lock").write_text(content)
        (folder / "socket").unlink(missing_ok=True)
        (folder / "socket").touch()
        assert control.status(data).running is False
        async with ending(data):
            pid = control.start(data)
            try:
                assert control.status(data).pid == pid
                with control.connect(data):
                    pass
            finally:
                control.stop(data)


async def test_stale_files_of_a_launcher_that_is_gone(data: Path) -> None:
    folder = data / "launcher"
    folder.mkdir(mode=0o700)
    (folder / "socket").touch()
    (folder / "lock").write_text("999999999\n")
    (folder / "holders").mkdir()
    (folder / "holders" / "sp_aaaaaaaaaaaa").write_text("nonsense")
    async with ending(data), serving(data) as services:
        space = await make(services)
        await assert_works(services, space, "echo hello", "hello\n")
        await services.spaces.remove(LOCAL, space.space_id)
