"""Streams and ids of runs, for every runtime: what a command reads and writes, and who gets
it again."""

from __future__ import annotations

import asyncio
import os

import pytest

from carrel.domain.errors import CommandInvalid, CommandNotFound, RunNotFound
from carrel.domain.ids import new_id
from carrel.domain.runtimes import Output
from carrel.linux import processes
from tests.conformance.runtime_rig import CONTAINERS, WAIT_S, Rig, finish

# What a command has


async def test_output_can_be_opened_by_name(rig: Rig) -> None:
    """And what was written before is not lost by that."""
    sandbox = await rig.start()
    script = (
        "echo one; echo two > /dev/stdout; echo three >> /proc/self/fd/1; echo four;"
        "echo bad > /dev/stderr; echo worse >&2; tee /dev/stderr < /dev/stdin"
    )
    run = await rig.begin(sandbox, "sh", "-c", script, stdin=True)
    assert run.stdin is not None
    os.write(run.stdin, b"five\n")
    await run.close_input()
    done = await finish(run)
    assert done.out == "one\ntwo\nthree\nfour\nfive\n"
    assert done.err == "bad\nworse\nfive\n"


async def test_raw_pipes_can_be_opened_by_name(rig: Rig) -> None:
    sandbox = await rig.start()
    script = "echo out > /dev/stdout; echo err > /dev/stderr"
    run = await rig.begin(sandbox, "sh", "-c", script, output=Output.PIPES)
    assert isinstance(run.stdout, int) and isinstance(run.stderr, int)
    async with asyncio.timeout(WAIT_S):
        assert (await run.wait()).code == 0
    assert (os.read(run.stdout, 100), os.read(run.stderr, 100)) == (b"out\n", b"err\n")
    run.close()


async def test_pipes_carry_both_ways(rig: Rig) -> None:
    sandbox = await rig.start()
    run = await rig.begin(sandbox, "tr", "a-z", "A-Z", output=Output.PIPES, stdin=True)
    assert isinstance(run.stdin, int) and isinstance(run.stdout, int)
    os.write(run.stdin, b"hello")
    await run.close_input()
    async with asyncio.timeout(WAIT_S):
        assert await asyncio.to_thread(os.read, run.stdout, 100) == b"HELLO"
        assert (await run.wait()).code == 0
    run.close()


async def test_a_terminal_is_a_terminal(rig: Rig) -> None:
    sandbox = await rig.start()
    run = await rig.begin(
        sandbox, "sh", "-c", "tty >/dev/null && stty size", output=Output.PTY, pty_size=(33, 77)
    )
    assert run.stderr is None and isinstance(run.stdin, int)
    done = await finish(run)
    assert (done.exit.code, done.out) == (0, "33 77\n")


async def test_a_terminal_is_resized(rig: Rig) -> None:
    sandbox = await rig.start()
    script = "trap 'stty size; exit' WINCH; echo ready; while :; do sleep 0.01; done"
    run = await rig.begin(sandbox, "sh", "-c", script, output=Output.PTY)
    await rig.recorded(sandbox, run.run_id, "ready")
    run.resize(41, 99)
    assert "41 99" in await rig.recorded(sandbox, run.run_id, "41 99")
    assert (await finish(run)).exit.code == 0
    run.resize(1, 1)
    plain = await rig.begin(sandbox, "true")
    plain.resize(1, 1)
    await finish(plain)


# Taking up again


async def test_the_id_of_a_run_can_be_given(rig: Rig) -> None:
    sandbox = await rig.start()
    run_id = new_id("ru")
    run = await rig.begin(sandbox, "echo", "first", run_id=run_id)
    assert run.run_id == run_id
    await finish(run)
    with pytest.raises(CommandInvalid):
        await rig.begin(sandbox, "echo", "second", run_id=run_id)
    assert (await finish(await rig.runtime.attach(sandbox, run_id))).out == "first\n"


async def test_a_run_is_found_while_it_is_being_started(rig: Rig) -> None:
    """A daemon that died in the middle of it asks again at once."""
    sandbox = await rig.start()
    if rig.name not in CONTAINERS:
        # A container is made before the launcher hears of the run.
        await rig.runtime.stop(sandbox)
    run_id = new_id("ru")
    async with asyncio.timeout(WAIT_S):
        run, taken_up = await asyncio.gather(
            rig.begin(sandbox, "sh", "-c", "echo on; exit 8", run_id=run_id),
            rig.runtime.attach(sandbox, run_id),
        )
        assert taken_up.pid == run.pid
        assert (await run.wait()).code == 8
    run.close()
    assert (await finish(taken_up)).out == "on\n"


async def test_a_run_that_cannot_start_is_not_found(rig: Rig) -> None:
    sandbox = await rig.start()
    run_id = new_id("ru")
    async with asyncio.timeout(WAIT_S):
        failed, missing = await asyncio.gather(
            rig.begin(sandbox, "no-such-program", run_id=run_id),
            rig.runtime.attach(sandbox, run_id),
            return_exceptions=True,
        )
    assert isinstance(failed, CommandNotFound) and isinstance(missing, RunNotFound)


async def test_standard_input_is_given_again(rig: Rig) -> None:
    """It stays open while nobody has the run."""
    sandbox = await rig.start()
    run = await rig.begin(sandbox, "cat", stdin=True)
    assert run.stdin is not None and not os.get_blocking(run.stdin)
    os.write(run.stdin, b"one\n")
    await rig.recorded(sandbox, run.run_id, "one\n")
    run.close()
    runtime = rig.make_runtime()
    second = await runtime.attach(sandbox, run.run_id)
    assert processes.start_time(second.pid) is not None
    assert second.stdin is not None and not os.get_blocking(second.stdin)
    os.write(second.stdin, b"two\n")
    await second.close_input()
    await second.close_input()
    done = await finish(second)
    assert (done.out, done.err, done.exit.code) == ("one\ntwo\n", "", 0)
    third = await runtime.attach(sandbox, run.run_id)
    assert third.stdin is None
    await finish(third)


async def test_a_terminal_is_given_again(rig: Rig) -> None:
    sandbox = await rig.start()
    # A signal that comes just before a `read` would be heeded only after it.
    rest = "echo got $a; read b; while :; do sleep 0.05; done"
    script = f"stty size; read a; trap 'stty size; exit 6' WINCH; {rest}"
    run = await rig.begin(sandbox, "sh", "-c", script, output=Output.PTY)
    assert run.stdin is not None
    await rig.recorded(sandbox, run.run_id, "24 80")
    os.write(run.stdin, b"one\n")
    await rig.recorded(sandbox, run.run_id, "got one")
    run.close()
    second = await rig.make_runtime().attach(sandbox, run.run_id)
    assert second.stdin is not None and second.stderr is None
    await second.close_input()  # which a terminal does not have
    os.write(second.stdin, b"two\n")
    await rig.recorded(sandbox, run.run_id, "two")
    second.resize(50, 100)
    done = await finish(second)
    seen = ["24 80", "one", "got one", "two", "50 100"]
    assert (done.out.splitlines(), done.exit.code) == (seen, 6)


async def test_raw_pipes_are_not_given_again(rig: Rig) -> None:
    sandbox = await rig.start()
    run = await rig.begin(sandbox, "cat", output=Output.PIPES, stdin=True)
    second = await rig.make_runtime().attach(sandbox, run.run_id)
    assert (second.stdin, second.stdout, second.stderr) == (None, None, None)
    run.close()
    async with asyncio.timeout(WAIT_S):
        assert (await second.wait()).code == 0
    second.close()
