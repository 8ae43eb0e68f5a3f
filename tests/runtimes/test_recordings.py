"""Reading recordings: pieces, gaps, followers, and what a follower leaves behind."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from pathlib import Path

import pytest

from carrel.domain.errors import RunNotFound
from carrel.domain.ids import new_id
from carrel.domain.runs import Piece, Stream
from carrel.linux import files
from carrel.runtimes import recordings as module
from carrel.runtimes.recordings import PIECE_BYTES, FileRecordings

WAIT_S = 30.0
BLOCK = 1 << 16


class Run:
    """A recorded run, as the launcher leaves it on disk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run_id = new_id("ru")
        self.place = folder / "runs" / self.run_id
        self.place.mkdir(parents=True)
        self.out = self.place / "stdout"
        self.out.touch()

    def write(self, content: bytes, offset: int | None = None) -> None:
        descriptor = os.open(self.out, os.O_WRONLY)
        try:
            place = os.fstat(descriptor).st_size if offset is None else offset
            assert os.pwrite(descriptor, content, place) == len(content)
        finally:
            os.close(descriptor)

    def give_up(self, until: int) -> None:
        descriptor = os.open(self.out, os.O_WRONLY)
        try:
            if not files.punch_hole(descriptor, 0, until):
                pytest.skip("this file system cannot punch holes")
        finally:
            os.close(descriptor)

    def end(self, **totals: int) -> None:
        (self.place / "exit.json").write_text(json.dumps({"reason": "exited", **totals}))


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


@pytest.fixture
def recordings() -> Iterator[FileRecordings]:
    opened = FileRecordings()
    yield opened
    opened.close()


def _read(recordings: FileRecordings, run: Run, offset: int, limit: int = 1 << 20) -> Piece:
    return recordings.read(run.folder, run.run_id, Stream.STDOUT, offset, limit)


def _follow(
    recordings: FileRecordings, run: Run, ended: asyncio.Event, offset: int = 0
) -> AsyncGenerator[Piece, None]:
    return recordings.follow(run.folder, run.run_id, Stream.STDOUT, offset, ended)


async def _next(follow: AsyncGenerator[Piece, None]) -> Piece:
    async with asyncio.timeout(WAIT_S):
        return await anext(follow)


async def _rest(follow: AsyncGenerator[Piece, None]) -> list[Piece]:
    async with asyncio.timeout(WAIT_S):
        return [piece async for piece in follow]


# Pieces


def test_pieces_by_offset(recordings: FileRecordings, run: Run) -> None:
    run.write(b"0123456789")
    assert _read(recordings, run, 0) == Piece(Stream.STDOUT, 0, b"0123456789")
    assert _read(recordings, run, 4, 3) == Piece(Stream.STDOUT, 4, b"456")
    assert _read(recordings, run, 10) == Piece(Stream.STDOUT, 10, b"")
    assert _read(recordings, run, 99) == Piece(Stream.STDOUT, 99, b"")
    assert _read(recordings, run, -5).data == b"0123456789"
    assert recordings.size(run.folder, run.run_id, Stream.STDOUT) == 10


def test_what_was_given_up_is_skipped(recordings: FileRecordings, run: Run) -> None:
    run.write(b"a" * 2 * BLOCK)
    run.write(b"b" * BLOCK)
    run.give_up(BLOCK)
    piece = _read(recordings, run, 10, 100)
    assert piece == Piece(Stream.STDOUT, BLOCK, b"a" * 100)
    assert _read(recordings, run, 2 * BLOCK - 1, 2).data == b"ab"


def test_a_piece_ends_before_a_gap(recordings: FileRecordings, run: Run) -> None:
    run.write(b"a" * BLOCK)
    run.write(b"b" * BLOCK, offset=4 * BLOCK)
    assert _read(recordings, run, 0).data == b"a" * BLOCK
    assert _read(recordings, run, BLOCK) == Piece(Stream.STDOUT, 4 * BLOCK, b"b" * BLOCK)


def test_the_size_counts_what_had_no_room(recordings: FileRecordings, run: Run) -> None:
    run.write(b"abc")
    run.end(stdout_bytes=1000, stdout_dropped=997)
    assert recordings.size(run.folder, run.run_id, Stream.STDOUT) == 1000
    run.write(b"d" * 2000)  # a child that was left behind
    assert recordings.size(run.folder, run.run_id, Stream.STDOUT) == 2003


