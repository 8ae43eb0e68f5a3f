"""Bundles that are too big, damaged, or made to do harm."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import zstandard

from carrel.domain.errors import CarrelError, InsufficientDisk, TooLarge, TreeDamaged
from carrel.domain.trees import Tree
from carrel.launcher.client import Launcher
from carrel.trees import bundle_format as records
from carrel.trees.bundles import pack, restore
from tests.conformance.tree_rig import Rig, open_rig
from tests.folders import remove_folder

BIG = 1 << 30
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture
def copied(copy_rig: Rig, tmp_path: Path) -> Tree:
    """A tree on which nothing depends on the driver."""
    project = tmp_path / "small"
    (project / "folder").mkdir(parents=True)
    (project / "file").write_text("file\n")
    (project / "folder" / "inner").write_text("inner\n")
    return copy_rig.tree(copy_rig.base_of(project))


@pytest.fixture
def target(tmp_path: Path) -> Path:
    (tmp_path / "kept").mkdir()
    return tmp_path / "kept" / "changes"


# Limits


def test_too_large(copy_rig: Rig, copied: Tree, target: Path) -> None:
    noise = random.Random(1).randbytes(2_000_000)
    copy_rig.act(copied, lambda: Path("new").write_bytes(noise))
    bundle = pack(copy_rig.driver, copied, copied.base_id, target, BIG)
    size = bundle.bytes
    target.unlink()
    for limit in (0, 1, 100_000, size - 1):
        with pytest.raises(TooLarge):
            pack(copy_rig.driver, copied, copied.base_id, target, limit)
        assert os.listdir(target.parent) == []
    assert pack(copy_rig.driver, copied, copied.base_id, target, size).bytes == size
    before = target.read_bytes()
    with pytest.raises(TooLarge):
        pack(copy_rig.driver, copied, copied.base_id, target, 100)
    assert target.read_bytes() == before
    assert target.stat().st_mode & 0o777 == 0o600


@ROOT_ONLY
def test_a_full_disk(copy_rig: Rig, copied: Tree, data: Path) -> None:
    copy_rig.act(copied, lambda: Path("new").write_bytes(os.urandom(2_000_000)))
    with small_disk(data) as disk:
        with pytest.raises(InsufficientDisk):
            pack(copy_rig.driver, copied, copied.base_id, disk / "changes", BIG)
        assert os.listdir(disk) == []


@contextlib.contextmanager
def small_disk(data: Path) -> Iterator[Path]:
    """With room for a megabyte."""
    disk = data / "small"
    disk.mkdir()
    try:
        words = ["mount", "-t", "tmpfs", "-o", "size=1m,mode=711", "none", str(disk)]
        subprocess.run(words, check=True, timeout=20)
        yield disk
    finally:
        remove_folder(disk)


def test_a_folder_that_is_not_there(copy_rig: Rig, copied: Tree, target: Path) -> None:
    with pytest.raises(CarrelError):
        pack(copy_rig.driver, copied, copied.base_id, target.parent / "no" / "x", BIG)
    with pytest.raises(TreeDamaged):
        pack(copy_rig.driver, copied, "another", target, BIG)


# Bad files


def write_records(target: Path, all_records: list[records.Record]) -> None:
    encode = msgspec.msgpack.encode
    bodies = [encode(record) for record in all_records]
    write_raw(target, b"".join(len(body).to_bytes(4, "big") + body for body in bodies))


def write_raw(target: Path, content: bytes) -> None:
    target.write_bytes(zstandard.ZstdCompressor(write_checksum=True).compress(content))


def is_untouched(rig: Rig, tree: Tree) -> bool:
    return rig.changes(tree) == []


@pytest.fixture
def packed(copy_rig: Rig, copied: Tree, target: Path) -> Path:
    def act() -> None:
        Path("new").write_bytes(random.Random(2).randbytes(5000))
        os.rename("folder/inner", "moved")

    copy_rig.act(copied, act)
    pack(copy_rig.driver, copied, copied.base_id, target, BIG)
    return target


def test_a_damaged_file(copy_rig: Rig, copied: Tree, packed: Path) -> None:
    """Wherever a byte is wrong or everything is cut off, the tree stays as it is."""
    content = packed.read_bytes()
    fresh = copy_rig.tree(copy_rig.bases.get(copied.base_id))
    flipped = [
        content[:place] + bytes([content[place] ^ 0x41]) + content[place + 1 :]
        for place in range(0, len(content), 97)
    ]
    cut = [content[:length] for length in range(0, len(content) - 8, 173)]
    for bad in [*flipped, *cut, b"", b"nonsense" * 100]:
        packed.write_bytes(bad)
        with pytest.raises(TreeDamaged):
            restore(copy_rig.driver, fresh, packed)
    assert is_untouched(copy_rig, fresh)
    packed.write_bytes(content)
    restore(copy_rig.driver, fresh, packed)
    assert copy_rig.changes(fresh) == copy_rig.changes(copied)


def test_what_is_no_file(copy_rig: Rig, copied: Tree, packed: Path) -> None:
    fresh = copy_rig.tree(copy_rig.bases.get(copied.base_id))
    link = packed.with_name("link")
    link.symlink_to(packed)
    os.mkfifo(packed.with_name("fifo"))
    for bad in (link, packed.with_name("fifo"), packed.parent, packed.with_name("missing")):
        with pytest.raises(TreeDamaged):
            restore(copy_rig.driver, fresh, bad)
    assert is_untouched(copy_rig, fresh)


def file_of(path: bytes, data: bytes = b"evil") -> list[records.Record]:
    return [
        records.FileStart(path, 0o644, 0, ()),
        records.FilePiece(0, data),
        records.Size(len(data)),
    ]


REFUSED: dict[str, list[records.Record]] = {
    "up": file_of(b"../evil"),
    "up in the middle": file_of(b"folder/../../evil"),
    "absolute": file_of(b"/tmp/evil"),
    "dot": file_of(b"./evil"),
    "empty": file_of(b""),
    "slash": file_of(b"folder//evil"),
    "zero": file_of(b"e\0vil"),
    "long": file_of(b"n" * 256),
    "gone": [records.Gone(b"..")],
    "root gone": [records.Gone(b"")],
    "way": [records.WayFolder(b"../..", 0o777, 0)],
    "folder": [records.Folder(b"a/../..", 0o777, 0, ())],
    "symlink": [records.Symlink(b"../x", b"y", 0)],
    "no target": [records.Symlink(b"x", b"", 0)],
    "moved from": [records.MovedFile(b"x", b"../../etc/passwd", 0o644, 0, ())],
    "moved to": [records.MovedFile(b"../x", b"file", 0o644, 0, ())],
    "moved twice": [
        records.MovedFile(b"x", b"file", 0o644, 0, ()),
        records.MovedFile(b"y", b"file", 0o644, 0, ()),
    ],
    "linked": [*file_of(b"x"), records.Again(b"y", b"../../etc/passwd")],
    "device": [records.Node(b"x", 0o020666, 0)],
    "block device": [records.Node(b"x", 0o060666, 0)],
    "privileges": [records.Folder(b"x", 0o755, 0, ((b"security.capability", b"x"),))],
    "trusted": [records.Folder(b"x", 0o755, 0, ((b"trusted.overlay.opaque", b"y"),))],
    "overlay": [records.Folder(b"x", 0o755, 0, ((b"user.overlay.opaque", b"y"),))],
    "bytes of nothing": [records.FilePiece(0, b"x")],
    "bytes backwards": [
        records.FileStart(b"x", 0o644, 0, ()),
        records.FilePiece(10, b"abc"),
        records.FilePiece(11, b"abc"),
        records.Size(100),
    ],
    "bytes beyond the end": [
        records.FileStart(b"x", 0o644, 0, ()),
        records.FilePiece(10, b"abc"),
        records.Size(4),
    ],
    "no end of a file": [records.FileStart(b"x", 0o644, 0, ())],
    "two heads": [records.BundleHead(records.VERSION, "x")],
    "two tails": [records.BundleTail(0)],
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_hostile_file(copy_rig: Rig, copied: Tree, target: Path, name: str) -> None:
    head = records.BundleHead(records.VERSION, copied.base_id)
    write_records(target, [head, *REFUSED[name], records.BundleTail(1)])
    with pytest.raises(TreeDamaged):
        restore(copy_rig.driver, copied, target)
    assert is_untouched(copy_rig, copied)


MISFITS: dict[str, list[records.Record]] = {
    "through a symlink": [records.Symlink(b"out", b"/tmp", 0), *file_of(b"out/evil")],
    "way through a symlink": [
        records.Symlink(b"out", b"/", 0),
        records.WayFolder(b"out/x", 0o777, 0),
    ],
    "gone through a symlink": [
        records.Symlink(b"out", b"folder", 0),
        *file_of(b"new"),
        records.Again(b"out/inner", b"new"),
    ],
    "a link to a symlink": [records.Symlink(b"x", b"/etc/passwd", 0), records.Again(b"y", b"x")],
    "a link to nothing": [records.Again(b"y", b"x")],
    "the mode of a symlink": [
        records.Symlink(b"x", b"/etc/passwd", 0),
        records.Other(b"x", 0o666, 0, ()),
    ],
    "moved from nowhere": [records.MovedFile(b"x", b"nowhere", 0o644, 0, ())],
    "a moved folder": [records.MovedFile(b"x", b"folder", 0o644, 0, ())],
    "a file below a file": file_of(b"file/x"),
}


@pytest.mark.parametrize("name", MISFITS)
def test_a_file_that_does_not_fit(copy_rig: Rig, copied: Tree, target: Path, name: str) -> None:
    """Noticed while the tree is being changed; nothing outside is."""
    head = records.BundleHead(records.VERSION, copied.base_id)
    write_records(target, [head, *MISFITS[name], records.BundleTail(1)])
    with pytest.raises(TreeDamaged):
        restore(copy_rig.driver, copied, target)
    assert not os.path.lexists("/tmp/evil")
    assert not [one for one in os.listdir(copied.path) if one.startswith(".carrel-")]
    assert (copied.path / "folder" / "inner").read_text() == "inner\n"


def test_what_is_gone_behind_a_symlink_stays(
    copy_rig: Rig, copied: Tree, target: Path, tmp_path: Path
) -> None:
    (tmp_path / "outside" / "folder").mkdir(parents=True)
    (tmp_path / "outside" / "folder" / "file").touch()
    head = records.BundleHead(records.VERSION, copied.base_id)
    link = records.Symlink(b"out", os.fsencode(tmp_path / "outside"), 0)
    gone: list[records.Record] = [records.Gone(b"out/folder"), records.Gone(b"out/folder/file")]
    write_records(target, [head, link, *gone, records.BundleTail(3)])
    restore(copy_rig.driver, copied, target)
    assert (tmp_path / "outside" / "folder" / "file").exists()


@ROOT_ONLY
def test_a_file_that_would_not_fit_on_the_disk(
    tree_launcher: Launcher, data: Path, target: Path
) -> None:
    """Little in the bundle, and too much out of it."""
    with small_disk(data) as disk, open_rig("copy", disk, tree_launcher) as rig:
        tree = rig.tree(rig.base_of(None))
        head = records.BundleHead(records.VERSION, tree.base_id)
        with target.open("wb") as file:
            _write_bomb(file.fileno(), head, bytes(records.PIECE), 100)
        assert target.stat().st_size < 100_000
        with pytest.raises(InsufficientDisk):
            restore(rig.driver, tree, target)
        assert is_untouched(rig, tree)


def _write_bomb(descriptor: int, head: records.BundleHead, piece: bytes, count: int) -> None:
    writer = records.BundleWriter(descriptor, BIG)
    writer.write(head)
    writer.write(records.FileStart(b"bomb", 0o644, 0, ()))
    for number in range(count):
        writer.write(records.FilePiece(number * len(piece), piece))
    writer.write(records.Size(count * len(piece)))
    writer.write(records.BundleTail(1))
    writer.finish()


def raw_frame(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


BROKEN: dict[str, Callable[[bytes], bytes]] = {
    "nothing": lambda _head: b"",
    "no head": lambda _head: raw_frame(msgspec.msgpack.encode(records.BundleTail(0))),
    "no tail": lambda head: head,
    "a long record": lambda head: head + (1 << 31).to_bytes(4, "big"),
    "a cut record": lambda head: head + raw_frame(b"x" * 100)[:50],
    "a cut length": lambda head: head + b"\0\0",
    "not a record": lambda head: head + raw_frame(b"\xc1\xc1\xc1"),
    "another record": lambda head: head + raw_frame(msgspec.msgpack.encode(["what", 1])),
    "a mode too many": lambda head: (
        head + raw_frame(msgspec.msgpack.encode(["folder", b"x", 0o100755, 0, []]))
    ),
    "a negative place": lambda head: (
        head
        + raw_frame(msgspec.msgpack.encode(["file", b"x", 0o644, 0, []]))
        + raw_frame(msgspec.msgpack.encode(["piece", -1, b"x"]))
    ),
    "a bomb": lambda head: head + raw_frame(b"\xdd\xff\xff\xff\xff"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_records(copy_rig: Rig, copied: Tree, target: Path, name: str) -> None:
    head = raw_frame(msgspec.msgpack.encode(records.BundleHead(records.VERSION, copied.base_id)))
    write_raw(target, BROKEN[name](head))
    with pytest.raises(TreeDamaged):
        restore(copy_rig.driver, copied, target)
    assert is_untouched(copy_rig, copied)


def test_another_version(copy_rig: Rig, copied: Tree, target: Path) -> None:
    write_records(target, [records.BundleHead(99, copied.base_id), records.BundleTail(0)])
    with pytest.raises(TreeDamaged, match="another version"):
        restore(copy_rig.driver, copied, target)
    write_records(target, [records.BundleHead(records.VERSION, "other"), records.BundleTail(0)])
    with pytest.raises(TreeDamaged, match="of that base"):
        restore(copy_rig.driver, copied, target)
