"""Copies of files: holes stay holes, blocks are shared where they can be."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from carrel.linux.reflink import clone_file, copy_file, unshared_bytes
from tests.volumes import volume

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes file systems")


@pytest.fixture(scope="module", params=["btrfs", "xfs"])
def cloning(request: pytest.FixtureRequest) -> Iterator[Path]:
    with volume(request.param) as folder:
        yield folder


@pytest.mark.parametrize("size", [0, 1, 4096, 5_000_000])
def test_a_copy_has_the_same_bytes(tmp_path: Path, size: int) -> None:
    (tmp_path / "one").write_bytes(os.urandom(size))
    with (tmp_path / "one").open("rb") as one, (tmp_path / "two").open("wb") as two:
        copy_file(one.fileno(), two.fileno(), size)
    assert (tmp_path / "two").read_bytes() == (tmp_path / "one").read_bytes()


def test_holes_stay_holes(tmp_path: Path) -> None:
    with (tmp_path / "one").open("wb") as one:
        for position in (1 << 20, 1 << 30, (1 << 40) - 1):
            one.seek(position)
            one.write(b"x")
        one.truncate(1 << 40)
    with (tmp_path / "one").open("rb") as one, (tmp_path / "two").open("wb") as two:
        copy_file(one.fileno(), two.fileno(), 1 << 40)
    status = (tmp_path / "two").stat()
    assert status.st_size == 1 << 40 and status.st_blocks < 1000
    with (tmp_path / "two").open("rb") as two:
        two.seek((1 << 30) - 1)
        assert two.read(3) == b"\0x\0"


def test_a_file_that_became_shorter(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"short")
    with (tmp_path / "one").open("rb") as one, (tmp_path / "two").open("wb") as two:
        copy_file(one.fileno(), two.fileno(), 100)
    assert (tmp_path / "two").read_bytes() == b"short" + bytes(95)


@ROOT_ONLY
def test_clones_share_their_blocks_until_written(cloning: Path) -> None:
    one, two = cloning / "one", cloning / "two"
    one.write_bytes(os.urandom(1 << 20))
    with one.open("rb") as source, two.open("wb") as target:
        assert clone_file(source.fileno(), target.fileno())
    with two.open("r+b") as file:
        assert unshared_bytes(file.fileno()) == 0
        file.write(os.urandom(1 << 16))
        file.flush()
        assert unshared_bytes(file.fileno()) == 1 << 16


def test_files_on_different_disks_are_not_cloned(tmp_path: Path) -> None:
    memory = os.memfd_create("memory")
    try:
        os.write(memory, b"x")
        with (tmp_path / "one").open("wb") as target:
            assert not clone_file(memory, target.fileno())
    finally:
        os.close(memory)
