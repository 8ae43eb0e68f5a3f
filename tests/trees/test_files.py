"""Reading and writing in a tree whose owner is hostile; by openat2 and by walking."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from carrel.domain.errors import (
    CarrelError,
    PathError,
    PathEscapes,
    PathExists,
    PathInvalid,
    PathNotFound,
    PathWrongKind,
    TooLarge,
)
from carrel.domain.files import FileInfo
from carrel.domain.trees import EntryType, Owner
from carrel.linux.openat2 import open_beneath, walk_beneath
from carrel.trees.files import MAX_READ, TreeFiles, link_atomically, make_folder
from tests.accounts import PYTHON, Account, run_as

RACE_S = 30.0
"""By then a race has been won and lost, however the machine shares its time."""
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_text("outside")
    (tmp_path / "tree-beside").mkdir()
    folder = tmp_path / "tree"
    (folder / "folder" / "inner").mkdir(parents=True)
    (folder / "file").write_text("content")
    (folder / "folder" / "inner" / "deep").write_text("deep")
    (folder / "to-file").symlink_to("file")
    (folder / "to-folder").symlink_to("folder/inner")
    (folder / "folder" / "round").symlink_to("../to-folder/../../file")
    (folder / "out").symlink_to("../secret")
    (folder / "out-absolute").symlink_to(tmp_path / "secret")
    (folder / "out-folder").symlink_to("..")
    (folder / "loop").symlink_to("loop")
    (folder / "dangling").symlink_to("folder/new")
    return folder


@pytest.fixture(params=[open_beneath, walk_beneath], ids=["openat2", "walking"])
def files(request: pytest.FixtureRequest, root: Path) -> Iterator[TreeFiles]:
    fd = os.open(root, os.O_PATH | os.O_DIRECTORY)
    try:
        yield TreeFiles(fd, opener=request.param)
    finally:
        os.close(fd)


def test_reading(files: TreeFiles) -> None:
    assert files.read("file") == b"content"
    assert files.read("file", 3) == b"tent"
    assert files.read("file", 1, 2) == b"on"
    assert files.read("file", 100) == b""
    assert files.read("./folder//inner/../inner/deep") == b"deep"
    with files.open_read("file") as file:
        assert file.read() == b"content"


def test_links_inside_are_followed(files: TreeFiles) -> None:
    assert files.read("to-file") == b"content"
    assert files.read("to-folder/deep") == b"deep"
    assert files.read("folder/round") == b"content"
    assert [info.name for info in files.list("to-folder")] == ["deep"]


ESCAPES = [
    "../secret",
    "..",
    "/etc/passwd",
    "folder/../../secret",
    "out",
    "out-absolute",
    "out-folder/secret",
    "folder/../out-folder/tree/file",
    "to-folder/../../../secret",
]


@pytest.mark.parametrize("path", ESCAPES)
def test_reading_out_is_refused(files: TreeFiles, path: str) -> None:
    with pytest.raises(PathEscapes):
        files.read(path)
    with pytest.raises(PathEscapes):
        files.list(path)


@pytest.mark.parametrize(
    "act",
    [
        lambda files, path: files.write(path, b"x"),
        lambda files, path: files.mkdir(path),
        lambda files, path: files.mkdir(path, parents=True),
        lambda files, path: files.delete(path, recursive=True),
        lambda files, path: files.move("file", path),
        lambda files, path: files.move(path, "taken"),
        lambda files, path: files.stat(path),
    ],
    ids=["write", "mkdir", "mkdirs", "delete", "move-to", "move-from", "stat"],
)
@pytest.mark.parametrize(
    "path", ["../new", "/tmp/carrel-new", "out-folder/new", "out-folder/tree-beside", "a/../../new"]
)
def test_acting_outside_is_refused(
    files: TreeFiles, root: Path, act: Callable[[TreeFiles, str], object], path: str
) -> None:
    (root / "a").mkdir()
    with pytest.raises(PathEscapes):
        act(files, path)
    assert sorted(os.listdir(root.parent)) == ["secret", "tree", "tree-beside"]
    assert not os.path.lexists("/tmp/carrel-new")


def test_writing_through_a_link_that_leads_out_is_refused(files: TreeFiles, root: Path) -> None:
    for path in ("out", "out-absolute"):
        with pytest.raises(PathEscapes):
            files.write(path, b"x")
    assert (root.parent / "secret").read_text() == "outside"


@pytest.mark.parametrize("path", ["", "a\0b", "n" * 256, "n/" * 2500, "\ud800"])
def test_bad_paths(files: TreeFiles, path: str) -> None:
    for act in (files.read, files.list, files.stat, files.delete, files.mkdir):
        with pytest.raises(PathInvalid):
            act(path)
    with pytest.raises(PathInvalid):
        files.write(path, b"")
    with pytest.raises(PathInvalid):
        files.move("file", path)


def test_what_is_not_there(files: TreeFiles) -> None:
    for act in (files.read, files.list, files.stat, files.delete):
        for path in ("nothing", "nothing/below", "folder/nothing"):
            with pytest.raises(PathNotFound):
                act(path)
    with pytest.raises(PathNotFound):
        files.write("nothing/below", b"")


def test_the_wrong_kind(files: TreeFiles) -> None:
    for path in ("folder", ".", "file/below", "file/", "loop"):
        with pytest.raises(PathWrongKind):
            files.read(path)
    for path in ("folder", "loop", "file/below"):
        with pytest.raises(PathWrongKind):
            files.write(path, b"")
    with pytest.raises(PathWrongKind):
        files.list("file")
    with pytest.raises(PathWrongKind):
        files.delete("folder")
    for path in (".", "folder/."):
        with pytest.raises(PathInvalid):
            files.delete(path)
    with pytest.raises(PathInvalid):
        files.read("file", -1)


def test_nothing_that_blocks_is_opened(files: TreeFiles, root: Path) -> None:
    os.mkfifo(root / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(root / "socket"))
        for name in ("fifo", "socket"):
            assert files.stat(name).type is EntryType.OTHER
            with pytest.raises(PathWrongKind):
                files.read(name)
            with pytest.raises(PathWrongKind):
                files.write(name, b"x")
            files.delete(name)


def test_a_huge_file_is_read_in_parts(files: TreeFiles, root: Path) -> None:
    with (root / "huge").open("wb") as file:
        file.truncate(1 << 40)
    assert len(files.read("huge", 5, 10)) == 10
    assert len(files.read("huge", limit=1 << 40)) == MAX_READ


def test_writing(files: TreeFiles, root: Path) -> None:
    files.write("new", b"one")
    assert (root / "new").read_bytes() == b"one"
    assert stat.S_IMODE((root / "new").stat().st_mode) == 0o644
    (root / "new").chmod(0o755)
    files.write("new", iter([b"two ", b"parts"]))
    assert (root / "new").read_bytes() == b"two parts"
    assert stat.S_IMODE((root / "new").stat().st_mode) == 0o755
    files.write("new", b"", 0o4600)
    assert stat.S_IMODE((root / "new").stat().st_mode) == 0o600


def test_writing_through_links(files: TreeFiles, root: Path) -> None:
    files.write("to-file", b"changed")
    files.write("folder/round", b"changed again")
    files.write("dangling", b"made")
    assert (root / "to-file").is_symlink() and (root / "dangling").is_symlink()
    assert (root / "file").read_bytes() == b"changed again"
    assert (root / "folder" / "new").read_bytes() == b"made"


def test_a_failed_write_leaves_the_old_file_and_nothing_else(files: TreeFiles, root: Path) -> None:
    before = sorted(os.listdir(root))

    def broken() -> Iterator[bytes]:
        yield b"half"
        raise ValueError("the sender went away")

    with pytest.raises(ValueError):
        files.write("file", broken())
    assert (root / "file").read_text() == "content"
    assert sorted(os.listdir(root)) == before


def test_a_reader_of_the_old_file_keeps_it(files: TreeFiles) -> None:
    with files.open_read("file") as file:
        files.write("file", b"new")
        assert file.read() == b"content"


@ROOT_ONLY
def test_what_root_makes_is_the_owners(files: TreeFiles, root: Path) -> None:
    fd = os.open(root, os.O_PATH)
    try:
        given = TreeFiles(fd, Owner(4321, 1234))
        given.write("new", b"x")
        given.mkdir("a/b", parents=True)
        for name in ("new", "a", "a/b"):
            status = (root / name).stat()
            assert (status.st_uid, status.st_gid) == (4321, 1234)
        os.chown(root, 55, 66)
        TreeFiles(fd).write("other", b"x")
        assert (root / "other").stat().st_uid == 55
    finally:
        os.close(fd)


def test_odd_names(files: TreeFiles, root: Path) -> None:
    names = ["a\nb", " ", "-rf", os.fsdecode(b"\xff\xfe"), "é" * 127, "\\", "'\"$(x)"]
    for name in names:
        files.write(name, name.encode(errors="surrogateescape"))
        assert files.read(name) == os.fsencode(name)
    assert set(names) <= {info.name for info in files.list()}


def test_a_listing_has_a_bound(
    files: TreeFiles, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = len(os.listdir(root))
    monkeypatch.setattr("carrel.trees.files.MAX_LISTED", count)
    assert len(files.list()) == count
    (root / "one more").touch()
    with pytest.raises(TooLarge):
        files.list()


def test_listing_and_stat(files: TreeFiles, root: Path) -> None:
    found = files.list()
    assert [info.name for info in found] == sorted(os.listdir(root))
    by_name = {info.name: info for info in found}
    assert by_name["file"] == FileInfo(
        "file",
        EntryType.FILE,
        stat.S_IMODE((root / "file").stat().st_mode),
        7,
        (root / "file").stat().st_mtime_ns,
    )
    assert by_name["folder"].type is EntryType.FOLDER and by_name["folder"].size == 0
    assert by_name["out"].target == "../secret"
    assert files.stat("out") == by_name["out"]
    assert files.stat("folder/inner/deep").name == "deep"


def test_folders(files: TreeFiles, root: Path) -> None:
    files.mkdir("new", 0o1750)
    assert stat.S_IMODE((root / "new").stat().st_mode) == 0o1750
    with pytest.raises(PathExists):
        files.mkdir("new")
    with pytest.raises(PathNotFound):
        files.mkdir("x/y/z")
    files.mkdir("x/y/z", parents=True)
    files.mkdir("x/y/z", parents=True)
    files.mkdir("to-folder/more", parents=True)
    assert (root / "folder" / "inner" / "more").is_dir()
    with pytest.raises(PathWrongKind):
        files.mkdir("file/x", parents=True)


def test_deleting(files: TreeFiles, root: Path) -> None:
    files.delete("to-folder", recursive=True)
    assert (root / "folder" / "inner").is_dir()
    files.delete("file")
    files.mkdir("empty")
    files.delete("empty")
    files.delete("folder", recursive=True)
    files.delete("out-folder")
    assert (root.parent / "secret").exists()
    assert not {"file", "folder", "empty", "out-folder", "to-folder"} & set(os.listdir(root))


def test_moving(files: TreeFiles, root: Path) -> None:
    files.move("file", "folder/file")
    assert (root / "folder" / "file").read_text() == "content"
    files.write("file", b"other")
    with pytest.raises(PathExists):
        files.move("file", "folder/file")
    files.move("file", "folder/file", replace=True)
    assert (root / "folder" / "file").read_text() == "other"
    files.move("folder", "elsewhere")
    assert (root / "elsewhere" / "inner" / "deep").exists()
    files.move("out", "still-a-link")
    assert (root / "still-a-link").is_symlink()
    with pytest.raises(PathInvalid):
        files.move("elsewhere", "elsewhere/inner/self")
    with pytest.raises(PathNotFound):
        files.move("nothing", "x")


def test_a_race_never_leads_out(tmp_path: Path, root: Path, files: TreeFiles) -> None:
    """A folder is swapped for a symlink that leads out, over and over, while we use it."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "victim").write_text("outside")
    hostile, kept = root / "race", root / "kept"
    hostile.mkdir()
    (hostile / "victim").write_text("inside")
    link = root / "link"
    link.symlink_to(outside)
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            for source, target in ((hostile, kept), (link, hostile), (hostile, link)):
                os.rename(source, target)
            os.rename(kept, hostile)

    swapper = threading.Thread(target=swap)
    swapper.start()
    seen = {"inside": 0, "refused": 0}
    try:
        deadline = time.monotonic() + RACE_S
        for attempt in itertools.count():
            if time.monotonic() > deadline or (attempt >= 1500 and all(seen.values())):
                break
            with contextlib.suppress(PathError, CarrelError):
                assert files.read("race/victim") in (b"inside", b"written")
                seen["inside"] += 1
            for act in (_write, _move_away, _make):
                try:
                    act(files)
                except (PathEscapes, PathNotFound, PathExists):
                    seen["refused"] += 1
    finally:
        stop.set()
        swapper.join(10)
    assert os.listdir(outside) == ["victim"]
    assert (outside / "victim").read_text() == "outside"
    assert seen["inside"] and seen["refused"]


