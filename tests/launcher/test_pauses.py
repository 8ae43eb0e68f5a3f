"""A sandbox that is paused goes on, whoever dies meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from carrel.domain.errors import CarrelError
from carrel.domain.ids import new_id
from carrel.domain.limits import Limits
from carrel.domain.runtimes import ExitReason, LocalRun, Sandbox
from carrel.launcher import control
from carrel.linux import cgroupfs, processes
from carrel.linux.processes import freeze_group, is_frozen
from carrel.runtimes.limits.cgroups import Cgroups, Survey
from tests.accounts import PYTEST, SOURCE, Account, run_as
from tests.conformance.runtime_rig import RUNTIMES, WAIT_S, Rig, finish, open_rig
from tests.sampling import EXHAUSTIVE

SAMPLE = ["bubblewrap-groups", "bubblewrap-signals", "landlock-signals"]
"""With groups, which processes there are is the same on all runtimes; without, it depends on
whether they have a namespace of their own."""
ALL = [f"{name}-{way}" for name in RUNTIMES for way in ("groups", "signals")]


@pytest.fixture(params=ALL if EXHAUSTIVE else SAMPLE)
async def rig(request: pytest.FixtureRequest, data: Path) -> AsyncIterator[Rig]:
    name, way = request.param.split("-")
    async with open_rig(data, name) as opened:
        if way == "signals":
            opened.cgroups = Cgroups(lambda: Survey((), ("There are none.",)))
            opened.runtime = opened.make_runtime()
        yield opened


class Subject:
    """A sandbox in which a shell waits for a child that waits for a line."""

    def __init__(self, rig: Rig, sandbox: Sandbox, run: LocalRun) -> None:
        self.rig = rig
        self.sandbox = sandbox
        self.run = run

    @classmethod
    async def begin(cls, rig: Rig, family: str = "") -> Subject:
        sandbox = await rig.start(family=family)
        script = "echo begun; sh -c 'read -r line; echo got $line'; echo ended $?"
        run = await rig.begin(sandbox, "sh", "-c", script, stdin=True)
        await rig.recorded(sandbox, run.run_id, "begun")
        return cls(rig, sandbox, run)

    async def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        engine = self.rig.runtime._engine  # type: ignore[attr-defined]
        whole = engine._requests.stop(self.sandbox, 0.0)
        return (await self.rig.launcher.ask(op, {**whole, **fields}, []))[0]

    async def pause(self, seconds: float = 600.0) -> None:
        assert (await self.ask("pause", seconds=seconds))["still"]

    async def pids(self) -> list[int]:
        found: list[int] = (await self.ask("members"))["pids"]
        return found

    async def is_still(self) -> bool:
        """Who waits in the kernel, for a child of a `vfork` say, is stopped when it comes back."""
        folders = self.rig.cgroups.load(self.sandbox.spec.sandbox_id)
        if folders is not None:
            return any(map(is_frozen, filter(_has_freezer, folders.folders)))
        return not any(map(processes.is_running, await self.pids()))

    async def works(self) -> None:
        assert self.run.stdin is not None
        os.write(self.run.stdin, b"it\n")
        done = await finish(self.run)
        assert done.out == "begun\ngot it\nended 0\n"


def _has_freezer(folder: str) -> bool:
    return any(Path(folder, name).exists() for name in ("cgroup.freeze", "freezer.state"))


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not await condition():
            await asyncio.sleep(0.01)


async def test_it_goes_on_when_it_is_told_to(rig: Rig) -> None:
    subject = await Subject.begin(rig)
    for _ in range(2):
        await subject.pause()
        await until(subject.is_still)
    assert (await subject.ask("resume"))["still"]
    assert not await subject.is_still()
    assert (await subject.ask("resume"))["still"]
    assert list((rig.data / "launcher/pauses").iterdir()) == []
    await subject.works()


async def test_what_holds_a_sandbox_stands_still_too(rig: Rig) -> None:
    """Code in there can trace it, and have it do what it likes; so what it has open counts."""
    subject = await Subject.begin(rig)
    holding = (await subject.ask("members"))["holding"]
    names = [Path(f"/proc/{pid}/comm").read_text().strip() for pid in holding]
    assert names == (["bwrap", "hold"] if rig.name == "bubblewrap" else [])
    engine = rig.runtime._engine  # type: ignore[attr-defined]
    assert set(holding) < set(await engine._relatives(subject.sandbox))
    await subject.pause()
    assert await subject.is_still()
    if rig.cgroups.load(subject.sandbox.spec.sandbox_id) is None:
        assert not any(map(processes.is_running, holding))
    await subject.ask("resume")
    await subject.works()


async def test_who_waits_for_the_next_command_is_nobody(rig: Rig) -> None:
    """A sandbox is looked after as long as it lingers nevertheless: code in there can take over
    what holds it, and write on."""
    limits = Limits(disk_bytes=1 << 30)
    sandbox = await rig.start(limits=limits)
    assert (await rig.sh(sandbox, "echo here")).out == "here\n"
    engine = rig.runtime._engine  # type: ignore[attr-defined]
    request = engine._requests.members(sandbox)

    async def is_empty() -> bool:
        reply, _ = await rig.launcher.ask("members", request, [])
        grouped = rig.cgroups.load(sandbox.spec.sandbox_id) is not None
        waits = bool(reply["waiting"]) or rig.name != "bubblewrap" or not grouped
        return waits and not reply["pids"]

    await until(is_empty)
    watch = engine._watch(sandbox)
    assert await watch._is_inhabited() == (rig.name == "bubblewrap")
    await rig.runtime.stop(sandbox, grace_s=0.1)
    assert not await watch._is_inhabited()


def test_nobody_is_found_out_because_the_launcher_was_slow(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gets a processor again when the time to stand still is over."""
    monkeypatch.setattr(control, "SETTLE_S", -1.0)
    coming: list[Callable[[], None]] = []
    told: list[object] = []
    with subprocess.Popen(["sleep", "600"]) as subject:

        def after(_seconds: float, action: Callable[[], None]) -> None:
            os.waitid(os.P_PID, subject.pid, os.WSTOPPED | os.WNOWAIT)
            coming.append(action)

        loop: Any = SimpleNamespace(after=after)
        pause = control._Pause(loop, str(data / "note"), [], lambda: [subject.pid])
        try:
            pause.begin(lambda reply, _descriptors: told.append(reply))
            while coming:
                coming.pop()()
            assert told == [{"still": True}]
            assert pause.end()
        finally:
            subject.kill()


