"""Files as young as their index: in a base they are looked into once, not in every tree."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from carrel.domain.projects import BaseRequest, GitReach, Project, ProjectKind
from carrel.domain.trees import Base
from carrel.linux.ids import store_gid, store_uid
from carrel.trees.bases import indexes, publication
from carrel.trees.bases.store import BaseStore
from carrel.trees.git import checkout
from carrel.trees.git.index import IndexEntry, IndexStat, entries, restat
from carrel.trees.git.mirror import Mirror
from tests.sampling import examples
from tests.trees.bases.git_trees import GitTree, freeze, git_store, git_tree, run
from tests.trees.bases.helpers import request, write
from tests.trees.git.repositories import commit, git, make_repository

THEN_S = 1_600_000_000
"""The second in which the files and the index of a project were written."""
MINIMAL = ("config", "core.checkStat", "minimal")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "workspace"


@pytest.fixture
def store(data: Path) -> BaseStore:
    return git_store(data)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "repository")


def date(path: Path, second: int = THEN_S) -> None:
    os.utime(path, (second, second), follow_symlinks=False)


def make_racy(repository: Path, second: int = THEN_S, index: str = ".git/index") -> None:
    """All tracked files and the index are of one second."""
    for name in git(repository, "ls-files", "-z").split("\0")[:-1]:
        if not (repository / name).is_dir():
            date(repository / name, second)
    git(repository, "update-index", "-q", "--refresh", check=False)
    date(repository / index, second)


def change_unseen(repository: Path, name: str, content: str, second: int = THEN_S) -> None:
    """Other bytes, the same size, and an index that says the same as `lstat`: what is left
    when a file is written twice within one step of the clock."""
    assert len(content) == (repository / name).stat().st_size
    (repository / name).write_text(content)
    date(repository / name, second)
    index = repository / ".git/index"
    restat(
        index, lambda path, _old: IndexStat.of(os.lstat(repository / os.fsdecode(path))), racy=True
    )
    date(index, second)


def recorded(base: Base, index: str = ".git/index") -> dict[bytes, IndexEntry]:
    paths = [layer / index for layer in base.layers]
    return {entry.path: entry for entry in entries(next(path for path in paths if path.exists()))}


def check_quiet(tree: GitTree) -> None:
    """Git says that nothing changed, and read no file to say it."""
    assert tree.status() == ""
    assert tree.reads() == 0
    assert not tree.has_own_index


@pytest.mark.parametrize("version", ["2", "4"])
@pytest.mark.parametrize("hashed", ["sha1", "sha256"])
def test_young_files_are_not_read_in_trees(
    store: BaseStore, tmp_path: Path, place: Path, version: str, hashed: str
) -> None:
    repository = make_repository(tmp_path / "new", f"--object-format={hashed}")
    (repository / "link").symlink_to("a.txt")
    write(repository / "big", bytes(3 << 20))
    write(repository / "empty", "")
    commit(repository, "more")
    git(repository, "update-index", f"--index-version={version}")
    make_racy(repository)
    with git_tree(store.build(request(repository)), place) as tree:
        check_quiet(tree)
        # A later change shows, whatever git compares.
        (tree.view / "a.txt").write_text("TWO\n")
        assert tree.status(locks=False) == tree.loose_status() == " M a.txt\n"


def test_that_git_would_read_them(store: BaseStore, repository: Path, place: Path) -> None:
    """That the test above can fail."""
    make_racy(repository)
    base = store.build(request(repository))
    date(base.layers[0] / ".git/index")
    with git_tree(base, place) as tree:
        assert tree.reads() == 2


@pytest.mark.parametrize("minimal", [False, True])
@pytest.mark.parametrize("seen", [False, True])
def test_a_young_file_that_changed(
    store: BaseStore, repository: Path, place: Path, minimal: bool, seen: bool
) -> None:
    if minimal:
        git(repository, *MINIMAL)
    make_racy(repository)
    if seen:
        write(repository / "a.txt", "TWO\n")
        date(repository / "a.txt")
    else:
        change_unseen(repository, "a.txt", "TWO\n")
    base = store.build(request(repository))
    assert recorded(base)[b"a.txt"].stat.size == 0
    assert recorded(base)[b"src/b.txt"].stat.size == 4
    with git_tree(base, place) as tree:
        assert tree.status(locks=False) == tree.loose_status() == " M a.txt\n"
        assert tree.reads() == 1


def test_a_young_file_that_a_filter_made(store: BaseStore, repository: Path, place: Path) -> None:
    git(repository, "config", "core.autocrlf", "true")
    write(repository / "a.txt", b"dos\r\n")
    commit(repository, "lines")
    make_racy(repository)
    base = store.build(request(repository))
    assert recorded(base)[b"a.txt"].stat.size == 0
    with git_tree(base, place) as tree:
        assert tree.reads() == 1
        assert tree.status() == tree.loose_status() == ""


def test_files_younger_than_the_index(store: BaseStore, repository: Path, place: Path) -> None:
    """As a clock that was wrong leaves them: nothing is known of such a time."""
    make_racy(repository)
    date(repository / "a.txt", THEN_S + 10)
    git(repository, "update-index", "-q", "--refresh")
    date(repository / ".git/index", THEN_S)
    base = store.build(request(repository))
    assert recorded(base)[b"a.txt"].stat.size == 0
    with git_tree(base, place) as tree:
        assert tree.reads() == 1
        assert tree.status(locks=False) == ""


@pytest.mark.parametrize("changed", [False, True])
def test_files_of_the_future_stay_doubted(
    store: BaseStore, repository: Path, place: Path, changed: bool
) -> None:
    """The index must not be dated ahead of the clock, so they cannot be settled."""
    future = 4_000_000_000
    make_racy(repository, future)
    if changed:
        change_unseen(repository, "a.txt", "TWO\n", future)
    base = store.build(request(repository))
    assert recorded(base)[b"a.txt"].stat.size == 4
    assert (base.layers[0] / ".git/index").stat().st_mtime == future
    with git_tree(base, place) as tree:
        expected = " M a.txt\n" if changed else ""
        assert tree.status(locks=False) == tree.loose_status() == expected


def test_an_index_without_young_files_keeps_its_time(
    store: BaseStore, repository: Path, place: Path
) -> None:
    make_racy(repository)
    date(repository / ".git/index", THEN_S + 1)
    base = store.build(request(repository))
    assert (base.layers[0] / ".git/index").stat().st_mtime == THEN_S + 1
    with git_tree(base, place) as tree:
        check_quiet(tree)


def test_the_same_base_is_found_again(store: BaseStore, repository: Path, data: Path) -> None:
    make_racy(repository)
    first = store.build(request(repository))
    assert (first.layers[0] / ".git/index").stat().st_mtime > THEN_S
    assert store.build(request(repository)).base_id == first.base_id
    # Also by who looks at everything anew.
    for head in (data / "bases/.heads").iterdir():
        head.unlink()
    assert store.build(request(repository)).base_id == first.base_id
    write(repository / "other", "x")
    assert len(store.build(request(repository)).layers) == 2
    (repository / "other").unlink()
    assert store.build(request(repository)).base_id == first.base_id


def test_a_submodule_and_a_linked_worktree(
    store: BaseStore, repository: Path, tmp_path: Path, place: Path
) -> None:
    inner = make_repository(tmp_path / "inner")
    git(repository, "submodule", "add", "-q", str(inner), "lib/inner")
    commit(repository, "with a submodule")
    module = ".git/modules/lib/inner/index"
    for name in ("a.txt", "src/b.txt"):
        date(repository / "lib/inner" / name)
    git(repository / "lib/inner", "update-index", "-q", "--refresh")
    date(repository / module)
    make_racy(repository)
    base = store.build(request(repository))
    with git_tree(base, place) as tree:
        check_quiet(tree)
        assert tree.git("-C", "lib/inner", "status", "--porcelain") == ""
        assert not (tree.upper / module).exists()

    work = tmp_path / "work"
    git(repository, "worktree", "add", "-q", "-b", "feature", str(work))
    own = Path(git(work, "rev-parse", "--git-path", "index").strip())
    make_racy(work, index=str(own))
    with git_tree(store.build(request(work, git_reach=GitReach.AGREED)), place) as tree:
        check_quiet(tree)


@pytest.mark.parametrize("minimal", [False, True])
def test_a_file_that_changed_in_the_same_second_after_the_base(
    store: BaseStore, repository: Path, place: Path, minimal: bool
) -> None:
    """The index did not change, so that of the last base would count; but under its later
    time git would not doubt the file any more."""
    if minimal:
        git(repository, *MINIMAL)
    for number in range(20):
        write(repository / f"files/{number}", "x")
    commit(repository, "more")
    make_racy(repository)
    store.build(request(repository))
    write(repository / "a.txt", "TWO\n")
    date(repository / "a.txt")
    assert git(repository, "--no-optional-locks", "status", "--porcelain") == " M a.txt\n"
    second = store.build(request(repository))
    with git_tree(second, place) as tree:
        assert tree.status(locks=False) == tree.loose_status() == " M a.txt\n"
        assert tree.reads() == 1
    # It is as it was, and so is its base.
    write(repository / "b", "x")
    third = store.build(request(repository))
    with git_tree(third, place) as tree:
        assert tree.status(locks=False) == tree.loose_status() == " M a.txt\n?? b\n"


def test_an_index_of_the_same_second_by_difference(
    store: BaseStore, repository: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was settled last time is racy again, though its entry did not change."""
    monkeypatch.setattr(indexes, "_WORTH_KEEPING", 0)
    make_racy(repository)
    store.build(request(repository))
    write(repository / "src/b.txt", "BEE\n")
    date(repository / "src/b.txt")
    git(repository, "add", "src/b.txt")
    write(repository / "a.txt", "TWO\n")
    date(repository / "a.txt")
    date(repository / ".git/index")
    with git_tree(store.build(request(repository)), place) as tree:
        assert tree.reads() == 1
        assert tree.status(locks=False) == tree.loose_status() == " M a.txt\nM  src/b.txt\n"


