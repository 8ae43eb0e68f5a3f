"""One suite for every tree driver: what a tree shows, keeps to itself, tells and leaves."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import shutil
import socket
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from carrel.domain.errors import (
    CarrelError,
    TreeDamaged,
    TreeExists,
    TreeNotFound,
)
from carrel.domain.trees import Base, Change, ChangeKind, EntryType, Tree
from carrel.launcher.client import Launcher
from carrel.trees.bases.store import SANDBOX_OWNER
from carrel.trees.carry import carry_out
from carrel.trees.drivers.auto import choose_driver
from carrel.trees.files import open_files
from tests.accounts import PYTHON, Account, run_as
from tests.conformance.tree_rig import (
    DRIVERS,
    VOLUMES,
    Rig,
    open_launcher,
    open_rig,
    place_for,
    volume_variable,
)
from tests.conformance.tree_views import fingerprint, git, look, make_project, owners
from tests.folders import mounts_below
from tests.volumes import volume

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
SANDBOX = (SANDBOX_OWNER.uid, SANDBOX_OWNER.gid)
"""Whom everything belongs to where a sandbox sees it."""
SMALL = 64 << 10
"""The most that an untouched tree may cost."""


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    with open_launcher() as opened:
        yield opened


@pytest.fixture(scope="module", params=DRIVERS)
def place(request: pytest.FixtureRequest) -> Iterator[tuple[str, Path]]:
    name = request.param
    if os.geteuid() != 0 and name in VOLUMES and volume_variable(name) not in os.environ:
        pytest.skip("only root makes file systems")
    with place_for(name) as folder:
        yield name, folder


@pytest.fixture
def rig(place: tuple[str, Path], launcher: Launcher) -> Iterator[Rig]:
    name, folder = place
    with open_rig(name, folder, launcher) as opened:
        yield opened


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return make_project(tmp_path / "project")


@pytest.fixture
def base(rig: Rig, project: Path) -> Base:
    return rig.base_of(project)


@pytest.fixture
def tree(rig: Rig, base: Base) -> Tree:
    return rig.tree(base)


def told(changes: list[Change]) -> list[tuple[str, str]]:
    """Without git's own files, which no test is about but one."""
    return [(change.kind.value, change.path) for change in changes if not _is_git(change.path)]


def _is_git(path: str) -> bool:
    return path == ".git" or path.startswith(".git/")


# What a tree shows


def test_the_driver_works_here_and_trying_leaves_nothing(rig: Rig) -> None:
    before = sorted(os.listdir(rig.data))
    found = rig.driver.probe()
    assert found.available, found
    assert found.reason
    assert sorted(os.listdir(rig.data)) == before
    assert mounts_below(rig.data) == []


def test_a_tree_shows_the_project(rig: Rig, project: Path, tree: Tree) -> None:
    assert rig.act(tree, look) == look(project)


def test_everything_belongs_to_the_owner(rig: Rig, tree: Tree) -> None:
    assert rig.act(tree, owners) == {SANDBOX}
    rig.act(tree, lambda: Path("new").touch())
    assert rig.act(tree, owners) == {SANDBOX}
    root = rig.driver.open_root(tree)
    try:
        assert os.stat("new", dir_fd=root).st_uid == os.fstat(root).st_uid != 0
    finally:
        os.close(root)


def test_times_and_holes_are_kept(rig: Rig, project: Path, tree: Tree) -> None:
    def measure() -> list[tuple[int, bool]]:
        found = [os.lstat(name) for name in ("src", "src/main.py", "to-main", "sparse")]
        return [(status.st_mtime_ns, status.st_blocks * 512 < 1 << 20) for status in found]

    here = os.getcwd()
    try:
        os.chdir(project)
        expected = measure()
    finally:
        os.chdir(here)
    assert rig.act(tree, measure) == expected


def test_a_tree_of_nothing(rig: Rig) -> None:
    tree = rig.tree(rig.base_of(None))
    assert rig.act(tree, lambda: os.listdir(".")) == []
    rig.act(tree, lambda: Path("file").write_text("x"))
    assert told(rig.changes(tree)) == [("added", "file")]


