"""How a tree differs from its base and from others: all of it, nothing else, and nothing left."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from carrel.domain.checkpoints import START
from carrel.domain.errors import (
    PathEscapes,
    PathInvalid,
    PathNotFound,
    StateConflict,
    TreeDamaged,
    TreeNotFound,
)
from carrel.domain.review import Diff, Differ, DiffFile, DiffTree, TreeDiffQuery
from carrel.domain.trees import DIRECT, Base, ChangeKind, Tree, TreeRequest
from carrel.review.diff import TreeDiffs
from carrel.trees.drivers.direct import DirectDriver
from carrel.trees.review import TreeReviews
from tests.accounts import Account
from tests.conformance.tree_rig import Rig, run_git
from tests.machine import running_in
from tests.sampling import EXHAUSTIVE, examples
from tests.trees.again import run_again
from tests.trees.test_properties import EACH_KIND, PROFILE, Step, do_all, steps
from tests.trees.test_states import fork, keep, kept_of, small_base, small_project

__all__ = ["small_base", "small_project"]

GIT_S = 60.0
"""For a git that takes milliseconds, on a loaded machine."""
MOST = 1000


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Path]:
    """Nothing is ever left in it."""
    folder = tmp_path / "work"
    yield folder
    assert list(folder.glob("*")) == []


class Desk:
    """Compares trees of one rig."""

    def __init__(self, rig: Rig, work: Path) -> None:
        self.rig = rig
        self.differ: Differ = TreeDiffs(TreeReviews(rig.bases, lambda: b"*.swp\n"), work)

    def query(self, after: Tree, before: Tree | None = None, *paths: str) -> TreeDiffQuery:
        sides = [None if one is None else DiffTree(self.rig.driver, one) for one in (after, before)]
        assert sides[0] is not None
        return TreeDiffQuery(sides[0], sides[1], paths)

    def text(self, after: Tree, before: Tree | None = None, *paths: str) -> str:
        pieces = self.differ.text(self.query(after, before, *paths))
        return b"".join(pieces).decode("utf-8", "surrogateescape")

    def files(self, after: Tree, before: Tree | None = None, *paths: str) -> Diff:
        return self.differ.files(self.query(after, before, *paths), MOST)


@pytest.fixture
def desk(copy_rig: Rig, work: Path) -> Desk:
    return Desk(copy_rig, work)


@pytest.fixture
def any_desk(any_rig: Rig, work: Path) -> Desk:
    return Desk(any_rig, work)


def git(folder: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", *words], cwd=folder, capture_output=True, text=True, timeout=GIT_S, check=True
    )
    return done.stdout


def lines(first: int, last: int) -> str:
    return "".join(f"line {number}\n" for number in range(first, last))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """With something committed, something not, and something ignored."""
    folder = tmp_path / "project"
    (folder / "src").mkdir(parents=True)
    for name in ("edited", "gone", "reverted", "program", "both"):
        (folder / name).write_text(lines(0, 9))
    (folder / "src" / "moved").write_text(lines(0, 60))
    (folder / "image").write_bytes(b"\0one")
    (folder / "link").symlink_to("edited")
    (folder / "was-file").write_text("x\n")
    (folder / ".gitignore").write_text("*.log\nout/\n")
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "first")
    (folder / "both").write_text(lines(0, 9) + "the person's own\n")
    (folder / "personal").write_text("not committed\n")
    (folder / "old.log").write_text("old\n")
    return folder


ODD = ('quo"ted', "new\nline", "ta\tb", "back\\slash", os.fsdecode(b"not-\xff"), "-x", ":(glob)*")


def play() -> None:
    """What an agent does."""
    Path("edited").write_text(lines(0, 4) + "changed\n" + lines(5, 9))
    Path("both").write_text(Path("both").read_text() + "the agent's\n")
    os.remove("gone")
    os.makedirs("lib/deep")
    os.rename("src/moved", "lib/deep/named")
    with open("lib/deep/named", "a") as file:
        file.write("and more\n")
    os.chmod("program", 0o755)
    Path("image").write_bytes(b"\0two")
    os.remove("link")
    os.symlink("/etc/passwd", "link")
    Path("reverted").write_text("other\n")
    Path("reverted").write_text(lines(0, 9))
    os.remove("was-file")
    os.mkdir("was-file")
    Path("was-file/inside").write_text("y\n")
    for name in ODD:
        Path(name).write_text("odd\n")
    Path("new.log").write_text("noise\n")
    Path("old.log").write_text("older\n")
    Path(".x.swp").write_text("the editor's\n")
    os.mkdir("out")
    Path("out/made").write_text("made\n")
    run_git("init", "-q", "nested")
    Path("nested/code").write_text("nested\n")
    Path("staged").write_text("staged\n")
    run_git("add", "staged")
    Path("done").write_text("done\n")
    run_git("add", "done")
    run_git("commit", "-qm", "the agent's own", "done")


CHANGED = {
    *("edited", "both", "gone", "lib/deep/named", "program", "image", "link", "was-file"),
    *("was-file/inside", "nested/code", "staged", "done", *ODD),
}


def test_what_an_agent_did(any_desk: Desk, project: Path, tmp_path: Path) -> None:
    tree = any_desk.rig.tree(any_desk.rig.base_of(project))
    assert any_desk.text(tree) == "" and any_desk.files(tree) == Diff()
    any_desk.rig.act(tree, play)
    text, found = any_desk.text(tree), any_desk.files(tree)
    by_path = {file.path: file for file in found.files}
    assert set(by_path) == CHANGED and found.total == len(CHANGED) and found.hidden == 4
    assert [file.path for file in found.files] == sorted(CHANGED, key=os.fsencode)
    check_files(by_path)
    (commit,) = found.commits
    assert commit.subject == "the agent's own"
    assert text.startswith(f"commit {commit.id[:12]} the agent's own\ndiff --git ")
    assert "the person's own\n+the agent's\n" in text and "+the person's" not in text
    assert "rename from src/moved\nrename to lib/deep/named\n" in text
    assert "Binary files a/image and b/image differ\n" in text
    assert "[core]" not in text and "root:" not in text and "noise" not in text
    applied(project, text, tmp_path / "applied")
    for name in ("edited", "both", "lib/deep/named", "was-file/inside", "nested/code", *ODD):
        made = (tmp_path / "applied" / name).read_bytes()
        assert made == any_desk.rig.act(tree, lambda name=name: Path(name).read_bytes())  # type: ignore[misc]
    assert (tmp_path / "applied" / "program").stat().st_mode & 0o100
    assert not (tmp_path / "applied" / "gone").exists()


def check_files(by_path: dict[str, DiffFile]) -> None:
    plain, program, link = "100644", "100755", "120000"
    assert by_path["edited"] == DiffFile("edited", ChangeKind.MODIFIED, None, plain, plain, 1, 1)
    assert by_path["gone"] == DiffFile("gone", ChangeKind.DELETED, None, plain, None, 0, 9)
    assert by_path["program"] == DiffFile("program", ChangeKind.MODE, None, plain, program, 0, 0)
    assert by_path["link"] == DiffFile("link", ChangeKind.MODIFIED, None, link, link, 1, 1)
    assert by_path["image"] == DiffFile(
        "image", ChangeKind.MODIFIED, None, plain, plain, binary=True
    )
    moved = by_path["lib/deep/named"]
    assert (moved.kind, moved.old_path, moved.added) == (ChangeKind.RENAMED, "src/moved", 1)
    new = {name for name, file in by_path.items() if file.untracked}
    assert new == {"lib/deep/named", "was-file/inside", "nested/code", *ODD}
    assert not any(file.ignored for file in by_path.values())


def applied(project: Path, text: str, target: Path) -> None:
    shutil.copytree(project, target, symlinks=True)
    parts = ["diff --git " + part for part in text.split("diff --git ")[1:]]
    patch = "".join(part for part in parts if "Binary files" not in part)
    subprocess.run(
        ["git", "apply", "--unsafe-paths", "-"],
        input=patch.encode("utf-8", "surrogateescape"),
        cwd=target,
        check=True,
        timeout=GIT_S,
    )


def test_ignored_files_are_told_apart(desk: Desk, project: Path) -> None:
    tree = desk.rig.tree(desk.rig.base_of(project))
    desk.rig.act(tree, play)
    plain = desk.query(tree)
    query = TreeDiffQuery(plain.after, ignored=True)
    found = desk.differ.files(query, MOST)
    ignored = {file.path for file in found.files if file.ignored}
    assert ignored == {"new.log", "old.log", "out/made", ".x.swp"} and found.hidden == 0
    assert not any(file.untracked for file in found.files if file.ignored)
    text = b"".join(desk.differ.text(query))
    assert b"+noise\n" in text and b"-old\n+older\n" in text
    others = TreeDiffQuery(DiffTree(desk.rig.driver, tree, personal=False))
    assert ".x.swp" in {file.path for file in desk.differ.files(others, MOST).files}


def test_only_some_paths(desk: Desk, project: Path) -> None:
    """Names, and never patterns."""
    tree = desk.rig.tree(desk.rig.base_of(project))
    desk.rig.act(tree, play)

    def names(*paths: str) -> list[str]:
        return [file.path for file in desk.files(tree, None, *paths).files]

    assert names("edited") == ["edited"] and names("./lib//deep/") == ["lib/deep/named"]
    assert names("lib", "gone") == ["gone", "lib/deep/named"]
    assert names("lib/../edited") == ["edited"]
    assert names(":(glob)*") == [":(glob)*"] and names("-x") == ["-x"]
    assert names("reverted") == [] and names(".git") == [] and len(names(".")) == len(CHANGED)
    assert names("was-file") == ["was-file", "was-file/inside"]
    for path, wanted in (
        *((one, PathNotFound) for one in ("*", "ed", "edited/x", "link/passwd")),
        *((one, PathEscapes) for one in ("..", "/etc", "lib/../../x")),
        *((one, PathInvalid) for one in ("", "x\0y")),
    ):
        with pytest.raises(wanted):
            names(path)


HOSTILE = """
[core]
\tfsmonitor = touch fired
\thooksPath = hooks
\tattributesFile = .gitattributes
\tworktree = /
[diff]
\texternal = touch fired
[diff "evil"]
\tcommand = touch fired
\ttextconv = touch fired
[filter "evil"]
\tclean = touch fired
\tsmudge = touch fired
\tprocess = touch fired
\trequired = true
"""


def test_what_a_hostile_repository_plants_never_runs(
    any_desk: Desk, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is anything read that it names outside of the tree."""
    fired = tmp_path / "fired"
    hostile = HOSTILE.replace("fired", str(fired))

    def plant() -> None:
        Path(".git/config").write_text(hostile)
        os.makedirs(".git/hooks", exist_ok=True)
        Path(".git/hooks/post-index-change").write_text(f"#!/bin/sh\ntouch {fired}\n")
        os.chmod(".git/hooks/post-index-change", 0o755)
        Path(".git/objects/info").mkdir(exist_ok=True)
        Path(".git/objects/info/alternates").write_text("/etc\n")
        Path(".gitattributes").write_text("* filter=evil diff=evil text eol=crlf\n*.py -diff\n")
        Path("a.py").write_text("1\n")
        Path("edited").write_text("other\n")
        os.symlink("/etc", "src/etc")
        os.symlink("../..", ".gitmodules")
        os.mkdir(".GIT")
        Path(".GIT/config").write_text("hidden\n")
        Path("src/.Git").write_text("hidden\n")

    # Ours either, should somebody have set it.
    monkeypatch.setenv("GIT_EXTERNAL_DIFF", f"touch {fired}")
    tree = any_desk.rig.tree(any_desk.rig.base_of(project))
    any_desk.rig.act(tree, plant)
    text, found = any_desk.text(tree), any_desk.files(tree)
    assert "+other\n" in text and "+/etc\n" in text and "root:" not in text
    assert text.count("+hidden\n") == 2, "nothing hides behind a name"
    assert {file.path for file in found.files} == {
        *(".gitattributes", "a.py", "edited", "src/etc"),
        *(".gitmodules", ".GIT/config", "src/.Git"),
    }
    assert not fired.exists()


