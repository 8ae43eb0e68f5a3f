"""States of trees: kept, put back, and given to other trees, on every driver."""

from __future__ import annotations

import functools
import mmap
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from carrel.domain.checkpoints import START
from carrel.domain.errors import PathInvalid, TooLarge, TreeDamaged, TreeUnavailable
from carrel.domain.trees import Base, Tree
from carrel.launcher.client import Launcher
from carrel.linux.descriptors import Descriptor
from carrel.trees import states
from carrel.trees.drivers import common
from carrel.trees.states import SpaceStates
from carrel.trees.writer import TreeWriter
from tests.conformance.tree_rig import SANDBOX, Rig, open_rig
from tests.conformance.tree_views import Seen, do_much, fingerprint, look, make_project, owners
from tests.sampling import EXHAUSTIVE, examples
from tests.trees.test_properties import EACH_KIND, PROFILE, do_all, steps

BIG = 1 << 30


class Kept(NamedTuple):
    """A state, and what the tree looked like."""

    name: str
    seen: dict[str, Seen]
    agent: dict[str, Seen]


@pytest.fixture
def base(any_rig: Rig, tmp_path: Path) -> Base:
    return any_rig.base_of(make_project(tmp_path / "project"))


def agent_folder(rig: Rig, tree: Tree) -> Path:
    folder = tree.folder / "agent" / "state"
    folder.mkdir(parents=True, exist_ok=True)
    if os.geteuid() == 0:
        os.chown(folder, tree.owner.uid, tree.owner.gid)
    return folder


def kept_of(rig: Rig, tree: Tree) -> SpaceStates:
    return SpaceStates(rig.driver, tree, rig.bases.get(tree.base_id))


def keep(rig: Rig, tree: Tree, name: str) -> Kept:
    agent = agent_folder(rig, tree)
    kept_of(rig, tree).take(name, agent=True, max_bytes=BIG)
    return Kept(name, rig.act(tree, look), look(agent))


def fork(rig: Rig, tree: Tree, name: str) -> Tree:
    kept = kept_of(rig, tree)
    request = rig.request(rig.bases.get(tree.base_id))
    layers = rig.driver.capabilities.layers
    if layers:
        request = replace(request, layer=kept.layer(name))
    made = rig.driver.create(request)
    rig.trees.append(made)
    agent_folder(rig, made)
    kept.give(name, made, files=not layers)
    return made


def unlinked(seen: dict[str, Seen]) -> dict[str, tuple[object, ...]]:
    return {path: one[:4] for path, one in seen.items()}


def check(rig: Rig, tree: Tree, kept: Kept) -> None:
    now = rig.act(tree, look)
    assert unlinked(now) == unlinked(kept.seen)
    assert unlinked(look(tree.folder / "agent" / "state")) == unlinked(kept.agent)
    assert rig.act(tree, owners) == {SANDBOX}


def test_there_back_and_forth(any_rig: Rig, base: Base) -> None:
    untouched = [fingerprint(layer) for layer in base.layers]
    tree = any_rig.tree(base)
    began = any_rig.act(tree, look)
    agent = agent_folder(any_rig, tree)
    any_rig.act(tree, do_much)
    (agent / "conversation").write_text("one\n")
    first = keep(any_rig, tree, "first")

    def more() -> None:
        subprocess.run(["rm", "-rf", "src"], check=True)
        Path("src").write_text("a file now\n")
        Path("later").mkdir()
        Path("later/file").write_text("later\n")
        os.chmod("README", 0o600)

    any_rig.act(tree, more)
    (agent / "conversation").write_text("one\ntwo\n")
    second = keep(any_rig, tree, "second")
    states = kept_of(any_rig, tree)
    for kept in (first, second, first, second):
        assert states.put_back(kept.name)
        check(any_rig, tree, kept)
    states.put_back(START)
    assert unlinked(any_rig.act(tree, look)) == unlinked(began)
    assert any_rig.changes(tree) == [] and os.listdir(agent) == []
    for kept in (first, second):
        check(any_rig, fork(any_rig, tree, kept.name), kept)
    assert [fingerprint(layer) for layer in base.layers] == untouched


