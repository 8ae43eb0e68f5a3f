"""What was made in a tree: told as it is on the disk, and packed."""

from __future__ import annotations

import base64
import io
import json
import os
import tarfile
import threading
import time
import tracemalloc
from collections.abc import Generator
from pathlib import Path

import pytest

from carrel.domain.errors import TreeNotFound
from carrel.domain.requests import ChangedFile, Collected, Collecting
from carrel.domain.trees import EntryType, Tree
from carrel.service.requests.view import file_view
from carrel.trees.results import Results, language_of
from tests.accounts import Account
from tests.conformance.tree_rig import Rig
from tests.sampling import EXHAUSTIVE
from tests.trees.again import run_again

RACE_S = 30.0
"""By then the other thread has changed the tree some times, however slow the machine is."""
results: Collecting = Results()


@pytest.fixture
def tree(copy_rig: Rig) -> Tree:
    return copy_rig.tree(copy_rig.base_of(None))


def collect(
    rig: Rig, tree: Tree, most: int = 1000, after: str = "", content_bytes: int = 0
) -> Collected:
    return results.collect(rig.driver, tree, most=most, after=after, content_bytes=content_bytes)


def by_path(collected: Collected) -> dict[str, ChangedFile]:
    return {one.path: one for one in collected.files}


def members(rig: Rig, tree: Tree, *, everything: bool) -> dict[str, tarfile.TarInfo]:
    packed = b"".join(results.archive(rig.driver, tree, everything=everything))
    with tarfile.open(fileobj=io.BytesIO(packed), mode="r:gz") as tar:
        return {member.name: member for member in tar.getmembers()}


def a_project(folder: Path) -> Path:
    (folder / "old").mkdir(parents=True)
    (folder / ".git").mkdir()
    (folder / ".git" / "config").write_text("[core]\n")
    (folder / "same.txt").write_text("same\n")
    (folder / "edited.py").write_text("one\n")
    (folder / "moved.md").write_text("# moved\n")
    (folder / "gone.sh").write_text("echo\n")
    (folder / "mode").write_text("#!/usr/bin/env python3\n")
    (folder / "turned").write_text("a file\n")
    (folder / "old" / "inside.c").write_text("int x;\n")
    return folder


def work() -> None:
    Path("edited.py").write_text("one\ntwo\nthree")
    os.rename("moved.md", "new.md")
    os.unlink("gone.sh")
    os.chmod("mode", 0o755)
    os.unlink("turned")
    os.mkdir("turned")
    os.unlink("old/inside.c")
    os.rmdir("old")
    Path("old").write_bytes(b"now a file\n")
    os.mkdir("empty")
    os.symlink("/etc/passwd", "leads-out")
    os.mkfifo("fifo")
    Path(".git/config").write_text("[other]\n")
    os.makedirs("vendor/.git")
    Path("vendor/.git/HEAD").write_text("x")
    Path("vendor/lib.go").write_text("package lib\n")
    Path("new\nline.js").write_text("1\n")
    Path(os.fsdecode(b"not-\xff")).write_bytes(b"\xff\xfe")
    Path("image").write_bytes(b"\0\1\2")
    Path("nothing").touch()


CHANGED = {
    "edited.py": ("modified", 13, 3, "python"),
    "fifo": ("added", 0, None, ""),
    "gone.sh": ("deleted", 0, None, "shell"),
    "image": ("added", 3, None, ""),
    "leads-out": ("added", 11, None, ""),
    "mode": ("modified", 23, 1, "python"),
    "moved.md": ("deleted", 0, None, "markdown"),
    "new\nline.js": ("added", 2, 1, "javascript"),
    "new.md": ("added", 8, 1, "markdown"),
    os.fsdecode(b"not-\xff"): ("added", 2, 1, ""),
    "nothing": ("added", 0, 0, ""),
    "old": ("added", 11, 1, ""),
    "old/inside.c": ("deleted", 0, None, "c"),
    "turned": ("deleted", 0, None, ""),
    "vendor/lib.go": ("added", 12, 1, "go"),
}


def test_all_that_changed_on_every_driver(any_rig: Rig, tmp_path: Path) -> None:
    tree = any_rig.tree(any_rig.base_of(a_project(tmp_path / "project")))
    any_rig.act(tree, work)
    found = collect(any_rig, tree)
    told = {one.path: (one.change, one.bytes, one.lines, one.language) for one in found.files}
    assert told == CHANGED
    assert found.total == len(CHANGED)
    assert [one.path for one in found.files] == sorted(CHANGED)
    types = {one.path: one.type for one in found.files if one.type is not EntryType.FILE}
    assert types == {"fifo": EntryType.OTHER, "leads-out": EntryType.SYMLINK}
    assert [one.path for one in found.files if one.executable] == ["mode"]
    assert set(members(any_rig, tree, everything=False)) == {
        path for path, told in CHANGED.items() if told[0] != "deleted" and path != "fifo"
    }


