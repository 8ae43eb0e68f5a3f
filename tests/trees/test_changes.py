"""Overlayfs's format, read without mounting: made by hand, and by the kernel."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from carrel.domain.trees import Change, ChangeKind
from carrel.linux import mounts
from carrel.trees import changes as module
from carrel.trees.changes import Comparison
from carrel.trees.contents import digest, same_bytes
from carrel.trees.folders import Root
from carrel.trees.layers import TRUSTED, USER, Layers
from tests.conformance.tree_views import look

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture
def layers(tmp_path: Path) -> Path:
    """Two lower layers and an upper folder."""
    for name in ("upper", "middle", "lowest"):
        (tmp_path / name / "folder").mkdir(parents=True)
    (tmp_path / "lowest" / "folder" / "a").write_text("a of the lowest")
    (tmp_path / "lowest" / "folder" / "b").write_text("b of the lowest")
    (tmp_path / "lowest" / "file").write_text("file")
    (tmp_path / "middle" / "folder" / "b").write_text("b of the middle one")
    (tmp_path / "middle" / "folder" / "c").write_text("c")
    return tmp_path


def changes(folder: Path, prefix: str = USER) -> list[Change]:
    roots = [Root.at(folder / name) for name in ("upper", "middle", "lowest")]
    try:
        return list(Comparison(Layers(roots, prefix), Layers(roots[1:], prefix)).changes())
    finally:
        for root in roots:
            root.close()


def told(folder: Path, prefix: str = USER) -> list[tuple[str, str]]:
    return [(change.kind.value, change.path) for change in changes(folder, prefix)]


def hide(path: Path) -> None:
    os.mknod(path, stat.S_IFCHR, os.makedev(0, 0))


@pytest.fixture(params=[USER, pytest.param(TRUSTED, marks=ROOT_ONLY)])
def prefix(request: pytest.FixtureRequest) -> Iterator[str]:
    return request.param  # type: ignore[no-any-return]


def test_an_empty_upper_folder(layers: Path) -> None:
    assert told(layers) == []
    (layers / "upper" / "folder").rmdir()
    assert told(layers) == []


def test_whiteouts(layers: Path) -> None:
    hide(layers / "upper" / "folder" / "b")
    hide(layers / "upper" / "file")
    hide(layers / "upper" / "never-was")
    assert told(layers) == [("deleted", "file"), ("deleted", "folder/b")]
    (layers / "upper" / "folder" / "b").unlink()
    (layers / "upper" / "folder").rmdir()
    hide(layers / "upper" / "folder")
    assert told(layers) == [
        ("deleted", "file"),
        ("deleted", "folder"),
        ("deleted", "folder/a"),
        ("deleted", "folder/b"),
        ("deleted", "folder/c"),
    ]


def test_whiteouts_in_lower_layers(layers: Path) -> None:
    hide(layers / "middle" / "file")
    (layers / "upper" / "file").write_text("again")
    assert told(layers) == [("added", "file")]
    (layers / "upper" / "file").unlink()
    hide(layers / "upper" / "file")
    assert told(layers) == []


def test_whiteouts_by_attribute(layers: Path, prefix: str) -> None:
    folder = layers / "upper" / "folder"
    for name in ("a", "c"):
        (folder / name).touch()
    os.setxattr(folder / "a", f"{prefix}whiteout", b"y")
    os.setxattr(folder, f"{prefix}opaque", b"x")
    assert told(layers, prefix) == [("deleted", "folder/a"), ("modified", "folder/c")]


def test_opaque_folders(layers: Path, prefix: str) -> None:
    os.setxattr(layers / "upper" / "folder", f"{prefix}opaque", b"y")
    (layers / "upper" / "folder" / "c").write_text("c")
    assert told(layers, prefix) == [("deleted", "folder/a"), ("deleted", "folder/b")]


@pytest.mark.parametrize("redirect", [b"folder", b"/folder"])
def test_moved_folders(layers: Path, prefix: str, redirect: bytes) -> None:
    moved = layers / "upper" / "moved"
    (layers / "upper" / "folder").rename(moved)
    hide(layers / "upper" / "folder")
    os.setxattr(moved, f"{prefix}redirect", redirect)
    hide(moved / "a")
    (moved / "new").write_text("new")
    assert [(one.kind.value, one.path, one.old_path) for one in changes(layers, prefix)] == [
        ("deleted", "folder", None),
        ("deleted", "folder/a", None),
        ("added", "moved", None),
        ("renamed", "moved/b", "folder/b"),
        ("renamed", "moved/c", "folder/c"),
        ("added", "moved/new", None),
    ]


@ROOT_ONLY
@pytest.mark.parametrize("redirect", [b"a", b"/folder/a"])
def test_files_whose_bytes_are_still_below(layers: Path, redirect: bytes) -> None:
    folder = layers / "upper" / "folder"
    for name, size in (("b", 19), ("moved", 15)):
        (folder / name).touch(mode=0o600)
        os.truncate(folder / name, size)
        os.setxattr(folder / name, TRUSTED + "metacopy", b"")
    os.setxattr(folder / "moved", TRUSTED + "redirect", redirect)
    hide(folder / "a")
    found = changes(layers, TRUSTED)
    assert [(one.kind, one.path, one.old_path) for one in found] == [
        (ChangeKind.MODE, "folder/b", None),
        (ChangeKind.RENAMED, "folder/moved", "folder/a"),
    ]
    assert [one.new_mode for one in found] == [0o600, 0o600]


def test_attributes_that_an_ordinary_users_overlay_does_not_heed(layers: Path) -> None:
    """They could be the tree's own doing."""
    (layers / "upper" / "folder" / "b").write_text("B of the middle one")
    os.setxattr(layers / "upper" / "folder" / "b", USER + "metacopy", b"")
    assert told(layers) == [("modified", "folder/b")]


