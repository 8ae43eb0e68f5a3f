"""Readers that are attached to a command get every byte of it, however slow they are."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, cast

import pytest

from carrel.domain.ids import new_id
from carrel.domain.runs import Piece, Stream
from carrel.domain.runtimes import LocalRun, Output, Sandbox
from carrel.launcher.loop import Loop, Timer
from carrel.launcher.recorder import MOST_READERS, Recorder, RecordingSpec
from carrel.launcher.streams import STEP_BYTES, TURN_BYTES
from carrel.runtimes.recordings import LEASE_S, PACE_BYTES, FileRecordings, Readers
from tests.conformance.runtime_rig import (
    RUNTIMES,
    WAIT_S,
    Grounds,
    Rig,
    open_grounds,
    open_rig,
)
from tests.idle_time import IdleTimeLoop

KEEP = 1 << 20
WINDOW = KEEP + STEP_BYTES + TURN_BYTES
"""What a command may be ahead, with what one turn of the launcher and a pipe hold."""
LAST = 1_000_000
CONTENT = ("\n".join(map(str, range(1, LAST + 1))) + "\n").encode()
COUNT = ("seq", "1", str(LAST))
FOR_EVER = 3600.0


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


class Reading:
    """Followers of one run, as a daemon has them."""

    def __init__(self, readers: Readers, sandbox: Sandbox, run: LocalRun) -> None:
        self.recordings = FileRecordings(readers)
        self.folder, self.run = sandbox.spec.folder, run
        self.ended = asyncio.Event()
        self.task = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        await self.run.wait()
        self.ended.set()

    def follow(
        self, reader: str, offset: int = 0, stream: Stream = Stream.STDOUT
    ) -> AsyncGenerator[Piece, None]:
        run_id = self.run.run_id
        return self.recordings.follow(self.folder, run_id, stream, offset, self.ended, reader)

    async def all(self, reader: str, offset: int = 0, stream: Stream = Stream.STDOUT) -> bytes:
        """Without a gap."""
        found = bytearray()
        async with (
            asyncio.timeout(WAIT_S),
            contextlib.aclosing(self.follow(reader, offset, stream)) as pieces,
        ):
            async for piece in pieces:
                assert piece.offset == offset + len(found)
                found += piece.data
        return bytes(found)

    async def close(self) -> None:
        async with asyncio.timeout(WAIT_S):
            await self.task
        self.recordings.close()
        self.run.close()


@contextlib.asynccontextmanager
async def reading(
    rig: Rig,
    *argv: str,
    lease_s: float = FOR_EVER,
    reader: str = "me",
    output: Output = Output.FILES,
) -> AsyncIterator[tuple[Sandbox, Reading]]:
    rig.readers.lease_s = lease_s
    sandbox = await rig.start()
    run = await rig.begin(sandbox, *argv, keep_bytes=KEEP, reader=reader, output=output)
    found = Reading(rig.readers, sandbox, run)
    try:
        yield sandbox, found
    finally:
        await found.close()


async def _until_waiting(run: LocalRun) -> None:
    """In a write to its output, of which more than a pipe holds would be there by now."""
    async with asyncio.timeout(WAIT_S):
        while True:
            state = Path(f"/proc/{run.pid}/stat").read_text().rpartition(")")[2].split()[0]
            call = Path(f"/proc/{run.pid}/syscall").read_text().split()[:2]
            size = os.stat(run.stdout).st_size if isinstance(run.stdout, Path) else 0
            if state == "S" and call == ["1", "0x1"] and size >= KEEP + STEP_BYTES:
                return
            await asyncio.sleep(0)


async def test_a_command_waits_for_who_began_it(any_rig: Rig) -> None:
    async with reading(any_rig, *COUNT) as (_, found):
        await _until_waiting(found.run)
        assert isinstance(found.run.stdout, Path)
        assert found.run.stdout.stat().st_blocks * 512 <= WINDOW
        assert await found.all("me") == CONTENT


async def test_so_does_one_in_a_terminal(rig: Rig) -> None:
    async with reading(rig, *COUNT, output=Output.PTY) as (_, found):
        await _until_waiting(found.run)
        assert await found.all("me") == CONTENT.replace(b"\n", b"\r\n")


async def test_one_stream_does_not_wait_for_the_reader_of_the_other(rig: Rig) -> None:
    script = f"{' '.join(COUNT)} >&2 & {' '.join(COUNT)}; wait"
    async with reading(rig, "sh", "-c", script) as (_, found):
        assert await _up_to(found, len(CONTENT), Stream.STDERR) == CONTENT
        assert await found.all("me") == CONTENT


async def _up_to(found: Reading, size: int, stream: Stream) -> bytes:
    seen = bytearray()
    async with (
        asyncio.timeout(WAIT_S),
        contextlib.aclosing(found.follow("me", 0, stream)) as pieces,
    ):
        async for piece in pieces:
            assert piece.offset == len(seen)
            seen += piece.data
            if len(seen) >= size:
                break
    return bytes(seen)


async def test_the_slowest_of_two_readers_is_waited_for(rig: Rig) -> None:
    async with reading(rig, *COUNT) as (_, found):
        slow = found.follow("me")
        async with contextlib.aclosing(slow):
            first = await anext(slow)
            fast = asyncio.create_task(found.all("other"))
            await _until_waiting(found.run)
            assert not fast.done()
            rest = [piece.data async for piece in slow]
        assert first.data + b"".join(rest) == CONTENT
        assert await fast == CONTENT


async def test_one_that_attaches_late_has_all_that_is_there_and_what_comes(rig: Rig) -> None:
    async with reading(rig, *COUNT) as (_, found):
        await _until_waiting(found.run)
        late = asyncio.create_task(found.all("late", 1000))
        assert await found.all("me") == CONTENT
        assert await late == CONTENT[1000:]


async def test_who_lost_its_connection_goes_on_where_it_was(rig: Rig) -> None:
    """What it was sent last did not arrive, and is there."""
    async with reading(rig, *COUNT) as (_, found):
        pieces = found.follow("me")
        seen = 0
        async with contextlib.aclosing(pieces):
            async for piece in pieces:
                seen = piece.offset + len(piece.data)
                if seen >= 2 * KEEP:
                    break
        await _until_waiting(found.run)
        arrived = seen - KEEP // 2
        assert await found.all("me", arrived) == CONTENT[arrived:]


async def test_a_command_goes_on_without_a_reader_that_does_not_come_back(rig: Rig) -> None:
    """And whoever reads it later sees how much is missing."""
    async with reading(rig, *COUNT, lease_s=0.2) as (_, found):
        async with asyncio.timeout(WAIT_S):
            await found.run.wait()
        pieces = [piece async for piece in found.follow("")]
    assert 0 < pieces[0].offset <= len(CONTENT) - KEEP
    assert b"".join(piece.data for piece in pieces) == CONTENT[pieces[0].offset :]


async def test_one_that_leaves_for_good_is_not_waited_for(rig: Rig) -> None:
    async with reading(rig, *COUNT) as (_, found):
        async with contextlib.aclosing(found.follow("me")) as pieces:
            await anext(pieces)
        await _until_waiting(found.run)
        found.recordings.let_go(found.run.run_id, "me")
        async with asyncio.timeout(WAIT_S):
            await found.run.wait()


async def test_the_end_of_an_old_connection_does_not_end_the_new_one(rig: Rig) -> None:
    async with reading(rig, *COUNT) as (_, found):
        old, new = found.follow("me"), found.follow("me")
        await anext(old)
        first = await anext(new)
        await old.aclose()
        assert len(rig.readers.of(found.run.run_id)) == 1
        rest = [piece.data async for piece in new]
    assert first.data + b"".join(rest) == CONTENT


async def test_a_command_that_nobody_began_to_read_runs_to_its_end(rig: Rig) -> None:
    async with reading(rig, *COUNT, reader="") as (_, found):
        async with asyncio.timeout(WAIT_S):
            assert (await found.run.wait()).code == 0


async def test_a_command_that_waits_can_be_stopped(rig: Rig) -> None:
    async with reading(rig, *COUNT) as (sandbox, found):
        await _until_waiting(found.run)
        await rig.runtime.kill(sandbox, found.run.run_id)
        async with asyncio.timeout(WAIT_S):
            assert (await found.run.wait()).signal == 9
        seen = await found.all("me")
    assert CONTENT.startswith(seen) and len(seen) >= KEEP + STEP_BYTES


async def test_nothing_is_missing_when_the_launcher_is_killed(data: Path) -> None:
    async with open_rig(data, "bubblewrap") as rig, reading(rig, *COUNT) as (_, found):
        pieces = found.follow("me")
        first = await anext(pieces)
        await _until_waiting(found.run)
        await rig.kill_launcher()
        rest = [piece.data async for piece in pieces]
    assert first.data + b"".join(rest) == CONTENT


async def test_nor_when_the_daemon_is_killed_with_it(data: Path) -> None:
    """Whoever began to read has the time of a lease to be back."""
    async with open_rig(data, "bubblewrap") as rig:
        rig.readers.lease_s = FOR_EVER
        sandbox = await rig.start()
        run = await rig.begin(sandbox, *COUNT, keep_bytes=KEEP, reader="me")
        await _until_waiting(run)
        run.close()
        await rig.kill_launcher()
        run = await rig.make_runtime().attach(sandbox, run.run_id)
        await _until_waiting(run)
        found = Reading(rig.readers, sandbox, run)
        assert await found.all("me") == CONTENT
        await found.close()


class Still:
    """Instead of a loop: nothing happens by itself."""

    def watch(self, descriptor: int, action: Callable[[], None]) -> None: ...

    def unwatch(self, descriptor: int) -> None: ...

    def after(self, seconds: float, action: Callable[[], None]) -> Timer:
        return Timer(seconds, action)


def test_more_readers_than_are_waited_for(tmp_path: Path) -> None:
    (tmp_path / "stdout").touch()
    source, write = os.pipe2(os.O_NONBLOCK)
    spec = RecordingSpec("ru_x", "sp_x", str(tmp_path), ("stdout",), KEEP)
    recorder = Recorder(cast(Loop, Still()), str(tmp_path / "notes"))
    recorded = recorder.record(spec, [source])
    try:
        for number in range(MOST_READERS + 1):
            recorded.hold("stdout", f"r{number}", MOST_READERS - number, FOR_EVER)
        assert recorded._open["stdout"].held == 1
        recorded.hold("stderr", "me", 0, FOR_EVER)
    finally:
        os.close(write)
        recorded.close()


class Told:
    """A launcher that remembers what it was told."""

    def __init__(self) -> None:
        self.paces: list[list[tuple[str, str, str, int | None]]] = []

    async def ask(
        self, op: str, fields: Any, descriptors: list[int], timeout_s: float = 1.0
    ) -> tuple[dict[str, Any], list[int]]:
        assert op == "pace" and fields["lease"] == LEASE_S
        self.paces.append(fields["holds"])
        return {}, []


async def test_nothing_is_said_of_a_command_that_leaves_nothing_running(tmp_path: Path) -> None:
    """The launcher knows who began it, and that its streams are closed."""
    told = Told()
    recordings = FileRecordings(readers := Readers(told))
    names = []
    for record in ({"stdout_bytes": 2, "stdout_closed": True}, {"stdout_bytes": 2}):
        names.append(run_id := new_id("ru"))
        place = tmp_path / "runs" / run_id
        place.mkdir(parents=True)
        (place / "stdout").write_bytes(b"x\n")
        (place / "exit.json").write_text(json.dumps(record))
        readers.begun(run_id, "me")
        ended = asyncio.Event()
        async for piece in recordings.follow(tmp_path, run_id, Stream.STDOUT, 0, ended, "me"):
            assert piece.data == b"x\n"
            ended.set()
    async with asyncio.timeout(WAIT_S):
        while not told.paces:
            await asyncio.sleep(0)
    recordings.close()
    assert told.paces == [[(names[1], "stdout", "me", None)]]


def test_a_lease_is_renewed_as_long_as_somebody_reads() -> None:
    """And little is said."""
    told = Told()
    key = ("ru_x", Stream.STDOUT, "me")

    async def scenario() -> None:
        readers = Readers(told)
        hold = await readers.hold(key, 0)
        for position in range(0, 2 * PACE_BYTES, 1000):
            readers.move(hold, position)
        await asyncio.sleep(10 * LEASE_S)
        readers.leave(hold)
        await asyncio.sleep(10 * LEASE_S)

    loop = IdleTimeLoop()
    try:
        loop.run_until_complete(scenario())
    finally:
        loop.close()
    moved = 1000 * -(-PACE_BYTES // 1000)
    assert told.paces[:2] == [[(*key, 0)], [(*key, moved)]]
    renewals = told.paces[2:]
    assert all(pace == [(*key, moved)] for pace in renewals)
    assert 39 <= len(renewals) <= 41


def test_who_pauses_is_not_forgotten_over_those_who_read_on() -> None:
    told = Told()
    slow, quick = ("ru_x", Stream.STDOUT, "slow"), ("ru_y", Stream.STDOUT, "quick")
    renewed: list[float] = []

    async def scenario() -> None:
        readers = Readers(told)
        await readers.hold(slow, 7)
        reading = await readers.hold(quick, 0)
        for second in range(int(3 * LEASE_S)):
            told.paces.clear()
            readers.move(reading, (second + 1) * PACE_BYTES)
            await asyncio.sleep(1.0)
            if (*slow, 7) in chain(*told.paces):
                renewed.append(second)
        readers.close()

    loop = IdleTimeLoop()
    try:
        loop.run_until_complete(scenario())
    finally:
        loop.close()
    gaps = [later - earlier for earlier, later in pairwise([0, *renewed, 3 * LEASE_S])]
    assert max(gaps) < LEASE_S / 2
