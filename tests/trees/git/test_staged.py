"""Work that was only staged, in git folders that strangers filled."""

from __future__ import annotations

import hashlib
import struct
import subprocess
import tracemalloc
import zlib
from pathlib import Path

import pytest

from carrel.domain.errors import PathInvalid
from carrel.trees.folders import Root
from carrel.trees.git.object_store import Effort, HistoryUnread, LayerGitFiles, TreeGitFiles
from carrel.trees.git.staged import only_staged
from carrel.trees.layers import Layers

COMMIT = b"tree %b\nauthor a <a> 0 +0000\ncommitter a <a> 0 +0000\n\nx\n"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository; beside it lies what is none of its business."""
    (tmp_path / "base").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "secret").write_text("x")
    tree = tmp_path / "tree"
    subprocess.run(["git", "init", "-q", tree], check=True, timeout=60)
    return tree


def stage(tree: Path, *paths: bytes) -> None:
    """As nobody but a stranger writes an index."""
    made = ["git", "-C", str(tree), "hash-object", "-w", "--stdin"]
    oid = subprocess.run(made, input=b"staged", capture_output=True, check=True, timeout=60).stdout
    data = b"DIRC" + struct.pack(">II", 2, len(paths))
    for path in paths:
        entry = struct.pack(">10I", 0, 0, 0, 0, 0, 0, 0o100644, 0, 0, 0)
        entry += bytes.fromhex(oid.decode().strip())
        entry += struct.pack(">H", min(len(path), 0xFFF)) + path
        data += entry + b"\0" * (8 - len(entry) % 8)
    (tree / ".git" / "index").write_bytes(data + hashlib.sha1(data).digest())


def staged(tree: Path, folder: str = ".git") -> list[str]:
    with Root.at(tree) as root, Root.at(tree.parent / "base") as base:
        now, before = TreeGitFiles(root), LayerGitFiles(Layers((base,), None))
        return [one.path for one in only_staged(now, before, folder, Effort())]


def test_what_is_staged_is_found(tree: Path) -> None:
    stage(tree, b"a/b", b"plain")
    assert staged(tree) == ["a/b", "plain"]


@pytest.mark.parametrize(
    "path",
    [
        *(b"../other/secret", b"a/../../other/secret", b"/etc/passwd", b"", b"a//b", b"./a"),
        *(b".git/config", b"n" * 300, b"a/" * 2100 + b"x", b"x/" * 20_000 + b"x"),
    ],
)
def test_paths_that_git_would_not_write(tree: Path, path: bytes) -> None:
    """They are neither asked for, nor do they keep the rest from being looked at."""
    stage(tree, b"../zz", path)
    with pytest.raises(HistoryUnread):
        staged(tree)


def test_an_index_that_is_a_hole(tree: Path) -> None:
    """It takes no memory: what is read of it ends soon."""
    with (tree / ".git" / "index").open("wb") as file:
        file.write(b"DIRC" + struct.pack(">II", 2, 0))
        file.truncate(8 << 20)
    tracemalloc.start()
    try:
        with pytest.raises(HistoryUnread):
            staged(tree)
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", [b"abc", b"0" * 41, b"g" * 40, b""])
def test_a_commit_of_no_tree(tree: Path, name: bytes) -> None:
    content = COMMIT % name
    whole = b"commit %d\0%b" % (len(content), content)
    oid = hashlib.sha1(whole).hexdigest()
    place = tree / ".git" / "objects" / oid[:2]
    place.mkdir(exist_ok=True)
    (place / oid[2:]).write_bytes(zlib.compress(whole))
    (tree / ".git" / "HEAD").write_text(f"{oid}\n")
    stage(tree, b"plain")
    with pytest.raises(HistoryUnread):
        staged(tree)


def test_a_work_tree_that_cannot_be(tree: Path) -> None:
    stage(tree, b"plain")
    (tree / ".git").rename(tree / "module")
    (tree / "module" / "config").write_bytes(b'[core]\n\tworktree = "a\0b"\n')
    assert staged(tree, "module") == ["module/plain"]


def test_no_path_leads_out_of_a_root(tree: Path) -> None:
    """However many folders on the way are open already."""
    with Root.at(tree) as root:
        for path in ("..", "../other", "../other/secret", ".git/../../other"):
            for look in (root.folder, root.status):
                with pytest.raises((PathInvalid, OSError)):
                    look(path)