def test_without_git(any_desk: Desk, tmp_path: Path) -> None:
    folder = tmp_path / "plain"
    folder.mkdir()
    (folder / "a").write_text(lines(0, 30))
    tree = any_desk.rig.tree(any_desk.rig.base_of(folder))

    def act() -> None:
        os.rename("a", "b")
        Path("c").write_text("c\n")

    any_desk.rig.act(tree, act)
    found = any_desk.files(tree)
    assert [(one.path, one.kind, one.old_path) for one in found.files] == [
        ("b", ChangeKind.RENAMED, "a"),
        ("c", ChangeKind.ADDED, None),
    ]
    assert (found.added, found.deleted, found.commits) == (1, 0, ())
    assert "similarity index 100%" in any_desk.text(tree)


# Two trees


def first() -> None:
    Path("edited").write_text("one\n")
    Path("same").write_text("same\n")
    Path("mine").write_text("mine\n")
    Path("a.log").write_text("1\n")
    Path("same.log").write_text("same\n")


def second() -> None:
    Path("edited").write_text("two\n")
    Path("same").write_text("same\n")
    os.remove("gone")
    Path("a.log").write_text("2\n")
    Path("same.log").write_text("same\n")


def test_two_trees_of_one_base(any_desk: Desk, project: Path) -> None:
    base = any_desk.rig.base_of(project)
    one, other = any_desk.rig.tree(base), any_desk.rig.tree(base)
    any_desk.rig.act(one, first)
    any_desk.rig.act(other, second)
    found = any_desk.files(other, one)
    assert {file.path: str(file.kind) for file in found.files} == {
        "edited": "modified",
        "gone": "deleted",
        "mine": "deleted",
    }
    assert found.hidden == 1 and "-one\n+two\n" in any_desk.text(other, one)
    assert [file.path for file in any_desk.files(one, other, "mine").files] == ["mine"]
    assert any_desk.files(one, one).total == 0