@ROOT_ONLY
def test_whatever_the_kernel_wrote(data: Path) -> None:
    """Folders moved within folders that were moved, deleted and made again."""
    lower = data / "lowest"
    for path in ("one/two/three", "four/five"):
        (lower / path).mkdir(parents=True)
    for path in ("one/a", "one/two/b", "one/two/three/c", "four/d", "four/five/e"):
        (lower / path).write_text(path * 10)
    for name in ("upper", "middle", "work", "target"):
        (data / name).mkdir()
    names = ("middle", "lowest", "upper", "work")
    opened = mounts.open_layers([data / name for name in names])
    options = (("redirect_dir", "on"), ("metacopy", "on"))
    overlay = mounts.Overlay((opened[0], opened[1]), opened[2], opened[3], options)
    target = data / "target"
    mounts.mount_overlay(overlay, str(target))
    try:
        mounts.close_all(opened)
        os.rename(target / "one" / "two", target / "four" / "two")
        os.rename(target / "four" / "two" / "three", target / "three")
        os.rename(target / "four", target / "one" / "four")
        os.rename(target / "one", target / "uno")
        os.chmod(target / "uno" / "four" / "d", 0o600)
        os.rename(target / "uno" / "four" / "d", target / "d")
        os.mkdir(target / "four")
        (target / "four" / "d").write_text("another")
        found = changes(data, TRUSTED)
        renamed = {one.path: one.old_path for one in found if one.kind is ChangeKind.RENAMED}
        assert renamed == {
            "three/c": "one/two/three/c",
            "uno/a": "one/a",
            "uno/four/five/e": "four/five/e",
            "uno/four/two/b": "one/two/b",
        }
        others = {one.path: one.kind.value for one in found if one.path not in renamed}
        assert others["d"] == "added" and others["four/d"] == "modified"
        now = {path for path, kind in others.items() if kind != "deleted"} | renamed.keys()
        assert now == look(target).keys() - {"four"}
    finally:
        mounts.detach_all(str(target))


