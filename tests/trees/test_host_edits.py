"""What a look for others' files may cost: code in the space decides what there is to look at."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from carrel.domain.trees import Owner, Tree
from carrel.linux.descriptors import Descriptor
from carrel.trees import host_edits
from carrel.trees.host_edits import HostEdits, _EditedTree, _Look

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")
OWNER = Owner(54_321, 54_321)


def edited(tmp_path: Path, driver: str = "copy") -> _EditedTree:
    tree = Tree("t", driver, "b", tmp_path, OWNER, 0)
    tree.path.mkdir()
    os.chown(tree.path, OWNER.uid, OWNER.gid)
    return _EditedTree(HostEdits(), tree, by_mount=False)


def test_a_large_folder_is_looked_at_in_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_edits, "MOST_ENTRIES", 50)
    tree = edited(tmp_path)
    for number in range(200):
        os.mkdir(f"{tree.place}/{number}")
    with Descriptor(os.open(tree.place, os.O_RDONLY | os.O_DIRECTORY)) as top:
        named = list(_Look(tree, top)._visit(top, b""))
    assert 0 < len(named) < 50
    given = [one for one in Path(tree.place).iterdir() if one.stat().st_uid == OWNER.uid]
    assert len(given) == len(named)


def test_files_of_an_overlay_are_looked_at_where_they_are_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not through the mount: that would make each new space cost what its project has."""
    tree = edited(tmp_path, "overlay")
    for number in range(200):
        Path(tree.place, f"old{number}").touch()
    upper = tmp_path / "tree" / "upper"
    (upper / "folder").mkdir(parents=True)
    Path(tree.place, "folder").mkdir()
    for place in (Path(tree.place), upper):
        (place / "folder" / "new").touch()
    looked = []
    others = host_edits._is_others

    def counted(status: os.stat_result, owner: Owner) -> bool:
        looked.append(status)
        return others(status, owner)

    monkeypatch.setattr(host_edits, "_is_others", counted)
    tree._unseen = True
    tree._look()
    assert len(looked) < 20
    new = Path(tree.place, "folder", "new")
    assert {new.stat().st_uid, new.parent.stat().st_uid} == {OWNER.uid}


def test_deep_folders_do_not_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_edits, "LONGEST", 20)
    tree = edited(tmp_path)
    (Path(tree.place) / ("n" * 15) / ("m" * 15) / "deep").mkdir(parents=True)
    with Descriptor(os.open(tree.place, os.O_RDONLY | os.O_DIRECTORY)) as top:
        look = _Look(tree, top)
        look.at(b"")
    first = Path(tree.place) / ("n" * 15)
    assert first.stat().st_uid == OWNER.uid
    assert (first / ("m" * 15) / "deep").stat().st_uid == 0


def test_folders_that_wait_have_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_edits, "MOST_FOLDERS", 10)
    tree = edited(tmp_path)
    tree._is_working = True  # Nobody takes them up.
    for number in range(100):
        tree.has_new(b"%d" % number)
    assert tree._unseen and len(tree._folders) <= 10