def test_a_fork_is_a_tree_as_any_other(any_rig: Rig, base: Base) -> None:
    """Its changes are those of both, it costs what is its own, and neither sees the other's."""
    tree = any_rig.tree(base)
    any_rig.act(tree, do_much)
    kept = keep(any_rig, tree, "kept")
    made = fork(any_rig, tree, "kept")
    assert any_rig.changes(made) == any_rig.changes(tree)

    def write() -> None:
        Path("README").write_text("of the fork\n")
        Path("fork-only").write_text("x\n")

    any_rig.act(made, write)
    changed = {change.path for change in any_rig.changes(made)}
    assert {"README", "fork-only"} <= changed
    check(any_rig, tree, kept)
    forked = keep(any_rig, made, "forked")
    check(any_rig, fork(any_rig, made, "forked"), forked)
    any_rig.unmount(made)
    any_rig.driver.ensure(made)
    assert any_rig.act(made, lambda: Path("fork-only").read_text()) == "x\n"
    # What it shares with the first stays its own when that is gone.
    any_rig.driver.drop(tree)
    any_rig.trees.remove(tree)
    shutil.rmtree(tree.folder)
    check(any_rig, made, forked)


def test_forks_share_what_they_began_with(any_rig: Rig, base: Base) -> None:
    """One layer for all of the same files, for as long as there is one of them."""
    if not any_rig.driver.capabilities.layers:
        pytest.skip("its trees have no layers")

    def act() -> None:
        for number in range(40):
            Path(f"folder{number}").mkdir()
            Path(f"folder{number}/file").write_bytes(bytes(9000))

    def layers() -> list[str]:
        return [one.name for one in (any_rig.data / "layers").glob("[!.]*")]

    tree = any_rig.tree(base)
    any_rig.act(tree, act)
    kept = keep(any_rig, tree, "kept")
    keep(any_rig, tree, "again")
    forks = [fork(any_rig, tree, name) for name in ("kept", "again", "kept")]
    assert len(layers()) == 1
    for made in forks:
        paths = [made.folder, *made.folder.rglob("*")]
        below = [path for path in paths if made.path not in path.parents]
        assert sum(path.lstat().st_blocks * 512 for path in below) < 64 << 10
    any_rig.driver.drop(tree)
    any_rig.trees.remove(tree)
    shutil.rmtree(tree.folder)
    while forks:
        for made in forks:
            any_rig.unmount(made)
            any_rig.driver.ensure(made)
            check(any_rig, made, kept)
        any_rig.driver.drop(forks[0])
        any_rig.trees.remove(forks.pop(0))
        # As a daemon that starts.
        any_rig.driver = any_rig._make_driver()
    assert layers() == []
    empty = any_rig.tree(base)
    keep(any_rig, empty, "nothing")
    assert any_rig.changes(fork(any_rig, empty, "nothing")) == [] and layers() == []


def test_costs_what_changed(any_rig: Rig, base: Base) -> None:
    tree = any_rig.tree(base)
    agent_folder(any_rig, tree)
    any_rig.act(tree, lambda: Path("large").write_bytes(os.urandom(1 << 20)))
    kept = kept_of(any_rig, tree)
    assert kept.take("one", agent=True, max_bytes=BIG).bytes_new >= 1 << 20
    any_rig.act(tree, lambda: Path("small").write_text("x"))
    second = kept.take("two", agent=True, max_bytes=BIG)
    assert second.bytes_new < 1 << 16 and second.named == ("small",) and second.files == 2
    kept.put_back("one")
    assert kept.take("three", agent=True, max_bytes=BIG).bytes_new == 0
    # What no state has any more goes.
    any_rig.act(tree, lambda: os.unlink("large"))
    kept.take("four", agent=True, max_bytes=BIG)
    kept.keep_only(("four",))
    assert kept.bytes_kept() < 1 << 16
    kept.put_back("four")
    with pytest.raises(TreeDamaged):
        kept.put_back("one")