def _write(files: TreeFiles) -> None:
    files.write("race/victim", b"written")


def _move_away(files: TreeFiles) -> None:
    files.move("race/victim", "race/other", replace=True)


def _make(files: TreeFiles) -> None:
    files.mkdir("race/new")
    files.delete("race/new")


_DENIED = """
import os, sys
from pathlib import Path
from carrel.domain.errors import PathDenied
from carrel.trees.files import TreeFiles
root = Path(sys.argv[1])
(root / "folder").mkdir()
(root / "folder" / "file").write_text("x")
(root / "file").write_text("x")
(root / "file").chmod(0)
(root / "folder").chmod(0)
files = TreeFiles(os.open(root, os.O_PATH))
acts = (
    lambda: files.read("file"),
    lambda: files.read("folder/file"),
    lambda: files.list("folder"),
    lambda: files.write("folder/new", b""),
)
for act in acts:
    try:
        act()
    except PathDenied as error:
        print(error.code)
"""


def test_an_ordinary_user_is_denied_what_modes_deny(data: Path, ordinary_user: Account) -> None:
    os.chown(data, *ordinary_user)
    result = run_as(ordinary_user, [PYTHON, "-c", _DENIED, str(data)])
    assert result.stdout.split() == ["path_denied"] * 4, result.stderr