def test_a_stream_that_is_not_there_is_empty(recordings: FileRecordings, run: Run) -> None:
    piece = recordings.read(run.folder, run.run_id, Stream.STDERR, 7, 10)
    assert piece == Piece(Stream.STDERR, 7, b"")
    assert recordings.size(run.folder, run.run_id, Stream.STDERR) == 0


@pytest.mark.parametrize("run_id", ["", "..", "../../etc", "ru_aaaaaaaaaaaa", "sp_aaaaaaaaaaaa"])
async def test_a_run_that_is_not_there(recordings: FileRecordings, run: Run, run_id: str) -> None:
    with pytest.raises(RunNotFound):
        recordings.read(run.folder, run_id, Stream.STDOUT, 0, 1)
    with pytest.raises(RunNotFound):
        recordings.size(run.folder, run_id, Stream.STDOUT)
    with pytest.raises(RunNotFound):
        await anext(recordings.follow(run.folder, run_id, Stream.STDOUT, 0, asyncio.Event()))


def test_a_link_is_not_followed(recordings: FileRecordings, run: Run, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (run.place / "stderr").symlink_to(tmp_path / "secret")
    with pytest.raises(OSError):
        recordings.read(run.folder, run.run_id, Stream.STDERR, 0, 10)


def test_what_comes_between_two_looks_is_no_gap(
    recordings: FileRecordings, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = files.next_data

    def late(file: int, offset: int) -> int | None:
        found = look(file, offset)
        if not run.out.stat().st_size:
            run.write(b"late")
        return found

    monkeypatch.setattr(files, "next_data", late)
    assert _read(recordings, run, 0) == Piece(Stream.STDOUT, 0, b"")
    assert _read(recordings, run, 0) == Piece(Stream.STDOUT, 0, b"late")


def test_zeros_are_never_read_while_the_beginning_is_given_up(
    recordings: FileRecordings, run: Run
) -> None:
    """Between finding data and reading it, that may have gone."""
    run.write(b"a" * 4 * BLOCK)
    given_up = 0
    find = files.next_data

    def then_gone(descriptor: int, offset: int) -> int | None:
        nonlocal given_up
        found = find(descriptor, offset)
        if given_up < 2:
            given_up += 1
            run.give_up(given_up * BLOCK)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "next_data", then_gone)
        piece = _read(recordings, run, 0, 100)
    assert piece == Piece(Stream.STDOUT, 2 * BLOCK, b"a" * 100)


def test_a_command_that_writes_faster_than_one_reads(recordings: FileRecordings, run: Run) -> None:
    """The oldest byte is always gone before it is read; then a newer one is."""
    run.write(b"a" * 8 * BLOCK)
    looks = 0
    find = files.next_data

    def then_more(descriptor: int, offset: int) -> int | None:
        nonlocal looks
        looks += 1
        assert looks < 100, "it reads for ever"
        found = find(descriptor, offset)
        run.write(b"a" * BLOCK)
        run.give_up(run.out.stat().st_size - 8 * BLOCK)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "next_data", then_more)
        piece = _read(recordings, run, 0, 100)
    assert piece.data == b"a" * 100


# Following


async def test_a_follower_gets_what_is_there_and_what_comes(
    recordings: FileRecordings, run: Run
) -> None:
    run.write(b"before ")
    ended = asyncio.Event()
    async with aclosing(_follow(recordings, run, ended)) as follow:
        assert await _next(follow) == Piece(Stream.STDOUT, 0, b"before ")
        waiting = asyncio.ensure_future(_next(follow))
        await asyncio.sleep(0)
        run.write(b"after")
        assert await waiting == Piece(Stream.STDOUT, 7, b"after")
        run.write(b" last")
        ended.set()
        assert await _rest(follow) == [Piece(Stream.STDOUT, 12, b" last")]


async def test_the_end_alone_wakes_a_follower(recordings: FileRecordings, run: Run) -> None:
    ended = asyncio.Event()
    rest = asyncio.ensure_future(_rest(_follow(recordings, run, ended)))
    await asyncio.sleep(0)
    ended.set()
    assert await rest == []


async def test_many_bytes_come_in_small_pieces(recordings: FileRecordings, run: Run) -> None:
    run.write(bytes(range(256)) * 4096)
    ended = asyncio.Event()
    ended.set()
    pieces = await _rest(_follow(recordings, run, ended, offset=100))
    assert all(0 < len(piece.data) <= PIECE_BYTES for piece in pieces)
    assert b"".join(piece.data for piece in pieces) == (bytes(range(256)) * 4096)[100:]


