"""Tar into trees: what is put where, and what is refused."""

from __future__ import annotations

import os
import stat
import subprocess
import tarfile
from pathlib import Path

import pytest

from carrel.domain.errors import (
    ArchiveInvalid,
    CarrelError,
    PathEscapes,
    PathExists,
    PathNotFound,
    PathWrongKind,
)
from carrel.domain.trees import Tree
from carrel.trees.archives import archive
from carrel.trees.extraction import Unpacked, unpack
from tests.conformance.tree_rig import SANDBOX, Rig
from tests.conformance.tree_views import look, make_project, owners
from tests.trees.tars import HARD, LINK, Chunks, entry, odd_things, opened, packed, tar_of, unpacked

TIMEOUT_S = 60.0
"""For a program that takes milliseconds, on a loaded machine."""

MODES = {"old": 0o644, "read-only": 0o444, "program": 0o755, "shut": 0}


@pytest.fixture
def tree(copy_rig: Rig) -> Tree:
    return copy_rig.tree(copy_rig.base_of(None))


def test_there_and_back(any_rig: Rig, tmp_path: Path) -> None:
    base = any_rig.base_of(make_project(tmp_path / "project"))
    tree, fresh = any_rig.tree(base), any_rig.tree(any_rig.base_of(None))
    any_rig.act(tree, odd_things)
    any_rig.act(tree, lambda: os.unlink("to-root"))
    done = unpack(any_rig.driver, fresh, Chunks(archive(any_rig.driver, tree)))
    wanted = any_rig.act(tree, look)
    del wanted["fifo"], wanted["socket"]
    seen = any_rig.act(fresh, look)
    assert {path: one[:4] for path, one in seen.items()} == {
        path: one[:4] for path, one in wanted.items()
    }
    assert done.entries >= len(seen)
    assert seen["new-hard"].links == ("new-hard", "src/new-hard-too")
    assert any_rig.act(fresh, owners) == {SANDBOX}
    assert any_rig.act(fresh, lambda: os.stat("tera").st_blocks) < 1000
    times = any_rig.act(tree, _some_times)
    assert any_rig.act(fresh, _some_times) == times


def _some_times() -> dict[str, int]:
    paths = ("pre-epoch", "src", "README", "empty-folder", "x" * 200, "x" * 200 + "/" + "y" * 200)
    return {path: os.lstat(path).st_mtime_ns for path in paths}


@pytest.mark.parametrize("form", ["gnu", "posix", "ustar", "v7"])
@pytest.mark.parametrize("zstd", [True, False])
def test_archives_of_gnu_tar(
    copy_rig: Rig, tree: Tree, tmp_path: Path, form: str, zstd: bool
) -> None:
    folder = tmp_path / "folder"
    (folder / "inner").mkdir(parents=True, mode=0o750)
    (folder / "inner" / "file").write_text("file\n")
    (folder / "inner" / "file").chmod(0o640)
    (folder / "inner" / "link").symlink_to("../inner/file")
    (folder / "inner" / "again").hardlink_to(folder / "inner" / "file")
    if form in ("gnu", "posix"):
        (folder / ("n" * 150)).symlink_to("t" * 150)
        Path(os.fsdecode(bytes(folder) + b"/\xff\n")).write_bytes(b"x" * 513)
    words = ["tar", "--create", f"--format={form}", "--directory", str(folder)]
    words += ["--owner=0", "--group=0", *(["--zstd"] if zstd else [])]
    if form == "posix":
        with (folder / "sparse").open("wb") as file:
            file.truncate(3 << 20)
            file.seek(1 << 20)
            file.write(b"data")
        words.append("--sparse")
    made = subprocess.run([*words, "."], capture_output=True, check=True, timeout=TIMEOUT_S)
    unpacked(copy_rig, tree, made.stdout)
    assert look(tree.path) == look(folder)


def test_into_what_is_there(copy_rig: Rig, tree: Tree) -> None:
    def act() -> None:
        Path("file").write_text("old")
        os.link("file", "other-name")
        Path("target").write_text("target")
        os.symlink("target", "link")
        Path("folder").mkdir()
        Path("folder/kept").write_text("kept")
        os.symlink("folder", "to-folder")

    copy_rig.act(tree, act)
    content = tar_of(
        (entry("./", tarfile.DIRTYPE, mode=0o700), b""),
        (entry("./file"), b"new"),
        (entry("link"), b"no link any more"),
        (entry("folder/", tarfile.DIRTYPE, mode=0o750), b""),
        (entry("folder/new"), b"new"),
        (entry("made/on/the/way"), b"x"),
        (entry("program", mode=0o6755), b"x"),
    )
    mode = tree.path.stat().st_mode
    done = unpacked(copy_rig, tree, content)
    assert done == Unpacked(7, 24)
    read = {name: (tree.path / name).read_text() for name in ("file", "other-name", "target")}
    assert read == {"file": "new", "other-name": "old", "target": "target"}
    assert not (tree.path / "link").is_symlink()
    assert sorted(os.listdir(tree.path / "folder")) == ["kept", "new"]
    assert (tree.path / "folder").stat().st_mode & 0o7777 == 0o750
    assert (tree.path / "made" / "on").stat().st_mode & 0o7777 == 0o755
    assert (tree.path / "program").stat().st_mode & 0o7777 == 0o755
    assert tree.path.stat().st_mode == mode
    unpacked(copy_rig, tree, tar_of((entry("x"), b"in it")), "to-folder")
    assert (tree.path / "folder" / "x").read_text() == "in it"


