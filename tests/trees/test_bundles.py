"""The changes of a tree in one file, and back, on every driver."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from carrel.domain.cleanup import Bundle
from carrel.domain.trees import Base, Tree
from carrel.launcher.client import Launcher
from carrel.trees.bundles import pack, restore
from carrel.trees.drivers.copies import CopyDriver, ReflinkDriver
from tests.accounts import Account
from tests.conformance.tree_rig import (
    DRIVERS,
    SANDBOX,
    VOLUMES,
    Rig,
    detach,
    enter,
    in_child,
    open_launcher,
    open_rig,
    place_for,
    volume_variable,
)
from tests.conformance.tree_views import Seen, do_much, fingerprint, look, make_project, owners
from tests.sampling import EXHAUSTIVE, beyond, examples
from tests.trees.again import run_again
from tests.trees.test_properties import EACH_KIND, PROFILE, Step, do_all, steps
from tests.volumes import volume

BIG = 1 << 30
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
ORDINARY_TIMEOUT_S = 200.0
"""All of this file, on a loaded machine."""
ORDINARY = () if EXHAUSTIVE else ("-k", "(overlay and not deep) or test_much")
"""Overlays have another way for an ordinary user; the other drivers differ in whose files are."""


def on(*names: str) -> pytest.MarkDecorator:
    """In a sample, on these drivers alone."""
    rest = beyond(*(name for name in DRIVERS if name not in names))
    return pytest.mark.parametrize("driver_place", (*names, *rest), indirect=True)


without_reflinks = on("overlay", "btrfs", "copy")
"""Trees of reflinks are copies."""


@pytest.fixture
def base(any_rig: Rig, tmp_path: Path) -> Base:
    return any_rig.base_of(make_project(tmp_path / "project"))


def there_and_back(rig: Rig, tree: Tree, target: Path) -> tuple[Bundle, Tree]:
    bundle = pack(rig.driver, tree, tree.base_id, target, BIG)
    assert bundle.bytes == target.stat().st_size
    assert os.listdir(target.parent) == [target.name]
    fresh = rig.tree(rig.bases.get(tree.base_id))
    restore(rig.driver, fresh, target)
    return bundle, fresh


def check_equal(rig: Rig, tree: Tree, fresh: Tree, bundle: Bundle) -> None:
    changes = rig.changes(tree)
    assert rig.changes(fresh) == changes
    assert bundle.changes == len(changes)
    assert _unlinked(rig.act(fresh, look)) == _unlinked(rig.act(tree, look))
    assert rig.act(fresh, owners) == {SANDBOX}


@pytest.fixture
def target(tmp_path: Path) -> Path:
    (tmp_path / "kept").mkdir()
    return tmp_path / "kept" / "changes"


# There and back


def test_much(any_rig: Rig, base: Base, target: Path) -> None:
    untouched = [fingerprint(layer) for layer in base.layers]
    tree = any_rig.tree(base)
    any_rig.act(tree, do_much)
    bundle, fresh = there_and_back(any_rig, tree, target)
    check_equal(any_rig, tree, fresh, bundle)
    assert bundle.changes > 10
    assert bundle.skipped == ()
    assert [fingerprint(layer) for layer in base.layers] == untouched


def test_nothing(any_rig: Rig, base: Base, target: Path) -> None:
    tree = any_rig.tree(base)
    bundle, fresh = there_and_back(any_rig, tree, target)
    assert bundle.changes == 0
    assert any_rig.changes(fresh) == []


@without_reflinks
def test_moves_and_types(any_rig: Rig, base: Base, target: Path) -> None:
    """Files that moved out of folders that are gone, and to where something else was."""

    def act() -> None:
        os.rename("build/out/object.o", "object.o")
        subprocess.run(["rm", "-rf", "build"], check=True)
        Path("build").write_text("a file now\n")
        os.unlink("to-main")
        os.mkdir("to-main")
        subprocess.run(["mv", "src/deep/er/two", "to-main/two"], check=True)
        os.chmod("to-main/two", 0o600)
        subprocess.run(["mv", "src/deep", "elsewhere"], check=True)
        os.symlink("/", "src/deep")
        os.unlink("README")
        os.mkdir("README")
        Path("README/text").write_text("x")
        shutil.copy("hard-one", "alone")
        os.unlink("hard-one")
        os.chmod("alone", 0o600)

    tree = any_rig.tree(base)
    any_rig.act(tree, act)
    bundle, fresh = there_and_back(any_rig, tree, target)
    check_equal(any_rig, tree, fresh, bundle)
    # What only moved is not in it.
    assert bundle.bytes < 20_000


def test_modes(any_rig: Rig, base: Base, target: Path) -> None:
    def act() -> None:
        os.chmod("hard-one", 0o600)
        os.chmod("src/run.sh", 0o1751)
        os.chmod("src/deep/er", 0o2710)
        os.chmod("fixed", 0o700)
        os.unlink("fixed/file")
        Path("fixed/other").write_text("other\n")
        os.chmod("fixed/other", 0o400)
        os.chmod("fixed", 0o555)
        os.makedirs("closed/inner")
        Path("closed/inner/file").write_text("x")
        Path("closed/inner/file").chmod(0)
        Path("closed/inner").chmod(0o400)
        Path("closed").chmod(0)
        # Unchanged itself, but what is in it is not.
        os.chmod("src/deep", 0o700)
        Path("src/deep/new").touch()
        os.chmod("src/deep", 0o755)

    tree = any_rig.tree(base)
    any_rig.act(tree, act)
    changes = any_rig.changes(tree)
    bundle, fresh = there_and_back(any_rig, tree, target)
    assert any_rig.changes(fresh) == changes
    assert bundle.changes == len(changes)
    again, fresher = there_and_back(any_rig, fresh, target)
    assert (again.changes, any_rig.changes(fresher)) == (len(changes), changes)


def test_no_file_runs_as_its_owner(any_rig: Rig, base: Base, target: Path) -> None:
    def act() -> None:
        os.chmod("src/run.sh", 0o4751)
        Path("new").write_text("new\n")
        os.chmod("new", 0o6755)
        os.rename("src/main.py", "moved.py")
        os.chmod("moved.py", 0o2711)

    tree = any_rig.tree(base)
    any_rig.act(tree, act)
    _bundle, fresh = there_and_back(any_rig, tree, target)
    modes = {change.path: change.new_mode for change in any_rig.changes(fresh)}
    assert modes == {"src/run.sh": 0o751, "new": 0o755, "moved.py": 0o711}


@without_reflinks
def test_times_and_attributes(any_rig: Rig, base: Base, target: Path) -> None:
    def act() -> None:
        Path("new").mkdir()
        Path("new/file").write_text("new\n")
        os.setxattr("new/file", "user.colour", b"blue\xff\0")
        os.setxattr("new", "user.kind", b"folder")
        os.chmod("new/file", 0o444)
        os.utime("new/file", ns=(1, 1_234_567_890_123_456_789))
        os.symlink("file", "new/link")
        os.utime("new/link", ns=(1, 987_654_321_000_000_001), follow_symlinks=False)
        os.utime("new", ns=(1, -5_000_000_001))
        os.chmod("src/run.sh", 0o711)
        os.setxattr("src/run.sh", "user.colour", b"red")
        os.utime("src/run.sh", ns=(7, 7))
        os.rename("src/main.py", "moved.py")
        os.utime("moved.py", ns=(9, 9))
        os.utime("src", ns=(11, 11))

    def facts() -> list[tuple[int, dict[str, bytes]]]:
        paths = ("new", "new/file", "new/link", "src/run.sh", "moved.py", "src")
        found = []
        for path in paths:
            names = os.listxattr(path, follow_symlinks=False)
            values = {name: os.getxattr(path, name) for name in names if name[:5] == "user."}
            found.append((os.lstat(path).st_mtime_ns, values))
        return found

    tree = any_rig.tree(base)
    any_rig.act(tree, act)
    bundle, fresh = there_and_back(any_rig, tree, target)
    check_equal(any_rig, tree, fresh, bundle)
    wanted = any_rig.act(tree, facts)
    assert any_rig.act(fresh, facts) == wanted
    assert wanted[1] == (1_234_567_890_123_456_789, {"user.colour": b"blue\xff\0"})
    assert wanted[5][0] == 11


@without_reflinks
def test_the_repository(any_rig: Rig, base: Base, target: Path) -> None:
    untouched = [fingerprint(layer) for layer in base.layers]
    tree = any_rig.tree(base)
    any_rig.act(tree, lambda: Path("README").write_text("committed\n"))
    any_rig.git(tree, "commit", "--quiet", "--all", "--message=third")
    any_rig.git(tree, "branch", "other")
    any_rig.act(tree, lambda: Path("README").write_text("not committed\n"))
    any_rig.act(tree, lambda: os.chmod(".git/objects", 0o700))
    bundle, fresh = there_and_back(any_rig, tree, target)
    check_equal(any_rig, tree, fresh, bundle)
    for words in (["log", "--format=%H %s"], ["status", "--porcelain"], ["branch"]):
        assert any_rig.git(fresh, *words) == any_rig.git(tree, *words)
    any_rig.git(fresh, "fsck", "--strict")
    assert [fingerprint(layer) for layer in base.layers] == untouched


@without_reflinks
def test_a_packed_repository(any_rig: Rig, base: Base, target: Path) -> None:
    """All objects of the base are gone, and those that come have other modes."""
    tree = any_rig.tree(base)
    any_rig.git(tree, "repack", "-a", "-d", "--quiet")
    any_rig.git(tree, "prune-packed")

    def loosen() -> None:
        for pack_file in Path(".git/objects/pack").glob("*.pack"):
            pack_file.chmod(0o640)

    any_rig.act(tree, loosen)
    bundle, fresh = there_and_back(any_rig, tree, target)
    check_equal(any_rig, tree, fresh, bundle)
    any_rig.git(fresh, "fsck", "--strict")


@without_reflinks
def test_objects_that_the_tree_shares_with_its_base(any_rig: Rig, base: Base, target: Path) -> None:
    """Their modes are the base's business: a new file takes their place."""
    untouched = [fingerprint(layer) for layer in base.layers]
    tree = any_rig.tree(base)

    def act() -> None:
        for path in Path(".git/objects").glob("??/*"):
            content = path.read_bytes()
            path.unlink()
            path.write_bytes(content)
            path.chmod(0o640)

    any_rig.act(tree, act)
    bundle, fresh = there_and_back(any_rig, tree, target)
    check_equal(any_rig, tree, fresh, bundle)
    assert [fingerprint(layer) for layer in base.layers] == untouched


