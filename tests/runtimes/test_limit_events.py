"""Limits in force: real commands run into them, and somebody is told the figure."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from carrel.domain.errors import InsufficientDisk, LimitsUnavailable
from carrel.domain.limits import LimitKind, Limits
from carrel.domain.runtimes import ExitReason
from carrel.domain.trees import TreeMount
from carrel.linux.reserve import Free
from carrel.runtimes.limits import cgroups, disk, disk_watch, watch
from carrel.runtimes.limits.cgroups import Survey
from carrel.runtimes.limits.disk_watch import DiskWatch
from tests.accounts import PYTEST, SOURCE, Account, run_as
from tests.conformance.runtime_rig import WAIT_S, Rig, finish, open_rig
from tests.sampling import EXHAUSTIVE, beyond

MIB = 1 << 20
PLENTY = 1 << 40
PYTHON = "/usr/bin/python3"


@pytest.fixture(params=["bubblewrap", "landlock", *beyond("process")])
async def rig(request: pytest.FixtureRequest, data: Path) -> AsyncIterator[Rig]:
    async with open_rig(data, request.param) as opened:
        yield opened


def _needs(rig: Rig, kind: LimitKind) -> None:
    support = {one.kind: one for one in rig.cgroups.support()}[kind]
    if not support.enforced:
        pytest.skip(f"this machine cannot limit {kind}: {support.how}")


pytestmark = pytest.mark.xdist_group("disk")
"""What one of them deletes hides what another writes at the same moment."""


@pytest.fixture(autouse=True)
def _looks_anyway(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test beside this one deletes at the same moment hides what is written: files are then
    looked at after half a minute only."""
    monkeypatch.setattr(disk_watch, "REST_S", 0.5)


async def test_memory(rig: Rig) -> None:
    _needs(rig, LimitKind.MEMORY)
    sandbox = await rig.start(limits=Limits(memory_bytes=64 * MIB))
    assert [(one.kind, one.enforced) for one in sandbox.limits] == [(LimitKind.MEMORY, True)]
    done = await rig.run(sandbox, PYTHON, "-c", "x = bytearray(400 << 20); print(len(x))")
    assert (done.exit.reason, done.exit.signal) == (ExitReason.MEMORY, 9)
    (event,) = rig.events
    assert (event.kind, event.figure) == (LimitKind.MEMORY, 64 * MIB)
    assert str(64 * MIB) in event.message or "6.7" in event.message
    assert (await rig.run(sandbox, "true")).exit.code == 0


EATS = "import os\nif os.fork() == 0:\n    x = bytearray(400 << 20)\n    os._exit(0)\nos.wait()\n"
"""In a child; what began it goes on."""