def test_the_second_base_of_a_project(rig: Rig, project: Path, tree: Tree) -> None:
    """With what was added, changed, replaced and removed since the first one."""
    (project / "new").mkdir()
    (project / "new" / "file").write_text("new\n")
    (project / "README").write_text("changed\n")
    (project / "src" / "deep" / "one").unlink()
    (project / "build" / "out" / "object.o").unlink()
    (project / "build" / "out").rmdir()
    (project / "build" / "out").write_text("now a file\n")
    (project / "to-main").unlink()
    (project / "to-main").mkdir()
    second = rig.tree(rig.base_of(project))
    assert rig.act(second, look) == look(project)
    assert rig.changes(second) == []
    assert rig.act(tree, lambda: Path("README").read_text()) == "read me\n"


# What it keeps to itself


def _do_much() -> None:
    """Of everything that programs do to files."""
    Path("new").mkdir()
    Path("new", "file").write_text("new\n")
    Path("README").write_text("changed\n")
    with open("src/main.py", "a") as file:
        file.write("more\n")
    os.truncate("sparse", 100)
    os.chmod("src/run.sh", 0o700)
    os.unlink("empty-file")
    os.rename("src/deep/one", "src/deep/uno")
    os.link("src/deep/er/two", "src/deep/er/deux")
    os.rmdir("empty-folder")
    os.symlink("new", "empty-folder")
    os.unlink("to-main")
    os.mkdir("to-main")
    os.utime(".env", (1, 1))
    subprocess.run(["rm", "-rf", "build"], check=True)


def test_the_base_and_the_project_stay_as_they_are(
    rig: Rig, project: Path, base: Base, tree: Tree
) -> None:
    before = [fingerprint(folder) for folder in (*base.layers, project)]
    rig.act(tree, _do_much)
    assert [fingerprint(folder) for folder in (*base.layers, project)] == before
    assert rig.changes(tree)
    rig.driver.drop(tree)
    assert [fingerprint(folder) for folder in (*base.layers, project)] == before


def test_trees_do_not_see_one_another(rig: Rig, base: Base, tree: Tree) -> None:
    other = rig.tree(base)
    before = rig.act(other, look)
    rig.act(tree, _do_much)
    assert rig.act(other, look) == before
    assert rig.changes(other) == []
    rig.driver.drop(tree)
    assert rig.act(other, look) == before


def test_modes_say_what_can_be_written(rig: Rig, tree: Tree) -> None:
    def attempt() -> list[str]:
        refused = []
        for path in ("fixed/file", "fixed/new", "src/main.py", "src/new", "empty-folder/new"):
            try:
                Path(path).write_text("x")
            except PermissionError:
                refused.append(path)
        return refused

    assert rig.act(tree, attempt) == ["fixed/file", "fixed/new"]
    rig.act(tree, lambda: Path("fixed").chmod(0o755))
    rig.act(tree, lambda: Path("fixed/file").chmod(0o644))
    assert rig.act(tree, attempt) == []


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
    found = [change for change in rig.changes(tree) if not _is_git(change.path)]
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


def test_deep_folders_and_folders_without_permissions(rig: Rig, tree: Tree) -> None:
    def act() -> None:
        os.mkdir("deep")
        here = os.open("deep", os.O_RDONLY)
        for _ in range(1500):
            os.mkdir("folder", dir_fd=here)
            below = os.open("folder", os.O_RDONLY, dir_fd=here)
            os.close(here)
            here = below
        os.close(os.open("bottom", os.O_CREAT, dir_fd=here))
        os.close(here)
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


# Freezing


