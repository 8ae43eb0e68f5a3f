"""A folder of the host as the tree: what changed in it is told, and nothing of it is ever lost."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from carrel.domain.errors import CarrelError, TreeDamaged, TreeExists, TreeNotFound, TreeUnavailable
from carrel.domain.trees import Base, Change, ChangeKind, Tree, TreeRequest
from carrel.trees import files
from carrel.trees.drivers import direct
from carrel.trees.drivers.direct import DirectDriver
from carrel.trees.orphans import remove_stray, strays
from carrel.trees.results import Results
from tests.conformance.tree_rig import Rig, detach, enter, in_child
from tests.folders import remove_folder
from tests.volumes import volume

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
MOUNT_S = 20.0


@dataclass
class Direct:
    """The driver, a folder with things in it, and trees of it."""

    rig: Rig
    place: Path
    base: Base
    driver: DirectDriver = field(default_factory=DirectDriver)

    def request(self) -> TreeRequest:
        asked = self.rig.request(self.base)
        return TreeRequest(asked.tree_id, asked.base, asked.folder, asked.owner, self.place)

    def tree(self) -> Tree:
        return self.driver.create(self.request())

    def changes(self, tree: Tree) -> list[tuple[str, str]]:
        return [(change.path, str(change.kind)) for change in self.driver.changes(tree)]

    def act(self, tree: Tree, action: Callable[[], None]) -> None:
        """In another process, as the space's user, as a sandbox shows it."""
        with self.driver.mount(tree) as shown, detach(shown) as detached:
            in_child(lambda: enter(self.rig.launcher, tree, shown, detached), action)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "mine"
    (folder / "src").mkdir(parents=True)
    (folder / ".git").mkdir()
    (folder / "readme").write_text("readme\n")
    (folder / "src" / "main.py").write_text("print()\n")
    (folder / "src" / "run").write_text("#!/bin/sh\n")
    (folder / "link").symlink_to("readme")
    (folder / ".git" / "index").write_text("x")
    (folder / os.fsdecode(b"odd\n\xff")).write_text("odd")
    yield folder
    remove_folder(folder)


@pytest.fixture
def rig(copy_rig: Rig, place: Path) -> Direct:
    return Direct(copy_rig, place, copy_rig.base_of(None))


