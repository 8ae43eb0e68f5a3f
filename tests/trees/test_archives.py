"""Trees as tar: whole, streamed, and whatever happens meanwhile."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
import zstandard

from carrel.domain.errors import (
    CarrelError,
    PathError,
    PathEscapes,
    PathNotFound,
    PathWrongKind,
)
from carrel.domain.tar import TarReader
from carrel.domain.trees import Skipped, Tree
from carrel.trees import archives
from carrel.trees.archives import archive
from carrel.trees.extraction import unpack
from tests.conformance.tree_rig import Rig
from tests.conformance.tree_views import look, make_project
from tests.trees.tars import Chunks, entry, odd_things, opened, packed, tar_of, unpacked

TIMEOUT_S = 60.0
"""For programs that take milliseconds, on a loaded machine."""
RACE_S = 30.0
"""By then a race has been won and lost, however the machine shares its time."""


@pytest.fixture
def tree(copy_rig: Rig) -> Tree:
    return copy_rig.tree(copy_rig.base_of(None))


def names(rig: Rig, tree: Tree, path: str = ".") -> list[str]:
    with opened(packed(rig, tree, path, zstd=False)) as tar:
        return tar.getnames()


def left_out(content: bytes) -> str:
    """What the archive says that it lacks."""
    reader = TarReader(io.BytesIO(content))
    for _ in reader:
        pass
    return reader.left_out


def test_whole_trees(any_rig: Rig, tmp_path: Path) -> None:
    """As programs made it, read by GNU tar."""
    tree = any_rig.tree(any_rig.base_of(make_project(tmp_path / "project")))
    any_rig.act(tree, odd_things)
    skipped: list[Skipped] = []
    content = b"".join(archive(any_rig.driver, tree, on_skip=skipped.append))
    assert {one.path for one in skipped} == {"fifo", "socket"}
    assert left_out(zstandard.ZstdDecompressor().decompressobj().decompress(content)) == ""
    assert len(content) < 2_000_000
    target = tmp_path / "target"
    target.mkdir()
    words = ["tar", "--extract", "--zstd", "--same-permissions", "--directory", str(target)]
    subprocess.run(words, input=content, check=True, timeout=TIMEOUT_S)
    wanted = any_rig.act(tree, look)
    del wanted["fifo"], wanted["socket"]
    seen = look(target)
    assert {path: one[:4] for path, one in seen.items()} == {
        path: one[:4] for path, one in wanted.items()
    }
    assert seen["new-hard"].links == ("new-hard", "src/new-hard-too")
    assert (target / "tera").stat().st_blocks < 1000
    times = any_rig.act(tree, _times)
    assert {path: os.lstat(target / path).st_mtime_ns for path in times} == times


def _times() -> dict[str, int]:
    paths = ("pre-epoch", "src", "to-root", "README", "empty-folder", "x" * 200)
    return {path: os.lstat(path).st_mtime_ns for path in paths}


def test_the_same_through_the_library(copy_rig: Rig, tree: Tree) -> None:
    copy_rig.act(tree, _library_things)
    with opened(packed(copy_rig, tree, zstd=False)) as tar:
        found = {member.name: member for member in tar.getmembers()}
        sparse = tar.extractfile("sparse")
        assert sparse is not None
        content = sparse.read()
    assert len(content) == 4 << 20
    assert content.strip(b"\0") == b"in the middle"
    assert found["sparse"].sparse is not None
    assert found["folder"].isdir() and found["folder"].mode == 0o750
    assert found["link"].linkname == os.fsdecode(b"to\xff")
    assert {(one.uid, one.gid, one.uname, one.gname) for one in found.values()} == {(0, 0, "", "")}
    assert os.fsdecode(b"n\xfe\n") in found
    # Nothing is to run as whoever unpacks it.
    assert found["program"].mode == 0o755
    assert found["folder/sticky"].mode == 0o1777


def _library_things() -> None:
    with open("sparse", "wb") as file:
        file.truncate(4 << 20)
        file.seek(2 << 20)
        file.write(b"in the middle")
    os.mkdir("folder", 0o750)
    os.mkdir("folder/sticky")
    os.chmod("folder/sticky", 0o1777)
    os.symlink(b"to\xff", "link")
    Path(os.fsdecode(b"n\xfe\n")).touch()
    Path("program").touch()
    os.chmod("program", 0o6755)


def test_parts(copy_rig: Rig, tree: Tree) -> None:
    def act() -> None:
        os.makedirs("a/b/c")
        Path("a/b/file").write_text("x")
        os.symlink("b", "a/to-b")
        os.symlink("/etc", "out")
        os.mkfifo("fifo")

    copy_rig.act(tree, act)
    assert names(copy_rig, tree) == ["a", "a/b", "a/b/c", "a/b/file", "a/to-b", "out"]
    assert names(copy_rig, tree, "./") == names(copy_rig, tree, ".")
    assert names(copy_rig, tree, "a") == ["a", "a/b", "a/b/c", "a/b/file", "a/to-b"]
    assert names(copy_rig, tree, "a/b/") == ["b", "b/c", "b/file"]
    assert names(copy_rig, tree, "a/b/file") == ["file"]
    # On the way symlinks are followed, at the end they are what is wanted.
    assert names(copy_rig, tree, "a/to-b/file") == ["file"]
    assert names(copy_rig, tree, "a/to-b") == ["to-b"]
    assert names(copy_rig, tree, "out") == ["out"]
    refused: dict[str, type[PathError]] = {
        "missing": PathNotFound,
        "a/b/file/x": PathWrongKind,
        "fifo": PathWrongKind,
        "out/passwd": PathEscapes,
        "../x": PathEscapes,
        "a/..": PathEscapes,
        "/etc": PathEscapes,
        "": PathError,
    }
    for path, error in refused.items():
        with pytest.raises(error):
            # At once, so that an answer that has begun is never cut off for that.
            archive(copy_rig.driver, tree, path)


def test_an_empty_tree(copy_rig: Rig, tree: Tree) -> None:
    assert names(copy_rig, tree) == []
    assert zstandard.ZstdDecompressor().decompressobj().decompress(packed(copy_rig, tree)) == bytes(
        1024
    )


def test_what_changes_while_it_is_read(copy_rig: Rig, tree: Tree) -> None:
    """Stopped in the middle of the first file: the archive stays whole."""

    def act() -> None:
        Path("a").write_bytes(os.urandom(1 << 20))
        Path("b").write_bytes(b"b" * 1000)
        Path("c").write_bytes(b"c" * 1000)
        Path("d").mkdir()
        Path("d/file").touch()
        Path("e").write_bytes(b"e")
        Path("last").write_bytes(b"last")

    copy_rig.act(tree, act)
    skipped: list[Skipped] = []
    stream = archive(copy_rig.driver, tree, zstd=False, on_skip=skipped.append)
    content = next(stream)

    def disturb() -> None:
        os.truncate("a", (1 << 18) + 100)
        os.unlink("b")
        Path("c").write_bytes(b"C" * 5000)
        os.rename("d", "away")
        os.symlink("/etc", "d")
        os.unlink("e")
        os.mkfifo("e")

    copy_rig.act(tree, disturb)
    content += b"".join(stream)
    assert left_out(content) == "'a' was cut short while it was read; the rest is zeros"
    with opened(content) as tar:
        found = {member.name: member for member in tar.getmembers()}
        assert set(found) == {"a", "c", "d", "last"}
        assert found["a"].size == 1 << 20
        first = tar.extractfile("a")
        assert first is not None
        assert first.read()[(1 << 18) + 100 :] == bytes((1 << 20) - (1 << 18) - 100)
        assert found["c"].size == 5000
        assert found["d"].issym()
    assert {one.path for one in skipped} == {"a", "b", "e"}


def test_a_folder_that_becomes_a_symlink_again_and_again(
    copy_rig: Rig, tree: Tree, tmp_path: Path
) -> None:
    """However the races end, nothing of what is outside gets into an archive, and nothing
    of an archive gets outside."""
    secret = tmp_path / "outside" / "inner" / "file"
    secret.parent.mkdir(parents=True)
    secret.write_text("secret")
    (tree.path / "folder" / "inner").mkdir(parents=True)
    (tree.path / "folder" / "inner" / "file").write_text("public")
    (tree.path / "other").symlink_to(tmp_path / "outside")
    new = tar_of((entry("folder/inner/new"), b"new"), (entry("folder/inner/file"), b"public"))
    seen: set[bytes] = set()
    refused = 0
    deadline = time.monotonic() + RACE_S
    with swapping(tree.path / "folder", tree.path / "other"):
        while time.monotonic() < deadline and not (refused > 20 and b"public" in seen):
            content = packed(copy_rig, tree, "folder", zstd=False)
            assert b"secret" not in content
            seen |= {word for word in (b"public",) if word in content}
            try:
                unpacked(copy_rig, tree, new)
            except CarrelError:
                refused += 1
    assert refused > 20 and b"public" in seen
    assert os.listdir(secret.parent) == ["file"]
    assert secret.read_text() == "secret"


SWAPPER = """
import ctypes, os, select, sys
call = ctypes.CDLL(None, use_errno=True).renameat2
one, other = (os.fsencode(word) for word in sys.argv[1:])
print("ready", flush=True)
while not select.select([0], [], [], 0)[0]:
    for _ in range(101):
        call(-100, one, -100, other, 2)