@ROOT_ONLY
def test_what_is_put_in_the_place_of_what_root_makes(
    tmp_path: Path, ordinary_user: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a folder of somebody's, in which things of root's lie: none of them becomes theirs."""
    theirs, roots = Owner(*ordinary_user), tmp_path / "roots"
    roots.mkdir(mode=0o700)
    (roots / "secret").write_text("root's")
    make, link = os.mkdir, os.symlink

    def make_another(name: bytes, mode: int, *, dir_fd: int) -> None:
        roots.rename(tmp_path / os.fsdecode(name))

    def link_another(target: bytes, name: bytes, *, dir_fd: int) -> None:
        (tmp_path / "made" / "secret").rename(tmp_path / os.fsdecode(name))

    here = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        monkeypatch.setattr(os, "mkdir", make_another)
        with pytest.raises(FileExistsError):
            make_folder(here, b"made", mode=0o755, owner=theirs)
        secret = os.open(tmp_path / "made" / "secret", os.O_RDONLY)
        assert (tmp_path / "made").stat().st_uid == 0
        monkeypatch.setattr(os, "symlink", link_another)
        with pytest.raises(FileExistsError):
            link_atomically(here, b"link", b"elsewhere", owner=theirs)
        assert os.fstat(secret).st_uid == 0
        os.close(secret)
        monkeypatch.setattr(os, "mkdir", make)
        monkeypatch.setattr(os, "symlink", link)
        (tmp_path / "link").write_text("before")
        link_atomically(here, b"link", b"elsewhere", owner=theirs)
        make_folder(here, b"new", mode=0o755, owner=theirs)
    finally:
        os.close(here)
    assert os.readlink(tmp_path / "link") == "elsewhere"
    for made in (tmp_path / "link", tmp_path / "new"):
        assert made.lstat().st_uid == ordinary_user.uid