def test_a_frozen_tree_becomes_a_base(rig: Rig, base: Base, tree: Tree) -> None:
    rig.act(tree, _do_much)
    before = rig.act(tree, look)
    changes = rig.changes(tree)
    frozen = rig.driver.freeze(tree)
    assert frozen.base_id != base.base_id
    assert frozen.project_owner == base.project_owner
    copy = rig.tree(frozen)
    assert rig.act(copy, look) == before
    assert rig.changes(copy) == []
    assert rig.act(copy, owners) == {SANDBOX}
    # The tree itself goes on as it was.
    assert rig.changes(tree) == changes
    rig.act(tree, lambda: Path("after").write_text("later\n"))
    assert rig.act(copy, look) == before


def test_freezing_twice_and_again(rig: Rig, tree: Tree) -> None:
    """Forks of forks, each with changes of its own."""
    seen = []
    current = tree
    for number in range(4):
        rig.act(current, functools.partial(_step, number))
        seen.append(rig.act(current, look))
        current = rig.tree(rig.driver.freeze(current))
        assert rig.act(current, look) == seen[-1]


def _step(number: int) -> None:
    Path(f"step-{number}").write_text(f"{number}\n")
    Path("README").write_text(f"step {number}\n")
    if number:
        os.unlink(f"step-{number - 1}")


def test_freezing_what_did_not_change(rig: Rig, base: Base, tree: Tree) -> None:
    frozen = rig.driver.freeze(tree)
    assert rig.act(rig.tree(frozen), look) == rig.act(tree, look)


def test_freezing_leaves_out_what_is_no_file(rig: Rig, tree: Tree) -> None:
    def act() -> None:
        os.mkfifo("fifo")
        os.unlink("README")
        os.mkfifo("README")
        Path("kept").write_text("x")

    rig.act(tree, act)
    found = rig.act(rig.tree(rig.driver.freeze(tree)), lambda: os.listdir("."))
    assert "kept" in found
    assert not {"fifo", "README"} & set(found)


# Beginning and end


def test_there_is_one_tree_in_a_folder(rig: Rig, base: Base) -> None:
    request = rig.request(base)
    rig.trees.append(rig.driver.create(request))
    with pytest.raises(TreeExists):
        rig.driver.create(request)
    assert rig.changes(rig.trees[0]) == []


def test_a_failed_start_leaves_nothing(rig: Rig, base: Base) -> None:
    request = rig.request(base)
    gone = dataclasses.replace(base, layers=(rig.data / "gone",))
    with pytest.raises(CarrelError):
        rig.driver.create(dataclasses.replace(request, base=gone))
    assert os.listdir(request.folder) == []
    rig.trees.append(rig.driver.create(request))


def test_drop_leaves_nothing_and_can_be_repeated(rig: Rig, tree: Tree) -> None:
    rig.act(tree, _do_much)
    rig.driver.drop(tree)
    rig.driver.drop(tree)
    assert os.listdir(tree.folder) == []
    assert mounts_below(tree.folder) == []
    for use in (rig.driver.open_root, rig.driver.usage, rig.driver.ensure, rig.changes):
        with pytest.raises(TreeNotFound):
            use(tree)
    tree.folder.rmdir()
    rig.driver.drop(tree)


@pytest.mark.parametrize("step", ["project", "tree", "tree/upper", "tree/work", "tree/new/x"])
def test_a_half_made_tree_is_dropped(rig: Rig, base: Base, step: str) -> None:
    """As a process that was killed while making one leaves it."""
    request = rig.request(base)
    (request.folder / step).mkdir(parents=True)
    tree = Tree(request.tree_id, rig.name, base.base_id, request.folder, request.owner, 0)
    rig.driver.drop(tree)
    assert os.listdir(request.folder) == []


def test_drop_copes_with_everything_in_a_tree(rig: Rig, tmp_path: Path, tree: Tree) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("kept\n")
    before = fingerprint(outside)

    def act() -> None:
        os.symlink(outside, "to-outside")
        os.symlink(outside / "file", "to-outside-file")
        os.mkfifo("fifo")
        os.makedirs("closed/inner")
        Path("closed/inner/file").write_text("x")
        os.chmod("closed/inner", 0)
        os.chmod("closed", 0)

    rig.act(tree, act)
    if os.geteuid() == 0:
        root = rig.driver.open_root(tree)
        os.mkdir("of-others", dir_fd=root)
        os.close(os.open("of-others/file", os.O_CREAT, dir_fd=root))
        os.chown("of-others", 12345, 12345, dir_fd=root)
        os.close(root)
    rig.driver.drop(tree)
    assert os.listdir(tree.folder) == []
    assert fingerprint(outside) == before