def test_a_plain_folder_knows_no_whiteouts(tmp_path: Path) -> None:
    """A tree's owner may make such devices; there they mean nothing."""
    for name in ("tree", "base"):
        (tmp_path / name).mkdir()
    (tmp_path / "base" / "file").write_text("x")
    hide(tmp_path / "tree" / "file")
    hide(tmp_path / "tree" / "other")
    with Root.at(tmp_path / "tree") as tree, Root.at(tmp_path / "base") as base:
        found = list(Comparison(Layers([tree], None), Layers([base], USER)).changes())
    assert [(one.kind.value, one.path) for one in found] == [("type", "file"), ("added", "other")]


def test_what_was_touched_after_the_copy_is_compared(tmp_path: Path) -> None:
    for name in ("tree", "base"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("same size" if name == "base" else "size same")
        os.utime(tmp_path / name / "file", (1, 1))

    def kinds(settled_ns: int) -> list[str]:
        with Root.at(tmp_path / "tree") as tree, Root.at(tmp_path / "base") as base:
            compared = Comparison(Layers([tree], None), Layers([base], USER), settled_ns)
            return [one.kind.value for one in compared.changes()]

    touched = (tmp_path / "tree" / "file").stat().st_ctime_ns
    assert kinds(touched) == ["modified"]
    assert kinds(touched + 1) == []
    os.utime(tmp_path / "tree" / "file", (2, 2))
    assert kinds(time.time_ns() + 1_000_000_000) == ["modified"]


def test_changes_flow_until_one_may_be_a_rename(layers: Path) -> None:
    """What cannot be part of one is told before everything has been looked at."""
    os.chmod(layers / "upper" / "folder", 0o700)
    for number in range(100):
        (layers / "upper" / f"z-{number}").mkdir()
    roots = [Root.at(layers / name) for name in ("upper", "middle", "lowest")]
    try:
        found = Comparison(Layers(roots, USER), Layers(roots[1:], USER)).changes()
        assert next(found).path == "folder"
        (layers / "upper" / "z-99").rmdir()
        assert len(list(found)) == 100
    finally:
        for root in roots:
            root.close()


def renamed(folder: Path, count: int) -> list[Change]:
    """Of so many files of the same bytes, all of which have got other names."""
    for name in ("tree", "base"):
        (folder / name).mkdir()
    for number in range(count):
        (folder / "base" / f"old-{number}").write_text("same")
        (folder / "tree" / f"new-{number}").write_text("same")
    with Root.at(folder / "tree") as tree, Root.at(folder / "base") as base:
        return list(Comparison(Layers([tree], None), Layers([base], USER)).changes())


def test_many_files_of_the_same_bytes(tmp_path: Path) -> None:
    found = renamed(tmp_path, 3000)
    assert len(found) == 3000
    assert len({one.old_path for one in found}) == 3000


@pytest.mark.parametrize(("most", "told"), [(9, 10), (10, 5), (100, 5)])
def test_too_many_to_be_held_are_not_paired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, told: int
) -> None:
    monkeypatch.setattr(module, "MOST_HELD", most)
    assert len(renamed(tmp_path, 5)) == told


def test_bytes_and_holes(tmp_path: Path) -> None:
    size = 1 << 40
    for name, text in (("one", b"x"), ("two", b"x"), ("three", b"y"), ("zeros", b"x")):
        with (tmp_path / name).open("wb") as file:
            file.truncate(size)
            file.seek(5 << 20)
            file.write(text)
            if name == "zeros":
                file.seek(9 << 20)
                file.write(bytes(1 << 20))
    opened = {
        name: os.open(tmp_path / name, os.O_RDONLY) for name in ("one", "two", "three", "zeros")
    }
    try:
        assert same_bytes(opened["one"], opened["two"], size)
        assert same_bytes(opened["one"], opened["zeros"], size)
        assert not same_bytes(opened["one"], opened["three"], size)
        named = {name: digest(descriptor, size) for name, descriptor in opened.items()}
        assert named["one"] == named["two"] == named["zeros"] != named["three"]
    finally:
        mounts.close_all(list(opened.values()))
