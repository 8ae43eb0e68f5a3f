"""Limits in force: real commands run into them, and somebody is told the figure."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from carrel.domain.errors import LimitsUnavailable
from carrel.domain.limits import LimitKind, Limits
from carrel.domain.runtimes import ExitReason
from carrel.runtimes.limits import cgroups, disk, watching
from carrel.runtimes.limits.sites import Survey
from tests.conformance.runtime_rig import RUNTIMES, WAIT_S, Rig, finish, open_rig

MIB = 1 << 20
PYTHON = "/usr/bin/python3"


@pytest.fixture(params=RUNTIMES)
async def rig(request: pytest.FixtureRequest, data: Path) -> AsyncIterator[Rig]:
    async with open_rig(data, request.param) as opened:
        yield opened


def _needs(rig: Rig, kind: LimitKind) -> None:
    support = {one.kind: one for one in rig.cgroups.support()}[kind]
    if not support.enforced:
        pytest.skip(f"this machine cannot limit {kind}: {support.how}")


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
    monkeypatch.setattr(watching, "PERIOD_S", 0.01)
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
    monkeypatch.setattr(watching, "PERIOD_S", 0.0)
    _needs(rig, LimitKind.MEMORY)
    sandbox = await rig.start(limits=Limits(memory_bytes=64 * MIB))
    done = await rig.run(sandbox, PYTHON, "-c", "x = bytearray(400 << 20)")
    assert done.exit.reason is ExitReason.MEMORY
    assert [(event.kind, event.figure) for event in rig.events] == [(LimitKind.MEMORY, 64 * MIB)]


async def test_processes(rig: Rig) -> None:
    """A fork bomb fills its own sandbox and nothing else."""
    _needs(rig, LimitKind.PIDS)
    sandbox = await rig.start(limits=Limits(pids=20))
    bomb = (
        "import os, time\n"
        "made = 0\n"
        "try:\n"
        "    while True:\n"
        "        if os.fork() == 0: time.sleep(60)\n"
        "        made += 1\n"
        "except OSError as error: print(made, error.errno)\n"
    )
    done = await rig.run(sandbox, PYTHON, "-c", bomb)
    made, number = map(int, done.out.split())
    assert 15 <= made <= 25 and number == 11
    assert [(event.kind, event.figure) for event in rig.events] == [(LimitKind.PIDS, 20)]
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


async def test_disk_is_watched(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "PERIOD_S", 0.01)
    sandbox = await rig.start(limits=Limits(disk_bytes=4 * MIB))
    (support,) = sandbox.limits
    assert support.enforced and "watched" in support.how
    run = await rig.begin(sandbox, "sh", "-c", "head -c 20000000 /dev/zero > big; exec sleep 60")
    done = await finish(run)
    assert done.exit.reason is ExitReason.DISK
    assert [(event.kind, event.figure) for event in rig.events] == [(LimitKind.DISK, 4 * MIB)]


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
