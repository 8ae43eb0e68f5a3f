"""Files that go in and out of a tree, and git in it."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest

from carrel.domain.errors import CarrelError
from carrel.domain.trees import Base, Tree
from carrel.trees.carry import carry_out
from carrel.trees.files import open_files
from tests.conformance.tree_rig import SANDBOX, Rig
from tests.conformance.tree_views import do_much, fingerprint, git, look, owners, told

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


# Reading and writing from outside, and taking changes out


def test_files_written_from_outside_are_the_owners(rig: Rig, tree: Tree) -> None:
    with open_files(rig.driver, tree) as files:
        files.write("outside", b"from outside\n")
        files.write("README", b"changed outside\n")
        files.mkdir("made/outside", parents=True)
        files.move("src", "lib")
        files.delete("build", recursive=True)
        assert files.read("lib/deep/one") == b"one\n"
    assert rig.act(tree, owners) == {SANDBOX}
    rig.act(tree, lambda: Path("outside").write_text("and inside\n"))
    with open_files(rig.driver, tree) as files:
        assert files.read("outside") == b"and inside\n"
    kinds = dict((path, kind) for kind, path in told(rig.changes(tree)))
    assert kinds["outside"] == "added"
    assert kinds["README"] == "modified"
    assert kinds["lib/deep/one"] == "renamed"
    assert kinds["build/out/object.o"] == "deleted"


def test_changes_are_carried_out(
    rig: Rig, tmp_path: Path, project: Path, base: Base, tree: Tree
) -> None:
    target = tmp_path / "target"
    subprocess.run(["cp", "-a", project, target], check=True)
    rig.act(tree, do_much)
    carry_out(rig.driver, tree, base, target, rig.changes(tree))
    # Without which names a file has: files are replaced, by design, and parted from others.
    wanted, got = rig.act(tree, look), look(target)
    assert {path: seen[:4] for path, seen in got.items()} == {
        path: seen[:4] for path, seen in wanted.items()
    }


@ROOT_ONLY
def test_what_is_carried_out_belongs_to_the_project(
    rig: Rig, tmp_path: Path, project: Path
) -> None:
    for path in (project, *project.rglob("*")):
        os.chown(path, 4321, 1234, follow_symlinks=False)
    os.chown(project / "README", 55, 66)
    base = rig.base_of(project)
    tree = rig.tree(base)

    def act() -> None:
        Path("README").write_text("changed\n")
        Path("new").mkdir()
        Path("new/file").write_text("new\n")
        os.chmod("new/file", 0o6755)
        os.symlink("file", "new/link")

    rig.act(tree, act)
    carry_out(rig.driver, tree, base, project, rig.changes(tree))
    found = {name: os.lstat(project / name) for name in ("README", "new", "new/file", "new/link")}
    assert [status.st_uid for status in found.values()] == [55, 4321, 4321, 4321]
    assert [status.st_gid for status in found.values()] == [66, 1234, 1234, 1234]
    assert stat.S_IMODE(found["new/file"].st_mode) == 0o755


def test_carrying_out_never_follows_a_link_of_the_destination(
    rig: Rig, tmp_path: Path, base: Base, tree: Tree
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "main.py").write_text("kept\n")
    target = tmp_path / "target"
    target.mkdir()
    (target / "src").symlink_to(outside)
    (target / "README").symlink_to(outside / "main.py")
    before = fingerprint(outside)
    rig.act(tree, lambda: (Path("src/main.py").write_text("x"), Path("README").write_text("y")))
    changes = rig.changes(tree)
    with pytest.raises(CarrelError):
        carry_out(rig.driver, tree, base, target, changes)
    carry_out(rig.driver, tree, base, target, [one for one in changes if one.path == "README"])
    assert (target / "README").read_text() == "y"
    assert fingerprint(outside) == before


# Git


def test_git_in_a_tree_is_its_own(rig: Rig, project: Path, base: Base, tree: Tree) -> None:
    before = [fingerprint(folder) for folder in (*base.layers, project)]
    assert "README" not in rig.git(tree, "status", "--porcelain")
    assert rig.git(tree, "log", "--format=%s").split() == ["second", "first"]
    rig.act(tree, lambda: Path("README").write_text("changed\n"))
    rig.git(tree, "checkout", "--quiet", "-b", "work")
    rig.git(tree, "commit", "--quiet", "--all", "--message=third")
    rig.act(tree, lambda: Path("src/main.py").write_text("stashed\n"))
    rig.git(tree, "stash")
    rig.git(tree, "rebase", "--quiet", "main")
    rig.git(tree, "gc", "--quiet", "--prune=now")
    rig.git(tree, "fsck", "--strict")
    rig.git(tree, "stash", "pop", "--quiet")
    assert rig.act(tree, lambda: Path("src/main.py").read_text()) == "stashed\n"
    assert rig.git(tree, "log", "--format=%s").split() == ["third", "second", "first"]
    assert [fingerprint(folder) for folder in (*base.layers, project)] == before
    assert git(project, "log", "--format=%s").split() == ["second", "first"]


def test_a_frozen_tree_has_its_commits(rig: Rig, tree: Tree) -> None:
    rig.act(tree, lambda: Path("README").write_text("changed\n"))
    rig.git(tree, "commit", "--quiet", "--all", "--message=third")
    copy = rig.tree(rig.driver.freeze(tree))
    assert rig.git(copy, "log", "--format=%s").split() == ["third", "second", "first"]
    rig.git(copy, "fsck", "--strict")


def test_git_reads_no_file_again_to_see_that_nothing_changed(rig: Rig, project: Path) -> None:
    # Files of this very moment are read again by git, wherever they are.
    for path in sorted(project.rglob("*")):
        if ".git" not in path.parts:
            os.utime(path, (1_700_000_000, 1_700_000_000), follow_symlinks=False)
    git(project, "status")
    tree = rig.tree(rig.base_of(project))
    # This command believes what the index says, and tells what it would have to read.
    assert rig.git(tree, "diff-files", "--name-only") == ""
    assert rig.git(tree, "status", "--porcelain", "--untracked-files=no") == ""
