"""The launcher is killed, hangs, or ends: callers hear of it in time, and nothing is lost."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from carrel.app.service import Services
from carrel.cleanup.trash import Trash
from carrel.domain.access import LOCAL
from carrel.domain.errors import CarrelError, LauncherUnavailable
from carrel.domain.runs import RunRecord, RunState
from carrel.domain.runtimes import Command, ExitReason, Output
from carrel.domain.spaces import Space, SpaceState, Trashed
from carrel.launcher import client
from carrel.launcher.client import Launcher, Reply
from carrel.linux import processes
from carrel.runtimes import engine
from tests.accounts import Account
from tests.faults.rig import (
    assert_sound,
    assert_works,
    ending,
    everything,
    launcher_pid,
    needs_root,
    remove_all,
    serving,
)
from tests.service.rig import RUN_S, make, output, run
from tests.trees.again import run_again

ANSWER_S = 0.5
"""Instead of half a minute."""
BOUND_S = 20.0
"""Several waits of `ANSWER_S` in a row, on a loaded machine."""
SENDS = """
import os, socket
null, pairs = os.open("/dev/null", os.O_RDONLY), []
try:
    while True:
        pairs.append(socket.socketpair())
        pairs[-1][0].setblocking(False)
        try:
            while True:
                socket.send_fds(pairs[-1][0], [b"x"], [null] * 250)
        except BlockingIOError:
            pass
except OSError:
    print("no more", flush=True)
os.read(os.pipe()[0], 1)
"""
"""Sends descriptors to itself until the kernel takes no more, and receives none."""
OPENS = """
import os
opened = []
try:
    while True:
        opened.append(os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY))
except OSError:
    print(len(opened), flush=True)
os.read(os.pipe()[0], 1)
"""
"""As many terminals as there are for it."""
OF_AN_ORDINARY_USER = (
    "test_another_launcher or test_descriptors or test_one_space or test_changes_are_kept"
    " or test_what_was_being"
)
LINES = 100
"""At least: it is told to end when its launcher has been killed often enough."""


async def begin(services: Services, space: Space, script: str) -> RunRecord:
    return await services.runs.start(space.space_id, Command(("sh", "-c", script)))


async def end(services: Services, record: RunRecord) -> tuple[RunRecord, str]:
    async with asyncio.timeout(RUN_S):
        record = await services.runs.wait(record.run_id)
    return record, await output(services, record)


def kill_launcher(data: Path) -> None:
    """Returns when it is gone."""
    pid = launcher_pid(data)
    descriptor = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        assert select.select([descriptor], [], [], RUN_S)[0]
    finally:
        os.close(descriptor)


# Killed


async def test_another_launcher_takes_its_place(data: Path) -> None:
    async with ending(data), serving(data) as services:
        space = await make(services)
        await run(services, space, "echo work > work.txt")
        for _ in range(3):
            await asyncio.to_thread(kill_launcher, data)
            await assert_works(services, space, "cat work.txt", "work\n")
            await asyncio.to_thread(kill_launcher, data)
            fresh = await make(services)
            await services.spaces.remove(LOCAL, fresh.space_id)
        await services.spaces.stop(LOCAL, space.space_id, 0.2)
        await asyncio.to_thread(kill_launcher, data)
        await services.spaces.start(LOCAL, space.space_id)
        await assert_works(services, space, "cat work.txt", "work\n")
        await asyncio.to_thread(kill_launcher, data)
        assert (await services.spaces.verify(LOCAL, space.space_id)).holds
        await remove_all(services, data)


async def test_changes_are_kept_without_it(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An ordinary user's tree is no longer mounted then, and is mounted again."""
    keep = Trash.keep
    deaths: list[Callable[[Path], None]] = [kill_launcher]

    def die_first(*asked: Any) -> Trashed | None:
        if deaths:
            deaths.pop(0)(data)
        return keep(*asked)

    async with ending(data), serving(data) as services:
        spaces = [await make(services), await make(services)]
        for space in spaces:
            await run(services, space, "echo work > work.txt")
        monkeypatch.setattr(Trash, "keep", die_first)
        removal = await services.spaces.remove(LOCAL, spaces[0].space_id, force=True)
        assert removal.kept is not None and not removal.lost
        # Where none can be had, nothing is removed.
        deaths += [_unavailable, _unavailable]
        with pytest.raises(LauncherUnavailable):
            await services.spaces.remove(LOCAL, spaces[1].space_id, force=True)
        removal = await services.spaces.remove(LOCAL, spaces[1].space_id, force=True)
        assert removal.kept is not None and not removal.lost
        for space in spaces:
            back = await services.spaces.undelete(LOCAL, space.space_id)
            await assert_works(services, back, "cat work.txt", "work\n")
        await remove_all(services, data)


def _unavailable(_data: Path) -> None:
    raise LauncherUnavailable("The launcher cannot be started.")