def everything(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Each entry with its inode, its mode and what is in it."""
    found = {}
    for above, names, others in os.walk(folder):
        for name in (*names, *others):
            path = os.path.join(above, name)
            status = os.lstat(path)
            content = b""
            if stat.S_ISREG(status.st_mode):
                content = Path(path).read_bytes()
            found[os.path.relpath(path, folder)] = (status.st_ino, status.st_mode, content)
    return found


def test_nothing_changed(rig: Direct) -> None:
    before = everything(rig.place)
    tree = rig.tree()
    assert rig.changes(tree) == []
    assert everything(rig.place) == before
    rig.driver.drop(tree)
    assert everything(rig.place) == before


def test_what_changed(rig: Direct) -> None:
    (rig.place / "gone").mkdir()
    (rig.place / "gone" / "inside").touch()
    (rig.place / "turns").touch()
    tree = rig.tree()

    def act() -> None:
        Path("readme").write_text("README\n")
        Path("src/new.py").write_text("new\n")
        os.chmod("src/run", 0o755)
        os.unlink("link")
        os.symlink("src", "link")
        os.unlink("gone/inside")
        os.rmdir("gone")
        os.unlink("turns")
        os.mkdir("turns")
        Path("src.txt").touch()

    rig.act(tree, act)
    found = list(rig.driver.changes(tree))
    assert [(one.path, str(one.kind)) for one in found] == [
        ("gone", "deleted"),
        ("gone/inside", "deleted"),
        ("link", "modified"),
        ("readme", "modified"),
        ("src.txt", "added"),
        ("src/new.py", "added"),
        ("src/run", "mode"),
        ("turns", "type"),
    ]
    by_path = {one.path: one for one in found}
    assert by_path["src/new.py"].size == 4
    assert by_path["src/run"].old_mode != by_path["src/run"].new_mode == 0o755
    assert sorted(by_path) == list(by_path)
    collected = Results().collect(rig.driver, tree, most=100)
    assert [(one.path, one.change) for one in collected.files] == [
        ("gone/inside", "deleted"),
        ("link", "modified"),
        ("readme", "modified"),
        ("src.txt", "added"),
        ("src/new.py", "added"),
        ("src/run", "modified"),
        ("turns", "deleted"),
    ]
    rig.driver.drop(tree)
    assert (rig.place / "readme").read_text() == "README\n"
    assert (rig.place / "src" / "new.py").read_text() == "new\n"


def test_the_same_again_is_no_change(rig: Direct) -> None:
    tree = rig.tree()

    def act() -> None:
        content = Path("readme").read_bytes()
        os.unlink("readme")
        Path("readme").write_bytes(content)
        Path("src/main.py").write_text("other!!!")
        Path("src/main.py").write_text("print()\n")
        os.unlink("link")
        os.symlink("readme", "link")
        os.utime("src/run")
        os.chmod("src/run", 0o600)
        os.chmod("src/run", 0o644)
        Path("made").touch()
        os.unlink("made")

    rig.act(tree, act)
    assert rig.changes(tree) == []


def test_too_large_for_a_digest(rig: Direct, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "DIGEST_FILE_BYTES", 4)
    tree = rig.tree()
    assert rig.changes(tree) == []

    def act() -> None:
        for name in ("readme", "link"):
            os.chmod(name, 0o644)
        Path("readme").write_text("readme\n")

    rig.act(tree, act)
    assert rig.changes(tree) == [("readme", "modified")]


def test_only_so_much_is_digested(rig: Direct, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "DIGEST_BYTES", 20)
    tree = rig.tree()
    index = {
        one.path: bool(one.digest) for one in direct.read_index(tree.folder / "tree" / "index")
    }
    assert index == {
        b".git": False,
        b".git/index": False,
        b"link": True,
        b"odd\n\xff": True,
        b"readme": True,
        b"src": False,
        b"src/main.py": False,
        b"src/run": False,
    }


def test_the_sandbox_owns_it_and_the_folder_keeps_its_owner(rig: Direct) -> None:
    if os.geteuid() == 0:
        for path in (rig.place, *rig.place.rglob("*")):
            os.chown(path, 4711, 4712, follow_symlinks=False)
    tree = rig.tree()

    def act() -> None:
        # The ids are those that a sandbox gives.
        assert os.stat("readme").st_uid == os.getuid()
        Path("made").write_text("x")
        Path("readme").write_text("mine")

    rig.act(tree, act)
    wanted = (4711, 4712) if os.geteuid() == 0 else (os.geteuid(), os.getegid())
    for name in ("made", "readme"):
        found = (rig.place / name).stat()
        assert (found.st_uid, found.st_gid) == wanted
    with files.open_files(rig.driver, tree) as opened:
        opened.write("from-outside", b"x")
    found = (rig.place / "from-outside").stat()
    assert (found.st_uid, found.st_gid) == wanted


# Which folder it is


def swaps(place: Path) -> list[Callable[[], None]]:
    aside = place.with_name("aside")

    def moved() -> None:
        place.rename(aside)

    def another() -> None:
        place.rename(aside)
        place.mkdir()

    def a_link() -> None:
        place.rename(aside)
        place.symlink_to(aside)

    def a_link_above() -> None:
        place.parent.rename(place.parent.with_name("above"))
        place.parent.symlink_to(place.parent.with_name("above"))

    def a_file() -> None:
        place.rename(aside)
        place.touch()

    return [moved, another, a_link, a_link_above, a_file]


@pytest.mark.parametrize("number", range(5))
def test_a_folder_that_was_swapped(copy_rig: Rig, tmp_path: Path, number: int) -> None:
    place = tmp_path / "above-it" / "mine"
    place.mkdir(parents=True)
    (place / "file").write_text("x")
    rig = Direct(copy_rig, place, copy_rig.base_of(None))
    tree = rig.tree()
    with rig.driver.mount(tree) as shown:
        swaps(place)[number]()
        if shown.detached is not None:
            with pytest.raises(TreeDamaged):
                shown.detached()
    uses: list[Callable[[], object]] = [
        lambda: rig.driver.open_root(tree),
        lambda: rig.driver.ensure(tree),
        lambda: list(rig.driver.changes(tree)),
        lambda: rig.driver.mount(tree).__enter__(),
    ]
    for use in uses:
        with pytest.raises(TreeDamaged):
            use()
    rig.driver.drop(tree)
    kept = [path for path in tmp_path.rglob("file")]
    assert [path.read_text() for path in kept] == ["x"]


@ROOT_ONLY
def test_something_mounted_over_it(rig: Direct) -> None:
    tree = rig.tree()
    subprocess.run(["mount", "-t", "tmpfs", "x", rig.place], check=True, timeout=MOUNT_S)
    with pytest.raises(TreeDamaged):
        rig.driver.open_root(tree)


@ROOT_ONLY
def test_what_is_mounted_in_it_is_not_part_of_it(rig: Direct) -> None:
    (rig.place / "disk").mkdir()
    tree = rig.tree()
    subprocess.run(["mount", "-t", "tmpfs", "x", rig.place / "disk"], check=True, timeout=MOUNT_S)
    (rig.place / "disk" / "file").touch()
    (rig.place / "new").touch()
    assert [one for one in rig.changes(tree) if one[0] != "disk"] == [("new", "added")]


@ROOT_ONLY
def test_subvolumes_are_part_of_it(copy_rig: Rig) -> None:
    with volume("btrfs") as disk:
        place = disk / "mine"
        place.mkdir()
        words = ["btrfs", "-q", "subvolume", "create", str(place / "inner")]
        if shutil.which("btrfs") is None:
            pytest.skip("needs the program of btrfs")
        subprocess.run(words, check=True, timeout=MOUNT_S)
        rig = Direct(copy_rig, place, copy_rig.base_of(None))
        tree = rig.tree()
        (place / "inner" / "file").touch()
        assert rig.changes(tree) == [("inner/file", "added")]
        rig.driver.drop(tree)


# Nothing of the folder is ever removed


def test_half_made_ones_are_dropped(rig: Direct) -> None:
    before = everything(rig.place)
    for parts in ((), ("place",), ("place", "index")):
        tree = rig.tree()
        private = tree.folder / "tree"
        for name in {"place", "index", "stamp"} - set(parts):
            (private / name).unlink()
        rig.driver.drop(tree)
        rig.driver.drop(tree)
        assert list(tree.folder.iterdir()) == []
        with pytest.raises(TreeNotFound):
            rig.driver.open_root(tree)
    assert everything(rig.place) == before


def test_a_creation_that_fails_leaves_nothing(rig: Direct, monkeypatch: pytest.MonkeyPatch) -> None:
    before = everything(rig.place)
    asked = rig.request()

    def full(*_args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(direct, "write_index", full)
    with pytest.raises(CarrelError) as refused:
        rig.driver.create(asked)
    assert refused.value.code == "insufficient_disk"
    assert list(asked.folder.iterdir()) == []
    assert everything(rig.place) == before


def test_a_creation_that_was_killed(rig: Direct) -> None:
    """At each thing that it does; then the same as after a crash: it is dropped, and its
    folder swept."""
    before = everything(rig.place)
    for point in ("_note", "write_index", "settle"):
        asked = rig.request()
        pid = os.fork()
        if pid == 0:
            setattr(direct, point, lambda *_args: os._exit(9))
            rig.driver.create(asked)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
        assert (asked.folder / "tree").is_dir()
        if point != "settle":
            rig.driver.drop(
                Tree(asked.tree_id, "direct", rig.base.base_id, asked.folder, asked.owner, 0)
            )
        for stray in strays(rig.rig.data, known=()):
            remove_stray(stray, rig.rig.data)
        assert not asked.folder.exists()
        assert everything(rig.place) == before


def test_a_tree_leads_nowhere(rig: Direct) -> None:
    """Nothing in a space's folder is the other folder, or a way to it."""
    tree = rig.tree()
    assert not os.path.lexists(tree.path)
    kinds = {path.name: stat.S_IFMT(path.lstat().st_mode) for path in tree.folder.rglob("*")}
    assert set(kinds.values()) == {stat.S_IFDIR, stat.S_IFREG}


def test_one_tree_in_a_folder(rig: Direct) -> None:
    asked = rig.request()
    tree = rig.driver.create(asked)
    with pytest.raises(TreeExists):
        rig.driver.create(asked)
    assert rig.changes(tree) == []


def test_what_it_cannot(rig: Direct) -> None:
    tree = rig.tree()
    with pytest.raises(TreeUnavailable):
        rig.driver.freeze(tree)
    with pytest.raises(TreeUnavailable):
        rig.driver.create(rig.rig.request(rig.base))
    assert not rig.driver.probe().available
    assert rig.driver.capabilities.stays
    used = rig.driver.usage(tree)
    assert 0 < used.bytes_used < 1 << 20


def test_a_damaged_note(rig: Direct) -> None:
    tree = rig.tree()
    index = tree.folder / "tree" / "index"
    content = index.read_bytes()
    for damaged in (content[:-3], content[:2], b"\xff" * 40):
        index.write_bytes(damaged)
        with pytest.raises(TreeDamaged):
            rig.changes(tree)
    (tree.folder / "tree" / "place").write_bytes(b"x")
    with pytest.raises(TreeDamaged):
        rig.driver.open_root(tree)


def test_many_files_are_told_in_order(rig: Direct) -> None:
    names = [f"{a}{b}" for a in ("a", "a.", "a-", "b") for b in ("", "x", "/y", "0/z")]
    tree = rig.tree()
    for name in names:
        path = rig.place / name
        if name[-1] in "yz":
            path.parent.mkdir(exist_ok=True, parents=True)
        if not path.exists():
            path.touch() if name[-1] in "xyz" else path.mkdir()
    found: list[Change] = list(rig.driver.changes(tree))
    assert {one.kind for one in found} == {ChangeKind.ADDED}
    assert [one.path for one in found] == sorted(one.path for one in found)
    assert {one.path for one in found} == set(names) | {"a0", "a.0", "a-0", "b0"}
    again = rig.tree()
    assert rig.changes(again) == []
