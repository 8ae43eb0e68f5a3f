"""Recorded output with a real launcher: floods, full disks, and everybody's death."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import shlex
import signal
import termios
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from carrel.domain.errors import InsufficientDisk
from carrel.domain.runs import Piece, Stream
from carrel.domain.runtimes import ExitReason, LocalRun, Output, Sandbox
from carrel.launcher.streams import STEP_BYTES, TURN_BYTES
from carrel.linux import processes
from carrel.runtimes.limits.cgroups import Cgroups, Survey
from carrel.runtimes.recordings import FileRecordings
from tests.conformance.runtime_rig import (
    WAIT_S,
    Grounds,
    Rig,
    finish,
    open_grounds,
    open_rig,
)
from tests.launcher.disks import fill, root_only, small_disk
from tests.sampling import beyond

BLOCK = 1 << 16
KEEP = 2 << 20
PYTHON = "/usr/bin/python3"
RUNTIMES = ("bubblewrap", "landlock", *beyond("process"))
"""Without walls, a command is begun as in those of Landlock."""


@pytest.fixture(scope="module")
def grounds() -> Iterator[Grounds]:
    with open_grounds() as found:
        yield found


@pytest.fixture
async def rig(grounds: Grounds) -> AsyncIterator[Rig]:
    async with grounds.rig("bubblewrap") as opened:
        yield opened


@pytest.fixture(params=RUNTIMES)
async def any_rig(request: pytest.FixtureRequest, grounds: Grounds) -> AsyncIterator[Rig]:
    async with grounds.rig(request.param) as opened:
        yield opened


@pytest.fixture(params=RUNTIMES)
async def mortal(request: pytest.FixtureRequest, data: Path) -> AsyncIterator[Rig]:
    """Whose launcher nobody else has: it may be killed."""
    async with open_rig(data, request.param) as opened:
        yield opened


def _exit_file(sandbox: Sandbox, run: LocalRun) -> dict[str, Any]:
    path = sandbox.spec.folder / "runs" / run.run_id / "exit.json"
    record: dict[str, Any] = json.loads(path.read_text())
    return record


async def _hello(rig: Rig) -> dict[str, Any]:
    return (await rig.launcher.ask("hello", {}, []))[0]


# Bounds


_MUCH = f"""
import sys
for number in range(1600):
    sys.stdout.buffer.write(b"%015d\\n" % number * {BLOCK // 16})
"""


async def test_100_mb_are_bounded_with_the_right_end_at_the_right_offsets(any_rig: Rig) -> None:
    rig = any_rig
    sandbox = await rig.start()
    run = await rig.begin(sandbox, PYTHON, "-c", _MUCH, keep_bytes=KEEP)
    async with asyncio.timeout(WAIT_S):
        assert (await run.wait()).code == 0
    total = 1600 * BLOCK
    record = _exit_file(sandbox, run)
    assert (record["stdout_bytes"], record["stderr_bytes"]) == (total, 0)
    assert "stdout_dropped" not in record
    assert isinstance(run.stdout, Path)
    assert run.stdout.stat().st_blocks * 512 <= KEEP + STEP_BYTES + TURN_BYTES + BLOCK
    folder, recordings = sandbox.spec.folder, FileRecordings()
    assert recordings.size(folder, run.run_id, Stream.STDOUT) == total
    first = recordings.read(folder, run.run_id, Stream.STDOUT, 0, 1)
    assert KEEP <= total - first.offset <= KEEP + STEP_BYTES + TURN_BYTES + BLOCK
    position = first.offset
    while position < total:
        piece = recordings.read(folder, run.run_id, Stream.STDOUT, position, 1 << 20)
        assert piece.offset == position
        for at in range(0, len(piece.data), 16):
            number = (position + at) // BLOCK
            assert piece.data[at : at + 16] == b"%015d\n" % number
        position += len(piece.data)
    run.close()


async def test_a_flood_keeps_nobody_waiting(rig: Rig) -> None:
    sandbox, other = await rig.start(), await rig.start()
    floods = [await rig.begin(one, "yes", keep_bytes=KEEP) for one in (sandbox, other)]
    typed = await rig.begin(sandbox, "cat", stdin=True)
    assert typed.stdin is not None
    for number in range(10):
        word = f"line {number}\n"
        os.write(typed.stdin, word.encode())
        await rig.recorded(sandbox, typed.run_id, word)
        assert (await rig.sh(other, "echo still here")).out == "still here\n"
    await typed.close_input()
    assert (await finish(typed)).exit.code == 0
    for one, flood in zip((sandbox, other), floods, strict=True):
        assert isinstance(flood.stdout, Path)
        assert flood.stdout.stat().st_blocks * 512 <= KEEP + STEP_BYTES + TURN_BYTES + BLOCK
        await rig.runtime.signal(one, flood.run_id, signal.SIGKILL)
        async with asyncio.timeout(WAIT_S):
            assert (await flood.wait()).signal == 9
        flood.close()


@root_only
@pytest.mark.parametrize("name", RUNTIMES)
async def test_a_full_disk_stops_neither_command_nor_launcher(name: str) -> None:
    script = f"""
import os, sys
sys.stdout.buffer.write(b"a" * {BLOCK}); sys.stdout.flush()
open("begun", "w"); input()
sys.stdout.buffer.write(b"b" * {32 * BLOCK}); sys.stdout.flush()
sys.stderr.write("full\\n"); sys.stderr.flush()
input()
sys.stdout.buffer.write(b"c" * {BLOCK})
"""
    with small_disk(16 << 20) as data:
        async with open_rig(data, name) as rig:
            sandbox = await rig.start()
            run = await rig.begin(sandbox, PYTHON, "-c", script, stdin=True)
            await rig.recorded(sandbox, run.run_id, "a" * BLOCK)
            ballast = fill(data)
            assert run.stdin is not None
            os.write(run.stdin, b"\n")
            # It has got through when it reads the second line.
            await _until_reading(run)
            await _until_taken(run)
            ballast.unlink()
            os.write(run.stdin, b"\n")
            done = await finish(run)
            assert done.exit.code == 0
            record = _exit_file(sandbox, run)
            total = 34 * BLOCK
            assert record["stdout_bytes"] == total
            assert 30 * BLOCK <= record["stdout_dropped"] <= 32 * BLOCK + 2 * 4096
            assert (record["stderr_bytes"], record["stderr_dropped"]) == (5, 5)
            pieces = await _followed(sandbox, run)
            assert pieces[-1].offset + len(pieces[-1].data) == total
            content = b"".join(piece.data for piece in pieces)
            assert set(content) <= set(b"abc") and content.endswith(b"c" * 1000)
            assert len(content) == total - record["stdout_dropped"]


@root_only
@pytest.mark.parametrize("name", RUNTIMES)
async def test_a_full_disk_refuses_new_commands_and_leaves_nothing(name: str) -> None:
    with small_disk(16 << 20) as data:
        async with open_rig(data, name) as rig:
            sandbox = await rig.start()
            await rig.run(sandbox, "true")
            before = sorted((sandbox.spec.folder / "runs").iterdir())
            ballast = fill(data)
            with pytest.raises(InsufficientDisk):
                await rig.run(sandbox, "sleep", "60")
            assert sorted((sandbox.spec.folder / "runs").iterdir()) == before
            assert (await _hello(rig))["runs"] == 0
            ballast.unlink()
            assert not any(map(_sleeps, _processes(sandbox)))
            assert (await rig.sh(sandbox, "echo again")).out == "again\n"


def _processes(sandbox: Sandbox) -> list[int]:
    """By a variable that every command of the sandbox gets."""
    wanted = f"CARREL_SPACE={sandbox.spec.sandbox_id}".encode()
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if wanted in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                found.append(int(name))
    return found


def _sleeps(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text() == "sleep\n"
    return False


async def _until_reading(run: LocalRun) -> None:
    """The command waits in a read of its standard input, and has taken all that was there:
    else it may be the read before."""
    assert run.stdin is not None
    async with asyncio.timeout(WAIT_S):
        while True:
            waiting = _unread(run.stdin)
            states = Path(f"/proc/{run.pid}/stat").read_text().rpartition(")")[2].split()[0]
            where = Path(f"/proc/{run.pid}/syscall").read_text().split()[:2]
            if not waiting and states == "S" and where == ["0", "0x0"]:
                return
            await asyncio.sleep(0)


async def _until_taken(run: LocalRun) -> None:
    """The launcher has emptied both pipes of the command, wherever the bytes went."""
    pipes = [os.open(f"/proc/{run.pid}/fd/{number}", os.O_RDONLY) for number in (1, 2)]
    try:
        async with asyncio.timeout(WAIT_S):
            while any(map(_unread, pipes)):
                await asyncio.sleep(0)
    finally:
        for pipe in pipes:
            os.close(pipe)


def _unread(pipe: int) -> int:
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), "little")


async def _followed(sandbox: Sandbox, run: LocalRun, stream: Stream = Stream.STDOUT) -> list[Piece]:
    recordings, ended = FileRecordings(), asyncio.Event()
    ended.set()
    follow = recordings.follow(sandbox.spec.folder, run.run_id, stream, 0, ended)
    async with asyncio.timeout(WAIT_S), aclosing(follow):
        pieces = [piece async for piece in follow]
    recordings.close()
    return pieces


# After the command's own end


_LEAVES_A_CHILD = "(read x < gate; echo late; echo worse >&2) & echo early; exit 3"


async def test_a_child_left_behind_is_recorded_to_its_end(any_rig: Rig) -> None:
    rig = any_rig
    sandbox = await rig.start()
    await rig.run(sandbox, "mkfifo", "gate")
    done = await rig.begin(sandbox, "sh", "-c", _LEAVES_A_CHILD)
    finished = await finish(done)
    assert (finished.exit.code, finished.out) == (3, "early\n")
    await _until_recordings(rig, 1)
    await rig.sh(sandbox, "echo > gate", timeout_s=WAIT_S)
    assert await rig.recorded(sandbox, done.run_id, "late\n") == "early\nlate\n"
    assert await rig.recorded(sandbox, done.run_id, "worse\n", Stream.STDERR) == "worse\n"
    await _until_recordings(rig, 0)


async def _until_recordings(rig: Rig, count: int) -> None:
    """Those of commands that have just ended may still be there."""
    async with asyncio.timeout(WAIT_S):
        while (await _hello(rig))["recordings"] != count:
            await asyncio.sleep(0)


async def test_stopping_ends_the_recording_of_what_was_left_behind(any_rig: Rig) -> None:
    rig = any_rig
    sandbox = await rig.start()
    run = await rig.begin(sandbox, "sh", "-c", "setsid yes & echo ready", keep_bytes=KEEP)
    async with asyncio.timeout(WAIT_S):
        await run.wait()
    # Its file grows faster than anybody reads it to the end.
    run.close()
    await rig.recorded(sandbox, run.run_id, "y\n")
    assert (await _hello(rig))["recordings"] == 1
    await rig.runtime.stop(sandbox, grace_s=0.1)
    assert (await _hello(rig))["recordings"] == 0


async def test_the_end_is_told_after_all_that_was_written(any_rig: Rig) -> None:
    rig = any_rig
    sandbox = await rig.start()
    for size in (1, 65536, 65537, 300_000):
        done = await rig.run(sandbox, "head", "-c", str(size), "/dev/zero")
        assert len(done.out) == size


# Nobody listens


@pytest.mark.parametrize("turns", [0, 1, 2, 5, 20])
async def test_a_start_that_is_given_up_leaves_nothing_running(any_rig: Rig, turns: int) -> None:
    rig = any_rig
    sandbox = await rig.start()
    await rig.run(sandbox, "true")
    starting = asyncio.create_task(rig.begin(sandbox, "sleep", "60"))
    for _ in range(turns):
        await asyncio.sleep(0)
    starting.cancel()
    (run,) = await asyncio.gather(starting, return_exceptions=True)
    if not isinstance(run, BaseException):
        run.close()
        await rig.runtime.signal(sandbox, run.run_id, signal.SIGKILL)
    folder = sandbox.spec.folder / "runs"
    async with asyncio.timeout(WAIT_S):
        while any(map(_sleeps, _processes(sandbox))) or (await _hello(rig))["runs"]:
            await asyncio.sleep(0)
        while any(not (one / "exit.json").exists() for one in folder.iterdir()):
            await asyncio.sleep(0)
    assert (await rig.sh(sandbox, "echo on")).out == "on\n"


async def test_output_is_kept_while_there_is_no_client(any_rig: Rig) -> None:
    """More than a pipe holds."""
    rig = any_rig
    sandbox = await rig.start()
    await rig.run(sandbox, "mkfifo", "gate")
    script = "read x < gate; head -c 1000000 /dev/zero; echo on >&2; exec cat gate"
    run = await rig.begin(sandbox, "sh", "-c", script)
    run.close()
    rig.launcher.close()
    await rig.sh(sandbox, "echo > gate", timeout_s=WAIT_S)
    await rig.recorded(sandbox, run.run_id, "on\n", Stream.STDERR)
    taken_up = await rig.make_runtime().attach(sandbox, run.run_id)
    await rig.sh(sandbox, "echo end > gate", timeout_s=WAIT_S)
    done = await finish(taken_up)
    assert (done.exit.code, done.err) == (0, "on\n")
    assert done.out == "\0" * 1_000_000 + "end\n"


# The launcher dies


_COUNTING = """
import os, time
number = 0
while not os.path.exists("enough") or number < 60_000:
    print(f"{number:015d}", flush=number % 100 == 0)
    number += 1
    if number == 20_000: open("begun", "w")
"""


async def test_a_command_outlives_the_launcher_and_is_recorded_again(mortal: Rig) -> None:
    rig = mortal
    sandbox = await rig.start()
    run = await rig.begin(sandbox, PYTHON, "-c", _COUNTING)
    await rig.sh(sandbox, "until [ -e begun ]; do :; done", timeout_s=WAIT_S)
    await rig.kill_launcher()
    assert processes.start_time(run.pid) is not None
    # The live run notices, and has a new launcher take it up; so does anybody else.
    taken_up = await rig.runtime.attach(sandbox, run.run_id)
    assert taken_up.pid == run.pid
    await rig.sh(sandbox, "touch enough")
    async with asyncio.timeout(WAIT_S):
        for one in (run, taken_up):
            assert (await one.wait()).reason is ExitReason.LOST
            one.close()
    content = b"".join(piece.data for piece in await _followed(sandbox, run))
    numbers = [int(line) for line in content.splitlines()]
    assert numbers == list(range(len(numbers))) and len(numbers) >= 60_000
    assert _exit_file(sandbox, run)["stdout_bytes"] == len(content)


async def test_a_run_of_an_earlier_launcher_can_be_signalled_and_its_time_runs_out(
    mortal: Rig,
) -> None:
    rig = mortal
    sandbox = await rig.start()
    script = "trap 'echo got' USR1; echo ready; while :; do sleep 0.01; done"
    run = await rig.begin(sandbox, "sh", "-c", script, timeout_s=3.0)
    await rig.recorded(sandbox, run.run_id, "ready\n")
    await rig.kill_launcher()
    taken_up = await rig.runtime.attach(sandbox, run.run_id)
    await rig.runtime.signal(sandbox, run.run_id, signal.SIGUSR1)
    await rig.recorded(sandbox, run.run_id, "got\n")
    async with asyncio.timeout(WAIT_S):
        ended = await taken_up.wait()
    assert ended.ended_at - ended.started_at >= 2.9
    for one in (run, taken_up):
        one.close()


async def test_a_child_left_behind_outlives_the_launcher_and_is_recorded_again(
    mortal: Rig,
) -> None:
    rig = mortal
    sandbox = await rig.start()
    await rig.run(sandbox, "mkfifo", "gate")
    run = await rig.begin(sandbox, "sh", "-c", _LEAVES_A_CHILD)
    assert (await finish(run)).exit.code == 3
    note = rig.data / "launcher" / "recordings" / f"{run.run_id}.json"
    async with asyncio.timeout(WAIT_S):
        while not note.exists():
            await asyncio.sleep(0)
    await rig.kill_launcher()
    await _until_recordings(rig, 1)
    await rig.sh(sandbox, "echo > gate", timeout_s=WAIT_S)
    assert await rig.recorded(sandbox, run.run_id, "late\n") == "early\nlate\n"
    async with asyncio.timeout(WAIT_S):
        while note.exists():
            await asyncio.sleep(0)


async def test_without_control_groups_a_keeper_leads_to_the_pipes(data: Path) -> None:
    async with open_rig(data, "process") as rig:
        rig.cgroups = Cgroups(lambda: Survey((), ()))
        rig.runtime = rig.make_runtime()
        sandbox = await rig.start()
        await rig.run(sandbox, "mkfifo", "gate")
        script = f"read x < gate; setsid sh -c {shlex.quote(_LEAVES_A_CHILD)}"
        run = await rig.begin(sandbox, "sh", "-c", script)
        await rig.kill_launcher()
        taken_up = await rig.runtime.attach(sandbox, run.run_id)
        await rig.sh(sandbox, "echo > gate", timeout_s=WAIT_S)
        async with asyncio.timeout(WAIT_S):
            # Although its child goes on.
            assert (await taken_up.wait()).reason is ExitReason.LOST
            while (await _hello(rig))["recordings"] != 1:
                # What opened the gate has ended, and is just being forgotten.
                await asyncio.sleep(0)
        await rig.sh(sandbox, "echo > gate", timeout_s=WAIT_S)
        assert await rig.recorded(sandbox, run.run_id, "late\n") == "early\nlate\n"
        for one in (run, taken_up):
            one.close()
        left = await rig.begin(sandbox, "sh", "-c", "setsid sleep 61 & echo")
        await finish(left)
        await rig.kill_launcher()
        await rig.runtime.stop(sandbox, grace_s=0.1)
        assert _processes(sandbox) == []


async def test_a_terminal_that_a_client_has_outlives_the_launcher(mortal: Rig) -> None:
    rig = mortal
    sandbox = await rig.start()
    script = "echo ready; read a; echo first $a; read b; echo second $b"
    run = await rig.begin(sandbox, "sh", "-c", script, output=Output.PTY)
    await rig.recorded(sandbox, run.run_id, "ready")
    assert run.stdin is not None
    os.write(run.stdin, b"one\n")
    await rig.recorded(sandbox, run.run_id, "first one")
    await rig.kill_launcher()
    # The client's own side gives the terminal to the next launcher.
    async with asyncio.timeout(WAIT_S):
        while (await _hello(rig))["runs"] == 0:
            await asyncio.sleep(0)
    os.write(run.stdin, b"two\n")
    seen = await rig.recorded(sandbox, run.run_id, "second two")
    assert seen.splitlines() == ["ready", "one", "first one", "two", "second two"]
    async with asyncio.timeout(WAIT_S):
        assert (await run.wait()).reason is ExitReason.LOST
    run.close()


async def test_input_that_a_client_has_outlives_the_launcher(mortal: Rig) -> None:
    rig = mortal
    sandbox = await rig.start()
    run = await rig.begin(sandbox, "cat", stdin=True)
    assert run.stdin is not None
    os.write(run.stdin, b"one\n")
    await rig.recorded(sandbox, run.run_id, "one\n")
    await rig.kill_launcher()
    async with asyncio.timeout(WAIT_S):
        while (await _hello(rig))["runs"] == 0:
            await asyncio.sleep(0)
    run.close()
    taken_up = await rig.make_runtime().attach(sandbox, run.run_id)
    assert taken_up.stdin is not None
    os.write(taken_up.stdin, b"two\n")
    await taken_up.close_input()
    done = await finish(taken_up)
    assert done.out == "one\ntwo\n"