"""


@contextlib.contextmanager
def swapping(one: Path, other: Path) -> Iterator[None]:
    """Another process exchanges them, as fast as it can."""
    words = [sys.executable, "-I", "-c", SWAPPER, str(one), str(other)]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    try:
        assert process.stdout.readline() == b"ready\n"
        yield
        assert process.poll() is None
    finally:
        process.stdin.close()
        try:
            process.wait(TIMEOUT_S)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


def test_stopping_early_leaves_nothing_open(copy_rig: Rig, tree: Tree) -> None:
    copy_rig.act(tree, lambda: Path("a").write_bytes(os.urandom(3 << 20)))
    before = os.listdir("/proc/self/fd")
    for zstd in (True, False):
        stream = archive(copy_rig.driver, tree, zstd=zstd)
        assert next(stream)
        assert len(os.listdir("/proc/self/fd")) > len(before)
        stream.close()
        archive(copy_rig.driver, tree, zstd=zstd)
        assert os.listdir("/proc/self/fd") == before


def test_many_holes(copy_rig: Rig, tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than a reader should have to remember."""

    def act() -> None:
        with open("holes", "wb") as file:
            for number in range(40):
                file.seek(number * 65536)
                file.write(b"%d" % number)

    copy_rig.act(tree, act)
    wanted = (tree.path / "holes").read_bytes()
    sizes = []
    for limit in (1000, 10):
        monkeypatch.setattr(archives, "_MAX_RANGES", limit)
        content = packed(copy_rig, tree, zstd=False)
        sizes.append(len(content))
        with opened(content) as tar:
            file = tar.extractfile("holes")
            assert file is not None and file.read() == wanted
    assert sizes[0] < 40 * 4096 + 20_000 < sizes[1]