@pytest.fixture
def slow() -> Iterator[Path]:
    """A folder with a bubblewrap that sets nothing up. Not in /tmp, which root's launcher covers
    before it executes that."""
    with TemporaryDirectory(dir="/var/tmp") as folder:
        os.chmod(folder, 0o755)
        program = Path(folder, "bwrap")
        program.write_text(f"#!/bin/sh\nexec sleep {RUN_S}\n")
        program.chmod(0o755)
        yield program.parent


async def test_what_was_being_set_up_ends(
    data: Path, slow: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next launcher finds it, though nobody had written it down."""
    async with ending(data), serving(data) as services:
        space = await make(services)
        await services.spaces.stop(LOCAL, space.space_id, 0.2)
        with monkeypatch.context() as patch:
            patch.setenv("PATH", f"{slow}:{os.environ['PATH']}")
            starting = asyncio.create_task(services.spaces.start(LOCAL, space.space_id))
            left = await asyncio.to_thread(_sleeper, launcher_pid(data))
            await asyncio.to_thread(kill_launcher, data)
            with pytest.raises(CarrelError):
                await starting
        try:
            await services.spaces.remove(LOCAL, space.space_id)
            await assert_works(services, await make(services), "echo works", "works\n")
            assert select.select([left], [], [], RUN_S / 2)[0]
        finally:
            os.close(left)
        await remove_all(services, data)


def _sleeper(launcher: int) -> int:
    """A descriptor of the process below it that is no more than that."""
    until = time.monotonic() + BOUND_S
    while time.monotonic() < until:
        for pid in processes.descendants(launcher):
            with suppress(OSError):
                if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"sleep\0"):
                    return os.pidfd_open(pid)
        time.sleep(0.01)
    raise AssertionError("nothing is being set up")


@pytest.mark.parametrize("runtime", ["bubblewrap", "landlock"])
async def test_descriptors_on_their_way_keep_nobody_out(data: Path, runtime: str) -> None:
    """The kernel counts for each user those that were sent and not received."""
    async with ending(data), serving(data) as services:
        space = await make(services, runtime=runtime)
        other = await make(services)
        record = await begin(services, space, f"exec python3 -c '{SENDS}'")
        await _more_output(services, record)
        assert await output(services, record) == "no more\n"
        await assert_works(services, other, "echo works", "works\n")
        await assert_works(services, await make(services), "echo works", "works\n")
        assert await _said_in_a_terminal(services, other) == "works\r\n"
        await remove_all(services, data)


async def _said_in_a_terminal(services: Services, space: Space) -> str:
    terminal = Command(("echo", "works"), output=Output.PTY)
    return (await end(services, await services.runs.start(space.space_id, terminal)))[1]


async def test_one_space_leaves_terminals_for_others(data: Path) -> None:
    """The machine has a few thousand, and each space counts its own."""
    async with ending(data), serving(data) as services:
        space, other = await make(services), await make(services)
        record = await begin(services, space, f"exec python3 -c '{OPENS}'")
        await _more_output(services, record)
        assert await output(services, record) == "256\n"
        assert await _said_in_a_terminal(services, other) == "works\r\n"
        await remove_all(services, data)


@needs_root
def test_the_same_for_an_ordinary_user(ordinary_user: Account, data: Path) -> None:
    """Whose trees are mounted as long as their launcher lives, and whose spaces run as himself."""
    run_again(__file__, ordinary_user, data, "-k", OF_AN_ORDINARY_USER)


@needs_root
async def test_what_runs_goes_on_without_its_launcher(data: Path) -> None:
    """As root a sandbox outlives its launcher: the next one records on, and hears its end."""
    pace = f"[ -e go ] && [ $i -ge {LINES} ] && exit 7; sleep 0.005"
    script = f"i=0; while :; do echo line $i; i=$((i+1)); {pace}; done"
    async with ending(data), serving(data) as services:
        space = await make(services)
        record = await begin(services, space, script)
        await _more_output(services, record)
        for _ in range(3):
            await asyncio.to_thread(kill_launcher, data)
            await _more_output(services, record, than=len(await output(services, record)))
        await run(services, space, "touch go")
        record, said = await end(services, record)
        assert record.exit is not None
        lines = said.splitlines()
        assert len(lines) >= LINES
        assert lines == [f"line {number}" for number in range(len(lines))], record.exit
        # Who is not its parent does not learn its code from the kernel.
        assert record.exit.code == 7 or record.exit.reason is ExitReason.LOST
        assert (await services.spaces.get(LOCAL, space.space_id)).state is SpaceState.READY
        await remove_all(services, data)


async def _more_output(services: Services, record: RunRecord, than: int = 0) -> None:
    async with asyncio.timeout(RUN_S):
        while len(await output(services, record)) <= than:
            await asyncio.sleep(0.01)


@needs_root
async def test_a_run_is_not_given_up_at_the_first_refusal(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The launcher that should take it up may be killed too, or be slow to start."""
    refusals = 1
    real = Launcher.ask

    async def ask(
        self: Launcher, op: str, fields: Reply, descriptors: list[int], timeout_s: float = BOUND_S
    ) -> tuple[Reply, list[int]]:
        nonlocal refusals
        if op == "attach" and refusals:
            refusals -= 1
            raise LauncherUnavailable("The launcher went away.")
        return await real(self, op, fields, descriptors, timeout_s)

    async with ending(data), serving(data) as services:
        space = await make(services)
        record = await begin(services, space, "echo begun; sleep 1; echo ended")
        await _more_output(services, record)
        monkeypatch.setattr(Launcher, "ask", ask)
        await asyncio.to_thread(kill_launcher, data)
        record, said = await end(services, record)
        assert said == "begun\nended\n", record.exit
        await remove_all(services, data)


async def test_an_end_of_the_daemon_and_of_the_launcher(data: Path) -> None:
    """Both at once: the record says how every command ended, or that nobody knows."""
    async with ending(data):
        async with serving(data) as services:
            space = await make(services)
            ended, said = await run(services, space, "echo done; exit 3")
            record = await begin(services, space, "echo begun; exec sleep 1000")
            await _more_output(services, record)
        await asyncio.to_thread(kill_launcher, data)
        async with serving(data) as services:
            assert (await services.runs.get(ended.run_id)).exit == ended.exit
            assert await output(services, ended) == said
            await services.spaces.stop(LOCAL, space.space_id, 0.2)
            record, said = await end(services, record)
            assert record.state is RunState.ENDED and said == "begun\n"
            await remove_all(services, data)


# Hung


@contextmanager
def _impatient() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for method in (Launcher.ask, Launcher.call):
            patch.setattr(method, "__defaults__", (ANSWER_S,))
        patch.setattr(client, "ANSWER_S", ANSWER_S)
        patch.setattr(client, "START_S", ANSWER_S)
        patch.setattr(engine, "STOP_MARGIN_S", ANSWER_S)
        yield


@contextmanager
def hung(data: Path) -> Iterator[None]:
    """Only so long is nobody waited for: one that is awake has all the time it needs."""
    pid = launcher_pid(data)
    os.kill(pid, signal.SIGSTOP)
    try:
        # On a loaded machine it goes on for a moment.
        until = time.monotonic() + BOUND_S
        while "\nState:\tT" not in Path(f"/proc/{pid}/status").read_text():
            assert time.monotonic() < until
            time.sleep(0.01)
        with _impatient():
            yield
    finally:
        os.kill(pid, signal.SIGCONT)


async def test_a_launcher_that_hangs(data: Path) -> None:
    """Calls end in time and say why; later all is well again. A space needs nobody to be
    made, and its first command tells that there is nobody to run it."""
    async with ending(data), serving(data) as services:
        space = await make(services)
        await run(services, space, "echo work > work.txt")
        with hung(data):
            young = await make(services)
            for call in (
                run(services, young, "touch ran-late"),
                run(services, space, "touch ran-late"),
                services.spaces.stop(LOCAL, space.space_id, 0.1),
            ):
                begun = time.monotonic()
                with pytest.raises(LauncherUnavailable) as caught:
                    await call
                assert time.monotonic() - begun < BOUND_S
                assert caught.value.code == "launcher_unavailable"
            assert space.space_id in [one.space_id for one in await everything(services)]
        await services.spaces.stop(LOCAL, space.space_id, 0.2)
        await services.spaces.start(LOCAL, space.space_id)
        await assert_works(services, space, "cat work.txt", "work\n")
        await assert_works(services, young, "ls", "")
        await assert_sound(services, data, space, young)
        await remove_all(services, data)


@pytest.mark.parametrize("killed", [True, False])
async def test_what_was_refused_does_not_run_later(
    data: Path, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    """The caller was told that it did not run. That it is killed as well may come too late."""

    late = asyncio.Event()

    async def kill_late(*_: object) -> None:
        await late.wait()

    if not killed:
        monkeypatch.setattr(engine.Engine, "_kill", kill_late)
    async with ending(data), serving(data) as services:
        space = await make(services)
        await run(services, space, "true")
        with hung(data), pytest.raises(LauncherUnavailable):
            await run(services, space, "touch ran-late")
        failed = (await services.store.runs(space.space_id))[0]
        assert failed.state is RunState.FAILED
        await assert_works(services, space, "ls", "")
        late.set()
        await remove_all(services, data)


async def test_a_launcher_that_hangs_while_the_daemon_starts(data: Path) -> None:
    """The daemon serves all the same, and what it could not settle is settled later."""
    async with ending(data):
        async with serving(data) as services:
            space = await make(services)
            record = await begin(services, space, "echo begun; sleep 2; echo ended; exit 4")
            await _more_output(services, record)
        with hung(data):
            begun = time.monotonic()
            async with serving(data) as services:
                assert time.monotonic() - begun < BOUND_S
                assert [one.space_id for one in await everything(services)] == [space.space_id]
        async with serving(data) as services:
            record, said = await end(services, record)
            assert said == "begun\nended\n"
            assert record.exit is not None and record.exit.code == 4
            await remove_all(services, data)
