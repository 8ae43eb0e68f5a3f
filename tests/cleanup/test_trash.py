"""The trash: what is kept of removed spaces, for how long, and what a crash leaves in it."""

from __future__ import annotations

import dataclasses
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from carrel.cleanup.trash import Trash
from carrel.domain.checkpoints import PartsKept
from carrel.domain.cleanup import Bundle
from carrel.domain.collaborators import TrashCan
from carrel.domain.errors import SpaceInvalid, SpaceNotFound, TooLarge, TreeDamaged
from carrel.domain.ids import new_id
from carrel.domain.projects import Project, ProjectKind
from carrel.domain.spaces import Space, SpaceState, Trashed
from carrel.domain.trees import Tree, TreeDriver
from carrel.trees.bundles import TreeBundler
from tests.conformance.tree_rig import Rig, open_launcher, open_rig

BUDGET = 100_000
AGE_S = 3600.0
NOW = 1_000_000.0


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with (
        open_launcher() as launcher,
        open_rig("copy", Path(tempfile.gettempdir()), launcher) as opened,
    ):
        yield opened


@pytest.fixture
def tree(rig: Rig) -> Tree:
    return rig.tree(rig.base_of(None))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "data" / "trash"


@pytest.fixture
def trash(folder: Path) -> Trash:
    return Trash(folder, BUDGET, AGE_S, TreeBundler(), lambda: NOW)


def space_of(tree: Tree) -> Space:
    return space_named(tree.tree_id, tree.base_id)


def space_named(space_id: str, base_id: str = "ba_x") -> Space:
    return Space(
        space_id=space_id,
        name="name",
        state=SpaceState.REMOVING,
        project=Project(ProjectKind.EMPTY),
        created_at=1.0,
        updated_at=2.0,
        active_at=3.0,
        base_id=base_id,
    )


def change(rig: Rig, tree: Tree, content: bytes = b"changed") -> None:
    rig.act(tree, lambda: Path("file").write_bytes(content))


def test_it_is_what_the_service_needs(trash: Trash) -> None:
    can: TrashCan = trash
    assert can.expire([], NOW) == []


def test_keeping_and_restoring(rig: Rig, tree: Tree, trash: Trash, folder: Path) -> None:
    change(rig, tree)
    kept = trash.keep(space_of(tree), tree, rig.driver)
    assert kept is not None
    assert kept == Trashed(space_of(tree), NOW, kept.bytes_kept, 1)
    files = list((folder / tree.tree_id).iterdir())
    assert sum(file.stat().st_size for file in files) == kept.bytes_kept > 0
    assert folder.stat().st_mode & 0o777 == 0o700
    assert trash.stray([kept]) == []
    changes = rig.changes(tree)
    for _ in range(2):
        fresh = rig.tree(rig.bases.get(tree.base_id))
        trash.restore(kept, fresh, rig.driver)
        assert rig.changes(fresh) == changes
    trash.purge(kept)
    trash.purge(kept)
    assert os.listdir(folder) == []
    with pytest.raises(SpaceNotFound):
        trash.restore(kept, tree, rig.driver)


def test_nothing_to_keep(rig: Rig, tree: Tree, trash: Trash, folder: Path) -> None:
    assert trash.keep(space_of(tree), tree, rig.driver) is None
    assert os.listdir(folder) == []
    change(rig, tree)
    assert trash.keep(space_of(tree), tree, rig.driver) is not None
    rig.act(tree, lambda: os.unlink("file"))
    assert trash.keep(space_of(tree), tree, rig.driver) is None
    assert os.listdir(folder) == []


def test_more_than_the_budget(rig: Rig, tree: Tree, trash: Trash, folder: Path) -> None:
    change(rig, tree, os.urandom(BUDGET + 1000))
    with pytest.raises(TooLarge):
        trash.keep(space_of(tree), tree, rig.driver)
    assert os.listdir(folder) == []
    assert trash.stray([]) == []


def test_keeping_again(rig: Rig, tree: Tree, trash: Trash, folder: Path) -> None:
    """As after a crash before it was recorded. The last is what counts, and one that fails
    leaves what was there."""
    change(rig, tree)
    trash.keep(space_of(tree), tree, rig.driver)
    change(rig, tree, b"once more")
    kept = trash.keep(space_of(tree), tree, rig.driver)
    assert kept is not None
    change(rig, tree, os.urandom(BUDGET + 1000))
    with pytest.raises(TooLarge):
        trash.keep(space_of(tree), tree, rig.driver)
    fresh = rig.tree(rig.bases.get(tree.base_id))
    trash.restore(kept, fresh, rig.driver)
    assert rig.act(fresh, lambda: Path("file").read_bytes()) == b"once more"
    assert len(os.listdir(folder / tree.tree_id)) == 1


def test_a_damaged_one(rig: Rig, tree: Tree, trash: Trash, folder: Path) -> None:
    change(rig, tree)
    kept = trash.keep(space_of(tree), tree, rig.driver)
    assert kept is not None
    (file,) = (folder / tree.tree_id).iterdir()
    file.write_bytes(file.read_bytes()[:-20])
    fresh = rig.tree(rig.bases.get(tree.base_id))
    with pytest.raises(TreeDamaged):
        trash.restore(kept, fresh, rig.driver)
    assert rig.changes(fresh) == []


class Killed(TreeBundler):
    """Ends the process in the middle, when something is on the disk but not all."""

    def pack(
        self, driver: TreeDriver, tree: Tree, base_id: str, target: Path, max_bytes: int
    ) -> Bundle:
        (target.parent / ".changes-unfinished").write_bytes(b"half")
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("still alive")


