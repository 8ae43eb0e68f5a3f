"""How two versions differ: from trees and archives, in git's words, and nothing left."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from carrel.domain.errors import ArchiveInvalid, GitFailed, GitTimeout, TreeNotFound
from carrel.domain.requests import Differing, VersionFiles
from carrel.domain.trees import Tree
from carrel.trees import differences
from carrel.trees.contents import digest, digest_of_pieces
from carrel.trees.differences import GitDiffs
from carrel.trees.git.process import feed_git, read_git
from carrel.trees.results import Results
from tests.conformance.tree_rig import Rig
from tests.machine import running_in

APPLY_S = 60.0
"""For a git that takes milliseconds, on a loaded machine."""


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Path]:
    """Nothing is ever left in it."""
    folder = tmp_path / "work"
    yield folder
    assert list(folder.glob("*")) == []


def version(rig: Rig, tree: Tree) -> VersionFiles:
    return VersionFiles(rig.driver, tree)


def archived(rig: Rig, tree: Tree, target: Path) -> VersionFiles:
    with target.open("wb") as file:
        for piece in Results().archive(rig.driver, tree, everything=True):
            file.write(piece)
    return VersionFiles(archive=target)


def diff(work: Path, before: VersionFiles | None, after: VersionFiles) -> str:
    differ: Differing = GitDiffs(work)
    return b"".join(differ.diff(before, after)).decode("utf-8", "surrogateescape")


def new_tree(rig: Rig, act: Callable[[], None], project: Path | None = None) -> Tree:
    tree = rig.tree(rig.base_of(project))
    rig.act(tree, act)
    return tree


def first() -> None:
    Path("same.txt").write_text("same\n")
    Path("edited.txt").write_text("one\ntwo\n")
    Path("gone.txt").write_text("gone\n")
    Path("program").write_text("#!/bin/sh\n")
    Path("image").write_bytes(b"\0one")
    os.symlink("/etc/passwd", "link")
    os.makedirs(".git/hooks")
    Path(".git/config").write_text("[one]\n")
    os.mkdir("b")
    Path("b/x").write_text("x\n")


def second() -> None:
    Path("same.txt").write_text("same\n")
    Path("edited.txt").write_text("one\nzwei\n")
    Path("program").write_text("#!/bin/sh\n")
    os.chmod("program", 0o755)
    Path("image").write_bytes(b"\0two")
    os.symlink("/etc/shadow", "link")
    os.makedirs(".git/hooks")
    Path(".git/config").write_text("[two]\n")
    Path("b").write_text("a file now\n")
    Path("grüße").write_text("ü\n")
    Path("new\nline").write_text("n\n")
    Path(os.fsdecode(b"not-\xff")).write_text("bytes\n")
    Path(".gitattributes").write_text("* -diff\n*.txt text eol=crlf\n")


NAMES = [
    "a/.gitattributes b/.gitattributes",
    "a/b b/b",
    "a/b/x b/b/x",
    "a/edited.txt b/edited.txt",
    "a/gone.txt b/gone.txt",
    "a/grüße b/grüße",
    "a/image b/image",
    "a/link b/link",
    "a/not-\udcff b/not-\udcff",
    "a/program b/program",
]


def check(text: str) -> None:
    heads = [line for line in text.splitlines() if line.startswith("diff --git ")]
    assert 'diff --git "a/new\\nline" "b/new\\nline"' in heads
    named = [line.removeprefix("diff --git ") for line in heads if '"' not in line]
    assert named == NAMES
    assert "-two\n+zwei\n" in text
    assert "old mode 100644\nnew mode 100755\n" in text
    assert "Binary files a/image and b/image differ\n" in text
    assert "-/etc/passwd\n\\ No newline at end of file\n+/etc/shadow\n" in text
    assert "same.txt" not in text and "[one]" not in text and "[two]" not in text
    assert "root:" not in text


def test_trees_of_one_base(any_rig: Rig, work: Path) -> None:
    before, after = new_tree(any_rig, first), new_tree(any_rig, second)
    check(diff(work, version(any_rig, before), version(any_rig, after)))


def test_trees_of_two_bases(copy_rig: Rig, work: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "same.txt").write_text("same\n")
    before, after = new_tree(copy_rig, first), new_tree(copy_rig, second, tmp_path / "other")
    assert before.base_id != after.base_id
    check(diff(work, version(copy_rig, before), version(copy_rig, after)))


def test_an_archive_and_a_tree(copy_rig: Rig, work: Path, tmp_path: Path) -> None:
    before, after = new_tree(copy_rig, first), new_tree(copy_rig, second)
    old = archived(copy_rig, before, tmp_path / "before.tar.gz")
    new = archived(copy_rig, after, tmp_path / "after.tar.gz")
    check(diff(work, old, version(copy_rig, after)))
    check(diff(work, old, new))


def test_what_was_changed_in_the_base_is_told(copy_rig: Rig, work: Path, tmp_path: Path) -> None:
    """Only one of the two changed it; and a renamed file has two names."""
    project = tmp_path / "project"
    project.mkdir()
    for name in ("kept", "edited", "moved"):
        (project / name).write_text(f"{name}\n")

    def act() -> None:
        Path("edited").write_text("other\n")
        os.rename("moved", "named")

    before, after = new_tree(copy_rig, lambda: None, project), new_tree(copy_rig, act, project)
    text = diff(work, version(copy_rig, before), version(copy_rig, after))
    heads = [line.split(" ")[2] for line in text.splitlines() if line.startswith("diff ")]
    assert heads == ["a/edited", "a/moved", "a/named"]


def test_nothing_before(copy_rig: Rig, work: Path, tmp_path: Path) -> None:
    """All of it is new, and can be applied."""
    tree = new_tree(copy_rig, second)
    text = diff(work, None, version(copy_rig, tree))
    assert "--- /dev/null\n+++ b/edited.txt\n" in text
    target = tmp_path / "target"
    target.mkdir()
    text = "".join(part for part in _parts(text) if "Binary files" not in part)
    subprocess.run(
        ["git", "apply", "--unsafe-paths", "-"],
        input=text.encode("utf-8", "surrogateescape"),
        cwd=target,
        check=True,
        timeout=APPLY_S,
    )
    assert (target / "new\nline").read_text() == "n\n"
    assert os.readlink(target / "link") == "/etc/shadow"
    assert (target / os.fsdecode(b"not-\xff")).read_text() == "bytes\n"


def _parts(text: str) -> list[str]:
    return ["diff --git " + part for part in text.split("diff --git ")[1:]]


def test_the_same_has_no_difference(copy_rig: Rig, work: Path, tmp_path: Path) -> None:
    def links() -> None:
        Path("one").write_text("1\n")
        os.link("one", "two")
        with open("sparse", "wb") as file:
            file.truncate(3 << 20)
            file.seek(2 << 20)
            file.write(b"data")

    tree = new_tree(copy_rig, links)
    packed = archived(copy_rig, tree, tmp_path / "it.tar.gz")
    assert diff(work, packed, version(copy_rig, tree)) == ""
    assert diff(work, version(copy_rig, tree), version(copy_rig, tree)) == ""


def test_large_files_are_only_named(
    copy_rig: Rig, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(differences, "MAX_COMPARED", 1000)

    def sizes(last: bytes) -> Callable[[], None]:
        def act() -> None:
            Path("large").write_bytes(b"x" * 1000 + last)
            Path("same").write_bytes(b"y" * 5000)
            Path("small").write_bytes(b"z" * 999 + last)

        return act

    one, other = new_tree(copy_rig, sizes(b"1")), new_tree(copy_rig, sizes(b"2"))
    text = diff(work, version(copy_rig, one), version(copy_rig, other))
    assert "Binary files a/large and b/large differ\n" in text
    assert "xxx" not in text and "same" not in text
    assert text.count("zzz1\n") == 1 and text.count("zzz2\n") == 1


def test_not_more_than_so_much_is_compared(
    copy_rig: Rig, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(differences, "MAX_BYTES", 10)

    def act() -> None:
        for name in ("a", "b", "c"):
            Path(name).write_text("12345\n")

    text = diff(work, None, version(copy_rig, new_tree(copy_rig, act)))
    assert text.count("+12345\n") == 1 and text.count("Binary files /dev/null and ") == 2


def test_who_stops_in_the_middle_leaves_nothing(copy_rig: Rig, work: Path) -> None:
    def act() -> None:
        for number in range(40):
            Path(f"f{number}").write_text("a line that is new\n" * 20_000)

    tree = new_tree(copy_rig, act)
    stream = GitDiffs(work).diff(None, version(copy_rig, tree))
    assert next(stream)
    (folder,) = work.iterdir()
    stream.close()
    assert not folder.exists()
    assert running_in(folder) == []


def test_a_damaged_archive(copy_rig: Rig, work: Path, tmp_path: Path) -> None:
    tree = new_tree(copy_rig, first)
    whole = archived(copy_rig, tree, tmp_path / "it.tar.gz")
    assert whole.archive is not None
    content = whole.archive.read_bytes()
    for damaged in (content[:-40], content[:60] + bytes(20) + content[80:], b"no archive"):
        whole.archive.write_bytes(damaged)
        with pytest.raises(ArchiveInvalid):
            diff(work, whole, version(copy_rig, tree))


def test_a_tree_that_is_gone(copy_rig: Rig, work: Path) -> None:
    tree = new_tree(copy_rig, first)
    copy_rig.driver.drop(tree)
    with pytest.raises(TreeNotFound):
        diff(work, None, version(copy_rig, tree))


def test_what_a_killed_one_left_is_swept(tmp_path: Path) -> None:
    left = tmp_path / ".diff-0123" / "objects"
    left.mkdir(parents=True)
    (tmp_path / "other").mkdir()
    GitDiffs(tmp_path).sweep()
    GitDiffs(tmp_path / "missing").sweep()
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


def test_names_that_git_would_not_take(copy_rig: Rig, work: Path) -> None:
    def act() -> None:
        os.symlink("/", ".gitmodules")
        os.mkdir(".GIT")
        Path(".GIT/config").write_text("x")
        Path("back\\slash").write_text("x\n")
        Path("git~1").write_text("x\n")
        Path('"quoted" ').write_text("x\n")
        Path("con:x").write_text("x\n")

    text = diff(work, None, version(copy_rig, new_tree(copy_rig, act)))
    heads = [line for line in text.splitlines() if line.startswith("diff ")]
    assert len(heads) == 6
    for name in (".GIT (a name that git does not take)/config", ".gitmodules (a name that git"):
        assert f" b/{name}" in text


def test_git_that_fails_or_hangs(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", "--bare", str(tmp_path)], check=True, timeout=APPLY_S)
    with (
        pytest.raises(GitFailed, match="nonsense"),
        feed_git(["fast-import", "--quiet"], folder=tmp_path, timeout_s=APPLY_S) as write,
    ):
        for _ in range(10_000):
            write(b"nonsense\n" * 100)
    with pytest.raises(GitFailed):
        list(read_git(["diff-tree", "missing", "-r"], folder=tmp_path, idle_s=APPLY_S))
    with (
        pytest.raises(GitTimeout),
        feed_git(["cat-file", "--batch"], folder=tmp_path, timeout_s=0.2) as write,
    ):
        # It reads for ever, until it is killed.
        while True:
            write(b"missing\n")
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(GitTimeout):
        list(read_git(["hash-object", "fifo"], folder=tmp_path, idle_s=0.2))
    assert running_in(tmp_path) == []


@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 65_537, 300_000])
def test_digests_in_pieces(tmp_path: Path, size: int) -> None:
    content = bytes(100_000) + os.urandom(120_000) + bytes(200_000)
    content = content[:size]
    path = tmp_path / "file"
    path.write_bytes(content)
    with path.open("rb") as file:
        whole = digest(file.fileno(), size)
    for step in (1000, 65_536, 262_144):
        pieces = [(at, content[at : at + step]) for at in range(0, size, step)]
        assert digest_of_pieces(iter(pieces), size) == whole
        held = [(at, piece) for at, piece in pieces if any(piece)]
        assert digest_of_pieces(iter(held), size) == whole
