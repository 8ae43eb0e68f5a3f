"""Instances that are started again: once for one failure, and not for ever."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from carrel.app.service import Services
from carrel.domain.access import LOCAL
from carrel.domain.instances import Instance, InstanceState, Restart, Server
from carrel.domain.limits import Limits
from carrel.domain.server_adapter import NotReady
from carrel.service.instances.places import Places
from carrel.service.instances.restart import STEADY_S
from tests.instances.rig import (
    PYTHON,
    SCRIPT,
    WAIT_S,
    call,
    leftovers,
    processes,
    server,
    start,
    until,
)

OK = server("ok")
AGAIN = {"restart": Restart.ON_FAILURE}
OVER = (InstanceState.ENDED, InstanceState.FAILED)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


@pytest.fixture
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("carrel.service.instances.restart.FIRST_S", 0.01)


async def again(services: Services, instance_id: str, times: int) -> Instance:
    """Ready after so many restarts, and nobody works on it any more."""
    async with asyncio.timeout(WAIT_S):
        while True:
            found = await services.instances.get(LOCAL, instance_id)
            assert found.state not in OVER, found.problem
            if found.state is InstanceState.READY and found.restarts >= times:
                break
            await asyncio.sleep(0.01)
        await services.instances._restarter._errands.settled()
    return await services.instances.get(LOCAL, instance_id)


def servers(instance_id: str) -> list[int]:
    """The processes of it that are the program itself."""
    found = []
    for one in processes(instance_id):
        with contextlib.suppress(psutil.Error):
            words = one.cmdline()
            if words and os.path.basename(words[0]) == "python3" and SCRIPT in words:
                found.append(one.pid)
    return found


@pytest.mark.parametrize("child", [False, True])
async def test_one_kill_at_the_limit_is_one_failure(
    services: Services, project: Path, child: bool
) -> None:
    """It is told twice: by the end of the run, which is killed or then stopped, and by the
    limit."""
    limits = Limits(memory_bytes=200 << 20)
    handed = await start(services, OK, project, limits=limits, **AGAIN)
    instance_id = handed.instance.instance_id
    with contextlib.suppress(NotReady, TimeoutError):
        # It may be stopped before it answers.
        await call(handed, "eat", bytes=1 << 30, child=child)
    after = await again(services, instance_id, 1)
    assert (after.state, after.restarts) == (InstanceState.READY, 1)
    assert len(servers(instance_id)) == 1
    await call(handed, "echo", text="again")


@pytest.mark.usefixtures("_at_once")
async def test_a_path_that_it_was_shown_has_gone(
    data: Path, services: Services, project: Path, tmp_path: Path
) -> None:
    shown = tmp_path / "shown"
    shown.mkdir()
    wanted = server("ok")
    wanted = Server(wanted.name, wanted.command, binds=(*wanted.binds, str(shown)))
    instance = (await start(services, wanted, project, **AGAIN)).instance
    shown.rmdir()
    os.kill(instance.pid, signal.SIGKILL)
    ended = await until(services, instance.instance_id, *OVER)
    assert ended.state is InstanceState.FAILED and ended.problem is not None
    assert ended.problem.step == "restart"
    assert leftovers(data, instance.instance_id) == []


@pytest.mark.usefixtures("_at_once")
async def test_its_program_has_gone(
    data: Path, services: Services, project: Path, tmp_path: Path
) -> None:
    program = tmp_path / "program"
    program.write_text(f'#!/bin/sh\nexec {PYTHON} -I -S {SCRIPT} "$@"\n')
    program.chmod(0o755)
    wanted = Server("test-gone", (str(program), "ok"), binds=(SCRIPT,))
    instance = (await start(services, wanted, project, **AGAIN)).instance
    program.unlink()
    os.kill(instance.pid, signal.SIGKILL)
    ended = await until(services, instance.instance_id, *OVER)
    assert ended.state is InstanceState.FAILED and ended.problem is not None
    assert ended.problem.code == "server_not_installed"
    assert leftovers(data, instance.instance_id) == []


async def test_one_that_is_given_up_and_does_not_end_at_once(
    data: Path, services: Services, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, left = Places.end, [1, 2]

    async def end(places: Places, instance: Instance, runs: tuple[str, ...]) -> None:
        if left:
            left.pop()
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        await real(places, instance, runs)

    instance = (await start(services, OK, project)).instance
    monkeypatch.setattr(Places, "end", end)
    os.kill(instance.pid, signal.SIGKILL)
    ended = await until(services, instance.instance_id, *OVER)
    assert (ended.state, left) == (InstanceState.FAILED, [])
    assert leftovers(data, instance.instance_id) == []


@pytest.mark.usefixtures("_at_once")
async def test_one_that_lived_long_did_not_fail_in_a_row(services: Services, project: Path) -> None:
    """However often it was said meanwhile that it is wanted."""
    later = 0.0
    services.journal.clock = lambda: time.time() + later
    instance = (await start(services, OK, project, **AGAIN)).instance
    for times in range(1, 7):
        later += 2 * STEADY_S
        found = await services.instances.heartbeat(LOCAL, instance.instance_id)
        os.kill(found.pid, signal.SIGKILL)
        assert (await again(services, instance.instance_id, times)).restarts == times


def watches(pid: int) -> int:
    """How many descriptors of ours wait for the end of that process."""
    found = 0
    for number in os.listdir("/proc/self/fdinfo"):
        with contextlib.suppress(OSError):
            rows = Path(f"/proc/self/fdinfo/{number}").read_text().split("\n")
            found += f"Pid:\t{pid}" in rows
    return found


async def test_what_may_end_it_is_watched_once(services: Services, project: Path) -> None:
    owner = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        more = {"owner_pid": owner.pid, "ttl_s": 600.0, "lease_s": 600.0, **AGAIN}
        instance = (await start(services, OK, project, **more)).instance
        live = services.instances._book.get(instance.instance_id)
        assert live is not None
        before = len(live.ends) + len(live.hold_ends)
        assert watches(owner.pid) == 1
        os.kill(instance.pid, signal.SIGKILL)
        await again(services, instance.instance_id, 1)
        after = len(live.ends) + len(live.hold_ends)
        assert (watches(owner.pid), after) == (1, before)
    finally:
        owner.kill()
        owner.communicate()