def test_two_trees_of_different_bases(any_desk: Desk, project: Path) -> None:
    one = any_desk.rig.tree(any_desk.rig.base_of(project))
    (project / "edited").write_text("moved on\n")
    (project / "later").write_text("later\n")
    other = any_desk.rig.tree(any_desk.rig.base_of(project))
    assert one.base_id != other.base_id
    found = any_desk.files(other, one)
    assert [(file.path, str(file.kind)) for file in found.files] == [
        ("edited", "modified"),
        ("later", "added"),
    ]
    assert found.commits == ()


def test_a_tree_and_a_folder_of_the_host(desk: Desk, project: Path) -> None:
    """What stays where it is has no base, and is compared as it is."""
    tree = desk.rig.tree(base := desk.rig.base_of(project))
    desk.rig.act(tree, first)
    driver = DirectDriver()
    asked = desk.rig.request(base)
    request = TreeRequest(asked.tree_id, asked.base, asked.folder, asked.owner, project)
    place = driver.create(request)
    assert place.driver == DIRECT
    try:
        sides = DiffTree(desk.rig.driver, tree), DiffTree(driver, place)
        found = desk.differ.files(TreeDiffQuery(*sides), MOST)
        assert {file.path for file in found.files} == {"edited", "mine", "same"}
    finally:
        driver.drop(place)