async def test_no_command_starts_where_all_stands_still(rig: Rig) -> None:
    """It could move files from where they are not counted yet to where they were. Who is killed
    before it starts does not start later."""
    subject = await Subject.begin(rig)
    await subject.pause()
    late = asyncio.create_task(rig.begin(subject.sandbox, "echo", "late"))
    run_id = new_id("ru")
    killed = asyncio.create_task(rig.begin(subject.sandbox, "sleep", "600", run_id=run_id))
    assert not (await asyncio.wait([late, killed], timeout=0.5))[0]
    ending = asyncio.create_task(rig.runtime.kill(subject.sandbox, run_id))
    await rig.launcher.ask("hello", {}, [])
    assert (await subject.ask("resume"))["still"]
    assert (await finish(await late)).out == "late\n"
    await ending
    with contextlib.suppress(CarrelError):
        assert (await finish(await killed)).exit.reason is not ExitReason.EXITED
    await subject.works()


CHAIN = """
import os
fd = os.open("log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
for _ in range(20_000):
    if os.fork():
        os._exit(0)
    os.write(fd, b"x")
"""


async def test_who_forks_and_ends_all_the_time_stands_still_or_is_found_out(rig: Rig) -> None:
    sandbox = await rig.start()
    run = await rig.begin(sandbox, "/usr/bin/python3", "-c", CHAIN)
    subject, log = Subject(rig, sandbox, run), sandbox.spec.tree / "log"
    async with asyncio.timeout(WAIT_S):
        while not (log.exists() and log.stat().st_size > 10):
            await asyncio.sleep(0.01)
    still = (await subject.ask("pause", seconds=600.0))["still"]
    before = log.stat().st_size
    for _ in range(20):
        await rig.launcher.ask("hello", {}, [])
    assert not still or log.stat().st_size == before
    await subject.ask("resume")
    await rig.runtime.stop(sandbox, grace_s=0.0)
    await run.wait()
    run.close()


async def test_a_family_stands_still_together(rig: Rig) -> None:
    """Its files are counted together, too."""
    one, other = [await Subject.begin(rig, family="x") for _ in "ab"]
    stranger = await Subject.begin(rig)
    engine = rig.runtime._engine  # type: ignore[attr-defined]
    assert await engine._still(one.sandbox, "pause")
    assert await one.is_still() and await other.is_still() and not await stranger.is_still()
    assert await engine._still(one.sandbox, "resume")
    for subject in (one, other, stranger):
        await subject.works()


async def test_it_goes_on_when_nobody_says_so(rig: Rig) -> None:
    """The daemon has died, say."""
    subject = await Subject.begin(rig)
    await subject.pause(0.0)
    async with asyncio.timeout(WAIT_S):
        while await subject.is_still():
            await asyncio.sleep(0.01)
    await subject.works()


