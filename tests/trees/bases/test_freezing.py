"""Bases made of what a tree holds."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from carrel.domain.errors import TreeUnavailable
from carrel.domain.trees import Base, Change, ChangeKind
from carrel.linux import mounts
from carrel.trees.bases.store import BaseStore
from carrel.trees.changes import Comparison
from carrel.trees.drivers.common import note_prefix, open_roots
from carrel.trees.layers import Layers
from tests.folders import remove_folder
from tests.trees.bases.helpers import left_in_staging, listed, picture, request, shown, write
from tests.trees.git.repositories import git, make_repository


@contextmanager
def tree(base: Base) -> Iterator[Path]:
    """A writable overlay of a base."""
    work = Path(tempfile.mkdtemp(prefix="carrel-tree-", dir=base.folder.parent.parent))
    try:
        for name in ("upper", "work", "view"):
            (work / name).mkdir()
        lowers = mounts.open_layers(base.layers)
        upper, scratch = mounts.open_layers((work / "upper", work / "work"))
        try:
            overlay = mounts.Overlay(tuple(lowers), upper, scratch, (("redirect_dir", "on"),))
            mounts.mount_overlay(overlay, str(work / "view"))
        finally:
            mounts.close_all([*lowers, upper, scratch])
        yield work / "view"
    finally:
        remove_folder(work)


def changes_of(base: Base, view: Path) -> list[Change]:
    upper = view.parent / "upper"
    with open_roots((upper, *base.layers)) as roots:
        tree_layers = Layers(roots, note_prefix())
        base_layers = Layers(roots[1:], note_prefix())
        return list(Comparison(tree_layers, base_layers).changes())


def freeze(store: BaseStore, base: Base, view: Path, changes: Iterable[Change]) -> Base:
    root = os.open(view, os.O_PATH | os.O_DIRECTORY)
    try:
        return store.freeze(base, changes, root)
    finally:
        os.close(root)


@pytest.fixture
def base(store: BaseStore, project: Path) -> Base:
    for number in range(60):
        write(project / f"many/{number}", str(number))
    return store.build(request(project))


def test_a_frozen_tree_is_a_base(store: BaseStore, base: Base, data: Path) -> None:
    before = shown(base)
    with tree(base) as view:
        write(view / "README", "changed")
        write(view / "new/deep/file", "new")
        (view / "many/7").unlink()
        (view / "many/8").rename(view / "many/eight")
        (view / "src/app/main.py").chmod(0o600)
        (view / "many/9").unlink()
        (view / "many/9").mkdir()
        write(view / "many/9/inside", "x")
        (view / "empty").rmdir()
        (view / "empty").symlink_to("src")
        shutil.rmtree(view / "node_modules")
        os.link(view / "README", view / "linked")
        frozen = freeze(store, base, view, changes_of(base, view))
        assert frozen.layers == (frozen.folder / "layer", *base.layers)
        assert shown(frozen) == picture(view)
        assert listed(frozen) == picture(view)
        assert os.path.samefile(frozen.layers[0] / "README", frozen.layers[0] / "linked")
    assert shown(base) == before
    assert frozen.project == base.project
    assert store.get(frozen.base_id) == frozen
    assert left_in_staging(data) == []


def test_nothing_changed_is_the_same_base(store: BaseStore, base: Base) -> None:
    with tree(base) as view:
        assert freeze(store, base, view, []).base_id == base.base_id


def test_freezing_again_and_again(store: BaseStore, base: Base) -> None:
    current = base
    for number in range(12):
        with tree(current) as view:
            write(view / f"many/{number}", f"changed {number}")
            (view / f"many/{30 + number}").unlink()
            frozen = freeze(store, current, view, changes_of(current, view))
            assert shown(frozen) == listed(frozen) == picture(view)
        current = frozen
        assert len(current.layers) <= 8


def test_a_renamed_folder(store: BaseStore, base: Base) -> None:
    with tree(base) as view:
        (view / "many").rename(view / "few")
        (view / "few/3").unlink()
        frozen = freeze(store, base, view, changes_of(base, view))
        assert shown(frozen) == picture(view)


def test_a_folder_is_taken_whole_though_only_it_was_named(store: BaseStore, base: Base) -> None:
    with tree(base) as view:
        write(view / "new/deep/file", "new")
        os.mkfifo(view / "new/pipe")
        change = Change("new", ChangeKind.ADDED)
        frozen = freeze(store, base, view, [change])
    assert b"new/deep/file" in shown(frozen)
    assert [skip.path for skip in frozen.skipped] == ["new/pipe"]


def test_symlinks_in_the_way_lead_nowhere(store: BaseStore, base: Base, tmp_path: Path) -> None:
    write(tmp_path / "secret", "not yours")
    with tree(base) as view:
        shutil.rmtree(view / "src")
        (view / "src").symlink_to(tmp_path)
        lying = [
            Change("src", ChangeKind.TYPE),
            Change("src/secret", ChangeKind.ADDED),
            Change("../../../../etc/passwd", ChangeKind.ADDED),
        ]
        with pytest.raises(TreeUnavailable):
            freeze(store, base, view, lying)
        frozen = freeze(store, base, view, lying[:2])
    found = shown(frozen)
    assert stat.S_ISLNK(found[b"src"].kind)
    assert not any(path.startswith(b"src/") for path in found)


def test_a_tracked_folder_that_became_a_symlink(store: BaseStore, tmp_path: Path) -> None:
    """The index names files below it."""
    base = store.build(request(make_repository(tmp_path / "repository")))
    with tree(base) as view:
        shutil.rmtree(view / "src")
        (view / "src").symlink_to("/")
        git(view, "-c", "safe.directory=*", "update-index", "--chmod=+x", "a.txt")
        frozen = freeze(store, base, view, changes_of(base, view))
        assert (frozen.layers[0] / "src").is_symlink()