# Many files, slow readers, trees that change


def many(count: int) -> Callable[[], None]:
    """Files of 120 lines; one with many names, which takes less time to make."""

    def act() -> None:
        for number in range(count):
            folder = f"d{number // 500:02}"
            if not number % 500:
                os.mkdir(folder)
                Path(f"{folder}/f{number}").write_text("a line that is new\n" * 120)
            else:
                os.link(f"{folder}/f{number - number % 500}", f"{folder}/f{number}")

    return act


def test_ten_thousand_files_flow(desk: Desk) -> None:
    """Bounded in memory; and the tree may go while somebody still reads."""
    tree = desk.rig.tree(desk.rig.base_of(None))
    desk.rig.act(tree, many(10_000))
    desk.text(desk.rig.tree(desk.rig.base_of(None)))
    tracemalloc.start()
    try:
        pieces = desk.differ.text(desk.query(tree))
        size = len(next(pieces))
        desk.rig.driver.drop(tree)
        heads = 0
        for piece in pieces:
            size += len(piece)
            heads += piece.count(b"\n+++ b/")
        assert tracemalloc.get_traced_memory()[1] < 6 << 20 < size
    finally:
        tracemalloc.stop()
    # Some are cut in two by the pieces.
    assert 9000 < heads <= 10_000


def test_no_more_than_so_many_are_listed(desk: Desk) -> None:
    tree = desk.rig.tree(desk.rig.base_of(None))
    desk.rig.act(tree, many(600))
    found = desk.differ.files(desk.query(tree), 10)
    assert len(found.files) == 10 and (found.total, found.added) == (600, 600 * 120)
    assert found.files[0] == DiffFile(
        "d00/f0", ChangeKind.ADDED, None, None, "100644", 120, 0, untracked=True
    )


def test_who_goes_leaves_nothing(desk: Desk, work: Path) -> None:
    tree = desk.rig.tree(desk.rig.base_of(None))
    desk.rig.act(tree, many(2000))
    pieces = desk.differ.text(desk.query(tree))
    assert next(pieces)
    (folder,) = work.iterdir()
    pieces.close()
    assert not folder.exists() and running_in(folder) == []
    seen = []

    def check() -> None:
        seen.append(1)
        if len(seen) > 100:
            raise StateConflict("It is being stopped.")

    ended = TreeDiffQuery(desk.query(tree).after, check=check)
    with pytest.raises(StateConflict):
        next(desk.differ.text(ended))
    assert list(work.iterdir()) == []
    desk.rig.driver.drop(tree)
    with pytest.raises(TreeNotFound):
        desk.text(tree)