async def test_a_slow_follower_is_told_by_the_offset_what_it_missed(
    recordings: FileRecordings, run: Run
) -> None:
    run.write(b"a" * (PIECE_BYTES + 4 * BLOCK))
    ended = asyncio.Event()
    async with aclosing(_follow(recordings, run, ended)) as follow:
        assert (await _next(follow)).offset == 0
        run.give_up(PIECE_BYTES + 3 * BLOCK)
        assert (await _next(follow)).offset == PIECE_BYTES + 3 * BLOCK


async def test_bytes_dropped_at_the_end_are_told(recordings: FileRecordings, run: Run) -> None:
    run.write(b"abc")
    run.end(stdout_bytes=5000, stdout_dropped=4997)
    ended = asyncio.Event()
    ended.set()
    pieces = await _rest(_follow(recordings, run, ended))
    assert pieces == [Piece(Stream.STDOUT, 0, b"abc"), Piece(Stream.STDOUT, 5000, b"")]


async def test_a_missing_stream_ends_with_its_run(recordings: FileRecordings, run: Run) -> None:
    ended = asyncio.Event()
    follow = recordings.follow(run.folder, run.run_id, Stream.STDERR, 0, ended)
    rest = asyncio.ensure_future(_rest(follow))
    await asyncio.sleep(0)
    assert not rest.done()
    ended.set()
    assert await rest == []


async def test_many_followers_share_a_watch_and_leave_none(
    recordings: FileRecordings, run: Run
) -> None:
    ended = asyncio.Event()
    follows = [_follow(recordings, run, ended) for _ in range(50)]
    first = [asyncio.ensure_future(_next(follow)) for follow in follows]
    await asyncio.sleep(0)
    assert _watches() == 1
    run.write(b"all")
    assert {piece.data for piece in await asyncio.gather(*first)} == {b"all"}
    for follow in follows[:-1]:
        await follow.aclose()
    assert _watches() == 1
    last = asyncio.ensure_future(_next(follows[-1]))
    await asyncio.sleep(0)
    last.cancel()
    await asyncio.gather(last, return_exceptions=True)
    await follows[-1].aclose()
    assert _watches() == 0


async def test_runs_that_nobody_follows_are_not_watched(
    recordings: FileRecordings, tmp_path: Path
) -> None:
    for number in range(100):
        one = Run(tmp_path / str(number))
        one.write(b"x")
        assert _read(recordings, one, 0).data == b"x"
    assert _watches() == 0


def _watches() -> int:
    """Of this process, as the kernel counts them."""
    count = 0
    for name in os.listdir("/proc/self/fdinfo"):
        try:
            text = Path(f"/proc/self/fdinfo/{name}").read_text()
        except FileNotFoundError:
            continue
        count += sum(line.startswith("inotify wd:") for line in text.splitlines())
    return count


@pytest.mark.parametrize("refused", ["open_watch_queue", "add_watch"])
async def test_without_watches_a_follower_looks_by_itself(
    recordings: FileRecordings, run: Run, refused: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_more(*_arguments: object) -> int:
        raise OSError(errno.ENOSPC, "no more watches")

    monkeypatch.setattr(files, refused, no_more)
    monkeypatch.setattr(module, "POLL_S", 0.001)
    ended = asyncio.Event()
    async with aclosing(_follow(recordings, run, ended)) as follow:
        waiting = asyncio.ensure_future(_next(follow))
        await asyncio.sleep(0)
        run.write(b"found")
        assert (await waiting).data == b"found"
        ended.set()
        assert await _rest(follow) == []


async def test_what_is_not_in_memory_is_read_elsewhere(
    recordings: FileRecordings, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.write(b"cold")
    read = os.preadv

    def not_now(file: int, buffers: list[bytearray], offset: int, flags: int = 0) -> int:
        if flags & os.RWF_NOWAIT:
            raise BlockingIOError(errno.EAGAIN, "not in memory")
        return read(file, buffers, offset, flags)

    monkeypatch.setattr(os, "preadv", not_now)
    ended = asyncio.Event()
    ended.set()
    assert await _rest(_follow(recordings, run, ended)) == [Piece(Stream.STDOUT, 0, b"cold")]


async def test_a_removed_run_ends_its_followers(recordings: FileRecordings, run: Run) -> None:
    ended = asyncio.Event()
    async with aclosing(_follow(recordings, run, ended)) as follow:
        run.write(b"x")
        assert (await _next(follow)).data == b"x"
        run.out.unlink()
        run.place.rmdir()
        ended.set()
        assert await _rest(follow) == []
    assert _watches() == 0