async def test_it_goes_on_when_it_did_not_stand_still_yet(rig: Rig) -> None:
    subject = await Subject.begin(rig)
    async with asyncio.timeout(WAIT_S):
        await asyncio.gather(subject.ask("pause", seconds=600.0), subject.ask("resume"))
    assert not await subject.is_still()
    await subject.works()


async def test_it_goes_on_when_the_launcher_has_died(rig: Rig) -> None:
    subject = await Subject.begin(rig)
    await subject.pause()
    await until(subject.is_still)
    pids = await subject.pids()
    await rig.kill_launcher()
    await rig.launcher.ask("hello", {}, [])
    async with asyncio.timeout(WAIT_S):
        while alive(pids) and not any(map(processes.is_running, alive(pids))):
            await asyncio.sleep(0.01)
    assert list((rig.data / "launcher/pauses").iterdir()) == []
    assert not alive(pids) or not await subject.is_still()
    await rig.runtime.stop(subject.sandbox, grace_s=0.0)
    await subject.run.wait()
    subject.run.close()


def alive(pids: list[int]) -> list[int]:
    """An ordinary user's sandbox ends with its launcher."""
    return [pid for pid in pids if processes.start_time(pid) is not None]


async def test_one_that_is_paused_can_be_stopped(rig: Rig) -> None:
    subject = await Subject.begin(rig)
    await subject.pause()
    async with asyncio.timeout(WAIT_S):
        await rig.runtime.stop(subject.sandbox, grace_s=0.0)
    assert (await finish(subject.run)).exit.reason is ExitReason.STOPPED


async def test_what_was_stopped_before_stays_so(rig: Rig) -> None:
    subject = await Subject.begin(rig)
    await rig.runtime.signal(subject.sandbox, subject.run.run_id, signal.SIGSTOP)
    pids = await subject.pids()
    async with asyncio.timeout(WAIT_S):
        while not any(map(processes.is_stopped, pids)):
            await asyncio.sleep(0.01)
    before = {pid for pid in pids if processes.is_stopped(pid)}
    await subject.pause()
    await subject.ask("resume")
    assert {pid for pid in pids if processes.is_stopped(pid)} >= before
    await rig.runtime.signal(subject.sandbox, subject.run.run_id, signal.SIGCONT)
    await subject.works()


AS_USER = "bubblewrap and signals" if EXHAUSTIVE else "bubblewrap and signals and not who_forks"
"""Signals find who forks all the time in the same way, whoever sends them."""


def test_the_same_for_an_ordinary_user(ordinary_user: Account) -> None:
    if os.geteuid() != 0:
        pytest.skip("the tests are run by one already")
    done = run_as(ordinary_user, [*PYTEST, "-k", AS_USER, __file__], cwd=SOURCE)
    assert done.returncode == 0, done.stdout
    assert "passed" in done.stdout


@pytest.mark.parametrize("version", [1, 2])
def test_both_versions_of_groups_freeze(version: int) -> None:
    trees = [one for one in cgroupfs.hierarchies() if one.version == version and one.writable]
    name = "cgroup.procs" if version == 2 else "freezer.state"
    found = [one.mount for one in trees if version == 2 or "freezer" in one.controllers]
    if os.geteuid() != 0 or not found:
        pytest.skip(f"no groups of version {version} with {name} can be made")
    group = found[0] / f"pause-{os.getpid()}"
    group.mkdir()
    try:
        with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
            try:
                cgroupfs.join([str(group / cgroupfs.PROCS)], process.pid)
                assert freeze_group(str(group), True)
                while not is_frozen(str(group)):
                    pass
                turns = processes.turns(process.pid)
                assert turns == processes.turns(process.pid) is not None
                assert freeze_group(str(group), False)
                assert not is_frozen(str(group))
            finally:
                freeze_group(str(group), False)
                process.kill()
    finally:
        assert cgroupfs.remove(group, WAIT_S)


def test_a_process_whose_first_thread_has_ended_is_alive() -> None:
    """And can be stopped."""
    code = """
import ctypes, sys, threading
def stay():
    print("ready", flush=True)
    sys.stdin.read()
threading.Thread(target=stay).start()
ctypes.CDLL(None).pthread_exit(None)
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        stat = Path(f"/proc/{process.pid}/stat")
        while stat.read_text().rpartition(")")[2].split()[0] != "Z":
            pass
        assert processes.start_time(process.pid) is not None
        assert processes.is_running(process.pid)
        process.send_signal(signal.SIGSTOP)
        while not processes.is_stopped(process.pid):
            pass
        assert not processes.is_running(process.pid)
        process.kill()
    assert processes.start_time(process.pid) is None and processes.turns(process.pid) is None
