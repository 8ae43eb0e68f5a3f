"""What looks for others' files may cost: code in a space decides what there is to look at, and no
other tree is to wait for it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from carrel.domain.runtimes import Runtime
from carrel.domain.trees import Owner, Tree
from carrel.launcher.client import Launcher
from carrel.linux import files
from carrel.linux.descriptors import Descriptor
from carrel.linux.ids import FIRST_RANGE
from carrel.runtimes.bubblewrap import BubblewrapRuntime
from carrel.runtimes.landlock import LandlockRuntime
from carrel.runtimes.process import ProcessRuntime
from carrel.service.open_spaces import OpenSpaces
from carrel.trees import host_edits
from carrel.trees.host_edits import HostEdits, _EditedTree, _Look
from tests.conformance.tree_rig import Rig, open_rig

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")
OWNER = Owner(54_321, 54_321)
SEEN_S, LOOK_S = 30.0, 0.02
FLOOD = """
import os
for number in range({most}):
    os.close(os.open(f"f{{number}}", os.O_CREAT | os.O_WRONLY))
"""
_PLACES = Path("/proc/sys/fs/inotify/max_queued_events")


@pytest.fixture
def edits() -> Iterator[HostEdits]:
    opened = HostEdits()
    yield opened
    opened.close()


@pytest.fixture
def rig(tree_launcher: Launcher) -> Iterator[Rig]:
    with open_rig("overlay", Path(tempfile.gettempdir()), tree_launcher) as opened:
        yield opened


def watched(edits: HostEdits, rig: Rig, *, own_mount: bool) -> Tree:
    """One that was looked through."""
    tree = rig.tree(rig.base_of(None))
    (tree.path / "first").touch()
    edits.watch(tree, own_mount=own_mount)
    given(tree, "first")
    return tree


def given(tree: Tree, *names: str) -> None:
    owner = os.stat(tree.path).st_uid
    until = time.monotonic() + SEEN_S
    while any(os.lstat(tree.path / name).st_uid != owner for name in names):
        assert time.monotonic() < until, names
        time.sleep(LOOK_S)


def edited(tmp_path: Path, driver: str = "copy") -> _EditedTree:
    tree = Tree("t", driver, "b", tmp_path, OWNER, 0)
    tree.path.mkdir()
    os.chown(tree.path, OWNER.uid, OWNER.gid)
    return _EditedTree(HostEdits(), tree)


def test_what_users_of_an_image_have_stays_theirs(edits: HostEdits, rig: Rig) -> None:
    """Commands in the space have given it to them: a service keeps its data in the tree."""
    tree = rig.tree(rig.base_of(None))
    mine = os.stat(tree.path).st_uid
    for name, uid, gid in (("data", 33, 44), ("of a group", 0, 44), ("log", 33, 0)):
        (tree.path / name).touch()
        users = [FIRST_RANGE + one if one else mine for one in (uid, gid)]
        os.chown(tree.path / name, *users)
    (tree.path / "people's").touch()
    before = [os.lstat(tree.path / name) for name in ("data", "of a group", "log")]
    edits.watch(tree, own_mount=True)
    given(tree, "people's")
    (tree.path / "later").touch()
    given(tree, "later")
    after = [os.lstat(tree.path / name) for name in ("data", "of a group", "log")]
    assert [(one.st_uid, one.st_gid) for one in after] == [
        (one.st_uid, one.st_gid) for one in before
    ]


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


def test_folders_of_git_need_no_watch(edits: HostEdits, rig: Rig) -> None:
    """What git makes on the host becomes the space's all the same: each new folder has a file."""
    tree = rig.tree(rig.base_of(None))

    def git(*words: str) -> None:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "safe.directory=*")
        subprocess.run(["git", *identity, *words], cwd=tree.path, check=True, timeout=SEEN_S)

    git("init", "--quiet")
    for old in (tree.path / ".git", *(tree.path / ".git").rglob("*")):
        os.chown(old, tree.owner.uid, tree.owner.gid)
    (tree.path / "src").mkdir()
    edits.watch(tree, own_mount=True)
    given(tree, "src")
    known = edits._trees[tree.tree_id]
    until = time.monotonic() + SEEN_S
    # A watch that has told is taken up again by the look that follows.
    while not {b"", b".git"} <= known.watched:
        assert time.monotonic() < until, known.watched
        time.sleep(LOOK_S)
    assert not [path for path in known.watched if path.startswith(b".git/")]
    (tree.path / "src" / "new").write_text("new")
    git("add", ".")
    git("commit", "--quiet", "--message", "x")
    git("branch", "topic/of/many/parts")
    for made in (tree.path / ".git").rglob("*"):
        given(tree, str(made.relative_to(tree.path)))
    edits.forget(tree.tree_id)
    assert not edits._watches


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
    tree.is_working = True  # Nobody takes them up.
    for number in range(100):
        tree.has_new(b"%d" % number)
    assert tree._unseen and len(tree._folders) <= 10