def test_a_crash_leaves_what_is_found(rig: Rig, tree: Tree, trash: Trash, folder: Path) -> None:
    change(rig, tree)
    pid = os.fork()
    if pid == 0:
        try:
            Trash(folder, BUDGET, AGE_S, Killed()).keep(space_of(tree), tree, rig.driver)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    assert trash.stray([]) == [folder / tree.tree_id]
    kept = trash.keep(space_of(tree), tree, rig.driver)
    assert kept is not None
    assert len(os.listdir(folder / tree.tree_id)) == 1
    assert trash.stray([kept]) == []
    trash.purge(kept)
    assert os.listdir(folder) == []


def test_strays(trash: Trash, folder: Path, tmp_path: Path) -> None:
    assert trash.stray([]) == []
    known = Trashed(space_named(new_id("sp")), NOW, 1, 1)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "kept").touch()
    (folder / known.space.space_id).mkdir(parents=True)
    (folder / "folder" / "inner").mkdir(parents=True)
    (folder / "file").touch()
    (folder / "link").symlink_to(tmp_path / "outside")
    found = trash.stray([known])
    assert found == [folder / "file", folder / "folder", folder / "link"]
    for stray in [*found, *found]:
        trash.discard(stray)
    assert os.listdir(folder) == [known.space.space_id]
    assert (tmp_path / "outside" / "kept").exists()
    with pytest.raises(SpaceInvalid):
        trash.discard(tmp_path / "outside")


def test_ids_that_are_none(trash: Trash, folder: Path) -> None:
    (folder / "x").mkdir(parents=True)
    for bad in ("", ".", "..", "../x", "x", "/etc", new_id("ru")):
        with pytest.raises(SpaceInvalid):
            trash.purge(Trashed(space_named(bad), NOW, 1, 1))
    assert (folder / "x").is_dir()


# What goes


def entry(age_s: float, size: int) -> Trashed:
    return Trashed(space_named(new_id("sp")), NOW - age_s, size, 1)


def test_age(trash: Trash) -> None:
    young, old, older = entry(AGE_S, 1), entry(AGE_S + 1, 1), entry(AGE_S * 9, 1)
    assert trash.expire([young, older, old], NOW) == [older, old]
    # A clock that was set back makes nothing old.
    assert trash.expire([young, older, old], NOW - AGE_S * 10) == []


def test_budget(trash: Trash) -> None:
    entries = [entry(age, BUDGET // 4) for age in range(10)]
    assert trash.expire(entries, NOW) == entries[:3:-1]
    assert trash.expire(entries[:4], NOW) == []
    huge = entry(0, BUDGET + 1)
    assert trash.expire([huge], NOW) == [huge]
    assert trash.expire([entries[9], huge], NOW) == [entries[9], huge]
    exact = dataclasses.replace(huge, bytes_kept=BUDGET)
    assert trash.expire([exact], NOW) == []


def test_nobody_pays_for_what_others_removed(trash: Trash) -> None:
    owners, child = entry(9, BUDGET), entry(9, BUDGET)
    child = dataclasses.replace(child, space=dataclasses.replace(child.space, family="sp_a"))
    blues = [entry(age, BUDGET) for age in range(3)]
    blues = [
        dataclasses.replace(one, space=dataclasses.replace(one.space, account="team=blue"))
        for one in blues
    ]
    assert trash.expire([owners, child, *blues], NOW) == [blues[2], blues[1]]


def test_both(trash: Trash) -> None:
    old = entry(AGE_S + 1, BUDGET)
    fitting = entry(1, BUDGET)
    assert trash.expire([fitting, old], NOW) == [old]


class Installed:
    """A system with so many bytes in it."""

    def __init__(self, size: int) -> None:
        self.size = size

    def has_parts_to_keep(self) -> bool:
        return True

    def pack_parts(self, target: Path, max_bytes: int) -> PartsKept:
        target.mkdir()
        (target / "file").write_bytes(bytes(min(self.size, max_bytes)))
        if self.size > max_bytes:
            raise TooLarge("too large")
        return PartsKept(self.size, 1)

    def unpack_parts(self, source: Path) -> None:
        assert (source / "file").stat().st_size == self.size


def test_systems_go_before_work(rig: Rig, trash: Trash, folder: Path) -> None:
    kept = []
    for number in range(4):
        tree = rig.tree(rig.base_of(None))
        change(rig, tree, b"work")
        found = trash.keep(space_of(tree), tree, rig.driver, Installed(BUDGET // 3))
        assert found is not None and found.system == 1
        kept.append(dataclasses.replace(found, trashed_at=NOW + number))
    lighter = trash.lighten(kept)
    assert [one.space.space_id for one in lighter] == [one.space.space_id for one in kept[:2]]
    for one in lighter:
        trash.drop_system(one)
        trash.drop_system(one)
        assert (one.system, one.system_bytes) == (0, 0) and one.bytes_kept < BUDGET // 3
        assert os.listdir(folder / one.space.space_id) == ["changes"]
    left = [*lighter, *kept[2:]]
    assert trash.lighten(left) == [] and trash.expire(left, NOW) == []
    fresh = rig.tree(rig.base_of(None))
    trash.restore(kept[3], fresh, rig.driver, Installed(BUDGET // 3))
    assert rig.act(fresh, lambda: Path("file").read_bytes()) == b"work"


def test_what_is_too_large_beside_the_work_leaves_nothing(
    rig: Rig, tree: Tree, trash: Trash, folder: Path
) -> None:
    change(rig, tree)
    with pytest.raises(TooLarge):
        trash.keep(space_of(tree), tree, rig.driver, Installed(BUDGET))
    assert list(folder.rglob("file")) == []
    kept = trash.keep(space_of(tree), tree, rig.driver)
    assert kept is not None and kept.system == 0