@without_reflinks
def test_odd_entries(any_rig: Rig, base: Base, target: Path) -> None:
    def act() -> None:
        os.unlink("README")
        os.mkfifo("README", 0o640)
        os.mkfifo("fifo")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind("socket")
        with open("huge", "wb") as file:
            file.truncate(1 << 40)
            file.seek(1 << 39)
            file.write(b"in the middle")
        Path("-rf\n*").write_text("x")
        Path(os.fsdecode(b"\xfe\xff")).write_text("y")
        Path("n" * 254 + "e").write_text("z")
        os.symlink("/etc/passwd", "to-passwd")
        os.symlink(os.fsdecode(b"\xff"), "to-nowhere")
        Path("zeros").write_bytes(bytes(3_000_000))

    tree = any_rig.tree(base)
    any_rig.act(tree, act)
    changes = any_rig.changes(tree)
    bundle, fresh = there_and_back(any_rig, tree, target)
    assert any_rig.changes(fresh) == changes
    assert bundle.bytes < 20_000

    def read() -> tuple[int, bytes]:
        with open("huge", "rb") as file:
            file.seek(1 << 39)
            return os.stat("huge").st_blocks, file.read(13)

    blocks, text = any_rig.act(fresh, read)
    assert blocks < 1000 and text == b"in the middle"