def test_an_untouched_tree_has_nothing(any_rig: Rig, tmp_path: Path) -> None:
    tree = any_rig.tree(any_rig.base_of(a_project(tmp_path / "project")))
    assert collect(any_rig, tree) == Collected((), 0)
    assert members(any_rig, tree, everything=False) == {}


def test_page_by_page(copy_rig: Rig, tree: Tree) -> None:
    def act() -> None:
        for number in range(25):
            Path(f"f{number:02}").touch()

    copy_rig.act(tree, act)
    seen: list[str] = []
    while True:
        page = collect(copy_rig, tree, most=10, after=seen[-1] if seen else "")
        assert page.total == 25
        if not page.files:
            break
        seen += [one.path for one in page.files]
    assert seen == [f"f{number:02}" for number in range(25)]
    assert collect(copy_rig, tree, most=0) == Collected((), 25)


def test_content_until_it_is_used_up(copy_rig: Rig, tree: Tree) -> None:
    def act() -> None:
        Path("a.txt").write_text("grüße\n")
        Path("b.bin").write_bytes(b"\0\xff")
        Path("c.latin").write_bytes("grüße".encode("latin-1"))
        os.symlink("../../etc", "d")
        Path("e.big").write_bytes(b"x" * 50)
        Path("f").write_text("fits")
        Path("g").touch()
        Path("h").write_text("too late")

    copy_rig.act(tree, act)
    size = 8 + 2 + 5 + 9 + 4
    found = by_path(collect(copy_rig, tree, content_bytes=size))
    assert found["a.txt"].text == "grüße\n" and found["a.txt"].base64 is None
    assert found["b.bin"].base64 == base64.b64encode(b"\0\xff").decode()
    assert found["b.bin"].text is None
    assert base64.b64decode(found["c.latin"].base64 or "") == "grüße".encode("latin-1")
    assert found["d"].text == "../../etc" and found["d"].type is EntryType.SYMLINK
    assert (found["e.big"].text, found["e.big"].base64) == (None, None)
    assert found["f"].text == "fits"
    assert found["g"].text == ""
    assert found["h"].text is None
    plain = by_path(collect(copy_rig, tree))
    assert all(one.text is None and one.base64 is None for one in plain.values())


def test_control_characters_are_no_text(copy_rig: Rig, tree: Tree) -> None:
    """JSON has six characters for each of them, and base64 a third more than there is."""
    coloured = "\x1b[31mred\x1b[0m and plain\n" * 100

    def act() -> None:
        Path("bells").write_bytes(b"\x07" * 30_000)
        Path("log").write_text(coloured)

    copy_rig.act(tree, act)
    found = by_path(collect(copy_rig, tree, content_bytes=100_000))
    assert base64.b64decode(found["bells"].base64 or "") == b"\x07" * 30_000
    assert len(json.dumps(file_view(found["bells"]))) < 50_000
    assert found["log"].text == coloured and found["log"].base64 is None


