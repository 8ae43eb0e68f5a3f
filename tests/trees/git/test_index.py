"""The index is patched so that real git believes it, and only where git may believe it."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carrel.trees.git.index import GITLINK, IndexStat, MalformedIndex, entries, parse, restat, walk
from tests.trees.git.repositories import GIT_TIMEOUT_S, commit, git, make_repository

OLD_S = 1_600_000_000
"""A time that is older than any index written here."""


def aged(folder: Path) -> Path:
    """Makes all files old and has git look again, so that no entry is racy."""
    for name in git(folder, "ls-files", "-z").split("\0")[:-1]:
        if not (folder / name).is_dir():
            os.utime(folder / name, (OLD_S, OLD_S), follow_symlinks=False)
    git(folder, "update-index", "-q", "--refresh", check=False)
    return folder


def copied(source: Path, target: Path) -> Path:
    shutil.copytree(source, target, symlinks=True)
    return target


def truth(source: Path, target: Path) -> Callable[[bytes, IndexStat], IndexStat | None]:
    """What a base does: the copy's stat, where the recorded one fits the original."""

    def lookup(path: bytes, recorded: IndexStat) -> IndexStat | None:
        name = os.fsdecode(path)
        if not recorded.fits(os.lstat(source / name)):
            return None
        return IndexStat.of(os.lstat(target / name))

    return lookup


def believes_unchanged(folder: Path, name: str) -> bool:
    """Whether git goes by the stat alone: swap the content for another of the same size
    behind its back, with the same times. Its inode and ctime are recorded as they are."""
    path = folder / name
    before = path.read_bytes()
    status = path.stat()
    path.write_bytes(bytes(byte ^ 1 for byte in before))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    index = folder / ".git/index"
    restat(index, lambda found, _old: IndexStat.of(os.lstat(folder / os.fsdecode(found))))
    clean = name not in git(folder, "status", "--porcelain", name)
    path.write_bytes(before)
    return clean


@pytest.mark.parametrize("version", ["2", "3", "4"])
@pytest.mark.parametrize("hashed", ["sha1", "sha256"])
def test_git_does_not_read_what_was_restated(tmp_path: Path, version: str, hashed: str) -> None:
    origin = make_repository(tmp_path / "origin", f"--object-format={hashed}")
    (origin / ("long" * 50)).mkdir()
    (origin / ("long" * 50) / ("name" * 50)).write_text("x\n")
    (origin / "link").symlink_to("a.txt")
    commit(origin, "more")
    git(origin, "update-index", f"--index-version={version}")
    if version == "3":
        git(origin, "update-index", "--skip-worktree", "src/b.txt")
    aged(origin)
    copy = copied(origin, tmp_path / "copy")
    index = copy / ".git/index"
    assert int.from_bytes(index.read_bytes()[4:8], "big") == int(version)
    count = restat(index, truth(origin, copy))
    # Git does not refresh what it is told to skip, so its stat does not fit.
    assert count == len(git(copy, "ls-files").splitlines()) - (version == "3")
    assert git(copy, "fsck", "--strict") == ""
    assert git(copy, "diff-files", "--name-only") == ""
    assert git(copy, "status", "--porcelain") == ""
    assert believes_unchanged(copy, "a.txt")
    (copy / "a.txt").write_text("staged\n")
    git(copy, "add", "a.txt")
    assert list(walk(index.read_bytes())) == [one[:4] for one in entries(index)]


def test_without_restat_git_looks_again(tmp_path: Path) -> None:
    """That the test above can fail: raw `diff-files` reports what it would have to read."""
    copy = copied(aged(make_repository(tmp_path / "origin")), tmp_path / "copy")
    assert git(copy, "diff-files", "--name-only").split() == ["a.txt", "src/b.txt"]


def test_changed_files_stay_changed(tmp_path: Path) -> None:
    origin = aged(make_repository(tmp_path / "origin"))
    (origin / "a.txt").write_text("six\n")
    copy = copied(origin, tmp_path / "copy")
    assert restat(copy / ".git/index", truth(origin, copy)) == 1
    assert git(copy, "status", "--porcelain") == " M a.txt\n"


def test_racy_entries_are_left_alone(tmp_path: Path) -> None:
    """A file changed in the index's own second, to the same size: only reading shows it."""
    origin = make_repository(tmp_path / "origin")
    index = origin / ".git/index"
    for path in ("a.txt", "src/b.txt"):
        os.utime(origin / path, (OLD_S, OLD_S))
    git(origin, "update-index", "-q", "--refresh")
    os.utime(index, (OLD_S, OLD_S))  # written in the second in which the files were
    (origin / "a.txt").write_text("TWO\n")
    os.utime(origin / "a.txt", (OLD_S, OLD_S))
    copy = copied(origin, tmp_path / "copy")
    asked: list[bytes] = []
    assert restat(copy / ".git/index", lambda path, _old: asked.append(path)) == 0
    assert asked == []
    assert git(copy, "status", "--porcelain") == " M a.txt\n"