def test_drop_does_not_wait_for_those_who_still_look(rig: Rig, tree: Tree) -> None:
    root = rig.driver.open_root(tree)
    try:
        file = os.open("README", os.O_RDONLY, dir_fd=root)
        try:
            rig.driver.drop(tree)
            assert os.listdir(tree.folder) == []
            assert os.read(file, 100) == b"read me\n"
        finally:
            os.close(file)
    finally:
        os.close(root)


def test_a_tree_is_usable_again_after_a_reboot(rig: Rig, tree: Tree) -> None:
    rig.act(tree, _do_much)
    before, changes = rig.act(tree, look), rig.changes(tree)
    rig.unmount(tree)
    assert rig.changes(tree) == changes
    if rig.name == "overlay":
        with pytest.raises(TreeDamaged):
            rig.driver.open_root(tree)
    rig.driver.ensure(tree)
    rig.driver.ensure(tree)
    # But for the numbers by which names of the same file are known: those are an overlay's.
    after = rig.act(tree, look)
    assert {path: seen[:4] for path, seen in after.items()} == {
        path: seen[:4] for path, seen in before.items()
    }
    assert rig.changes(tree) == changes


def test_a_damaged_tree_is_told_and_dropped(rig: Rig, tree: Tree) -> None:
    rig.unmount(tree)
    lost = tree.folder / "tree" / "upper" if rig.name == "overlay" else tree.path
    if rig.name == "btrfs" and os.geteuid() == 0:
        subprocess.run(["btrfs", "subvolume", "delete", lost], check=True, capture_output=True)
    else:
        lost.rename(rig.data / "lost")
    with pytest.raises(TreeDamaged):
        rig.driver.ensure(tree)
    with pytest.raises(TreeDamaged):
        rig.changes(tree)
    rig.driver.drop(tree)
    assert os.listdir(tree.folder) == []


def test_the_mount_for_a_runtime_is_closed_again(rig: Rig, tree: Tree) -> None:
    with rig.driver.mount(tree) as shown:
        assert shown.path == tree.path
        descriptor = shown.mount_fd
        if descriptor is not None:
            status = os.stat("README", dir_fd=descriptor)
            assert status.st_uid == tree.owner.uid
    if descriptor is not None:
        with pytest.raises(OSError):
            os.fstat(descriptor)


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
    rig.act(tree, _do_much)
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


# Choosing


def test_the_best_driver_is_chosen_with_reasons(rig: Rig) -> None:
    chosen, judgements = choose_driver([rig.driver])
    assert chosen is rig.driver
    assert [judgement.chosen for judgement in judgements] == [True]
    assert all(judgement.why for judgement in judgements)


# The same for an ordinary user


@ROOT_ONLY
@pytest.mark.parametrize("name", DRIVERS)
def test_the_suite_as_an_ordinary_user(ordinary_user: Account, data: Path, name: str) -> None:
    """All of the above again, with a file system that root prepares."""
    os.chown(data, *ordinary_user)
    env = {"TMPDIR": str(data), "HOME": str(data)}
    with contextlib.ExitStack() as stack:
        if name in VOLUMES:
            own = stack.enter_context(volume(VOLUMES[name])) / "own"
            own.mkdir(mode=0o755)
            os.chown(own, *ordinary_user)
            env[volume_variable(name)] = str(own)
        words = [PYTHON, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
        root = Path(__file__).parent.parent.parent
        done = run_as(ordinary_user, [*words, "-k", name, __file__], env=env, cwd=root)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout and "only root makes" not in done.stdout, done.stdout
