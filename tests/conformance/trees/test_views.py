"""What a tree shows, and that it keeps everything to itself."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from carrel.domain.trees import Base, Tree
from carrel.trees.drivers.common import choose_driver
from carrel.trees.host_edits import HostEdits
from tests.conformance.tree_rig import SANDBOX, Rig
from tests.conformance.tree_views import do_much, fingerprint, look, owners, told
from tests.folders import mounts_below

SEEN_S, LOOK_S = 30.0, 0.02

# What a tree shows


def test_the_driver_works_here_and_trying_leaves_nothing(rig: Rig) -> None:
    before = sorted(os.listdir(rig.data))
    found = rig.driver.probe()
    assert found.available, found
    assert found.reason
    assert sorted(os.listdir(rig.data)) == before
    assert mounts_below(rig.data) == []


def test_a_tree_shows_the_project(rig: Rig, project: Path, tree: Tree) -> None:
    assert rig.act(tree, look) == look(project)


def test_everything_belongs_to_the_owner(rig: Rig, tree: Tree) -> None:
    assert rig.act(tree, owners) == {SANDBOX}
    rig.act(tree, lambda: Path("new").touch())
    assert rig.act(tree, owners) == {SANDBOX}
    root = rig.driver.open_root(tree)
    try:
        assert os.stat("new", dir_fd=root).st_uid == os.fstat(root).st_uid != 0
    finally:
        os.close(root)


def test_times_and_holes_are_kept(rig: Rig, project: Path, tree: Tree) -> None:
    def measure() -> list[tuple[int, bool]]:
        found = [os.lstat(name) for name in ("src", "src/main.py", "to-main", "sparse")]
        return [(status.st_mtime_ns, status.st_blocks * 512 < 1 << 20) for status in found]

    here = os.getcwd()
    try:
        os.chdir(project)
        expected = measure()
    finally:
        os.chdir(here)
    assert rig.act(tree, measure) == expected


def test_a_tree_of_nothing(rig: Rig) -> None:
    tree = rig.tree(rig.base_of(None))
    assert rig.act(tree, lambda: os.listdir(".")) == []
    rig.act(tree, lambda: Path("file").write_text("x"))
    assert told(rig.changes(tree)) == [("added", "file")]


def test_the_second_base_of_a_project(rig: Rig, project: Path, tree: Tree) -> None:
    """With what was added, changed, replaced and removed since the first one."""
    (project / "new").mkdir()
    (project / "new" / "file").write_text("new\n")
    (project / "README").write_text("changed\n")
    (project / "src" / "deep" / "one").unlink()
    (project / "build" / "out" / "object.o").unlink()
    (project / "build" / "out").rmdir()
    (project / "build" / "out").write_text("now a file\n")
    (project / "to-main").unlink()
    (project / "to-main").mkdir()
    second = rig.tree(rig.base_of(project))
    assert rig.act(second, look) == look(project)
    assert rig.changes(second) == []
    assert rig.act(tree, lambda: Path("README").read_text()) == "read me\n"


# What it keeps to itself


def test_the_base_and_the_project_stay_as_they_are(
    rig: Rig, project: Path, base: Base, tree: Tree
) -> None:
    before = [fingerprint(folder) for folder in (*base.layers, project)]
    rig.act(tree, do_much)
    assert [fingerprint(folder) for folder in (*base.layers, project)] == before
    assert rig.changes(tree)
    rig.driver.drop(tree)
    assert [fingerprint(folder) for folder in (*base.layers, project)] == before


def test_trees_do_not_see_one_another(rig: Rig, base: Base, tree: Tree) -> None:
    other = rig.tree(base)
    before = rig.act(other, look)
    rig.act(tree, do_much)
    assert rig.act(other, look) == before
    assert rig.changes(other) == []
    rig.driver.drop(tree)
    assert rig.act(other, look) == before


def test_modes_say_what_can_be_written(rig: Rig, tree: Tree) -> None:
    def attempt() -> list[str]:
        refused = []
        for path in ("fixed/file", "fixed/new", "src/main.py", "src/new", "empty-folder/new"):
            try:
                Path(path).write_text("x")
            except PermissionError:
                refused.append(path)
        return refused

    assert rig.act(tree, attempt) == ["fixed/file", "fixed/new"]
    rig.act(tree, lambda: Path("fixed").chmod(0o755))
    rig.act(tree, lambda: Path("fixed/file").chmod(0o644))
    assert rig.act(tree, attempt) == []


# Choosing


def test_the_best_driver_is_chosen_with_reasons(rig: Rig) -> None:
    chosen, judgements = choose_driver([rig.driver])
    assert chosen is rig.driver
    assert [judgement.chosen for judgement in judgements] == [True]
    assert all(judgement.why for judgement in judgements)


@pytest.mark.parametrize("own_mount", [True, False])
@pytest.mark.skipif(os.geteuid() != 0, reason="only root has other files than a tree's own")
def test_what_is_made_on_the_host_becomes_the_trees(tree: Tree, own_mount: bool) -> None:
    """Files and folders, also below new folders, and what was there before anybody looked."""
    (tree.path / "before").touch()
    edits = HostEdits()
    try:
        edits.watch(tree, own_mount=own_mount)
        made = tree.path / "src" / "made"
        (made / "empty").mkdir(parents=True)
        (made / "file").write_text("one\n")
        (tree.path / "plain").write_text("two\n")
        owner = os.stat(tree.path).st_uid
        new = (tree.path / "before", made, made / "empty", made / "file", tree.path / "plain")
        until = time.monotonic() + SEEN_S
        while any(one.stat().st_uid != owner for one in new):
            assert time.monotonic() < until, [(one, one.stat().st_uid) for one in new]
            time.sleep(LOOK_S)
    finally:
        edits.close()