@without_reflinks
def test_hard_links(any_rig: Rig, base: Base, target: Path) -> None:
    def act() -> None:
        Path("one").write_bytes(os.urandom(300_000))
        os.makedirs("x/y")
        os.link("one", "x/y/two")
        os.link("one", "x/three")

    tree = any_rig.tree(base)
    any_rig.act(tree, act)
    bundle, fresh = there_and_back(any_rig, tree, target)
    assert any_rig.changes(fresh) == any_rig.changes(tree)
    assert bundle.bytes < 600_000
    inodes = any_rig.act(
        fresh, lambda: {os.stat(path).st_ino for path in ("one", "x/y/two", "x/three")}
    )
    assert len(inodes) == 1


@on("overlay")
def test_deep_folders(any_rig: Rig, base: Base, target: Path) -> None:
    def act() -> None:
        os.mkdir("deep")
        here = os.open("deep", os.O_RDONLY)
        for _ in range(1200):
            os.mkdir("folder", dir_fd=here)
            below = os.open("folder", os.O_RDONLY, dir_fd=here)
            os.close(here)
            here = below
        os.close(os.open("bottom", os.O_CREAT, dir_fd=here))
        os.close(here)

    tree = any_rig.tree(base)
    any_rig.act(tree, act)
    changes = any_rig.changes(tree)
    _, fresh = there_and_back(any_rig, tree, target)
    assert any_rig.changes(fresh) == changes