def test_too_much_leaves_nothing(any_rig: Rig, base: Base) -> None:
    tree = any_rig.tree(base)
    any_rig.act(tree, lambda: Path("large").write_bytes(os.urandom(1 << 20)))
    kept = kept_of(any_rig, tree)
    with pytest.raises(TooLarge):
        kept.take("one", agent=False, max_bytes=1 << 19)
    assert kept.bytes_kept() == 0
    with pytest.raises(TreeDamaged):
        kept.put_back("one")


def test_what_is_written_meanwhile_is_no_state(
    any_rig: Rig, base: Base, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that has the half of it would be worse than none."""
    tree = any_rig.tree(base)
    any_rig.act(tree, lambda: Path("one").write_text("1"))
    kept = kept_of(any_rig, tree)
    looks: list[int] = []
    real = common.settle

    def settled(folder: Path) -> int:
        found = real(folder)
        looks.append(found)
        if len(looks) <= writes:
            any_rig.act(tree, lambda: Path("one").write_text(str(len(looks))))
        return found

    monkeypatch.setattr(states, "settle", settled)
    writes = states.LOOKS
    with pytest.raises(TreeUnavailable, match="keeps on writing"):
        kept.take("moving", agent=False, max_bytes=BIG)
    assert kept.bytes_kept() == 0
    looks.clear()
    writes = 2
    kept.take("still", agent=False, max_bytes=BIG)
    assert len(looks) == 3
    any_rig.act(tree, lambda: os.unlink("one"))
    kept.put_back("still")
    assert any_rig.act(tree, lambda: Path("one").read_text()) == "2"


def test_what_is_written_while_it_is_put_back_is_kept_next(
    any_rig: Rig, base: Base, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = any_rig.tree(base)
    any_rig.act(tree, lambda: Path("one").write_text("1"))
    kept = kept_of(any_rig, tree)
    kept.take("first", agent=False, max_bytes=BIG)
    any_rig.act(tree, lambda: Path("one").write_text("2"))
    real = TreeWriter.finish

    def finish(writer: TreeWriter) -> None:
        real(writer)
        any_rig.act(tree, lambda: Path("one").write_text("3"))

    with monkeypatch.context() as patch:
        patch.setattr(TreeWriter, "finish", finish)
        kept.put_back("first")
    kept.take("second", agent=False, max_bytes=BIG)
    kept.put_back(START)
    kept.put_back("second")
    assert any_rig.act(tree, lambda: Path("one").read_text()) == "3"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts a file system")
def test_what_is_written_right_after_it_was_put_back(
    tree_launcher: Launcher, tmp_path: Path
) -> None:
    """On a file system whose clock has ticks of some milliseconds."""
    project, place = tmp_path / "project", tmp_path / "coarse"
    project.mkdir()
    place.mkdir()
    subprocess.run(["mount", "-t", "ramfs", "coarse", place], check=True, timeout=60)
    place.chmod(0o711)
    try:
        with open_rig("copy", place, tree_launcher) as rig:
            tree = rig.tree(rig.base_of(project))
            kept = kept_of(rig, tree)
            (tree.path / "one").write_bytes(b"a")
            os.chown(tree.path / "one", *SANDBOX)
            for number in range(20):
                kept.take("first", agent=False, max_bytes=BIG)
                (tree.path / "one").write_bytes(b"something else")
                kept.put_back("first")
                with (tree.path / "one").open("r+b") as file:
                    file.write(b"%c" % (ord("b") + number))
                kept.take("second", agent=False, max_bytes=BIG)
                kept.put_back(START)
                kept.put_back("second")
                assert (tree.path / "one").read_bytes() == b"%c" % (ord("b") + number)
    finally:
        subprocess.run(["umount", place], check=True, timeout=60)


def test_what_a_program_has_mapped_is_kept(any_rig: Rig, base: Base) -> None:
    """The kernel notes the time of the first write to a page only, until it is on the disk."""
    tree = any_rig.tree(base)
    sizes = (1, 2, 4096, 4097, 1 << 16, (1 << 16) + 1, 200_000)

    def act() -> None:
        for size in sizes:
            Path(str(size)).write_bytes(bytes(size))

    any_rig.act(tree, act)
    kept = kept_of(any_rig, tree)
    with ExitStack() as stack:
        root = stack.enter_context(Descriptor(any_rig.driver.open_root(tree)))
        mapped = []
        for size in sizes:
            file = stack.enter_context(open(os.open(str(size), os.O_RDWR, dir_fd=root), "r+b"))
            mapped.append(stack.enter_context(mmap.mmap(file.fileno(), size)))
        for number in (1, 2, 3):
            for size, memory in zip(sizes, mapped, strict=True):
                memory[size - 1] = memory[size // 2] = number
            kept.take(str(number), agent=False, max_bytes=BIG)
    for number in (3, 2, 1):
        kept.put_back(str(number))
        for size in sizes:
            content = any_rig.act(tree, Path(str(size)).read_bytes)
            assert (content[size // 2], content[-1]) == (number, number), size


def test_a_file_that_its_owner_may_not_read(any_rig: Rig, base: Base) -> None:
    """To look into it, its own user has to change its mode, and with that its ctime."""
    tree = any_rig.tree(base)

    def act() -> None:
        Path("closed").write_text("1")
        os.chmod("closed", 0)

    def seen() -> tuple[int, str]:
        mode = os.lstat("closed").st_mode
        os.chmod("closed", 0o600)
        return mode & 0o777, Path("closed").read_text()

    any_rig.act(tree, act)
    agent_folder(any_rig, tree)
    kept = kept_of(any_rig, tree)
    kept.take("kept", agent=True, max_bytes=BIG)
    assert any_rig.act(fork(any_rig, tree, "kept"), seen) == (0, "1")
    any_rig.act(tree, lambda: os.unlink("closed"))
    kept.put_back("kept")
    assert kept.take("again", agent=True, max_bytes=BIG).changed == 0
    assert any_rig.act(tree, seen) == (0, "1")


def test_a_state_is_written_whole(
    any_rig: Rig, base: Base, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the kernel takes little of it at once, as on a disk that is nearly full."""
    tree = any_rig.tree(base)
    any_rig.act(tree, lambda: Path("one").write_text("1"))
    kept = kept_of(any_rig, tree)
    write, pwrite = os.write, os.pwrite
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda target, data: write(target, data[:9]))
        patch.setattr(os, "pwrite", lambda target, data, at: pwrite(target, data[:9], at))
        kept.take("first", agent=False, max_bytes=BIG)
    kept.put_back(START)
    kept.put_back("first")
    assert any_rig.act(tree, lambda: Path("one").read_text()) == "1"


