"""Packs of our own, as git reads them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from carrel.trees.git import packs
from carrel.trees.git.packs import BLOB, PackedTree, writing

GIT_S = 60.0
FILES = {
    b"a.txt": b"",
    b"a/b/c": b"deep\n",
    b"a/b/c.txt": b"\0binary\xff" * 5000,
    b"a/d": b"last of a\n" * 70_000,
    b"a0": b"first\n",
    b"b c\n\xff": b"odd name\n",
    b"z/only": b"x",
}


def git(folder: Path, *words: str, stdin: bytes = b"") -> bytes:
    done = subprocess.run(
        ["git", *words], cwd=folder, input=stdin, capture_output=True, timeout=GIT_S, check=True
    )
    return done.stdout


@pytest.mark.parametrize("objects", [2, 20_000])
def test_git_finds_them_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, objects: int
) -> None:
    monkeypatch.setattr(packs, "_MOST_OBJECTS", objects)
    git(tmp_path, "init", "-q", "--bare")
    with writing(tmp_path / "objects" / "pack") as written:
        tree = PackedTree(written)
        for path in sorted(FILES):
            tree.put(
                path, b"100755" if path == b"a0" else b"100644", written.add(BLOB, FILES[path])
            )
        name = tree.end().hex()
        assert PackedTree(written).end().hex() == "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
    git(tmp_path, "fsck", "--full", "--strict")
    for pack in (tmp_path / "objects" / "pack").glob("*.idx"):
        git(tmp_path, "verify-pack", str(pack))
    rows = git(tmp_path, "ls-tree", "-r", "-z", name).split(b"\0")[:-1]
    assert [row.split(b"\t", 1)[1] for row in rows] == sorted(FILES)
    assert [row[:6] for row in rows if row.endswith(b"\ta0")] == [b"100755"]
    for path, content in FILES.items():
        found = git(tmp_path, "cat-file", "blob", f"{name}:{os.fsdecode(path)}")
        assert found == content


def test_a_folder_takes_the_place_of_a_file(tmp_path: Path) -> None:
    """As a tree may have both, one after the other, while it is read."""
    git(tmp_path, "init", "-q", "--bare")
    with writing(tmp_path / "objects" / "pack") as written:
        tree = PackedTree(written)
        for path in (b"a", b"a/b"):
            tree.put(path, b"100644", written.add(BLOB, b"x"))
        name = tree.end().hex()
    assert git(tmp_path, "ls-tree", "-r", "--name-only", name) == b"a/b\n"