@pytest.mark.parametrize("own_mount", [True, False])
def test_nobody_waits_for_a_busy_neighbour(edits: HostEdits, rig: Rig, own_mount: bool) -> None:
    """More is made in its tree than any queue of the kernel holds."""
    # Those of other tests may still be there.
    before = threading.active_count()
    neighbour, tree = (watched(edits, rig, own_mount=one) for one in (False, own_mount))
    with edits._lock:
        # So nothing is taken out of the queues meanwhile.
        flood = FLOOD.format(most=int(_PLACES.read_text()) + 100)
        subprocess.run([sys.executable, "-c", flood], cwd=neighbour.path, check=True)
        (tree.path / "made").mkdir()
        (tree.path / "file").write_text("by hand\n")
    given(tree, "made", "file")
    assert threading.active_count() < before + 10


@pytest.mark.parametrize("queue", ["read_watch_events", "read_written"])
def test_what_was_lost_is_found(
    edits: HostEdits, rig: Rig, monkeypatch: pytest.MonkeyPatch, queue: str
) -> None:
    tree = watched(edits, rig, own_mount=True)
    (tree.path / "a").mkdir()
    given(tree, "a")
    real, lost = getattr(files, queue), list[object]()

    def lossy(descriptor: int) -> list[tuple[int, int]]:
        for found, _ in (one for one in real(descriptor) if queue == "read_written"):
            os.close(found)
        lost.append(None)
        monkeypatch.setattr(files, queue, real)
        return [(-1, files.WATCH_OVERFLOW)]

    monkeypatch.setattr(files, queue, lossy)
    made = "a/file" if queue == "read_written" else "a/b"
    (tree.path / made).touch() if made == "a/file" else (tree.path / made).mkdir()
    given(tree, made)
    assert lost
    # And it is told of what comes after.
    (tree.path / "a" / "later").mkdir()
    (tree.path / "a" / "later" / "file").touch()
    given(tree, "a/later", "a/later/file")


def test_what_one_look_leaves_the_next_one_finds(
    edits: HostEdits, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_edits, "MOST_ENTRIES", 20)
    tree = watched(edits, rig, own_mount=False)
    names = [f"{folder}/{name}" for folder in "abcdefgh" for name in range(10)]
    for name in names:
        (tree.path / name).parent.mkdir(exist_ok=True)
        (tree.path / name).touch()
    given(tree, *names)


def test_looks_take_turns_and_rest_the_longer_the_more_are_busy(tmp_path: Path) -> None:
    edits = HostEdits()
    tree = edited(tmp_path)
    tree.is_working = True
    at_once, most, lock = 0, 0, threading.Lock()

    def look() -> None:
        nonlocal at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)
        threading.Event().wait(0.05)
        with lock:
            at_once -= 1

    rests = list[float]()
    for busy in (1, 10):
        edits._trees.update(dict.fromkeys(map(str, range(busy)), tree))
        rests.append(edits.in_turn(look))
    assert rests[0] >= 0.05 * host_edits.REST_SHARE and rests[1] >= 0.5 * host_edits.REST_SHARE
    threads = [threading.Thread(target=edits.in_turn, args=(look,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == host_edits.LOOKS


def test_each_tree_has_a_share_of_the_watches(edits: HostEdits, rig: Rig) -> None:
    first = watched(edits, rig, own_mount=False)
    edits._most = 160
    for number in range(50):
        (first.path / str(number)).mkdir()
    given(first, *map(str, range(50)))
    assert len(edits._watches) <= 10
    second = watched(edits, rig, own_mount=False)
    until = time.monotonic() + SEEN_S
    # What is given is a change too, and a watch ends with the first.
    while not edits._trees[second.tree_id].watched:
        assert time.monotonic() < until
        time.sleep(LOOK_S)


@pytest.mark.parametrize(
    ("kind", "own_mount"),
    [(BubblewrapRuntime, True), (LandlockRuntime, False), (ProcessRuntime, False)],
)
def test_runtimes_without_a_mount_of_their_own(
    tmp_path: Path, kind: type[Runtime], own_mount: bool
) -> None:
    told = list[bool]()

    class Told:
        def watch(self, tree: Tree, *, own_mount: bool) -> None:
            told.append(own_mount)

        def forget(self, tree_id: str) -> None: ...

    spaces = OpenSpaces(tmp_path, None, edits=Told())  # type: ignore[arg-type]
    tree = Tree("t", "overlay", "b", tmp_path, OWNER, 0)
    spaces.made(tree, kind.__new__(kind))
    assert told == [own_mount]


def test_a_link_to_anothers_file_is_not_given_while_it_comes_and_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a space has no mount of its own, a file of others may be linked to."""
    tree, outside = edited(tmp_path), tmp_path / "outside"
    made = Path(tree.place) / "made"
    made.touch()
    outside.touch()
    real = host_edits._beneath

    def raced(top: int, path: bytes, flags: int = host_edits._FOLDER) -> Descriptor:
        if path != b"made":
            return real(top, path, flags)
        made.unlink()
        made.hardlink_to(outside)
        found = real(top, path, flags)
        made.unlink()
        return found

    monkeypatch.setattr(host_edits, "_beneath", raced)
    with Descriptor(os.open(tree.place, os.O_RDONLY | os.O_DIRECTORY)) as top:
        _Look(tree, top).at(b"")
    assert not made.exists() and outside.stat().st_uid == 0
