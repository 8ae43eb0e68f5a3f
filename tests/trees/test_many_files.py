"""Archives of many small files, which a second process helps to make: what is there in the end is
what one would have made, whatever happens to it."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from carrel.domain.errors import CarrelError, InsufficientDisk, PathWrongKind
from carrel.domain.trees import Tree
from carrel.linux import files
from carrel.linux.descriptors import Descriptor
from carrel.trees import extraction
from carrel.trees.new_files import Made, NewFile, SecondProcess
from tests.conformance.tree_rig import SANDBOX, Rig
from tests.conformance.tree_views import look, owners
from tests.sampling import every
from tests.trees.tars import HARD, LINK, entry, tar_of, unpacked

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
TIMEOUT_S = 60.0
"""For a program that takes milliseconds, on a loaded machine."""


class Helping:
    """Every second process that is started, and the files that each was given."""

    def __init__(self) -> None:
        self.started: list[SecondProcess] = []
        self.given = 0
        self.killed_at = -1
        self.held = False
        """It does nothing until somebody waits for it."""

    def note(self, process: SecondProcess, count: int) -> None:
        self.given += count
        if 0 <= self.killed_at <= self.given:
            self.killed_at = -1
            process._process.send_signal(signal.SIGKILL)
            process._process.wait(TIMEOUT_S)

    def all_ended(self) -> bool:
        return all(one._process.returncode is not None for one in self.started)


@pytest.fixture
def helping(monkeypatch: pytest.MonkeyPatch) -> Helping:
    """From the first file on, in small lots, also on a machine with one core."""
    found = Helping()
    begin, give, take = SecondProcess.__init__, SecondProcess.give, SecondProcess.take
    close = SecondProcess.close

    def starting(process: SecondProcess, owner: tuple[int, int] | None) -> None:
        begin(process, owner)
        found.started.append(process)
        if found.held:
            process._process.send_signal(signal.SIGSTOP)

    def taking(process: SecondProcess, *, wait: bool) -> Made | None:
        if wait:
            process._process.send_signal(signal.SIGCONT)
        return take(process, wait=wait)

    def closing(process: SecondProcess) -> None:
        process._process.send_signal(signal.SIGCONT)
        close(process)

    def giving(process: SecondProcess, folder: int, lot: Sequence[NewFile], size: int) -> None:
        give(process, folder, lot, size)
        found.note(process, len(lot))

    monkeypatch.setattr(SecondProcess, "__init__", starting)
    monkeypatch.setattr(SecondProcess, "give", giving)
    monkeypatch.setattr(SecondProcess, "take", taking)
    monkeypatch.setattr(SecondProcess, "close", closing)
    monkeypatch.setattr(extraction, "_MANY", 0)
    monkeypatch.setattr(extraction, "_AT_ONCE", 4)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1})
    return found


def many(folders: int = 20, each: int = 9) -> bytes:
    members = []
    for number in range(folders):
        members.append((entry(f"d{number}", tarfile.DIRTYPE, mode=0o750), b""))
        for one in range(each):
            member = entry(f"d{number}/f{one}", mode=(0o644, 0o600, 0o777, 0o444)[one % 4])
            member.mtime = 1_600_000_000 + number * each + one
            members.append((member, bytes([number]) * (one * 700)))
        members.append((entry(f"d{number}/é\udcff"), b"odd name"))
    return tar_of(*members)


def alone(rig: Rig, content: bytes) -> Tree:
    """The same in one process."""
    tree = rig.tree(rig.base_of(None))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(extraction, "_MANY", 1 << 30)
        unpacked(rig, tree, content)
    return tree


def times() -> dict[str, int]:
    return {str(path): path.lstat().st_mtime_ns for path in Path().rglob("*")}


def test_all_are_as_one_process_makes_them(any_rig: Rig, helping: Helping) -> None:
    before, content = os.umask(0o077), many()
    try:
        tree, other = any_rig.tree(any_rig.base_of(None)), alone(any_rig, content)
        done = unpacked(any_rig, tree, content)
    finally:
        os.umask(before)
    assert done.entries == 20 * 11
    assert len(helping.started) == 1 and helping.given >= 20 and helping.all_ended()
    for seen in (look, owners, times):
        assert any_rig.act(tree, seen) == any_rig.act(other, seen)
    assert any_rig.act(tree, owners) == {SANDBOX}


def test_a_second_time_over_the_first(any_rig: Rig, helping: Helping) -> None:
    tree = any_rig.tree(any_rig.base_of(None))
    unpacked(any_rig, tree, many(folders=3))
    before = any_rig.act(tree, look)
    newer = [(entry(f"d1/f{one}", mode=0o644), b"newer") for one in range(9)]
    unpacked(any_rig, tree, tar_of(*newer, (entry("d1/g"), b"new"), (entry("d1/g"), b"last")))
    after = any_rig.act(tree, look)
    assert {path for path in after if before.get(path) != after[path]} == {
        "d1/g",
        *(f"d1/f{one}" for one in range(9)),
    }
    read = any_rig.act(tree, lambda: (Path("d1/f3").read_text(), Path("d1/g").read_text()))
    assert read == ("newer", "last")


@pytest.mark.parametrize("seed", every(4, range(40)))
def test_entries_of_the_same_names(copy_rig: Rig, helping: Helping, seed: int) -> None:
    """Files, folders and links that replace one another, or may not."""
    helping.held = bool(seed % 8)
    chance = random.Random(seed)
    names = ["a", "b", "a/a", "a/b", "b/a", "a/a/b", "c"]
    members = []
    for number in range(60):
        name, kind = (
            chance.choice(names),
            chance.choices((b"0", b"5", LINK, HARD), (40, 3, 1, 1))[0],
        )
        target = "c" if kind == HARD else "x"
        data = b"%d" % number if kind == b"0" else b""
        members.append((entry(name, kind, target if kind in (LINK, HARD) else ""), data))
    for length in (6, 20, len(members)):
        told = []
        trees = [copy_rig.tree(copy_rig.base_of(None)) for _ in range(2)]
        for tree, least in zip(trees, (0, 1 << 30), strict=True):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(extraction, "_MANY", least)
                try:
                    unpacked(copy_rig, tree, tar_of(*members[:length]))
                    told.append(str(look(tree.path)))
                except CarrelError as error:
                    told.append(f"{error.code}: {error}")
        assert told[0] == told[1]
    assert helping.all_ended()


def test_the_last_of_one_name_stays(copy_rig: Rig, helping: Helping) -> None:
    """Also when the second process has no room for more of that folder."""
    helping.held = True
    lots = [[(entry(f"f{one}"), b"%d" % lot) for one in range(4)] for lot in range(12)]
    tree = copy_rig.tree(copy_rig.base_of(None))
    unpacked(copy_rig, tree, tar_of(*(one for lot in lots for one in lot)))
    assert {one.read_text() for one in tree.path.iterdir()} == {"11"}


def test_the_first_error_is_told(copy_rig: Rig, helping: Helping) -> None:
    """A folder is in the way of a file, and later the archive breaks off."""
    helping.held = True
    tree = copy_rig.tree(copy_rig.base_of(None))
    copy_rig.act(tree, lambda: Path("there").mkdir())
    small = [(entry(f"f{one}"), b"x") for one in range(8)]
    content = tar_of((entry("before"), b"x"), (entry("there"), b"x"), *small, (entry("z"), b"x"))
    with pytest.raises(PathWrongKind, match="'there' is a folder"):
        unpacked(copy_rig, tree, content.rstrip(b"\0")[:-1])
    assert (tree.path / "before").exists() and helping.given


def test_nothing_is_made_behind_what_was_not(tmp_path: Path) -> None:
    """Until whoever gave the lots has made the rest."""
    (tmp_path / "old").touch()
    opened = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    with Descriptor(opened) as folder, contextlib.closing(SecondProcess(None)) as second:
        for lot in (["a", "old", "b"], ["c"]):
            second.give(folder, [(name, b"x", 0o640, 1) for name in lot], 1)
        assert second.take(wait=True) == (1, 0) and not second.has_room(1)
        assert second.take(wait=True) == (0, 0) and second.has_room(1)
        second.give(folder, [("c", b"later", 0o640, 1)], 1)
        assert second.take(wait=True) == (1, 0)
    assert sorted(os.listdir(tmp_path)) == ["a", "c", "old"]
    assert (tmp_path / "c").read_bytes() == b"later"


@pytest.mark.parametrize("killed_at", [0, 10, 25])
def test_the_second_process_is_killed(copy_rig: Rig, helping: Helping, killed_at: int) -> None:
    content = many()
    other = alone(copy_rig, content)
    # Sure to be given, however slowly it works: the eight lots that may wait.
    helping.killed_at = killed_at
    tree = copy_rig.tree(copy_rig.base_of(None))
    unpacked(copy_rig, tree, content)
    assert helping.killed_at == -1 and helping.all_ended()
    assert look(tree.path) == look(other.path)


def test_no_second_process_can_be_started(
    copy_rig: Rig, helping: Helping, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = many(folders=3)
    other = alone(copy_rig, content)
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    tree = copy_rig.tree(copy_rig.base_of(None))
    unpacked(copy_rig, tree, content)
    assert not helping.started and look(tree.path) == look(other.path)


@ROOT_ONLY
def test_a_full_disk(copy_rig: Rig, helping: Helping) -> None:
    """The error names a file of which nothing is left; all before it are there."""
    tree = copy_rig.tree(copy_rig.base_of(None))
    place = tree.path / "small"
    place.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=64k,mode=777", "none", str(place)]
    subprocess.run(words, check=True, timeout=TIMEOUT_S)
    try:
        content = tar_of(*((entry(f"small/f{one:03}"), b"x" * 4096) for one in range(100)))
        with pytest.raises(InsufficientDisk, match="small/f0") as caught:
            unpacked(copy_rig, tree, content)
        names = sorted(os.listdir(place))
        assert names == [f"f{one:03}" for one in range(len(names))]
        assert f"small/f{len(names):03}" in str(caught.value)
        assert {(place / name).stat().st_size for name in names} == {4096}
    finally:
        subprocess.run(["umount", str(place)], check=True, timeout=TIMEOUT_S)
    assert helping.given and helping.all_ended()


@ROOT_ONLY
def test_no_notice_of_our_own_files(any_rig: Rig, helping: Helping) -> None:
    """The kernel tells of what is written through the host's mount of an overlay, file by file."""
    if any_rig.driver.name != "overlay":
        pytest.skip("only an overlay is a mount of its own")
    tree = any_rig.tree(any_rig.base_of(None))
    queue = files.open_write_queue()
    try:
        files.watch_writes(queue, str(tree.path))
        unpacked(any_rig, tree, many(folders=3))
        with pytest.raises(BlockingIOError):
            files.read_written(queue)
        (tree.path / "by-hand").write_text("heard")
        for descriptor, _pid in files.read_written(queue):
            os.close(descriptor)
    finally:
        os.close(queue)
