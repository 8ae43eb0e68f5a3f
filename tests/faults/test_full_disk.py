"""On a full disk one can look, run a command, stop and remove, and so make room."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from carrel.app.service import Services
from carrel.domain.access import LOCAL
from carrel.domain.errors import InsufficientDisk
from carrel.domain.events import EventQuery, EventType
from carrel.domain.runtimes import Command
from carrel.domain.spaces import Space
from carrel.linux import reserve
from carrel.linux.reserve import NEED_BYTES, Reserve
from tests.accounts import PYTHON, SOURCE, Account, run_as
from tests.faults.disks import disk, make_room, take_room
from tests.faults.rig import assert_works, ending, everything, needs_root, remove_all, serving
from tests.launcher import disks
from tests.load.clearing import end_everything
from tests.service.rig import RUN_S, leftovers, make, run
from tests.volumes import volume

pytestmark = [needs_root, pytest.mark.xdist_group("disk")]
SIZE = 48 << 20
PROGRAM = "from carrel.cli.main import main; raise SystemExit(main())"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "read.me").write_text("hello\n")
    return folder


def kept(data: Path) -> Reserve:
    """The reserve of a data folder, as large as it can be."""
    found = Reserve(data / "reserve")
    found.take_back()
    assert found.held()
    return found


def things(data: Path) -> list[list[str]]:
    """What there is of spaces, but for the processes that come and go."""
    return [sorted(os.listdir(data / name)) for name in ("spaces", "uids")]


async def use_all(services: Services, space: Space) -> None:
    """All that somebody needs to get out of it."""
    assert [one.space_id for one in await everything(services)] == [space.space_id]
    assert await services.store.events(EventQuery(limit=1000))
    await assert_works(services, space, "cat read.me; head -c 100000 /dev/zero | wc -c", USED)
    await services.spaces.stop(LOCAL, space.space_id, 0.2)
    await services.spaces.start(LOCAL, space.space_id)


USED = "hello\n100000\n"


@pytest.mark.parametrize("kind", ["tmpfs", "xfs"])
async def test_a_full_disk_locks_nobody_out(kind: str, project: Path) -> None:
    with disk(kind) as data:
        async with ending(data), serving(data) as services:
            space, other = await make(services, project), await make(services, project)
            reserve = kept(data)
            whole = reserve.held()
            record, _said = await run(services, space, "cat /dev/zero > big")
            assert record.exit is not None and record.exit.code != 0
            take_room(data)
            await services.spaces.remove(LOCAL, other.space_id)
            await use_all(services, space)
            before = things(data)
            with pytest.raises(InsufficientDisk, match="full") as refused:
                await make(services, project)
            assert "carrel df" in refused.value.hint
            assert things(data) == before
            make_room(data)
            await assert_works(services, space, "rm big; ls", "read.me\n")
            # What was removed is free when the kernel has seen to it. Less than one piece may be
            # missing for good: the reserve grows by whole pieces only.
            async with asyncio.timeout(RUN_S):
                while reserve.held() <= whole - NEED_BYTES:
                    reserve.take_back()
                    await asyncio.sleep(0.01)
            await assert_works(services, await make(services, project), "cat read.me", "hello\n")
            await remove_all(services, data)


async def test_a_full_disk_can_be_used_for_long(project: Path) -> None:
    """The log of the records would take all of the reserve before it is due to be emptied."""
    with disk("tmpfs") as data:
        async with ending(data), serving(data) as services:
            space = await make(services, project)
            kept(data)
            take_room(data)
            for _ in range(WRITES):
                journal = services.journal
                await journal.write(journal.event(EventType.SPACE_UPDATED, space.space_id))
            assert Reserve(data / "reserve").held() > NEED_BYTES
            await services.spaces.remove(LOCAL, space.space_id, force=True)


WRITES = 400
"""Some pages each, so without the emptying far more than the reserve of a small disk."""


async def test_who_removes_by_force_makes_room(project: Path) -> None:
    """Though what was changed does not fit into the trash, and whoever fills the disk goes on
    to take what becomes free."""
    with disks.small_disk(SIZE) as data:
        async with ending(data), serving(data) as services:
            space = await make(services, project)
            kept(data)
            await run(services, space, "cat /dev/urandom > big")
            greedy = "while :; do cat /dev/urandom >> big 2> /dev/null; done"
            await services.runs.start(space.space_id, Command(("sh", "-c", greedy)))
            take_room(data)
            removal = await services.spaces.remove(LOCAL, space.space_id, force=True, grace_s=0.2)
            assert removal.lost
            make_room(data)
            assert leftovers(data) == []
            async with asyncio.timeout(RUN_S):
                while Reserve(data / "reserve").free().bytes <= SIZE // 2:
                    # The kernel takes the sandbox's mounts apart a moment after its last process.
                    await asyncio.sleep(0)


async def test_a_daemon_starts_on_a_full_disk(project: Path) -> None:
    with disks.small_disk(SIZE) as data:
        async with ending(data):
            async with serving(data) as services:
                space = await make(services, project)
                kept(data)
            take_room(data)
            async with serving(data) as services:
                await use_all(services, space)
                await services.spaces.remove(LOCAL, space.space_id, force=True)


async def test_a_disk_without_inodes(project: Path) -> None:
    with disks.disk("tmpfs", f",size={SIZE},nr_inodes=1500") as data:
        async with ending(data), serving(data) as services:
            space = await make(services, project)
            kept(data)
            many = "mkdir many; i=0; while : > many/$i; do i=$((i+1)); done 2> /dev/null"
            record, _said = await run(services, space, many)
            assert record.exit is not None and record.exit.code != 0
            with pytest.raises(InsufficientDisk):
                await make(services, project)
            await use_all(services, space)
            await assert_works(services, space, "rm -r many; ls", "read.me\n")
            Reserve(data / "reserve").take_back()
            await assert_works(services, await make(services, project), "cat read.me", "hello\n")
            await remove_all(services, data)


def test_an_ordinary_user_gets_out_as_well(ordinary_user: Account) -> None:
    """By the program itself, from a daemon that has to be started on the full disk."""
    with disks.small_disk(SIZE) as folder:
        data, project = folder / "data", folder / "project"
        for made in (data, project):
            made.mkdir()
        os.chown(data, ordinary_user.uid, ordinary_user.gid)
        env = {"CARREL_DATA": str(data)}

        def carrel(*words: str) -> tuple[int, str]:
            done = run_as(ordinary_user, [PYTHON, "-c", PROGRAM, *words], env=env)
            assert "Traceback" not in done.stderr
            return done.returncode, done.stdout + done.stderr

        try:
            assert carrel("new", str(project), "--name", "s") == (0, "s\n")
            kept(data)
            assert carrel("exec", "s", "--", "sh", "-c", "cat /dev/zero > big")[0] != 0
            assert carrel("down")[0] == 0
            take_room(folder)
            assert carrel("ls", "-q")[0] == 0
            code, said = carrel("new", str(project), "--name", "t")
            assert code == 7 and "full" in said
            assert carrel("exec", "s", "--", "rm", "big") == (0, "")
            assert carrel("exec", "s", "--", "echo", "hi") == (0, "hi\n")
            assert carrel("stop", "s")[0] == 0
            assert carrel("rm", "--force", "s")[0] == 0
            carrel("down")
        finally:
            end_everything(data)


def test_the_reserve_is_given_up_and_taken_back_in_pieces() -> None:
    with disks.small_disk(SIZE) as data:
        found = Reserve(data / "reserve")
        assert not found.give_up()
        found.ensure()
        found.take_back()
        assert found.held() == reserve.LEAST_BYTES
        ballast = disks.fill(data)
        found.ensure()
        assert found.held() == reserve.LEAST_BYTES - reserve.NEED_BYTES
        assert found.free().bytes >= reserve.NEED_BYTES
        found.ensure()
        found.take_back()
        assert found.held() == reserve.LEAST_BYTES - reserve.NEED_BYTES
        while found.give_up():
            pass
        assert found.held() == 0
        assert found.is_full() is False and found.free().bytes == reserve.LEAST_BYTES
        ballast.unlink()
        found.take_back()
        assert found.held() == reserve.LEAST_BYTES


FILLS = """
import os, sys
from pathlib import Path
from carrel.linux import namespaces
from carrel.linux.reserve import NEED_BYTES, Reserve
from tests.faults.disks import take_room
data, uid, gid = Path(sys.argv[1]), os.geteuid(), os.getegid()
namespaces.unshare(namespaces.CLONE_NEWUSER)
Path("/proc/self/setgroups").write_text("deny")
Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
reserve = Reserve(data / "reserve")
reserve.take_back()
take_room(data)
before = reserve.held()
print(os.geteuid(), reserve.ensure(), before - reserve.held())
"""


def test_what_is_set_aside_for_root_is_for_those_who_get_it(ordinary_user: Account) -> None:
    """ext4 gives it to root, and not to the root of a container."""
    with volume("ext4") as folder:
        data = folder / "data"
        data.mkdir()
        os.chown(data, ordinary_user.uid, ordinary_user.gid)
        done = run_as(ordinary_user, [PYTHON, "-c", FILLS, str(data)], cwd=SOURCE)
        assert done.stdout.split() == ["0", "True", str(reserve.NEED_BYTES)], done
        (data / "more").write_bytes(bytes(reserve.NEED_BYTES))
        found = Reserve(data / "reserve")
        assert found.free().bytes < reserve.NEED_BYTES
        held = found.held()
        assert not found.ensure() and found.held() == held
