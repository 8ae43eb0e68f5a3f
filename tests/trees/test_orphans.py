"""Finding and removing what is left of spaces that nobody knows."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from carrel.domain.cleanup import Stray
from carrel.domain.errors import CarrelError, SpaceInvalid
from carrel.domain.ids import new_id
from carrel.trees.orphans import FOLDER, HELD, MOUNT, USER, remove_stray, remove_trial, strays
from tests.accounts import Account
from tests.conformance.tree_rig import Rig
from tests.folders import mounts_below
from tests.trees.again import run_again

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
ORDINARY_ONLY = pytest.mark.skipif(os.geteuid() == 0, reason="is about ordinary users")


def remove_all(rig: Rig) -> list[Stray]:
    """All that nobody knows; gives what was found."""
    found = strays(rig.data, set(), rig.launcher)
    for _ in range(2):
        for stray in found:
            remove_stray(stray, rig.data, rig.launcher)
    return found


def test_nothing(tmp_path: Path) -> None:
    assert strays(tmp_path, set()) == []
    (tmp_path / "spaces").mkdir()
    (tmp_path / "uids").mkdir()
    assert strays(tmp_path, set()) == []


def test_folders(tmp_path: Path) -> None:
    known, unknown, linked = new_id("sp"), new_id("sp"), new_id("sp")
    outside = tmp_path / "outside"
    (outside / "project").mkdir(parents=True)
    (outside / "project" / "file").touch()
    for name in (known, unknown, "of-somebody", ".probe-123", new_id("ru")):
        (tmp_path / "spaces" / name / "project").mkdir(parents=True)
    (tmp_path / "spaces" / unknown / "home").symlink_to(outside)
    (tmp_path / "spaces" / unknown / "project" / "up").symlink_to("../../../outside")
    (tmp_path / "spaces" / linked).symlink_to(outside)
    found = strays(tmp_path, {known})
    assert {(stray.kind, stray.space_id, stray.path) for stray in found} == {
        (FOLDER, name, str(tmp_path / "spaces" / name)) for name in (unknown, linked)
    }
    assert not any(stray.holds_work for stray in found), "no driver made a tree there"
    for _ in range(2):
        for stray in found:
            remove_stray(stray, tmp_path)
    assert strays(tmp_path, {known}) == []
    assert {known, "of-somebody"} < set(os.listdir(tmp_path / "spaces"))
    assert (outside / "project" / "file").exists()


def test_claims_on_users(tmp_path: Path) -> None:
    known, unknown, taken = new_id("sp"), new_id("sp"), new_id("sp")
    (tmp_path / "uids").mkdir()
    for number, name in enumerate((known, unknown, taken, "something")):
        os.symlink(name, tmp_path / "uids" / str(1000 + number))
    (tmp_path / "uids" / "file").touch()
    found = strays(tmp_path, {known})
    assert [(stray.kind, stray.space_id) for stray in found] == [(USER, unknown), (USER, taken)]
    # By now it is somebody else's.
    (tmp_path / "uids" / "1002").unlink()
    os.symlink(known, tmp_path / "uids" / "1002")
    for stray in [*found, *found]:
        remove_stray(stray, tmp_path)
    assert sorted(os.listdir(tmp_path / "uids")) == ["1000", "1002", "1003", "file"]


def test_what_is_new_is_left_alone(tmp_path: Path) -> None:
    space = new_id("sp")
    (tmp_path / "spaces" / space).mkdir(parents=True)
    (tmp_path / "uids").mkdir()
    os.symlink(space, tmp_path / "uids" / "1000")
    made = (tmp_path / "spaces" / space).stat().st_ctime
    assert strays(tmp_path, set(), before=made - 100) == []
    assert len(strays(tmp_path, set(), before=time.time() + 100)) == 2
    (tmp_path / "spaces" / space).rmdir()
    assert strays(tmp_path, set(), before=made - 100) == []


def test_only_spaces_are_removed(tmp_path: Path) -> None:
    (tmp_path / "spaces" / "kept").mkdir(parents=True)
    for name in ("..", ".", "", "kept", "../spaces", "sp_../../x", new_id("ru")):
        for kind in (FOLDER, MOUNT, USER, HELD):
            with pytest.raises(SpaceInvalid):
                remove_stray(Stray(kind, name, str(tmp_path)), tmp_path)
    assert (tmp_path / "spaces" / "kept").is_dir()


def test_trees_of_every_driver(any_rig: Rig) -> None:
    known = any_rig.tree(any_rig.base_of(None))
    lost = any_rig.tree(any_rig.base_of(None))
    any_rig.act(lost, lambda: os.makedirs("a/b"))
    found = strays(any_rig.data, {known.tree_id}, any_rig.launcher)
    kinds = [stray.kind for stray in found]
    mounted = any_rig.name == "overlay"
    expected = ([MOUNT] if os.geteuid() == 0 else [HELD]) if mounted else []
    assert kinds == [*expected, FOLDER]
    assert {stray.space_id for stray in found} == {lost.tree_id}
    assert all(stray.holds_work for stray in found)
    for stray in [*found, *found]:
        remove_stray(stray, any_rig.data, any_rig.launcher)
    assert strays(any_rig.data, {known.tree_id}, any_rig.launcher) == []
    assert not lost.folder.exists()
    assert mounts_below(lost.folder) == []
    if os.geteuid() != 0:
        assert lost.tree_id not in any_rig.launcher.held()
    any_rig.act(known, lambda: Path("still").touch())
    any_rig.trees.remove(lost)


@ROOT_ONLY
def test_mounts_over_mounts_and_odd_names(data: Path, tmp_path: Path) -> None:
    space = new_id("sp")
    folder = data / "spaces" / space
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()

    def bind(point: Path) -> None:
        point.mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", "--bind", str(outside), str(point)], check=True, timeout=20)

    bind(folder / "project")
    bind(folder / "project")
    bind(folder / "tree" / "lower" / "a b\\c\td")
    bind(folder / "project" / "inner")
    found = strays(data, set())
    assert [stray.kind for stray in found] == [MOUNT] * 4 + [FOLDER]
    # The folder alone will do, since what is mounted in it goes first.
    remove_stray(found[-1], data)
    assert mounts_below(data) == []
    assert strays(data, set()) == []
    assert (outside / "kept").exists()


@ROOT_ONLY
def test_a_trial_goes_with_what_is_mounted_in_it(data: Path) -> None:
    """So it is when a daemon is killed while it tries a driver."""
    trial = data / ".probe-abc"
    for name in ("project", "project/deeper"):
        (trial / name).mkdir(parents=True)
        subprocess.run(["mount", "-t", "tmpfs", "none", trial / name], check=True)
    for _ in range(2):
        remove_trial(trial)
    assert not trial.exists()
    assert mounts_below(data) == []


@ROOT_ONLY
def test_a_mount_behind_a_symlink_is_not_reached(data: Path, tmp_path: Path) -> None:
    """A name that was a folder when it was looked at."""
    space = new_id("sp")
    (data / "spaces" / space).mkdir(parents=True)
    other = tmp_path / "other"
    (other / "point").mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "none", str(other / "point")], check=True, timeout=20)
    try:
        (data / "spaces" / space / "link").symlink_to(other)
        for path in ("link/point", "link/../link/point", "missing/point"):
            stray = Stray(MOUNT, space, str(data / "spaces" / space / path))
            remove_stray(stray, data)
        (data / "spaces" / space / "direct").symlink_to(other / "point")
        remove_stray(Stray(MOUNT, space, str(data / "spaces" / space / "direct")), data)
        assert mounts_below(other) == [str(other / "point")]
        with pytest.raises(CarrelError):
            remove_stray(Stray(MOUNT, space, str(other / "point")), data)
        assert mounts_below(other) == [str(other / "point")]
    finally:
        subprocess.run(["umount", str(other / "point")], check=True, timeout=20)


@ROOT_ONLY
def test_the_same_as_an_ordinary_user(ordinary_user: Account, data: Path) -> None:
    # Skipped: mounts, what this test is, and the drivers that need file systems of their own.
    said = run_again(__file__, ordinary_user, data)
    assert "7 passed, 6 skipped" in said, said[-3000:]
