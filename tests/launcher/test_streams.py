"""One recorded stream: offsets, bounds, and disks that have no room or know no holes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from carrel.launcher import streams
from carrel.launcher.streams import (
    LEAST_BLOCK,
    ON_ITS_WAY_BYTES,
    STEP_BYTES,
    KeptStream,
    NoRoom,
    PipeSource,
    TerminalSource,
)
from carrel.linux import files
from carrel.linux.reserve import Reserve
from tests.launcher.disks import disk, fill, root_only, small_disk

BLOCK = 1 << 16
KEEP = 4 * BLOCK


class Tap:
    """A pipe, and a stream that is recorded from it."""

    def __init__(self, file: Path, keep: int = KEEP, reserve: Reserve | None = None) -> None:
        self.file = file
        file.touch()
        source, self.write = os.pipe2(os.O_NONBLOCK)
        self.sink = os.open("/dev/null", os.O_WRONLY)
        self.stream = KeptStream(PipeSource(source, self.sink), str(file), keep, reserve)

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
        return files.next_data(opened.fileno(), 0)


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
def test_a_little_output_has_room_on_a_full_disk() -> None:
    """What the command was given when it began, others have taken meanwhile."""
    with small_disk(8 << 20) as folder:
        reserve = Reserve(folder / "reserve")
        reserve.take_back()
        tap = Tap(folder / "out", reserve=reserve)
        try:
            fill(folder)
            tap.put(b"said\n")
            assert (tap.file.read_bytes(), tap.stream.dropped) == (b"said\n", 0)
            fill(folder)
            tap.put(b"x" * BLOCK)
            assert tap.stream.dropped > 0 and reserve.held() > 0
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


def test_what_somebody_has_not_read_is_not_given_up(tap: Tap) -> None:
    """Nor what may be on its way to the reader."""
    tap.stream.held = 0
    number = 0
    while not tap.stream.full:
        tap.put(_numbered(number))
        number += 1
    assert number * BLOCK == KEEP + STEP_BYTES and _first(tap.file) == 0
    while tap.stream.total < ON_ITS_WAY_BYTES + 3 * STEP_BYTES:
        tap.stream.held = tap.stream.total
        assert not tap.stream.full
        tap.put(_numbered(0))
    first = _first(tap.file)
    assert first is not None and 0 < first <= tap.stream.held - ON_ITS_WAY_BYTES
    size = tap.file.stat().st_blocks * 512
    assert size <= ON_ITS_WAY_BYTES + 2 * STEP_BYTES + 2 * BLOCK
    tap.stream.held = None
    tap.put(_numbered(0))
    assert tap.file.stat().st_blocks * 512 <= KEEP + STEP_BYTES + 2 * BLOCK


@root_only
def test_a_full_disk_is_waited_for_while_somebody_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    with small_disk(2 << 20) as folder:
        tap = Tap(folder / "out")
        try:
            tap.put(_numbered(1))
            tap.stream.held = 0
            ballast = fill(folder)
            os.write(tap.write, _numbered(2))
            with pytest.raises(NoRoom):
                tap.stream.take(BLOCK)
            # What the reader has makes room for what it does not have.
            tap.stream.held = BLOCK
            with pytest.raises(NoRoom):
                tap.stream.take(BLOCK)
            assert tap.stream.take(BLOCK) == BLOCK
            assert _at(tap.file, BLOCK, BLOCK) == _numbered(2)
            fill(folder)
            os.write(tap.write, _numbered(3))
            with pytest.raises(NoRoom):
                tap.stream.take(BLOCK)
            ballast.unlink()
            assert tap.stream.take(BLOCK) == BLOCK and tap.stream.dropped == 0
            # It has an end, and then it is counted.
            fill(folder)
            monkeypatch.setattr(streams, "NO_ROOM_S", 0.0)
            os.write(tap.write, _numbered(4))
            assert tap.stream.take(BLOCK) == BLOCK and tap.stream.dropped == BLOCK
            # Whoever reads it sees that, though nothing more can be written down.
            assert tap.file.stat().st_size == 3 * BLOCK
            tap.stream.mark_end()
            assert tap.file.stat().st_size == 4 * BLOCK
            assert len(_data(tap.file)) <= 3 * BLOCK
        finally:
            tap.close()


@root_only
def test_without_holes_a_file_grows_while_somebody_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    most = ON_ITS_WAY_BYTES + 2 * STEP_BYTES
    monkeypatch.setattr(streams, "NO_HOLES_BYTES", most)
    with disk("ramfs") as folder:
        tap = Tap(folder / "out")
        try:
            for number in range((most + STEP_BYTES) // BLOCK):
                tap.stream.held = tap.stream.total
                tap.put(_numbered(number))
            assert tap.file.stat().st_size == most
            assert tap.stream.dropped == STEP_BYTES
        finally:
            tap.close()


def _data(file: Path) -> bytes:
    """All that is no hole."""
    content = b""
    with file.open("rb") as opened:
        place: int | None = files.next_data(opened.fileno(), 0)
        while place is not None:
            end = files.end_of_data(opened.fileno(), place)
            content += os.pread(opened.fileno(), end - place, place)
            place = files.next_data(opened.fileno(), end)
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
