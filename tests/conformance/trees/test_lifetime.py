"""How a tree begins and ends, and what is left."""

from __future__ import annotations

import dataclasses
import os
import subprocess
from pathlib import Path

import pytest

from carrel.domain.errors import CarrelError, TreeDamaged, TreeExists, TreeNotFound
from carrel.domain.trees import Base, Tree
from tests.conformance.tree_rig import Rig
from tests.conformance.tree_views import do_much, fingerprint, look
from tests.folders import mounts_below


def test_there_is_one_tree_in_a_folder(rig: Rig, base: Base) -> None:
    request = rig.request(base)
    rig.trees.append(rig.driver.create(request))
    with pytest.raises(TreeExists):
        rig.driver.create(request)
    assert rig.changes(rig.trees[0]) == []


def test_a_failed_start_leaves_nothing(rig: Rig, base: Base) -> None:
    request = rig.request(base)
    gone = dataclasses.replace(base, layers=(rig.data / "gone",))
    with pytest.raises(CarrelError):
        rig.driver.create(dataclasses.replace(request, base=gone))
    assert os.listdir(request.folder) == []
    rig.trees.append(rig.driver.create(request))


def test_drop_leaves_nothing_and_can_be_repeated(rig: Rig, tree: Tree) -> None:
    rig.act(tree, do_much)
    rig.driver.drop(tree)
    rig.driver.drop(tree)
    assert os.listdir(tree.folder) == []
    assert mounts_below(tree.folder) == []
    for use in (rig.driver.open_root, rig.driver.usage, rig.driver.ensure, rig.changes):
        with pytest.raises(TreeNotFound):
            use(tree)
    tree.folder.rmdir()
    rig.driver.drop(tree)


@pytest.mark.parametrize("step", ["project", "tree", "tree/upper", "tree/work", "tree/new/x"])
def test_a_half_made_tree_is_dropped(rig: Rig, base: Base, step: str) -> None:
    """As a process that was killed while making one leaves it."""
    request = rig.request(base)
    (request.folder / step).mkdir(parents=True)
    tree = Tree(request.tree_id, rig.name, base.base_id, request.folder, request.owner, 0)
    rig.driver.drop(tree)
    assert os.listdir(request.folder) == []


def test_drop_copes_with_everything_in_a_tree(rig: Rig, tmp_path: Path, tree: Tree) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("kept\n")
    before = fingerprint(outside)

    def act() -> None:
        os.symlink(outside, "to-outside")
        os.symlink(outside / "file", "to-outside-file")
        os.mkfifo("fifo")
        os.makedirs("closed/inner")
        Path("closed/inner/file").write_text("x")
        os.chmod("closed/inner", 0)
        os.chmod("closed", 0)

    rig.act(tree, act)
    if os.geteuid() == 0:
        root = rig.driver.open_root(tree)
        os.mkdir("of-others", dir_fd=root)
        os.close(os.open("of-others/file", os.O_CREAT, dir_fd=root))
        os.chown("of-others", 12345, 12345, dir_fd=root)
        os.close(root)
    rig.driver.drop(tree)
    assert os.listdir(tree.folder) == []
    assert fingerprint(outside) == before


def test_drop_does_not_wait_for_those_who_still_look(rig: Rig, tree: Tree) -> None:
    root = rig.driver.open_root(tree)
    try:
        file = os.open("README", os.O_RDONLY, dir_fd=root)
        try:
            rig.driver.drop(tree)
            assert os.listdir(tree.folder) == []
            assert os.read(file, 100) == b"read me\n"
        finally:
            os.close(file)
    finally:
        os.close(root)


def test_a_tree_is_usable_again_after_a_reboot(rig: Rig, tree: Tree) -> None:
    rig.act(tree, do_much)
    before, changes = rig.act(tree, look), rig.changes(tree)
    rig.unmount(tree)
    assert rig.changes(tree) == changes
    if rig.name == "overlay":
        with pytest.raises(TreeDamaged):
            rig.driver.open_root(tree)
    rig.driver.ensure(tree)
    rig.driver.ensure(tree)
    # But for the numbers by which names of the same file are known: those are an overlay's.
    after = rig.act(tree, look)
    assert {path: seen[:4] for path, seen in after.items()} == {
        path: seen[:4] for path, seen in before.items()
    }
    assert rig.changes(tree) == changes


def test_a_damaged_tree_is_told_and_dropped(rig: Rig, tree: Tree) -> None:
    rig.unmount(tree)
    lost = tree.folder / "tree" / "upper" if rig.name == "overlay" else tree.path
    if rig.name == "btrfs" and os.geteuid() == 0:
        subprocess.run(["btrfs", "subvolume", "delete", lost], check=True, capture_output=True)
    else:
        lost.rename(rig.data / "lost")
    with pytest.raises(TreeDamaged):
        rig.driver.ensure(tree)
    with pytest.raises(TreeDamaged):
        rig.changes(tree)
    rig.driver.drop(tree)
    assert os.listdir(tree.folder) == []


def test_a_runtime_gets_as_many_mounts_as_it_asks_for(rig: Rig, tree: Tree) -> None:
    open_before = len(os.listdir("/proc/self/fd"))
    with rig.driver.mount(tree) as shown:
        assert shown.path == tree.path
        for _ in range(2 if shown.detached is not None else 0):
            assert shown.detached is not None
            descriptor = shown.detached()
            assert os.stat("README", dir_fd=descriptor).st_uid == tree.owner.uid
            os.close(descriptor)
    assert len(os.listdir("/proc/self/fd")) == open_before
