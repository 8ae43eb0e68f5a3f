"""Archives that are too much, broken, or made to do harm."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile

import pytest
import zstandard

from carrel.domain.errors import (
    ArchiveInvalid,
    CarrelError,
    InsufficientDisk,
    TooLarge,
)
from carrel.domain.trees import Tree
from carrel.trees.extraction import Unpacked, unpack
from tests.conformance.tree_rig import Rig
from tests.sampling import every
from tests.trees.tars import HARD, LINK, Chunks, entry, tar_of, unpacked

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
TIMEOUT_S = 60.0
"""For programs that take milliseconds, on a loaded machine."""


@pytest.fixture
def tree(copy_rig: Rig) -> Tree:
    return copy_rig.tree(copy_rig.base_of(None))


def test_limits(copy_rig: Rig, tree: Tree) -> None:
    content = tar_of(*[(entry(f"f{number}"), b"x" * 100) for number in range(10)])

    def limited(max_entries: int, max_bytes: int) -> Unpacked:
        return unpack(
            copy_rig.driver,
            tree,
            io.BytesIO(content),
            max_entries=max_entries,
            max_bytes=max_bytes,
        )

    assert limited(10, 1000) == Unpacked(10, 1000)
    for limits in ((9, 1000), (10, 999)):
        with pytest.raises(TooLarge) as caught:
            limited(*limits)
        assert caught.value.details["entry"] == "f9"


def test_a_bomb(copy_rig: Rig, tree: Tree) -> None:
    info = entry("bomb")
    info.size = 1 << 40
    compressor = zstandard.ZstdCompressor(level=1).compressobj()
    pieces = [compressor.compress(info.tobuf(tarfile.PAX_FORMAT))]
    pieces += [compressor.compress(bytes(1 << 20)) for _ in range(64)]
    with pytest.raises(TooLarge):
        unpack(copy_rig.driver, tree, Chunks(iter(pieces)), max_bytes=32 << 20)
    assert os.listdir(tree.path) == []


def test_a_window_that_is_too_big(copy_rig: Rig, tree: Tree) -> None:
    parameters = zstandard.ZstdCompressionParameters.from_level(1, window_log=27)
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    content = compressor.compress(tar_of((entry("x"), b"y"))) + compressor.flush()
    with pytest.raises(ArchiveInvalid, match="decompressed"):
        unpacked(copy_rig, tree, content)


def raw(kind: bytes, body: bytes, size: int | None = None) -> bytes:
    info = entry("header", kind)
    info.size = len(body) if size is None else size
    return info.tobuf(tarfile.GNU_FORMAT) + body + bytes(-len(body) % 512)


def record(key: str, value: str) -> bytes:
    length = len(f" {key}={value}\n")
    while len(f"{length} {key}={value}\n") != length:
        length += 1
    return f"{length} {key}={value}\n".encode()


def sparse(layout: bytes, *, size: int = 100, stored: int | None = None) -> bytes:
    keys = {"major": "1", "minor": "0", "name": "sparse", "realsize": str(size)}
    extended = b"".join(record(f"GNU.sparse.{key}", value) for key, value in keys.items())
    return raw(b"x", extended) + raw(b"0", layout + bytes(-len(layout) % 512), stored)


FILE = entry("file").tobuf(tarfile.PAX_FORMAT)
END = bytes(1024)
BROKEN: dict[str, bytes] = {
    "nothing": b"",
    "text": b"this is no archive " * 100,
    "zip": b"PK\3\4" + bytes(2000),
    "gzip": b"\x1f\x8b" + bytes(2000),
    "no end": FILE,
    "half a header": FILE[:300],
    "cut content": raw(b"0", b"x" * 2000, 5000),
    "checksum": FILE[:100] + b"9" + FILE[101:] + END,
    "no record": raw(b"x", b"nonsense") + FILE + END,
    "record without a value": raw(b"x", b"9 a\n") + FILE + END,
    "record without an end": raw(b"x", b"99 a=b\n") + FILE + END,
    "record of no length": raw(b"x", b"0 a=b\n") + FILE + END,
    "record with a huge length": raw(b"x", b"9" * 5000 + b" a=b\n") + FILE + END,
    "time": raw(b"x", record("mtime", "nan")) + FILE + END,
    "endless time": raw(b"x", record("mtime", "9" * 400)) + FILE + END,
    "size": raw(b"x", record("size", "-5")) + FILE + END,
    "endless size": raw(b"x", record("size", "9" * 40)) + FILE + END,
    "huge size": raw(b"x", record("size", "9" * 18)) + FILE + END,
    "zero in a name": raw(b"x", record("path", "a\0b")) + FILE + END,
    "a huge extended header": raw(b"x", b"", 1 << 40),
    "a huge name": raw(b"L", b"", 1 << 40),
    "headers without end": raw(b"x", record("comment", "x")) * 5000 + FILE + END,
    "global headers without end": raw(b"g", record("comment", "x")) * 5000 + FILE + END,
    "only a header": raw(b"x", record("path", "x")) + END,
    "old sparse": raw(b"S", b"") + END,
    "sparse without a form": raw(b"x", record("GNU.sparse.realsize", "5")) + raw(b"0", b"x") + END,
    "sparse without a layout": sparse(b"") + END,
    "sparse with text": sparse(b"one\n") + END,
    "sparse without an end": sparse(b"5" * 2000) + END,
    "sparse too many": sparse(b"999999999\n" + b"0\n0\n" * 50) + END,
    "sparse backwards": sparse(b"2\n50\n10\n10\n10\n") + bytes(512) + END,
    "sparse beyond the end": sparse(b"1\n95\n10\n") + END,
    "sparse without bytes": sparse(b"1\n0\n10\n") + END,
    "no end behind the end": FILE + bytes(32 << 20),
    "zstd of nothing": zstandard.ZstdCompressor().compress(b""),
    "zstd that is cut": zstandard.ZstdCompressor().compress(FILE + END)[:-3],
    "zstd that is not": b"\x28\xb5\x2f\xfd" + b"nonsense" * 100,
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken(copy_rig: Rig, tree: Tree, name: str) -> None:
    # Behind a file, also in a header that is like that one's.
    for before in (b"", raw(b"0", b"before")):
        with pytest.raises((ArchiveInvalid, TooLarge)):
            unpacked(copy_rig, tree, before + BROKEN[name])
    assert (tree.path / "header").read_bytes() == b"before"
    assert not [one for one in os.listdir(tree.path) if one.startswith(".carrel-")]


def test_whatever_is_changed_in_it(copy_rig: Rig, tree: Tree) -> None:
    """No byte brings about anything else than an error with a code."""
    deep = "d/" * 60 + "file"
    content = bytearray(
        tar_of(
            (entry(deep), b"x" * 700),
            (entry("link", LINK, "d"), b""),
            (entry("hard", HARD, deep), b""),
            (entry("folder", tarfile.DIRTYPE, mode=0o755), b""),
        ).rstrip(b"\0")
    )
    errors = 0
    places = every(3, range(0, len(content), 11))
    for place in places:
        for value in (0x00, 0x2F, 0xFF):
            changed = content[:place] + bytes([value]) + content[place + 1 :]
            try:
                unpacked(copy_rig, tree, bytes(changed))
            except CarrelError:
                errors += 1
    assert errors > len(places)
    for length in every(3, range(0, len(content), 64)):
        with pytest.raises(ArchiveInvalid):
            unpacked(copy_rig, tree, bytes(content[:length]))


class Broken:
    """A client that goes away."""

    def __init__(self, content: bytes) -> None:
        self._content = io.BytesIO(content)

    def read(self, size: int, /) -> bytes:
        piece = self._content.read(size)
        if not piece:
            raise ConnectionResetError(104, "gone")
        return piece


@pytest.mark.parametrize("length", [0, 2, 512, 1000])
def test_a_stream_that_breaks_off(copy_rig: Rig, tree: Tree, length: int) -> None:
    content = tar_of((entry("file"), b"x" * 5000))
    with pytest.raises(ArchiveInvalid, match="broke off"):
        unpack(copy_rig.driver, tree, Broken(content[:length]))
    assert os.listdir(tree.path) == []


@ROOT_ONLY
def test_a_full_disk(copy_rig: Rig, tree: Tree) -> None:
    (tree.path / "small").mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=64k,mode=777", "none", str(tree.path / "small")]
    subprocess.run(words, check=True, timeout=TIMEOUT_S)
    try:
        with pytest.raises(InsufficientDisk, match="big"):
            unpacked(copy_rig, tree, tar_of((entry("small/big"), b"x" * 200_000)))
        assert os.listdir(tree.path / "small") == []
    finally:
        subprocess.run(["umount", str(tree.path / "small")], check=True, timeout=TIMEOUT_S)