def test_places_that_are_none(copy_rig: Rig, tree: Tree) -> None:
    copy_rig.act(tree, lambda: Path("file").touch())
    copy_rig.act(tree, lambda: os.symlink("/tmp", "out"))
    refused = {
        "missing": PathNotFound,
        "file": PathWrongKind,
        "out": PathEscapes,
        "..": PathEscapes,
    }
    for into, error in refused.items():
        with pytest.raises(error):
            unpacked(copy_rig, tree, tar_of((entry("x"), b"")), into)


REFUSED: dict[str, list[tarfile.TarInfo]] = {
    "up": [entry("../evil")],
    "up in the middle": [entry("a/../../evil")],
    "up and back": [entry("a/../evil")],
    "absolute": [entry("/tmp/evil")],
    "absolute folder": [entry("/tmp/evil", tarfile.DIRTYPE)],
    "no name": [entry("./")],
    "long": [entry("n" * 256)],
    "absolute symlink": [entry("evil", LINK, "/etc/passwd")],
    "symlink up": [entry("evil", LINK, "../x")],
    "symlink further up": [entry("a/b/evil", LINK, "../../../x")],
    "symlink up behind a symlink": [entry("a/up", LINK, ".."), entry("evil", LINK, "a/up/..")],
    "symlink to nothing": [entry("evil", LINK, "")],
    "hard link out": [entry("evil", HARD, "../../etc/passwd")],
    "hard link to /": [entry("evil", HARD, "/etc/passwd")],
    "hard link to nothing": [entry("evil", HARD, "nothing")],
    "hard link to a symlink": [entry("x", LINK, "file"), entry("evil", HARD, "x")],
    "hard link behind a symlink": [entry("x", LINK, "."), entry("evil", HARD, "x/file")],
    "hard link to a folder": [entry("x", tarfile.DIRTYPE), entry("evil", HARD, "x")],
    "character device": [entry("evil", tarfile.CHRTYPE)],
    "block device": [entry("evil", tarfile.BLKTYPE)],
    "pipe": [entry("evil", tarfile.FIFOTYPE)],
    "unknown": [entry("evil", b"Z")],
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(copy_rig: Rig, tree: Tree, name: str) -> None:
    copy_rig.act(tree, lambda: Path("file").write_text("file"))
    with pytest.raises(ArchiveInvalid) as caught:
        unpacked(copy_rig, tree, tar_of(*[(member, b"") for member in REFUSED[name]]))
    assert caught.value.details["entry"] == REFUSED[name][-1].name
    assert not os.path.lexists("/tmp/evil")
    assert "evil" not in os.listdir(tree.path)
    assert "evil" not in os.listdir(tree.folder)


IN_THE_WAY: dict[str, tuple[list[tarfile.TarInfo], type[CarrelError]]] = {
    "a symlink of the tree": ([entry("out/evil")], CarrelError),
    "a symlink of the tree further up": ([entry("out/a/evil")], CarrelError),
    "a folder behind a symlink": ([entry("out/evil/", tarfile.DIRTYPE)], CarrelError),
    "a symlink of the archive": ([entry("x", LINK, "folder"), entry("x/evil")], CarrelError),
    "a folder for a symlink": ([entry("out", tarfile.DIRTYPE)], PathExists),
    "a folder for a file": ([entry("file", tarfile.DIRTYPE)], PathExists),
    "a file for a folder": ([entry("folder")], PathWrongKind),
    "a symlink for a folder": ([entry("folder", LINK, "x")], PathWrongKind),
    "a file below a file": ([entry("file/x")], PathExists),
}


@pytest.mark.parametrize("name", IN_THE_WAY)
def test_what_is_in_the_way(copy_rig: Rig, tree: Tree, tmp_path: Path, name: str) -> None:
    outside = tmp_path / "outside"
    (outside / "a").mkdir(parents=True)

    def act() -> None:
        Path("file").write_text("file")
        Path("folder").mkdir()
        Path("folder/kept").touch()
        os.symlink(outside, "out")

    copy_rig.act(tree, act)
    members, error = IN_THE_WAY[name]
    with pytest.raises(error) as caught:
        unpacked(copy_rig, tree, tar_of(*[(member, b"") for member in members]))
    assert members[-1].name.rstrip("/").split("/")[0] in caught.value.message
    assert os.listdir(outside) == ["a"] and os.listdir(outside / "a") == []
    assert os.listdir(tree.path / "folder") == ["kept"]
    assert (tree.path / "file").read_text() == "file"
    assert not [one for one in os.listdir(tree.path) if one.startswith(".carrel-")]


def test_a_file_that_is_not_the_trees_own_gets_no_further_name(
    copy_rig: Rig, tmp_path: Path
) -> None:
    """Git's objects in it may be the base's."""
    tree = copy_rig.tree(copy_rig.base_of(make_project(tmp_path / "project")))
    shared = [path for path in tree.path.glob(".git/objects/??/*") if path.stat().st_nlink > 1]
    if not shared:
        pytest.skip("this user's trees borrow objects by other means")
    name = str(shared[0].relative_to(tree.path))
    with pytest.raises(PathWrongKind):
        unpacked(copy_rig, tree, tar_of((entry("x", HARD, name), b"")))
    assert not (tree.path / "x").exists()


def test_folders_that_are_closed(any_rig: Rig, tmp_path: Path) -> None:
    """Whatever modes the tree's owner gave, they are as before or as the archive says."""
    tree = any_rig.tree(any_rig.base_of(make_project(tmp_path / "project")))

    def close() -> None:
        os.chmod("src/deep/er", 0o100)
        os.chmod("src/deep", 0o500)
        os.chmod("src", 0)

    any_rig.act(tree, close)
    content = tar_of(
        (entry("src/deep/er/new"), b"new"),
        (entry("src/deep/", tarfile.DIRTYPE, mode=0o511), b""),
        (entry("fixed/file"), b"changed"),
        (entry("shut/", tarfile.DIRTYPE, mode=0), b""),
        (entry("shut/inner/", tarfile.DIRTYPE, mode=0o444), b""),
        (entry("shut/inner/file", mode=0), b"x"),
    )
    unpacked(any_rig, tree, content)
    if any_rig.name != "overlay" or os.geteuid() == 0:
        mode = stat.S_IMODE((tree.path / "src").stat().st_mode)
        assert mode == 0
    with opened(packed(any_rig, tree, zstd=False)) as tar:
        modes = {member.name: member.mode for member in tar.getmembers()}
    assert modes["src"] == 0
    assert modes["src/deep"] == 0o511
    assert modes["src/deep/er"] == 0o100
    assert modes["src/deep/er/new"] == 0o644
    assert modes["fixed"] == 0o555
    assert [modes[f"shut{end}"] for end in ("", "/inner", "/inner/file")] == [0, 0o444, 0]
    any_rig.driver.drop(tree)


def test_small_files_are_the_owners_wherever_they_are(copy_rig: Rig, tree: Tree) -> None:
    """Also where the owner may not make any, and where the folder says which group they have."""
    if os.geteuid() != 0:
        pytest.skip("only root has files to give away")
    for name, mode in (("closed", 0o755), ("grouped", 0o2777)):
        (tree.path / name).mkdir()
        (tree.path / name).chmod(mode)
    (tree.path / "grouped" / "old").write_text("old")
    folders = ("", "closed/", "new/", "grouped/")
    files = [(f"{folder}{name}", mode) for folder in folders for name, mode in MODES.items()]
    content = tar_of(*((entry(path, mode=mode), path.encode()) for path, mode in files * 2))
    assert unpacked(copy_rig, tree, content).entries == 2 * len(files)
    owner = os.stat(tree.path)
    for path, mode in files:
        found = os.stat(tree.path / path)
        assert (found.st_uid, found.st_gid) == (owner.st_uid, owner.st_gid)
        assert stat.S_IMODE(found.st_mode) == mode
        assert (tree.path / path).read_text() == path
    made = tree.path / "ours"
    made.touch()
    assert made.stat().st_uid == 0


def test_what_came_before_an_error_is_there(copy_rig: Rig, tree: Tree) -> None:
    files = [(entry(name), b"x") for name in ("a/1", "a/2", "b/1")]
    for last in (entry("../out"), entry("b", LINK, "a")):
        with pytest.raises(CarrelError):
            unpacked(copy_rig, tree, tar_of(*files, (last, b"")))
        assert [(tree.path / one.name).read_bytes() for one, _ in files] == [b"x"] * 3