async def test_memory_of_a_child(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the command runs, and once for each that the kernel killed at a time."""
    monkeypatch.setattr(watch, "PERIOD_S", 0.01)
    _needs(rig, LimitKind.MEMORY)
    sandbox = await rig.start(limits=Limits(memory_bytes=64 * MIB))
    wait = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\n"
    run = await rig.begin(sandbox, PYTHON, "-c", f"{wait}{EATS}time.sleep(600)")
    (sandbox.spec.tree / "go").touch()
    async with asyncio.timeout(WAIT_S):
        while not rig.events:
            await asyncio.sleep(0.01)
    (event,) = rig.events
    assert (event.kind, event.figure, event.run_id) == (LimitKind.MEMORY, 64 * MIB, run.run_id)
    assert f"{run.run_id} lost a process" in event.message
    await rig.runtime.kill(sandbox, run.run_id)
    assert (await finish(run)).exit.signal == 9
    assert rig.events == [event]


async def test_memory_of_a_child_that_nobody_saw_in_time(rig: Rig) -> None:
    """Its command ends before the next look."""
    _needs(rig, LimitKind.MEMORY)
    sandbox = await rig.start(limits=Limits(memory_bytes=64 * MIB))
    done = await rig.run(sandbox, PYTHON, "-c", EATS)
    assert (done.exit.reason, done.exit.code) == (ExitReason.EXITED, 0)
    assert [(event.kind, event.figure) for event in rig.events] == [(LimitKind.MEMORY, 64 * MIB)]
    assert (await rig.run(sandbox, "true")).exit.code == 0
    assert len(rig.events) == 1


async def test_memory_that_is_seen_before_the_end_is_told_once(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "PERIOD_S", 0.0)
    _needs(rig, LimitKind.MEMORY)
    sandbox = await rig.start(limits=Limits(memory_bytes=64 * MIB))
    done = await rig.run(sandbox, PYTHON, "-c", "x = bytearray(400 << 20)")
    assert done.exit.reason is ExitReason.MEMORY
    assert [(event.kind, event.figure) for event in rig.events] == [(LimitKind.MEMORY, 64 * MIB)]


@pytest.mark.parametrize("rig", ["bubblewrap", *beyond("landlock", "process")], indirect=True)
async def test_disk_of_who_keeps_others_from_looking(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel gives nobody a folder that a process has locked; here it is the test."""
    monkeypatch.setattr(watch, "STUCK_S", 0.2)
    gone = threading.Event()
    scandir = os.scandir

    def locked(folder: Any) -> Any:
        if isinstance(folder, int) and os.readlink(f"/proc/self/fd/{folder}").endswith("/locked"):
            gone.wait(WAIT_S)
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", locked)
    sandbox = await rig.start(limits=Limits(disk_bytes=512 * MIB))
    write = "mkdir locked; while :; do head -c 4194304 /dev/zero >> file; sleep 0.05; done"
    async with asyncio.timeout(WAIT_S):
        done = await rig.run(sandbox, "sh", "-c", write)
    gone.set()
    assert done.exit.reason is ExitReason.DISK
    assert [event.kind for event in rig.events] == [LimitKind.DISK]
    assert (await rig.run(sandbox, "true")).exit.code == 0


BOMB = (
    "import os, time\n"
    "made = 0\n"
    "try:\n"
    "    while True:\n"
    "        if os.fork() == 0: time.sleep(60)\n"
    "        made += 1\n"
    "except OSError as error: print(made, error.errno)\n"
)


async def test_processes(rig: Rig) -> None:
    """A fork bomb fills its own sandbox and nothing else."""
    _needs(rig, LimitKind.PIDS)
    sandbox = await rig.start(limits=Limits(pids=20))
    done = await rig.run(sandbox, PYTHON, "-c", BOMB)
    made, number = map(int, done.out.split())
    assert 15 <= made <= 25 and number == 11
    assert [(event.kind, event.figure) for event in rig.events] == [(LimitKind.PIDS, 20)]
    await rig.runtime.stop(sandbox, grace_s=0.1)


async def test_processes_that_one_of_two_commands_was_refused(rig: Rig) -> None:
    """The kernel counts for both: neither is told of what the other may have done."""
    _needs(rig, LimitKind.PIDS)
    sandbox = await rig.start(limits=Limits(pids=20))
    other = await rig.begin(sandbox, "sleep", "600")
    assert (await rig.run(sandbox, PYTHON, "-c", BOMB)).exit.code == 0
    await rig.runtime.kill(sandbox, other.run_id)
    await finish(other)
    assert [(event.kind, event.run_id) for event in rig.events] == [(LimitKind.PIDS, None)]
    await rig.runtime.stop(sandbox, grace_s=0.1)


async def test_a_fork_bomb_is_stopped(rig: Rig) -> None:
    _needs(rig, LimitKind.PIDS)
    sandbox = await rig.start(limits=Limits(pids=64))
    bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    run = await rig.begin(sandbox, PYTHON, "-c", bomb)
    async with asyncio.timeout(WAIT_S):
        while ((await rig.runtime.usage(sandbox)).pids or 0) < 60:
            await asyncio.sleep(0)
        await rig.runtime.stop(sandbox, grace_s=0.05)
        await run.wait()
    run.close()
    assert sandbox.spec.sandbox_id not in rig.cgroups.known()


async def test_cpu(rig: Rig) -> None:
    _needs(rig, LimitKind.CPU)
    sandbox = await rig.start(limits=Limits(cpus=0.1))
    burn = "import time\nend = time.process_time() + 0.1\nwhile time.process_time() < end: pass"
    done = await rig.run(sandbox, PYTHON, "-c", burn)
    assert done.exit.code == 0
    assert done.exit.ended_at - done.exit.started_at > 0.3  # a tenth of a second at a tenth
    assert {(event.kind, event.figure) for event in rig.events} == {(LimitKind.CPU, 0.1)}


async def test_file_size_and_open_files(rig: Rig) -> None:
    sandbox = await rig.start(limits=Limits(file_bytes=MIB, open_files=64))
    done = await rig.sh(sandbox, "head -c 2000000 /dev/zero > big; wc -c < big; ulimit -n")
    assert done.out.split() == [str(MIB), "64"]


async def test_wall_time(rig: Rig) -> None:
    sandbox = await rig.start(limits=Limits(wall_seconds=0.2))
    done = await rig.run(sandbox, "sleep", "60")
    assert done.exit.reason is ExitReason.TIMEOUT
    assert [(event.kind, event.figure) for event in rig.events] == [(LimitKind.WALL_TIME, 0.2)]


async def test_the_proof_of_the_walls_takes_none_of_that_time(rig: Rig) -> None:
    """It takes longer on a busy machine, where a space could not start then."""
    sandbox = await rig.start(limits=Limits(wall_seconds=0.001))
    assert (await rig.runtime.verify(sandbox, TreeMount(sandbox.spec.tree))).holds
    assert rig.events == []


async def test_disk_is_watched(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_watch, "LOOK_S", 0.01)
    sandbox = await rig.start(limits=Limits(disk_bytes=4 * MIB))
    (support,) = sandbox.limits
    assert support.enforced and "watched" in support.how
    run = await rig.begin(sandbox, "sh", "-c", "head -c 20000000 /dev/zero > big; exec sleep 60")
    done = await finish(run)
    assert done.exit.reason is ExitReason.DISK
    assert [(event.kind, event.figure) for event in rig.events] == [(LimitKind.DISK, 4 * MIB)]


async def test_nothing_is_begun_far_above_the_disk_limit(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each command that is ended leaves a second's worth, without a bound. Who may make room
    does so, and a stop is no way around it."""
    monkeypatch.setattr(disk_watch, "LOOK_S", 0.01)
    monkeypatch.setattr(disk_watch, "FAR_BYTES", 0)
    monkeypatch.setattr(disk_watch, "REST_S", 0.1)
    sandbox = await rig.start(limits=Limits(disk_bytes=4 * MIB))
    seen = asyncio.Event()
    look = DiskWatch.look

    async def looked(self: DiskWatch) -> float:
        took = await look(self)
        seen.set()
        return took

    # What was there at the first look is forgiven when others remove as much meanwhile.
    monkeypatch.setattr(DiskWatch, "look", looked)
    run = await rig.begin(sandbox, "sleep", "60")
    async with asyncio.timeout(WAIT_S):
        await seen.wait()
    take_at_once(sandbox.spec.tree / "big", 20_000_000)
    assert (await finish(run)).exit.reason is ExitReason.DISK
    with pytest.raises(InsufficientDisk, match="far above its disk limit"):
        await rig.begin(sandbox, "true")
    await rig.runtime.stop(sandbox, grace_s=0.0)
    again = await rig.runtime.start(sandbox.spec, TreeMount(sandbox.spec.tree))
    with pytest.raises(InsufficientDisk):
        await rig.begin(again, "true")
    room = await rig.begin(again, "rm", "big", may_make_room=True)
    assert (await finish(room)).exit.code == 0
    async with asyncio.timeout(WAIT_S):
        while True:
            with contextlib.suppress(InsufficientDisk):
                assert (await rig.run(again, "true")).exit.code == 0
                break


def take_at_once(path: Path, size: int) -> None:
    """As no sandbox can: it would be ended in the middle of it."""
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, size)


HELD = "exec 3> big; rm big; head -c 20000000 /dev/zero >&3"
UNNAMED = f"{HELD}; exec sleep 60"
UNREADABLE = "mkdir a; head -c 20000000 /dev/zero > a/big; chmod 0 a; exec sleep 60"
MANY = "mkdir a; i=0; while [ $i -lt 300 ]; do : > a/$i; i=$((i+1)); done; exec sleep 60"


@pytest.mark.parametrize("script", [UNNAMED, UNREADABLE, MANY])
async def test_what_is_not_seen_in_folders_counts_on_the_disk(
    script: str, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_watch, "LOOK_S", 0.01)
    monkeypatch.setattr(disk, "LEAST_FILES", 100)
    monkeypatch.setattr(disk, "FILE_BYTES", 1 << 30)
    sandbox = await rig.start(limits=Limits(disk_bytes=4 * MIB))
    run = await rig.begin(sandbox, "sh", "-c", script)
    done = await finish(run)
    assert done.exit.reason is ExitReason.DISK
    assert {(event.kind, event.figure) for event in rig.events} == {(LimitKind.DISK, 4 * MIB)}
    # What is over its limit may still make room.
    rescue = "chmod 700 a; rm -rf a big; echo gone; exec sleep 0.2"
    assert (await rig.sh(sandbox, rescue)).out == "gone\n"


async def test_what_is_begun_while_all_is_ended_is_begun_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sandbox may be ended while it is still being set up."""
    monkeypatch.setattr(disk_watch, "LOOK_S", 0.01)
    sandbox = await rig.start(limits=Limits(disk_bytes=4 * MIB))
    first = await rig.begin(sandbox, "sleep", "60")
    ask, asked = rig.launcher.ask, 0

    async def ask_late(kind: str, *rest: Any, **named: Any) -> Any:
        nonlocal asked
        asked += kind == "run"
        if kind != "run" or asked > 1:
            return await ask(kind, *rest, **named)
        (sandbox.spec.tree / "big").write_bytes(bytes(20 * MIB))
        await finish(first)
        return {"problem": {"step": "bubblewrap", "errno": 0, "text": "ended"}}, []

    monkeypatch.setattr(rig.launcher, "ask", ask_late)
    assert (await rig.sh(sandbox, "rm big; echo gone")).out == "gone\n"
    assert asked == 2


async def test_files_without_a_name_count_for_the_whole_family(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_watch, "LOOK_S", 0.01)
    first, second = [await rig.start(limits=Limits(disk_bytes=30 * MIB), family="x") for _ in "ab"]
    holding = await rig.begin(first, "sh", "-c", f"{HELD}; echo held; exec sleep 60")
    await rig.recorded(first, holding.run_id, "held")
    assert rig.events == []
    run = await rig.begin(second, "sh", "-c", UNNAMED)
    ends = [asyncio.create_task(finish(one)) for one in (holding, run)]
    ended, rest = await asyncio.wait(ends, timeout=WAIT_S, return_when=asyncio.FIRST_COMPLETED)
    assert {one.result().exit.reason for one in ended} == {ExitReason.DISK}, "either of them"
    for sandbox in (first, second):
        await rig.runtime.stop(sandbox, grace_s=0.0)
    await asyncio.gather(*rest)


async def test_what_a_command_left_behind_is_ended_at_the_disk_limit(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long after its command, though nothing else runs."""
    monkeypatch.setattr(disk_watch, "LOOK_S", 0.01)
    sandbox = await rig.start(limits=Limits(disk_bytes=4 * MIB))
    later = "until [ -e go ]; do sleep 0.01; done; head -c 20000000 /dev/zero > big; sleep 60"
    script = f"setsid sh -c '{later}' > /dev/null 2>&1 & echo $!"
    assert (await rig.sh(sandbox, script)).exit.code == 0
    assert rig.events == []
    (sandbox.spec.tree / "go").touch()
    async with asyncio.timeout(WAIT_S):
        while not rig.events:
            await asyncio.sleep(0.01)
    (event,) = rig.events
    assert (event.kind, event.run_id) == (LimitKind.DISK, None)
    async with asyncio.timeout(WAIT_S):
        while True:
            said = (await rig.sh(sandbox, "rm -f big go; echo ok")).out
            if said == "ok\n":
                break
    assert not (sandbox.spec.tree / "big").exists()


async def test_files_in_memory_have_a_bound(data: Path) -> None:
    async with open_rig(data, "bubblewrap") as rig:
        sandbox = await rig.start(limits=Limits(disk_bytes=8 * MIB))
        fill = "head -c 20000000 /dev/zero > /dev/shm/big; wc -c < /dev/shm/big; echo x > /dev/x"
        done = await rig.sh(sandbox, f"({fill}) 2> /dev/null")
        assert (done.out, done.exit.code == 0) == (f"{8 * MIB}\n", False)


HIDES = """
import ctypes, fcntl, os, signal, struct, sys
libc = ctypes.CDLL(None)
way, size = sys.argv[1], int(sys.argv[2])
os.makedirs("a", exist_ok=True), os.makedirs("b", exist_ok=True)
first, second = [entry.name for entry in os.scandir(".") if entry.is_dir()]
queue = libc.inotify_init()
watches = {libc.inotify_add_watch(queue, name.encode(), 0x1): name for name in "ab"}
if way == "continued":
    fcntl.fcntl(queue, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(queue, 10, signal.SIGCONT)
    fcntl.fcntl(queue, fcntl.F_SETFL, os.O_ASYNC)
if os.path.exists(f"{first}/big"):
    os.rename(f"{first}/big", f"{second}/big")
big, place = os.open(f"{second}/big", os.O_WRONLY | os.O_CREAT | os.O_APPEND), second
os.close(os.open("following", os.O_CREAT))
if os.fork() == 0:
    for _ in range(size):
        os.write(big, bytes(1 << 20))
    os._exit(0)
moves = written = 0
while moves < 12:
    written = written or os.waitpid(-1, os.WNOHANG)[0]
    events = os.read(queue, 65536)
    while events:
        watch, _mask, _cookie, length = struct.unpack("iIII", events[:16])
        events = events[16 + length :]
        if watches[watch] != place:
            os.rename(f"{place}/big", f"{watches[watch]}/big")
            place = watches[watch]
            moves += bool(written)
os.unlink("following")
print("hidden")
"""
"""Follows whoever walks through two folders: a file is moved to the one that was just listed."""


def without_groups(rig: Rig) -> None:
    rig.cgroups = cgroups.Cgroups(lambda: Survey((), ("There are none.",)))
    rig.runtime = rig.make_runtime()


def followed(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Whoever follows a walk is quick enough, though the machine be busy, unless it stands still;
    once the event is set, also to follow the first one. And it is as if nobody else wrote on this
    disk."""
    listed = disk._DiskWalk._listed
    from_the_first = threading.Event()

    def places() -> list[Path]:
        return [*rig.data.glob("spaces/*/project/[ab]/big")]

    def waited(walk: disk._DiskWalk, fd: int, path: str) -> list[str]:
        found = listed(walk, fd, path)
        until = time.monotonic() + (WAIT_S if walk._until == math.inf else 0.1)
        if from_the_first.is_set() and Path(path).name == "project":
            while not Path(path, "following").exists() and time.monotonic() < until:
                pass
        inside = Path(path).name in "ab" and Path(path).parent
        while inside and (inside / "following").exists() and time.monotonic() < until:
            if Path(path, "big").exists():
                break
        return found

    def free(_folder: Path) -> Free:
        with contextlib.suppress(OSError):
            for path in places():
                return Free(PLENTY - path.stat().st_size, PLENTY)
        return Free(PLENTY, PLENTY)

    monkeypatch.setattr(disk._DiskWalk, "_listed", waited)
    monkeypatch.setattr(watch, "free_room", free)
    return from_the_first


@pytest.mark.parametrize("way", ["groups", "signals", "continued"])
async def test_what_is_moved_out_of_the_way_counts(
    way: str, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the kernel's freezer, or where there is none by signals; also when it has itself
    continued whenever somebody comes."""
    monkeypatch.setattr(disk_watch, "LOOK_S", 0.01)
    monkeypatch.setattr(disk_watch, "REST_S", 0.0)
    if way != "groups":
        without_groups(rig)
    followed(rig, monkeypatch)
    sandbox = await rig.start(limits=Limits(disk_bytes=4 * MIB))
    done = await finish(await rig.begin(sandbox, PYTHON, "-c", HIDES, way, "20"))
    assert (done.exit.reason, done.out, done.err) == (ExitReason.DISK, "", "")
    assert {(event.kind, event.figure) for event in rig.events} == {(LimitKind.DISK, 4 * MIB)}
    assert (await rig.sh(sandbox, "rm -rf following a b; echo gone")).out == "gone\n"


async def test_what_may_be_hidden_is_remembered_when_it_stops(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_watch, "LOOK_S", 0.01)
    monkeypatch.setattr(disk_watch, "REST_S", 0.0)
    hides = (PYTHON, "-c", HIDES, "groups", "6")
    async with open_rig(data, "bubblewrap") as rig:
        from_the_first = followed(rig, monkeypatch)
        sandbox = await rig.start(limits=Limits(disk_bytes=8 * MIB))
        assert (await rig.run(sandbox, *hides)).out == "hidden\n"
        await rig.runtime.stop(sandbox)
        await rig.runtime.start(sandbox.spec, TreeMount(sandbox.spec.tree))
        from_the_first.set()
        assert (await rig.run(sandbox, *hides)).exit.reason is ExitReason.DISK


BY_RUNTIME = "not_seen_in_folders or out_of_the_way"
AS_USER = f"{BY_RUNTIME} or left_behind_is_ended or in_memory"
if not EXHAUSTIVE:
    AS_USER = f"(bubblewrap and ({BY_RUNTIME})) or left_behind_is_ended or in_memory"


def test_the_disk_limit_of_an_ordinary_user(ordinary_user: Account) -> None:
    if os.geteuid() != 0:
        pytest.skip("the tests are run by one already")
    done = run_as(ordinary_user, [*PYTEST, "-k", AS_USER, __file__], cwd=SOURCE)
    assert done.returncode == 0, done.stdout
    assert "passed" in done.stdout


async def test_usage_is_measured(rig: Rig) -> None:
    _needs(rig, LimitKind.MEMORY)
    sandbox = await rig.start()
    burn = "import time\nx = bytearray(30 << 20)\nend = time.process_time() + 0.05\n"
    done = await rig.run(sandbox, PYTHON, "-c", burn + "while time.process_time() < end: pass")
    assert done.exit.cpu_seconds >= 0.05
    assert done.exit.max_rss_bytes >= 30 * MIB
    used = await rig.runtime.usage(sandbox)
    assert used.cpu_seconds is not None and used.cpu_seconds >= 0.05
    assert used.memory_peak_bytes is not None and used.memory_peak_bytes >= 30 * MIB
    assert used.pids is not None


async def test_what_cannot_be_enforced_is_said(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine without control groups."""
    async with open_rig(data, "process") as rig:
        rig.cgroups = cgroups.Cgroups(lambda: Survey((), ("There are none.",)))
        rig.runtime = rig.make_runtime()
        sandbox = await rig.start(limits=Limits(memory_bytes=64 * MIB, cpus=1))
        assert [one.enforced for one in sandbox.limits] == [False, False]
        assert all(one.how for one in sandbox.limits)
        with pytest.raises(LimitsUnavailable) as refused:
            await rig.start(limits=Limits(memory_bytes=64 * MIB, strict=True))
        assert refused.value.details["kinds"] == ["memory"]
        assert (await rig.run(sandbox, "true")).exit.code == 0


async def test_everything_ends_without_control_groups(data: Path) -> None:
    """A keeper above each command finds what detached itself."""
    async with open_rig(data, "process") as rig:
        rig.cgroups = cgroups.Cgroups(lambda: Survey((), ()))
        rig.runtime = rig.make_runtime()
        sandbox = await rig.start()
        script = "setsid sh -c 'echo $$ > left; exec sleep 61' & until [ -s left ]; do :; done"
        assert (await rig.sh(sandbox, script, timeout_s=WAIT_S)).exit.code == 0
        pid = int((sandbox.spec.tree / "left").read_text())
        os.kill(pid, 0)
        await rig.runtime.stop(sandbox, grace_s=0.1)
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
