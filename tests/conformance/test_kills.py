"""Ending one run with all that came of it, on every runtime."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from carrel.domain.errors import RunNotFound, SandboxUnavailable
from carrel.domain.ids import new_id
from carrel.domain.runtimes import ExitReason, LocalRun, Output, Sandbox
from carrel.linux import processes
from tests.conformance.runtime_rig import WAIT_S, Rig, finish

_FAMILY = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for kind in range(5):
    r, w = os.pipe()
    if not (child := os.fork()):
        if kind >= 1: os.setsid()
        if kind >= 2 and os.fork(): os._exit(0)
        os.write(w, b"x")
        if kind == 3: os.kill(os.getpid(), signal.SIGSTOP)
        if kind == 4: os.execvp("sleep", ["sleep", "60"])
        while True: time.sleep(60)
    os.read(r, 1)
    if kind >= 2: os.waitpid(child, 0)
print("ready", flush=True)
if sys.argv[1] == "stay": time.sleep(60)
"""
"""A child, one in a session of its own, a grandchild that detached itself, one that is stopped
and one that is another program."""


async def _begin(rig: Rig, sandbox: Sandbox, mode: str) -> LocalRun:
    run = await rig.begin(sandbox, "/usr/bin/python3", "-I", "-c", _FAMILY, mode)
    await rig.recorded(sandbox, run.run_id, "ready")
    return run


def _of(run: LocalRun) -> set[int]:
    found = {int(name) for name in os.listdir("/proc") if name.isdigit()}
    return set(processes.having_variable(found, "CARREL_RUN", run.run_id))


async def _ended(run: LocalRun) -> tuple[ExitReason, int | None]:
    ended = (await finish(run)).exit
    return ended.reason, ended.signal


async def test_all_of_one_run_goes_and_another_stays(rig: Rig) -> None:
    sandbox = await rig.start()
    other, run = await _begin(rig, sandbox, "stay"), await _begin(rig, sandbox, "stay")
    assert len(kept := _of(other)) == 6 and len(_of(run)) == 6
    await rig.runtime.kill(sandbox, run.run_id)
    assert _of(run) == set()
    assert await _ended(run) == (ExitReason.SIGNALED, signal.SIGKILL)
    assert _of(other) == kept
    assert (await rig.sh(sandbox, "echo on")).out == "on\n"
    await rig.runtime.kill(sandbox, run.run_id)
    await rig.runtime.kill(sandbox, other.run_id)
    assert _of(other) == set()
    assert await _ended(other) == (ExitReason.SIGNALED, signal.SIGKILL)


async def test_what_an_ended_run_left_goes_too(rig: Rig) -> None:
    sandbox = await rig.start()
    run, other = await _begin(rig, sandbox, "leave"), await _begin(rig, sandbox, "leave")
    assert await _ended(run) == (ExitReason.EXITED, None)
    assert await _ended(other) == (ExitReason.EXITED, None)
    assert len(_of(run)) == 5
    await rig.runtime.kill(sandbox, run.run_id)
    assert _of(run) == set() and len(_of(other)) == 5
    await rig.runtime.kill(sandbox, other.run_id)
    assert _of(other) == set()


async def test_a_run_of_a_dead_launcher(fresh: Rig) -> None:
    """As an ordinary user it may have died with its launcher: then there is nothing to end."""
    rig = fresh
    sandbox = await rig.start()
    run, left = await _begin(rig, sandbox, "stay"), await _begin(rig, sandbox, "leave")
    await finish(left)
    await rig.kill_launcher()
    await rig.runtime.kill(sandbox, left.run_id)
    assert _of(left) == set()
    await rig.runtime.kill(sandbox, run.run_id)
    assert _of(run) == set()
    async with asyncio.timeout(WAIT_S):
        assert (await run.wait()).reason is ExitReason.LOST
    run.close()


async def test_one_that_forks_all_the_time(rig: Rig) -> None:
    sandbox = await rig.start()
    code = (
        "import os\nprint(1234, flush=True)\nwhile True:\n if os.fork(): os._exit(0)\n os.setsid()"
    )
    run = await rig.begin(sandbox, "/usr/bin/python3", "-I", "-c", code)
    await rig.recorded(sandbox, run.run_id, "1234")
    await rig.runtime.kill(sandbox, run.run_id)
    assert _of(run) == set()
    await finish(run)


async def test_one_that_is_just_starting(rig: Rig) -> None:
    sandbox = await rig.start()
    run_id = new_id("ru")
    starting = asyncio.create_task(rig.begin(sandbox, "sleep", "60", run_id=run_id))
    while not (sandbox.spec.folder / "runs" / run_id).exists():
        await asyncio.sleep(0)
    await rig.runtime.kill(sandbox, run_id)
    try:
        run = await starting
    except SandboxUnavailable as error:
        assert "killed" in error.message
        return
    await rig.runtime.kill(sandbox, run_id)
    assert await _ended(run) == (ExitReason.SIGNALED, signal.SIGKILL)


async def test_a_terminal_and_raw_pipes(rig: Rig) -> None:
    sandbox = await rig.start()
    for output in (Output.PTY, Output.PIPES):
        run = await rig.begin(sandbox, "sleep", "60", output=output)
        await rig.runtime.kill(sandbox, run.run_id)
        assert await _ended(run) == (ExitReason.SIGNALED, signal.SIGKILL)


async def test_an_unknown_run_is_no_error_and_a_bad_name_is(rig: Rig) -> None:
    sandbox = await rig.start()
    await rig.runtime.kill(sandbox, new_id("ru"))
    with pytest.raises(RunNotFound):
        await rig.runtime.kill(sandbox, "../../etc")