def test_a_tree_that_changes_while_it_is_read(desk: Desk, project: Path) -> None:
    """Each file is told as it was at one moment, or not at all."""
    tree = desk.rig.tree(desk.rig.base_of(project))
    over = threading.Event()

    def churn() -> None:
        number = 0
        while not over.is_set():
            number += 1
            place = tree.path / f"file{number % 50}"
            with contextlib.suppress(OSError):
                if number % 3:
                    place.unlink(missing_ok=True)
                    place.write_text("whole\n" if number % 2 else "")
                elif place.is_dir():
                    place.rmdir()
                else:
                    place.unlink()
                    place.mkdir()
            for name in ("edited", "both"):
                (tree.path / f"{name}.new").write_text(lines(number, number + 9))
                os.replace(tree.path / f"{name}.new", tree.path / name)

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(10):
            text = desk.text(tree)
            assert "-line 0\n" in text or "edited" not in text
            assert desk.files(tree).total >= 0
    finally:
        over.set()
        thread.join()
    assert {"edited", "both"} <= {file.path for file in desk.files(tree).files}


@pytest.mark.skipif(os.geteuid() != 0, reason="is already an ordinary user's run")
def test_as_an_ordinary_user(ordinary_user: Account, data: Path) -> None:
    run_again(__file__, ordinary_user, data, "-k", "agent or hostile or two_trees")


# Since a state that was kept


def same_since(desk: Desk, tree: Tree, name: str, *paths: str) -> str:
    """What has changed since: the same as between a tree that begins with the state, and this."""
    forked = fork(desk.rig, tree, name)
    asked = [desk.query(tree, forked, *paths), desk.query(tree, None, *paths)]
    asked[1] = replace(asked[1], since=name)
    either, since = (
        b"".join(desk.differ.text(replace(one, ignored=True))).decode("utf-8", "surrogateescape")
        for one in asked
    )
    assert since == either
    return since


def more() -> None:
    Path("edited").write_text("of today\n")
    Path("gone").write_text("back\n")
    os.rename("lib", "library")
    os.unlink("was-file/inside")
    os.rmdir("was-file")
    Path("was-file").write_text("x\n")
    os.chmod("program", 0o644)
    os.remove("link")
    os.symlink("gone", "link")
    Path("new.log").write_text("more noise\n")


def test_since_a_state(any_desk: Desk, project: Path) -> None:
    rig = any_desk.rig
    tree = rig.tree(rig.base_of(project))
    rig.act(tree, play)
    keep(rig, tree, "kept")
    assert same_since(any_desk, tree, "kept") == ""
    rig.act(tree, more)
    text = same_since(any_desk, tree, "kept")
    assert "+of today" in text and "-changed" in text and "the agent's own" not in text
    assert same_since(any_desk, tree, "kept", "gone", "library").count("diff --git") == 2
    with pytest.raises(PathNotFound):
        same_since(any_desk, tree, "kept", "nested/none")
    query = replace(any_desk.query(tree, None), since="kept")
    found = any_desk.differ.files(query, MOST)
    kinds = {one.path: one.kind for one in found.files}
    assert kinds["library/deep/named"] is ChangeKind.RENAMED and kinds["program"] is ChangeKind.MODE
    assert found.hidden == 1 and found.commits == () and "new.log" not in kinds
    # A folder that the state does not have any more, and that is there again.
    rig.act(tree, lambda: shutil.rmtree("src"))
    keep(rig, tree, "without")
    kept_of(rig, tree).put_back(START)
    text = same_since(any_desk, tree, "without", "src")
    assert "rename" not in text and "+line 59\n" in text
    (tree.folder / "checkpoints" / "without").unlink()
    with pytest.raises(TreeDamaged):
        same_since(any_desk, tree, "without")


@pytest.mark.timeout(1800 if EXHAUSTIVE else 120)
@settings(PROFILE, max_examples=examples(3, exhaustive=300))
@given(first=st.lists(steps, max_size=8), then=st.lists(steps, min_size=1, max_size=8))
@example(first=EACH_KIND, then=EACH_KIND[::-1])
def test_since_any_state(
    any_desk: Desk, small_base: Base, first: list[Step], then: list[Step]
) -> None:
    rig = any_desk.rig
    tree = rig.tree(small_base)
    rig.act(tree, functools.partial(do_all, first))
    keep(rig, tree, "kept")
    rig.act(tree, functools.partial(do_all, then))
    same_since(any_desk, tree, "kept")
    for one in (tree, rig.trees[-1]):
        rig.driver.drop(one)
        rig.trees.remove(one)