def test_the_index_keeps_its_time_mode_and_checksum(tmp_path: Path) -> None:
    origin = aged(make_repository(tmp_path / "origin"))
    index = origin / ".git/index"
    index.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(index, 1234, 4321)
    before = index.stat()
    assert restat(index, lambda _path, old: old._replace(ino=7)) == 2
    after = index.stat()
    assert after.st_mtime_ns == before.st_mtime_ns
    assert (after.st_mode, after.st_uid, after.st_gid) == (
        before.st_mode,
        before.st_uid,
        before.st_gid,
    )
    assert sorted(os.listdir(index.parent)) == sorted(
        name for name in os.listdir(origin / ".git") if not name.startswith(".index-")
    )
    assert [entry.stat.ino for entry in entries(index)] == [7, 7]
    git(origin, "fsck", "--strict")


def test_modes_are_never_changed(tmp_path: Path) -> None:
    origin = aged(make_repository(tmp_path / "origin"))
    index = origin / ".git/index"
    restat(index, lambda _path, old: old._replace(mode=0o777))
    assert {entry.mode for entry in entries(index)} == {0o100644}


def test_checksum_left_out(tmp_path: Path) -> None:
    origin = aged(make_repository(tmp_path / "origin"))
    index = origin / ".git/index"
    status = index.stat()
    index.write_bytes(index.read_bytes()[:-20] + bytes(20))
    os.utime(index, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert restat(index, lambda _path, old: old._replace(ino=7)) == 2
    assert index.read_bytes()[-20:] == bytes(20)
    assert [entry.path for entry in entries(index)] == [b"a.txt", b"src/b.txt"]


def test_split_index_is_left_alone(tmp_path: Path) -> None:
    origin = aged(make_repository(tmp_path / "origin"))
    git(origin, "update-index", "--split-index")
    index = origin / ".git/index"
    before = index.read_bytes()
    assert b"link" in before
    assert restat(index, lambda _path, old: old) == 0
    assert index.read_bytes() == before
    with pytest.raises(MalformedIndex):
        list(walk(before))


def test_extensions_survive(tmp_path: Path) -> None:
    origin = aged(make_repository(tmp_path / "origin"))
    git(origin, "update-index", "--untracked-cache")
    git(origin, "status")
    index = origin / ".git/index"
    extensions = index.read_bytes()[index.read_bytes().index(b"TREE") : -20]
    assert b"UNTR" in extensions
    restat(index, lambda _path, old: old._replace(ino=7))
    assert index.read_bytes()[:-20].endswith(extensions)


def test_the_list_of_extensions_stays_true(tmp_path: Path) -> None:
    """The last extension names the others, and lets git read with several threads."""
    origin = aged(make_repository(tmp_path / "origin"))
    git(origin, "config", "index.recordEndOfIndexEntries", "true")
    git(origin, "update-index", "--untracked-cache")
    git(origin, "status")
    content = (origin / ".git/index").read_bytes()
    assert b"EOIE" in content and b"UNTR" in content
    data, _ = parse(content)
    assert data.joined() == content
    data.drop(b"UNTR")
    git(origin, "update-index", "--no-untracked-cache")
    without = (origin / ".git/index").read_bytes()
    assert b"EOIE" in without
    assert data.joined() == without


def test_another_name_of_the_index_stays_as_it_is(tmp_path: Path) -> None:
    origin = aged(make_repository(tmp_path / "origin"))
    index = origin / ".git/index"
    os.link(index, origin / "other")
    before = index.read_bytes()
    assert restat(index, lambda _path, old: old._replace(ino=7)) == 0
    assert (origin / "other").read_bytes() == before


def test_submodules_are_not_asked_for(tmp_path: Path) -> None:
    make_repository(tmp_path / "library")
    origin = make_repository(tmp_path / "origin")
    git(origin, "submodule", "--quiet", "add", str(tmp_path / "library"), "lib")
    commit(origin, "with a submodule")
    aged(origin)
    asked: list[bytes] = []
    restat(origin / ".git/index", lambda path, _old: asked.append(path))
    assert b"a.txt" in asked and b"lib" not in asked
    assert [e.path for e in entries(origin / ".git/index") if e.mode == GITLINK] == [b"lib"]


def test_conflicts(tmp_path: Path) -> None:
    origin = make_repository(tmp_path / "origin")
    git(origin, "checkout", "-q", "-b", "other", "HEAD~1")
    (origin / "a.txt").write_text("other\n")
    commit(origin, "other")
    git(origin, "merge", "main", check=False)
    copy = copied(origin, tmp_path / "copy")
    restat(copy / ".git/index", truth(origin, copy))
    assert [(e.path, e.stage) for e in entries(copy / ".git/index")] == [
        (b"a.txt", 1),
        (b"a.txt", 2),
        (b"a.txt", 3),
        (b"src/b.txt", 0),
    ]
    assert "UU a.txt" in git(copy, "status", "--porcelain")


@given(st.binary(max_size=300))
def test_garbage_is_left_alone(tmp_path_factory: pytest.TempPathFactory, junk: bytes) -> None:
    folder = tmp_path_factory.mktemp("junk")
    for number, data in enumerate((junk, b"DIRC\0\0\0\2" + junk, b"DIRC" + junk + bytes(20))):
        index = folder / str(number)
        index.write_bytes(data)
        assert restat(index, lambda _path, old: old._replace(ino=7)) == 0
        assert index.read_bytes() == data
        assert list(entries(index)) == []
        with pytest.raises(MalformedIndex):
            list(walk(data))


def test_missing_is_nothing(tmp_path: Path) -> None:
    assert restat(tmp_path / "no/index", lambda _path, old: old) == 0
    assert list(entries(tmp_path)) == []


def test_every_cut_of_a_real_index_is_refused(tmp_path: Path) -> None:
    data = (aged(make_repository(tmp_path / "origin")) / ".git/index").read_bytes()
    index = tmp_path / "index"
    for length in range(len(data)):
        index.write_bytes(data[:length])
        assert restat(index, lambda _path, old: old._replace(ino=7)) == 0
        with pytest.raises(MalformedIndex):
            list(walk(data[:length]))


def test_fifty_thousand_entries_are_quick(tmp_path: Path) -> None:
    """Measured at 60 to 90 ms; the bound is for a loaded machine."""
    git(tmp_path, "init", "-q", ".")
    blob = git(tmp_path, "hash-object", "-w", "--stdin").strip()
    listed = "".join(
        f"100644 {blob}\tfolder{n % 500:03}/deeper/file-number-{n}.txt\n" for n in range(50_000)
    )
    (tmp_path / "list").write_text(listed)
    with (tmp_path / "list").open("rb") as stdin:
        subprocess.run(
            ["git", "update-index", "--index-info"],
            cwd=tmp_path,
            stdin=stdin,
            check=True,
            timeout=GIT_TIMEOUT_S,
        )
    answer = IndexStat(*range(1, 11))
    started = time.perf_counter()
    assert restat(tmp_path / ".git/index", lambda _path, _old: answer) == 50_000
    # A tenth of a second; what grew with the square would take minutes.
    assert time.perf_counter() - started < 10.0


def crafted(names: list[tuple[int, bytes]]) -> bytes:
    """An index of version 4: for each entry how much of the last name goes, and what comes."""
    body = b"DIRC" + (4).to_bytes(4, "big") + len(names).to_bytes(4, "big")
    for strip, rest in names:
        varint = bytearray([strip & 127])
        while strip := strip >> 7:
            strip -= 1
            varint.insert(0, 128 | strip & 127)
        body += bytes(60) + b"\0\0" + bytes(varint) + rest + b"\0"
    return body + hashlib.sha1(body).digest()


def test_an_index_costs_no_more_than_its_size() -> None:
    """Names that share long beginnings unfold to the size of the file squared."""
    length = 370_000
    number = (b"%08d" % number for number in range(5_000))
    bomb = crafted([(0, b"d" * length + next(number)), *((8, one) for one in number)])
    assert len(bomb) < 750_000
    tracemalloc.start()
    try:
        with pytest.raises(MalformedIndex):
            parse(bomb)
        assert tracemalloc.get_traced_memory()[1] < 10 * len(bomb)
    finally:
        tracemalloc.stop()


def test_an_index_of_too_many_files_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is some objects in memory, a few bytes in the file, and none in what carries it."""
    names = [(0, b"%04d" % number) for number in range(3)]
    assert len(parse(crafted(names))[1]) == 3
    for bound, value in (("MAX_ENTRIES", 2), ("MAX_NAME_BYTES", 11)):
        with monkeypatch.context() as patch, pytest.raises(MalformedIndex):
            patch.setattr(f"carrel.trees.git.index.{bound}", value)
            parse(crafted(names))


@pytest.mark.parametrize(
    "names",
    [
        [(0, b"b"), (1, b"a")],
        [(0, b"a")] + [(0, b"")] * 5,
        [(0, b"a"), (2, b"b")],
    ],
    ids=["out of order", "the same again and again", "takes away more than there is"],
)
def test_an_index_that_git_would_not_write(names: list[tuple[int, bytes]]) -> None:
    with pytest.raises(MalformedIndex):
        parse(crafted(names))
    assert [path for _, path in parse(crafted([(0, b"a/b"), (1, b"c")]))[1]] == [b"a/b", b"a/c"]


def test_a_number_without_end_is_no_index() -> None:
    body = b"DIRC" + (4).to_bytes(4, "big") + (1).to_bytes(4, "big")
    body += bytes(62) + b"\xff" * 500_000 + b"\0\0"
    with pytest.raises(MalformedIndex):
        parse(body + hashlib.sha1(body).digest())


def test_an_index_behind_a_link_is_left_alone(tmp_path: Path) -> None:
    origin = aged(make_repository(tmp_path / "origin"))
    before = (origin / ".git/index").read_bytes()
    (tmp_path / "index").symlink_to(origin / ".git/index")
    assert restat(tmp_path / "index", lambda _path, old: old._replace(ino=1)) == 0
    assert (origin / ".git/index").read_bytes() == before
