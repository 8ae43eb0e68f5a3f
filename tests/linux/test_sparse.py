"""Holes in files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from carrel.linux import sparse

BLOCK = 1 << 16


def test_a_hole_keeps_size_and_offsets(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"a" * 4 * BLOCK)
    before = path.stat().st_blocks
    with path.open("r+b") as file:
        if not sparse.punch_hole(file.fileno(), BLOCK, BLOCK):
            pytest.skip("this file system cannot punch holes")
        assert sparse.next_data(file.fileno(), 0) == 0
        assert sparse.end_of_data(file.fileno(), 0) == BLOCK
        assert sparse.next_data(file.fileno(), BLOCK) == 2 * BLOCK
        assert sparse.end_of_data(file.fileno(), 2 * BLOCK) == 4 * BLOCK
        assert sparse.next_data(file.fileno(), 4 * BLOCK) is None
    found = path.stat()
    assert found.st_size == 4 * BLOCK and found.st_blocks <= before - BLOCK // 512
    assert path.read_bytes() == b"a" * BLOCK + bytes(BLOCK) + b"a" * 2 * BLOCK


def test_what_has_no_blocks_cannot_be_punched() -> None:
    read, write = os.pipe()
    try:
        with pytest.raises(OSError):
            sparse.punch_hole(write, 0, BLOCK)
    finally:
        os.close(read)
        os.close(write)