def test_deeper_than_paths(copy_rig: Rig, tree: Tree) -> None:
    def act() -> None:
        here = os.open(".", os.O_RDONLY)
        for _ in range(150):
            os.mkdir("n" * 200, dir_fd=here)
            below = os.open("n" * 200, os.O_RDONLY, dir_fd=here)
            os.close(here)
            here = below
        os.close(here)
        Path("z").touch()

    copy_rig.act(tree, act)
    skipped: list[Skipped] = []
    content = b"".join(archive(copy_rig.driver, tree, zstd=False, on_skip=skipped.append))
    with opened(content) as tar:
        found = tar.getnames()
    assert len(found) == 82 and found[-1] == "z"
    assert [one.why for one in skipped] == ["is nested deeper than a path can be long"]
    assert left_out(content) == f"'{'n' * 80}...' is nested deeper than a path can be long"


def test_memory(copy_rig: Rig, tree: Tree) -> None:
    """Neither way it grows with what is sent."""
    size = 64 << 20

    def act() -> None:
        with open("big", "wb") as file:
            for _ in range(size >> 20):
                file.write(os.urandom(1 << 10) * 1024)

    copy_rig.act(tree, act)
    fresh = copy_rig.tree(copy_rig.bases.get(tree.base_id))
    tracemalloc.start()
    try:
        pieces = archive(copy_rig.driver, tree, zstd=False)
        unpack(copy_rig.driver, fresh, Chunks(pieces))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 6 << 20
    assert copy_rig.act(fresh, lambda: os.stat("big").st_size) == size
