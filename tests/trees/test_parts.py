"""Volumes of a space, which are kept beside its tree: plain folders with the ids of a system."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from carrel.domain.checkpoints import START
from carrel.domain.errors import TooLarge, TreeDamaged
from carrel.domain.systems import System, Volume
from carrel.domain.trees import Tree
from carrel.linux.ids import image_ranges
from carrel.trees.shared_layers import SharedLayers
from carrel.trees.states import SpaceStates
from carrel.trees.systems import Systems
from tests.conformance.tree_rig import Rig

ROOT = os.geteuid() == 0
BIG = 1 << 30


class Desk:
    """A tree with a volume beside it, in which there are files of several users."""

    def __init__(self, rig: Rig, tree: Tree, number: int) -> None:
        self.rig, self.tree = rig, tree
        first = image_ranges()[number] if ROOT else None
        self.system = System(
            *(f"{tree.tree_id}-db", "", "im_x", rig.data),
            *(tree.folder / "services/db/system", tree.owner, first),
            uid=999,
            gid=999,
        )
        self.volume = Volume(tree.folder / "volumes/data", self.system)
        self.volume.folder.mkdir(parents=True)
        layers = SharedLayers(rig.data / "layers")
        self.states = SpaceStates(
            *(rig.driver, tree, rig.bases.get(tree.base_id), (self.volume,)),
            Systems(rig.launcher, layers).part,
        )

    def write(self, name: str, text: str, user: int = 0, mode: int = 0o644) -> None:
        path = self.volume.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        if ROOT:
            os.chown(path, *self.system.shown(user, user))
        path.chmod(mode)

    def look(self) -> dict[str, tuple[int, int, tuple[int, int], str]]:
        found = {}
        for path in sorted((self.volume.folder, *self.volume.folder.rglob("*"))):
            status = path.lstat()
            owner = self.system.inside(status.st_uid, status.st_gid)
            text = path.read_text() if path.is_file() else ""
            told = (stat.S_IFMT(status.st_mode), stat.S_IMODE(status.st_mode), owner, text)
            found[path.relative_to(self.volume.folder).as_posix()] = told
        return found


@pytest.fixture
def desks(copy_rig: Rig) -> tuple[Desk, Desk]:
    """On one base, with ids of their own."""
    base = copy_rig.base_of(None)
    return Desk(copy_rig, copy_rig.tree(base), 3), Desk(copy_rig, copy_rig.tree(base), 4)


def fill(desk: Desk) -> None:
    if ROOT:
        os.chown(desk.volume.folder, *desk.system.shown(999, 999))
    desk.volume.folder.chmod(0o700)
    desk.write("base/1", "one", 999, 0o600)
    desk.write("base/2", "two", 70, 0o4750 if ROOT else 0o750)
    os.link(desk.volume.folder / "base/1", desk.volume.folder / "also")
    os.symlink("base/2", desk.volume.folder / "link")


def test_there_and_back(desks: tuple[Desk, Desk]) -> None:
    desk, _ = desks
    fill(desk)
    much = desk.look()
    first = desk.states.take("first", agent=False, max_bytes=BIG)
    assert "volumes/data:/base/1" in first.named
    desk.write("base/2", "later", 5)
    (desk.volume.folder / "also").unlink()
    later = desk.look()
    second = desk.states.take("second", agent=False, max_bytes=BIG)
    assert set(second.named) == {f"volumes/data:/{name}" for name in ("also", "base/1", "base/2")}
    top = {".": much["."]}
    desk.volume.folder.chmod(0o755)
    for name, wanted in (("first", much), ("second", later), (START, top), ("first", much)):
        desk.states.put_back(name)
        assert desk.look() == wanted, name
    assert (desk.volume.folder / "also").samefile(desk.volume.folder / "base/1")


def test_another_has_it_with_its_own_ids(desks: tuple[Desk, Desk]) -> None:
    desk, other = desks
    fill(desk)
    desk.states.take("kept", agent=False, max_bytes=BIG)
    assert desk.states.part_layers("kept") == {}
    desk.states.give("kept", other.tree, (other.volume,), files=True)
    assert other.look() == desk.look()
    if ROOT:
        mine, theirs = ((one.volume.folder / "base/2").stat().st_uid for one in desks)
        assert mine != theirs
    other.write("base/1", "mine")
    assert desk.look()["base/1"][3] == "one"


def test_packed_and_unpacked(desks: tuple[Desk, Desk], tmp_path: Path) -> None:
    desk, other = desks
    assert not desk.states.has_parts_to_keep()
    fill(desk)
    desk.states.take("kept", agent=False, max_bytes=BIG)
    desk.write("since", "x")
    much = desk.look()
    assert desk.states.has_parts_to_keep()
    with pytest.raises(TooLarge):
        desk.states.pack_parts(tmp_path / "small", 4096)
    kept = desk.states.pack_parts(tmp_path / "packed", BIG)
    assert kept.files == 5 and kept.bytes > 0
    other.states.unpack_parts(tmp_path / "packed")
    assert other.look() == much == desk.look()
    (tmp_path / "packed/state").write_bytes(b"damaged")
    with pytest.raises(TreeDamaged):
        other.states.unpack_parts(tmp_path / "packed")
    assert other.look() == much