def test_what_was_left_for_git_is_settled_by_an_older_file(
    store: BaseStore, repository: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once git in the project believes a file that cannot be compared here, so it does in
    trees."""
    monkeypatch.setattr(indexes, "_WORTH_KEEPING", 0)
    git(repository, "config", "core.autocrlf", "true")
    write(repository / "a.txt", b"dos\r\n")
    commit(repository, "lines")
    make_racy(repository)
    with git_tree(store.build(request(repository)), place) as tree:
        assert tree.reads() == 1
    write(repository / "src/b.txt", "BEE\n")
    git(repository, "add", "src/b.txt")
    date(repository / "src/b.txt", THEN_S + 1)
    git(repository, "update-index", "-q", "--refresh")
    date(repository / ".git/index", THEN_S + 2)
    with git_tree(store.build(request(repository)), place) as tree:
        assert tree.reads() == 0
        assert tree.status() == "M  src/b.txt\n"
        assert not tree.has_own_index


def test_a_commit_of_this_moment(
    store: BaseStore, repository: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a repository at a ref, whose files are dated by us. A checkout may take longer
    than the commit is old."""
    long_ago = {"GIT_COMMITTER_DATE": f"{THEN_S} +0000"}
    git(repository, "commit", "-q", "--amend", "--no-edit", env=long_ago)
    wanted = BaseRequest(Project(ProjectKind.GIT, str(repository)))
    with git_tree(store.build(wanted), place) as tree:
        check_quiet(tree)
    check_out = checkout._check_out

    def slowly(mirror: Mirror, into: Path, paths: Iterable[bytes]) -> None:
        check_out(mirror, into, paths)
        earlier = time.time() - 100
        os.utime(into / ".git/index", (earlier, earlier))

    monkeypatch.setattr(checkout, "_check_out", slowly)
    write(repository / "a.txt", "new\n")
    commit(repository, "third")
    second = store.build(wanted)
    assert all(entry.stat.size for entry in recorded(second).values())
    with git_tree(second, place) as tree:
        check_quiet(tree)


def test_a_cache_of_another_place_is_left_out(
    store: BaseStore, repository: Path, place: Path
) -> None:
    """Git would not use it, and say so with every command."""
    git(repository, "config", "index.threads", "2")
    git(repository, "update-index", "--untracked-cache")
    git(repository, "status")
    assert b"UNTR" in (repository / ".git/index").read_bytes()
    with git_tree(store.build(request(repository)), place) as tree:
        assert b"UNTR" not in (tree.view / ".git/index").read_bytes()
        assert run(tree.view, ("status",)).stderr == ""
        tree.git("fsck", "--strict")


def test_a_frozen_tree_with_young_files(store: BaseStore, repository: Path, place: Path) -> None:
    make_racy(repository)
    base = store.build(request(repository))
    with git_tree(base, place) as tree:
        new = write(tree.view / "new", "x")
        os.chown(new, store_uid(), store_gid())  # as whom a sandbox's user would write it
        date(new)
        tree.git("add", "new")
        tree.git("commit", "-q", "-m", "more")
        date(tree.view / ".git/index")
        frozen = freeze(store, base, tree)
    with git_tree(frozen, place) as tree:
        check_quiet(tree)


@pytest.mark.parametrize("seed", range(examples(1, exhaustive=8)))
@pytest.mark.parametrize("by_difference", [False, True])
def test_whatever_happens_in_whichever_second(
    store: BaseStore,
    repository: Path,
    place: Path,
    seed: int,
    by_difference: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A project whose clock stands still most of the time: git in a tree says what git says
    in the project."""
    monkeypatch.setattr(indexes, "_WORTH_KEEPING", 0 if by_difference else 1 << 30)
    monkeypatch.setattr(publication, "MAX_LAYERS", 4)
    chance = random.Random(seed)
    for number in range(12):
        write(repository / f"files/{number}", "0")
    commit(repository, "more")
    make_racy(repository)
    now = THEN_S
    for _ in range(10):
        for _ in range(chance.randrange(4)):
            now += chance.randrange(4) == 0
            _work(repository, chance, now)
        expected = git(repository, "--no-optional-locks", "status", "--porcelain")
        with git_tree(store.build(request(repository)), place) as tree:
            assert tree.loose_status() == expected
            assert tree.status() == expected


def _work(repository: Path, chance: random.Random, now: int) -> None:
    """One step of somebody who works in a project."""
    name = f"files/{chance.randrange(12)}"
    index = repository / ".git/index"
    before = index.stat().st_mtime_ns
    match chance.choice(("write", "write", "write", "add", "refresh", "commit", "remove")):
        case "write":
            write(repository / name, str(chance.randrange(3)))
            date(repository / name, now)
        case "add":
            git(repository, "add", "-A", "files")
        case "refresh":
            git(repository, "update-index", "-q", "--refresh", check=False)
        case "commit":
            git(repository, "commit", "-q", "--allow-empty", "-m", "x", "-a")
        case "remove":
            (repository / name).unlink(missing_ok=True)
    if index.stat().st_mtime_ns != before:
        date(index, now)