def test_what_is_too_long_is_not_read(
    copy_rig: Rig, tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    def act() -> None:
        Path("long.py").write_bytes(b"x\n" * 1000)
        with open("tera", "wb") as file:
            file.truncate(1 << 40)

    copy_rig.act(tree, act)
    monkeypatch.setattr("carrel.trees.results.MAX_COUNTED", 1999)
    found = by_path(collect(copy_rig, tree))
    assert (found["long.py"].bytes, found["long.py"].lines) == (2000, None)
    assert found["long.py"].language == "python"
    assert (found["tera"].bytes, found["tera"].lines) == (1 << 40, None)
    monkeypatch.setattr("carrel.trees.results.MAX_COUNTED", 2000)
    assert by_path(collect(copy_rig, tree))["long.py"].lines == 1000


def test_nothing_outside_is_read(copy_rig: Rig, tree: Tree, tmp_path: Path) -> None:
    """Nor when a folder turns into a link to one outside while it is looked at."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("a secret\n")

    def act() -> None:
        os.mkdir("folder")
        Path("folder/file").write_text("own\n")
        os.symlink(outside / "file", "link")

    copy_rig.act(tree, act)
    stop = threading.Event()
    turns = 0

    def swap() -> None:
        nonlocal turns
        folder, aside = tree.path / "folder", tree.path / "aside"
        while not stop.is_set():
            folder.rename(aside)
            folder.symlink_to(outside)
            folder.unlink()
            aside.rename(folder)
            turns += 1

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        deadline = time.monotonic() + RACE_S
        while turns < 200 and time.monotonic() < deadline:
            for one in collect(copy_rig, tree, content_bytes=1 << 20).files:
                assert "secret" not in (one.text or "")
    finally:
        stop.set()
        thread.join()


def test_everything_in_an_archive(any_rig: Rig, tmp_path: Path) -> None:
    tree = any_rig.tree(any_rig.base_of(a_project(tmp_path / "project")))
    any_rig.act(tree, work)
    found = members(any_rig, tree, everything=True)
    kept = {path for path, told in CHANGED.items() if told[0] != "deleted" and path != "fifo"}
    assert set(found) == kept | {"same.txt", "turned", "empty", "vendor"}
    assert found["leads-out"].issym() and found["leads-out"].linkname == "/etc/passwd"
    assert found["mode"].mode == 0o755
    assert {(one.uid, one.gid, one.uname) for one in found.values()} == {(0, 0, "")}
    assert list(found) == sorted(found, key=lambda path: path.split("/"))


def test_an_archive_is_the_same_again(copy_rig: Rig, tree: Tree) -> None:
    def act() -> None:
        Path("b").write_text("b")
        Path("a").write_text("a" * 100_000)
        os.link("a", "c")

    copy_rig.act(tree, act)
    one, other = (
        b"".join(results.archive(copy_rig.driver, tree, everything=False)) for _ in range(2)
    )
    assert one == other
    assert members(copy_rig, tree, everything=False)["c"].islnk()


def test_an_archive_that_nobody_reads_on(copy_rig: Rig, tree: Tree) -> None:
    def act() -> None:
        for number in range(8):
            Path(f"f{number}").write_bytes(os.urandom(1 << 20))

    copy_rig.act(tree, act)
    before = len(os.listdir("/proc/self/fd"))
    stream = results.archive(copy_rig.driver, tree, everything=True)
    next(stream)
    assert isinstance(stream, Generator)
    stream.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_tree_that_is_gone_is_told_at_once(copy_rig: Rig, tree: Tree) -> None:
    copy_rig.driver.drop(tree)
    with pytest.raises(TreeNotFound):
        results.archive(copy_rig.driver, tree, everything=True)
    with pytest.raises(TreeNotFound):
        collect(copy_rig, tree)


def test_memory_does_not_grow_with_what_is_read(copy_rig: Rig, tree: Tree) -> None:
    def act() -> None:
        for number in range(4):
            Path(f"f{number}").write_bytes(b"a line\n" * (1 << 20))

    copy_rig.act(tree, act)
    tracemalloc.start()
    try:
        assert [one.lines for one in collect(copy_rig, tree).files] == [1 << 20] * 4
        for _ in results.archive(copy_rig.driver, tree, everything=False):
            pass
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_memory_does_not_grow_with_the_number_of_files(copy_rig: Rig, tree: Tree) -> None:
    def act() -> None:
        for number in range(5000):
            Path(f"f{number:04}").write_text("x")

    copy_rig.act(tree, act)
    collect(copy_rig, tree, most=1)
    tracemalloc.start()
    try:
        assert collect(copy_rig, tree, most=10).total == 5000
        # The names in one folder are.
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("path", "beginning", "language"),
    [
        ("src/main.rs", b"", "rust"),
        ("App.TSX", b"", "typescript"),
        ("Dockerfile", b"", "dockerfile"),
        ("Dockerfile.dev", b"", "dockerfile"),
        ("a/CMakeLists.txt", b"", "cmake"),
        (".env", b"", "dotenv"),
        ("run", b"#!/bin/bash -e\n", "shell"),
        ("run", b"#!/usr/bin/env -S FOO=1 python3.11 -u\n", "python"),
        ("run", b"#! /usr/local/bin/node\n", "javascript"),
        ("run", b"#!\n", ""),
        ("run", b"", ""),
        ("archive.tar.zst", b"", ""),
        ("x." + "\udcff", b"\xff", ""),
    ],
)
def test_languages(path: str, beginning: bytes, language: str) -> None:
    assert language_of(path, beginning) == language


@pytest.mark.skipif(os.geteuid() != 0, reason="is already an ordinary user's run")
def test_as_an_ordinary_user(ordinary_user: Account, data: Path) -> None:
    """With the files beside this one that are about what is made here: once for all."""
    others = ("test_differences.py", "test_direct.py", "test_host_folders.py")
    paths = [str(Path(__file__).with_name(name)) for name in others]
    words = () if EXHAUSTIVE else ("-k", "not memory")
    run_again(__file__, ordinary_user, data, *words, *paths)
