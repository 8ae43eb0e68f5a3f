"""What a tree tells of its changes, and what they cost."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tracemalloc
from pathlib import Path

import pytest

from carrel.domain.errors import PathInvalid
from carrel.domain.trees import Change, ChangeKind, EntryType, Tree
from tests.conformance.tree_rig import Rig
from tests.conformance.tree_views import is_git, look, told

SMALL = 64 << 10
"""The most that an untouched tree may cost."""


# What it tells: changes


def test_no_changes(rig: Rig, tree: Tree) -> None:
    assert rig.changes(tree) == []
    rig.act(tree, look)
    assert rig.changes(tree) == []


def test_what_is_the_same_again_is_no_change(rig: Rig, tree: Tree) -> None:
    def act() -> None:
        os.utime("README")
        Path("src/main.py").write_text(Path("src/main.py").read_text())
        os.chmod("src/run.sh", 0o700)
        os.chmod("src/run.sh", 0o755)
        # Copies where the kernel will not rename.
        shutil.move("src/deep", "deep")
        shutil.move("deep", "src/deep")
        os.unlink("nowhere")
        os.symlink("does/not/exist", "nowhere")
        os.rmdir("empty-folder")
        os.mkdir("empty-folder")
        os.chmod("empty-folder", 0o750)
        Path("temporary").touch()
        os.unlink("temporary")
        os.rename("README", "aside")
        Path("README").write_text("read me\n")
        os.unlink("aside")

    rig.act(tree, act)
    assert rig.changes(tree) == []


def test_every_kind_of_change(rig: Rig, tree: Tree) -> None:
    def act() -> None:
        Path("added").write_text("added\n")
        Path("added-folder").mkdir(0o700)
        Path("added-link").symlink_to("x")
        Path("README").write_text("other\n")
        with open("src/main.py", "a") as file:
            file.write("\n")
        os.chmod("src/main.py", 0o600)
        os.chmod("src/run.sh", 0o700)
        os.chmod("src/deep", 0o700)
        os.unlink(".env")
        os.rename("build/out/object.o", "object.o")
        os.unlink("nowhere")
        os.symlink("elsewhere", "nowhere")
        os.unlink("to-main")
        Path("to-main").write_text("a file\n")

    rig.act(tree, act)
    found = rig.changes(tree)
    assert told(found) == [
        ("deleted", ".env"),
        ("modified", "README"),
        ("added", "added"),
        ("added", "added-folder"),
        ("added", "added-link"),
        ("modified", "nowhere"),
        ("renamed", "object.o"),
        ("mode", "src/deep"),
        ("modified", "src/main.py"),
        ("mode", "src/run.sh"),
        ("type", "to-main"),
    ]
    by_path = {change.path: change for change in found}
    assert by_path["object.o"] == Change(
        "object.o",
        ChangeKind.RENAMED,
        old_path="build/out/object.o",
        old_type=EntryType.FILE,
        new_type=EntryType.FILE,
        old_mode=0o644,
        new_mode=0o644,
        size=70_000,
    )
    assert by_path["src/main.py"] == Change(
        "src/main.py",
        ChangeKind.MODIFIED,
        old_type=EntryType.FILE,
        new_type=EntryType.FILE,
        old_mode=0o644,
        new_mode=0o600,
        size=23,
    )
    assert by_path[".env"] == Change(
        ".env", ChangeKind.DELETED, old_type=EntryType.FILE, old_mode=0o600, size=9
    )
    assert by_path["added-folder"] == Change(
        "added-folder", ChangeKind.ADDED, new_type=EntryType.FOLDER, new_mode=0o700
    )
    assert by_path["to-main"].old_type is EntryType.SYMLINK
    assert by_path["to-main"].new_type is EntryType.FILE


def test_whole_folders(rig: Rig, tree: Tree) -> None:
    def act() -> None:
        subprocess.run(["rm", "-rf", "src"], check=True)
        subprocess.run(["rm", "-rf", "build"], check=True)
        os.makedirs("src/deep")
        Path("src/deep/one").write_text("one\n")
        Path("src/deep/one").chmod(0o644)
        Path("src/deep/three").write_text("three three three\n")
        Path("build").write_text("a file now\n")

    rig.act(tree, act)
    assert told(rig.changes(tree)) == [
        ("type", "build"),
        ("deleted", "build/out"),
        ("deleted", "build/out/object.o"),
        ("deleted", "src/deep/er"),
        ("deleted", "src/deep/er/two"),
        ("added", "src/deep/three"),
        ("deleted", "src/main.py"),
        ("deleted", "src/run.sh"),
    ]


def test_moved_folders(rig: Rig, tree: Tree) -> None:
    """By `mv`, which copies where the kernel will not rename."""

    def act() -> None:
        for source, target in (("src/deep/er", "src/inner"), ("src", "lib"), ("lib/inner", "x")):
            subprocess.run(["mv", source, target], check=True)
        Path("lib/deep/new").write_text("new in a moved folder\n")
        os.unlink("lib/run.sh")
        os.chmod("lib/main.py", 0o755)

    rig.act(tree, act)
    found = [change for change in rig.changes(tree) if not is_git(change.path)]
    assert [(change.kind.value, change.path, change.old_path) for change in found] == [
        ("added", "lib", None),
        ("added", "lib/deep", None),
        ("added", "lib/deep/new", None),
        ("renamed", "lib/deep/one", "src/deep/one"),
        ("renamed", "lib/main.py", "src/main.py"),
        ("deleted", "src", None),
        ("deleted", "src/deep", None),
        ("deleted", "src/deep/er", None),
        ("deleted", "src/run.sh", None),
        ("added", "x", None),
        ("renamed", "x/two", "src/deep/er/two"),
    ]


def test_a_change_cannot_be_hidden_behind_the_old_times(rig: Rig, tree: Tree) -> None:
    def act() -> None:
        status = os.stat("README")
        Path("README").write_text("rEAD ME\n")
        os.utime("README", ns=(status.st_atime_ns, status.st_mtime_ns))

    rig.act(tree, act)
    assert told(rig.changes(tree)) == [("modified", "README")]


def test_changes_are_sorted_by_path(rig: Rig, tree: Tree) -> None:
    names = ["a", "a/b", "a.txt", "a-b", "é", os.fsdecode(b"\xfe"), "a/b/c", "Z", " "]

    def act() -> None:
        for name in names:
            os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
            if name in ("a", "a/b"):
                os.makedirs(name, exist_ok=True)
            else:
                Path(name).write_text(name.encode("utf-8", "replace").decode())

    rig.act(tree, act)
    paths = [change.path for change in rig.changes(tree)]
    assert paths == sorted(paths)
    assert set(names) <= set(paths)


def test_hostile_entries_are_listed_and_nothing_hangs(rig: Rig, tree: Tree) -> None:
    def act() -> None:
        os.unlink("README")
        os.mkfifo("README")
        os.mkfifo("fifo")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind("socket")
        with open("huge", "wb") as file:
            file.truncate(1 << 40)
        with open("sparse", "r+b") as file:
            file.truncate(0)
            file.truncate(8 << 20)
        os.symlink("/etc/passwd", "to-passwd")
        Path("-rf\n*").write_text("x")
        os.unlink("src/main.py")
        os.symlink("/etc/shadow", "src/main.py")
        shutil.move("src/deep", "src/away")
        os.symlink("/", "src/deep")

    rig.act(tree, act)
    found = {change.path: change for change in rig.changes(tree)}
    assert found["README"].kind is ChangeKind.TYPE
    assert found["fifo"].new_type is found["socket"].new_type is EntryType.OTHER
    assert found["huge"].size == 1 << 40
    assert found["sparse"].kind is ChangeKind.MODIFIED
    assert found["to-passwd"].new_type is EntryType.SYMLINK
    assert found["-rf\n*"].kind is ChangeKind.ADDED
    assert found["src/main.py"].new_type is EntryType.SYMLINK
    assert found["src/deep"].kind is ChangeKind.TYPE
    assert found["src/away/one"].old_path == "src/deep/one"
    assert not any(path.startswith("src/deep/etc") for path in found)


def nest(levels: int, name: str, files: int = 1) -> None:
    os.mkdir("deep")
    here = os.open("deep", os.O_RDONLY)
    for _ in range(levels):
        os.mkdir(name, dir_fd=here)
        below = os.open(name, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    for number in range(files):
        os.close(os.open(f"bottom{number or ''}", os.O_CREAT, dir_fd=here))
    os.close(here)


NESTED = {"long": (1000, 250, 1), "short": (2100, 2, 1), "wide": (110, 250, 3000)}
"""Levels, letters of each, and files in the last. None takes more than 5 MB of a disk."""


@pytest.mark.parametrize("levels, letters, files", NESTED.values(), ids=NESTED)
def test_folders_nested_without_end_take_no_memory(
    rig: Rig, tree: Tree, levels: int, letters: int, files: int
) -> None:
    """What is held of them would take the square of their depth."""
    rig.act(tree, lambda: nest(levels, "d" * letters, files))
    tracemalloc.start()
    try:
        with pytest.raises(PathInvalid) as caught:
            rig.changes(tree)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert "nested" in caught.value.message and len(caught.value.message) < 300
    assert peak < 160 << 20
    rig.driver.drop(tree)
    assert not tree.path.exists()


def test_deep_folders_and_folders_without_permissions(rig: Rig, tree: Tree) -> None:
    def act() -> None:
        nest(1500, "folder")
        os.makedirs("closed/inner")
        Path("closed/inner/file").write_text("x")
        Path("closed/inner/file").chmod(0)
        Path("closed/inner").chmod(0o400)
        Path("closed").chmod(0)

    rig.act(tree, act)
    for _ in range(2):
        found = {change.path: change for change in rig.changes(tree)}
        assert found["deep" + "/folder" * 1500 + "/bottom"].kind is ChangeKind.ADDED
        modes = [found[path].new_mode for path in ("closed", "closed/inner", "closed/inner/file")]
        assert modes == [0, 0o400, 0]
    rig.driver.drop(tree)


# What it costs


def test_an_untouched_tree_costs_nearly_nothing(rig: Rig, tree: Tree) -> None:
    used = rig.driver.usage(tree)
    if rig.driver.capabilities.copy_on_write:
        assert used.bytes_used < SMALL
    else:
        assert used.bytes_used > 70_000


def test_what_is_written_costs(rig: Rig, tree: Tree) -> None:
    before = rig.driver.usage(tree)

    def act() -> None:
        with open("big", "wb") as file:
            file.write(os.urandom(1 << 20))
            os.fsync(file.fileno())
        os.link("big", "big-again")

    rig.act(tree, act)
    more = rig.driver.usage(tree).bytes_used - before.bytes_used
    assert 1 << 20 <= more < (1 << 20) + SMALL
    assert rig.driver.usage(tree).files_used > before.files_used
