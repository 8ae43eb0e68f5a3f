"""A command writes at the very moment at which somebody looks for the end of its output."""

from __future__ import annotations

from pathlib import Path

import pytest

from carrel.domain.runs import Stream
from carrel.linux import files
from carrel.runtimes.recordings import FileRecordings

RUN = "ru_aaaaaaaaaaaa"


def test_what_comes_while_one_looks_is_not_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There was no more data, and a moment later the file is longer: that is no hole."""
    folder = tmp_path / "runs" / RUN
    folder.mkdir(parents=True)
    file = folder / "stdout"
    file.write_bytes(b"first\n")
    real = files.next_data
    written = False

    def looked(descriptor: int, offset: int) -> int | None:
        nonlocal written
        found = real(descriptor, offset)
        if found is None and not written:
            written = True
            with file.open("ab") as more:
                more.write(b"second\n")
        return found

    monkeypatch.setattr(files, "next_data", looked)
    recordings = FileRecordings()
    offset, data = 0, b""
    for _ in range(3):
        piece = recordings.read(tmp_path, RUN, Stream.STDOUT, offset, 1000)
        assert piece.offset == offset
        offset, data = piece.offset + len(piece.data), data + piece.data
    assert written and data == b"first\nsecond\n"