def test_what_was_begun_or_is_damaged_goes(any_rig: Rig, base: Base) -> None:
    tree = any_rig.tree(base)
    kept = kept_of(any_rig, tree)
    kept.keep_only(())
    for name in ("first", "begun"):
        any_rig.act(tree, lambda: Path("large").write_bytes(os.urandom(1 << 20)))
        kept.take(name, agent=False, max_bytes=BIG)
    any_rig.act(tree, lambda: os.unlink("large"))
    kept.take("last", agent=False, max_bytes=BIG)
    (tree.folder / "checkpoints" / "first").write_bytes(b"damaged")
    (tree.folder / "checkpoints" / ".draft").write_bytes(b"half")
    kept.keep_only(("first", "last"))
    assert kept.bytes_kept() < 1 << 16
    kept.put_back("last")
    with pytest.raises(TreeDamaged):
        kept.put_back("begun")


def test_what_cannot_be_looked_at_is_said(any_rig: Rig, base: Base) -> None:
    def act() -> None:
        for _ in range(2100):
            os.mkdir("d")
            os.chdir("d")

    tree = any_rig.tree(base)
    any_rig.act(tree, act)
    with pytest.raises(PathInvalid, match="nested too deep"):
        kept_of(any_rig, tree).take("deep", agent=False, max_bytes=BIG)