@ROOT_ONLY
def test_from_one_driver_to_another(tmp_path: Path, target: Path, tree_launcher: Launcher) -> None:
    with volume("xfs") as disk, open_rig("overlay", disk, tree_launcher) as rig:
        drivers = [rig.driver, ReflinkDriver(rig.data, rig.bases), CopyDriver(rig.data, rig.bases)]
        base = rig.base_of(make_project(tmp_path / "project"))
        for one, other in itertools.permutations(drivers, 2):
            tree, fresh = one.create(rig.request(base)), other.create(rig.request(base))
            try:
                with one.mount(tree) as shown, detach(shown) as mount:
                    in_child(functools.partial(enter, tree_launcher, tree, shown, mount), do_much)
                pack(one, tree, tree.base_id, target, BIG)
                restore(other, fresh, target)
                assert list(other.changes(fresh)) == list(one.changes(tree))
            finally:
                one.drop(tree)
                other.drop(fresh)


@pytest.fixture(scope="module", params=DRIVERS)
def module_rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    name = request.param
    if os.geteuid() != 0 and name in VOLUMES and volume_variable(name) not in os.environ:
        pytest.skip("only root makes file systems")
    with (
        place_for(name) as place,
        open_launcher() as launcher,
        open_rig(name, place, launcher) as opened,
    ):
        yield opened


@pytest.fixture(scope="module")
def module_base(module_rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> Base:
    folder = tmp_path_factory.mktemp("bundles") / "project"
    (folder / "d" / "e").mkdir(parents=True)
    (folder / "e").mkdir()
    (folder / "a").write_text("aaaa")
    (folder / "b").write_text("bb")
    (folder / "d" / "a").write_text("dadada")
    (folder / "d" / "b").write_text("bb")
    (folder / "d" / "e" / "a").write_text("aaaa")
    (folder / "d" / "link").symlink_to("../a")
    return module_rig.base_of(folder)


@settings(PROFILE, max_examples=examples(4, exhaustive=40))
@given(work=st.lists(steps, min_size=1, max_size=20))
@example(work=EACH_KIND)
def test_random_work(module_rig: Rig, module_base: Base, work: list[Step]) -> None:
    rig = module_rig
    tree = rig.tree(module_base)
    fresh = rig.tree(module_base)
    try:
        _, wanted = rig.act(tree, lambda: do_all(work))
        changes = rig.changes(tree)
        with tempfile.TemporaryDirectory() as folder:
            target = Path(folder) / "changes"
            assert pack(rig.driver, tree, tree.base_id, target, BIG).changes == len(changes)
            restore(rig.driver, fresh, target)
        assert rig.changes(fresh) == changes
        assert _unlinked(rig.act(fresh, look)) == _unlinked(wanted)
    finally:
        for one in (tree, fresh):
            rig.driver.drop(one)
            rig.trees.remove(one)
            one.folder.rmdir()


def _unlinked(seen: dict[str, Seen]) -> dict[str, tuple[object, ...]]:
    return {path: one[:4] for path, one in seen.items()}


# As somebody else


@pytest.mark.timeout(ORDINARY_TIMEOUT_S + 20)
@ROOT_ONLY
def test_as_an_ordinary_user(ordinary_user: Account, data: Path) -> None:
    with contextlib.ExitStack() as stack:
        env: dict[str, str] = {}
        for name in DRIVERS:
            env |= stack.enter_context(prepared(name, ordinary_user))
        timeout_s = ORDINARY_TIMEOUT_S
        words = ("-rp", *ORDINARY)
        said = run_again(__file__, ordinary_user, data, *words, env=env, timeout_s=timeout_s)
    passed = [line for line in said.splitlines() if line.startswith("PASSED")]
    assert all(any(f"[{name}" in line for line in passed) for name in DRIVERS), said[-3000:]


@contextlib.contextmanager
def prepared(name: str, account: Account) -> Iterator[dict[str, str]]:
    """What the environment says of a file system that a driver needs under it."""
    if name not in VOLUMES:
        yield {}
        return
    with volume(VOLUMES[name]) as folder:
        own = folder / "own"
        own.mkdir(mode=0o755)
        os.chown(own, *account)
        yield {volume_variable(name): str(own)}
