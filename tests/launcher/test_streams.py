"""One recorded stream: offsets, bounds, and disks that have no room or know no holes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from carrel.launcher.streams import LEAST_BLOCK, STEP_BYTES, KeptStream, PipeSource, TerminalSource
from carrel.linux import sparse
from tests.launcher.disks import disk, fill, root_only, small_disk

BLOCK = 1 << 16
KEEP = 4 * BLOCK


class Tap:
    """A pipe, and a stream that is recorded from it."""

    def __init__(self, file: Path, keep: int = KEEP) -> None:
        self.file = file
        file.touch()
        source, self.write = os.pipe2(os.O_NONBLOCK)
        self.sink = os.open("/dev/null", os.O_WRONLY)
        self.stream = KeptStream(PipeSource(source, self.sink), str(file), keep)

    def put(self, content: bytes) -> None:
        """All of it, taken at once."""
        while content:
            written = os.write(self.write, content[:BLOCK])
            content = content[written:]
            assert self.stream.take_all() is False

    def end(self) -> None:
        if self.write >= 0:
            os.close(self.write)
            self.write = -1

    def close(self) -> None:
        self.end()
        self.stream.close()
        os.close(self.sink)


@pytest.fixture
def tap(tmp_path: Path) -> Iterator[Tap]:
    opened = Tap(tmp_path / "out")
    yield opened
    opened.close()


def _numbered(number: int) -> bytes:
    return f"{number:015d}\n".encode() * (BLOCK // 16)


def _first(file: Path) -> int | None:
    with file.open("rb") as opened:
        return sparse.next_data(opened.fileno(), 0)


def _at(file: Path, offset: int, count: int) -> bytes:
    with file.open("rb") as opened:
        return os.pread(opened.fileno(), count, offset)


def test_bytes_go_to_their_own_offsets(tap: Tap) -> None:
    for number in range(3):
        tap.put(_numbered(number))
    tap.put(b"the end")
    assert tap.file.read_bytes() == b"".join(map(_numbered, range(3))) + b"the end"
    assert (tap.stream.total, tap.stream.dropped) == (3 * BLOCK + 7, 0)


def test_the_end_and_a_pause_are_told_apart(tap: Tap) -> None:
    with pytest.raises(BlockingIOError):
        tap.stream.take(100)
    assert tap.stream.take_all() is False
    tap.put(b"x")
    os.write(tap.write, b"last")
    tap.end()
    assert tap.stream.take_all() is True
    assert tap.stream.take(100) == 0
    assert tap.file.read_bytes() == b"xlast"


def test_nothing_was_said(tap: Tap) -> None:
    tap.end()
    assert tap.stream.take(100) == 0
    assert tap.stream.take_all() is True
    assert (tap.stream.total, tap.file.read_bytes()) == (0, b"")


def test_what_is_there_is_taken_and_not_what_comes_meanwhile(tap: Tap) -> None:
    """A flooding writer would keep it for ever."""
    os.write(tap.write, b"a" * 1000)
    asked: list[int] = []
    waiting = tap.stream.source.waiting

    def then_more() -> int:
        count = waiting()
        if not asked:
            os.write(tap.write, b"b" * 1000)
        asked.append(count)
        return count

    tap.stream.source.waiting = then_more  # type: ignore[method-assign]
    assert tap.stream.take_all() is False
    assert asked[0] == 1000 and tap.stream.total <= 1001


def test_the_beginning_is_given_up_in_steps(tap: Tap) -> None:
    count = (KEEP + 5 * STEP_BYTES) // BLOCK
    for number in range(count):
        tap.put(_numbered(number))
    first = _first(tap.file)
    assert first is not None and first % LEAST_BLOCK == 0
    assert KEEP <= tap.stream.total - first <= KEEP + STEP_BYTES + BLOCK
    assert tap.file.stat().st_size == tap.stream.total == count * BLOCK
    assert tap.file.stat().st_blocks * 512 <= KEEP + STEP_BYTES + 2 * BLOCK
    for number in range(first // BLOCK, count):
        begin = max(first, number * BLOCK)
        content = _at(tap.file, begin, (number + 1) * BLOCK - begin)
        assert content == _numbered(number)[begin - number * BLOCK :]
    assert tap.stream.dropped == 0


def test_another_goes_on_where_one_left_off(tap: Tap) -> None:
    for number in range((KEEP + 2 * STEP_BYTES) // BLOCK):
        tap.put(_numbered(number))
    before = tap.stream.total
    successor = KeptStream(tap.stream.source, str(tap.file), KEEP)
    successor.resume()
    tap.stream = successor
    assert tap.stream.total == before
    for number in range(STEP_BYTES // BLOCK):
        tap.put(_numbered(number))
    first = _first(tap.file)
    assert first is not None
    assert KEEP <= tap.stream.total - first <= KEEP + STEP_BYTES + BLOCK
    assert _at(tap.file, before, BLOCK) == _numbered(0)


def test_a_file_that_cannot_be_opened_does_not_hold_the_command_up(tmp_path: Path) -> None:
    tap = Tap(tmp_path / "out")
    try:
        tap.file.unlink()
        tap.put(b"x" * BLOCK)
        assert (tap.stream.total, tap.stream.dropped) == (BLOCK, BLOCK)
    finally:
        tap.close()


@root_only
def test_a_full_disk_makes_a_hole_and_no_zeros() -> None:
    with small_disk(2 << 20) as folder:
        tap = Tap(folder / "out")
        try:
            tap.put(b"begin" * 1000)  # ends within a block
            ballast = fill(folder)
            # The last block has room for a little more, and none is left after it.
            tap.put(b"x" * BLOCK)
            lost = tap.stream.dropped
            assert lost > 0 and tap.stream.total == 5000 + BLOCK
            ballast.unlink()
            tap.put(b"y" * BLOCK)
            end = tap.stream.total
            assert (end, tap.file.stat().st_size) == (5000 + 2 * BLOCK, 5000 + 2 * BLOCK)
            content = _data(tap.file)
            assert b"\0" not in content
            assert len(content) == end - tap.stream.dropped
            assert content.endswith(b"y" * 1000)
        finally:
            tap.close()


@root_only
def test_without_holes_the_end_is_dropped_and_counted() -> None:
    """In ramfs nothing can be punched out."""
    with disk("ramfs") as folder:
        tap = Tap(folder / "out")
        try:
            for number in range((KEEP + 3 * STEP_BYTES) // BLOCK):
                tap.put(_numbered(number))
            size = tap.file.stat().st_size
            assert KEEP <= size <= KEEP + STEP_BYTES + BLOCK
            assert tap.stream.total == KEEP + 3 * STEP_BYTES
            assert tap.stream.dropped == tap.stream.total - size
            assert _at(tap.file, size - 16, 16) == _numbered(size // BLOCK - 1)[-16:]
        finally:
            tap.close()


def _data(file: Path) -> bytes:
    """All that is no hole."""
    content = b""
    with file.open("rb") as opened:
        place: int | None = sparse.next_data(opened.fileno(), 0)
        while place is not None:
            end = sparse.end_of_data(opened.fileno(), place)
            content += os.pread(opened.fileno(), end - place, place)
            place = sparse.next_data(opened.fileno(), end)
    return content


def test_a_terminal_ends_when_nobody_has_it_open(tmp_path: Path) -> None:
    file = tmp_path / "out"
    file.touch()
    ours, theirs = os.openpty()
    os.set_blocking(ours, False)
    stream = KeptStream(TerminalSource(ours), str(file), KEEP)
    try:
        os.write(theirs, b"hello\n")
        assert stream.take_all() is False
        os.write(theirs, b"bye\n")
        os.close(theirs)
        assert stream.take_all() is True
    finally:
        stream.close()
    assert file.read_bytes() == b"hello\r\nbye\r\n"