def test_odd_entries(any_rig: Rig, base: Base) -> None:
    def act() -> None:
        os.mkfifo("fifo")
        with open("huge", "wb") as file:
            file.truncate(1 << 36)
            file.seek(1 << 35)
            file.write(b"in the middle")
        Path("-rf\n*").write_text("x")
        Path(os.fsdecode(b"\xfe\xff")).write_text("y")
        os.symlink("/etc/passwd", "to-passwd")
        os.symlink("..", "up")
        os.makedirs("closed/inner")
        Path("closed/inner/file").write_text("x")
        Path("closed/inner").chmod(0)
        Path("unread").write_text("z")
        Path("unread").chmod(0)
        os.link("-rf\n*", "second name")
        Path("attributes").write_text("a")
        os.setxattr("attributes", "user.colour", b"blue")

    tree = any_rig.tree(base)
    any_rig.act(tree, act)
    kept = kept_of(any_rig, tree)
    kept.take("odd", agent=False, max_bytes=BIG)
    before = any_rig.changes(tree)
    kept.put_back(START)
    assert any_rig.changes(tree) == []
    kept.put_back("odd")
    made = fork(any_rig, tree, "odd")
    for one in (tree, made):
        assert any_rig.changes(one) == before
        assert any_rig.act(one, _facts) == (1, True, b"blue", b"in the middle", "xz")


def _facts() -> tuple[int, bool, bytes, bytes, str]:
    names = {os.stat(name).st_ino for name in ("-rf\n*", "second name")}
    with open("huge", "rb") as file:
        file.seek(1 << 35)
        middle = file.read(13)
    Path("closed/inner").chmod(0o700)
    inner = Path("closed/inner/file").read_text()
    Path("closed/inner").chmod(0)
    Path("unread").chmod(0o600)
    inner += Path("unread").read_text()
    Path("unread").chmod(0)
    sparse = os.stat("huge").st_blocks < 1000
    return len(names), sparse, os.getxattr("attributes", "user.colour"), middle, inner


# Random work

acts = st.one_of(
    st.lists(steps, min_size=1, max_size=8),
    st.just("keep"),
    st.tuples(st.sampled_from(("back", "fork", "forget")), st.integers(0, 9)),
)


@pytest.mark.timeout(3600 if EXHAUSTIVE else 120)
@settings(PROFILE, max_examples=examples(4, exhaustive=1000))
@given(work=st.lists(acts, min_size=4, max_size=20))
@example(work=["keep", EACH_KIND, "keep", ("back", 0), EACH_KIND, ("back", 1), ("fork", 0)])
def test_no_byte_is_lost(any_rig: Rig, small_base: Base, work: list[object]) -> None:
    """Work, keeping, going back and forking in any order, against what was seen."""
    trees = [any_rig.tree(small_base)]
    kept: list[tuple[Tree, Kept]] = []
    try:
        for number, act in enumerate(work):
            tree = trees[-1]
            if act == "keep":
                kept.append((tree, keep(any_rig, tree, f"k{number}")))
            elif isinstance(act, list):
                any_rig.act(tree, functools.partial(do_all, act))
            elif isinstance(act, tuple) and kept:
                _do(any_rig, trees, kept, str(act[0]), int(act[1]))
    finally:
        for tree in trees:
            any_rig.driver.drop(tree)
            any_rig.trees.remove(tree)


def _do(rig: Rig, trees: list[Tree], kept: list[tuple[Tree, Kept]], what: str, number: int) -> None:
    tree, one = kept[number % len(kept)]
    if what == "back":
        kept_of(rig, tree).put_back(one.name)
        check(rig, tree, one)
    elif what == "fork":
        trees.append(fork(rig, tree, one.name))
        check(rig, trees[-1], one)
    else:
        kept.remove((tree, one))
        kept_of(rig, tree).keep_only({each.name for place, each in kept if place is tree})


@pytest.fixture
def small_base(any_rig: Rig, small_project: Path) -> Iterator[Base]:
    yield any_rig.base_of(small_project)


@pytest.fixture
def small_project(tmp_path: Path) -> Path:
    folder = tmp_path / "small"
    (folder / "d" / "e").mkdir(parents=True)
    (folder / "a").write_text("aaaa")
    (folder / "b").write_text("bb")
    (folder / "d" / "a").write_text("dadada")
    (folder / "d" / "e" / "a").write_text("0123456789" * 1000)
    (folder / "d" / "link").symlink_to("../a")
    return folder
