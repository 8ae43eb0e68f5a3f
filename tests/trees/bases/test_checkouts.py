"""Bases of git checkouts and of repositories at a ref."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from carrel.domain.errors import GitFailed, ProjectTooLarge, RefNotFound
from carrel.domain.projects import BaseRequest, GitReach, Project, ProjectKind
from carrel.domain.trees import Base
from carrel.trees.bases import indexes
from carrel.trees.bases.store import SANDBOX_OWNER, BaseStore
from carrel.trees.git.index import entries
from tests.sampling import beyond
from tests.trees.bases.helpers import left_in_staging, mounted, picture, request, shown, write
from tests.trees.git.repositories import commit, git, make_repository

COPY_TIMEOUT_S = 30.0


@contextmanager
def used(base: Base, tmp_path: Path) -> Iterator[Path]:
    """A writable copy of a base that belongs to us, as a tree would."""
    target = tmp_path / f"copy-{base.base_id}"
    with mounted(base) as view:
        subprocess.run(["cp", "-a", view, target], check=True, timeout=COPY_TIMEOUT_S)
    subprocess.run(["chown", "-R", "0:0", target], check=True, timeout=COPY_TIMEOUT_S)
    yield target


def at(repository: Path | str, ref: str | None = None, **options: object) -> BaseRequest:
    project = Project(ProjectKind.GIT, str(repository), ref)
    return BaseRequest(project, **options)  # type: ignore[arg-type]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "repository")


def test_a_dirty_checkout_is_copied_as_it_is(
    store: BaseStore, repository: Path, tmp_path: Path
) -> None:
    write(repository / ".gitignore", "ignored\n")
    write(repository / "ignored", "x")
    write(repository / "untracked", "x")
    write(repository / "a.txt", "modified")
    write(repository / "staged", "x")
    git(repository, "add", "staged")
    expected = git(repository, "status", "--porcelain", "--ignored")
    base = store.build(request(repository))
    assert base.has_git
    with used(base, tmp_path) as copy:
        assert git(copy, "status", "--porcelain", "--ignored") == expected
        commit(copy, "in the copy")
        git(copy, "gc", "-q")
        git(copy, "fsck", "--strict")
    assert git(repository, "status", "--porcelain", "--ignored") == expected


def believed(base: Base, index: str = ".git/index") -> dict[bytes, bool]:
    """Of which files git would believe that they are as the index says, in a sandbox."""
    found = {}
    with mounted(base) as view:
        for entry in entries(view / index):
            status = os.lstat(view / os.fsdecode(entry.path))
            found[entry.path] = (
                entry.stat.ino == status.st_ino & 0xFFFFFFFF
                and entry.stat.ctime_s == status.st_ctime_ns // 10**9
                and entry.stat.ctime_ns == status.st_ctime_ns % 10**9
                and entry.stat.mtime_ns == status.st_mtime_ns % 10**9
                and (entry.stat.uid, entry.stat.gid) == (SANDBOX_OWNER.uid, SANDBOX_OWNER.gid)
            )
    return found


def settle(repository: Path) -> None:
    """Files older than the index, so that git does not doubt them."""
    for path in repository.rglob("*"):
        # A ctime of the same second would not be refreshed, though it is another.
        old = path.stat().st_mtime == 1_700_000_000
        if path.is_file() and ".git" not in path.parts and not old:
            os.utime(path, (1_700_000_000, 1_700_000_000))
    git(repository, "update-index", "--refresh")


@pytest.mark.parametrize(
    ("version", "by_difference"), [("2", False), ("4", True), *beyond(("2", True), ("4", False))]
)
def test_git_believes_the_copy_what_it_believed_the_project(
    store: BaseStore,
    repository: Path,
    tmp_path: Path,
    by_difference: bool,
    version: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(indexes, "_WORTH_KEEPING", 0 if by_difference else 1 << 30)
    git(repository, "update-index", "--index-version", version)
    for number in range(30):
        write(repository / f"files/{number}", str(number))
    commit(repository, "more")
    settle(repository)
    write(repository / "a.txt", "modified")
    base = store.build(request(repository))
    assert believed(base) == {path: path != b"a.txt" for path in believed(base)}

    # A thin base with another index, and one that is squashed.
    for number in range(12):
        write(repository / f"files/{number}", f"changed {number}")
        commit(repository, f"commit {number}")
        settle(repository)
        base = store.build(request(repository))
        assert all(believed(base).values()), len(base.layers)
        assert shown(base).keys() == picture(repository).keys()
        if number in (3, 8):
            (repository / f"files/{number + 10}").unlink()
            write(repository / f"files/new{number}", "new")
    with used(base, tmp_path) as copy:
        # Git reads every file anew, since copies are others than those in the base.
        assert git(copy, "status", "--porcelain") == ""
        git(copy, "fsck", "--strict")


def test_an_index_that_did_not_change_is_not_written_again(
    store: BaseStore, repository: Path
) -> None:
    for number in range(30):
        write(repository / f"files/{number}", str(number))
    commit(repository, "more")
    settle(repository)
    first = store.build(request(repository))
    write(repository / "a.txt", "modified")
    second = store.build(request(repository))
    assert len(second.layers) == 2
    assert not (second.layers[0] / ".git/index").exists()
    assert believed(first)[b"src/b.txt"]
    assert believed(second)[b"src/b.txt"]
    assert not believed(second)[b"a.txt"]


def test_an_index_in_the_lowest_layer_is_right_after_squashing(
    store: BaseStore, repository: Path
) -> None:
    for number in range(120):
        write(repository / f"files/{number}", str(number))
    commit(repository, "more")
    settle(repository)
    depths = []
    for number in range(10):
        # The same bytes under another time: git has to look into it, here and there.
        os.utime(repository / f"files/{number}")
        base = store.build(request(repository))
        depths.append(len(base.layers))
        doubted = {path for path, yes in believed(base).items() if not yes}
        assert doubted == {b"files/%d" % done for done in range(number + 1)}
    assert depths == [1, 2, 3, 4, 5, 6, 7, 8, 2, 3]


def test_a_linked_worktree_stands_alone(store: BaseStore, repository: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    git(repository, "worktree", "add", "-q", "-b", "feature", str(work))
    write(work / "new", "x")
    base = store.build(request(work, git_reach=GitReach.AGREED))
    repository.rename(tmp_path / "hidden")
    with used(base, tmp_path) as copy:
        assert (copy / ".git").is_dir()
        assert git(copy, "branch", "--show-current").strip() == "feature"
        assert git(copy, "status", "--porcelain") == "?? new\n"
        commit(copy, "alone")
        git(copy, "fsck", "--strict")


def test_a_linked_worktree_is_followed(store: BaseStore, repository: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    for number in range(120):
        write(repository / f"files/{number}", str(number))
    commit(repository, "more")
    git(repository, "worktree", "add", "-q", "-b", "feature", str(work))
    first = store.build(request(work, git_reach=GitReach.AGREED))
    assert store.build(request(work, git_reach=GitReach.AGREED)).base_id == first.base_id
    write(work / "new", "x")
    made = commit(work, "in the worktree")
    second = store.build(request(work, git_reach=GitReach.AGREED))
    assert len(second.layers) == 2
    with used(second, tmp_path) as copy:
        assert git(copy, "rev-parse", "HEAD").strip() == made
        assert git(copy, "status", "--porcelain") == ""
    # It becomes a plain folder, and something else again.
    (work / ".git").rename(tmp_path / "pointer")
    third = store.build(request(work, git_reach=GitReach.AGREED))
    assert shown(third) == picture(work)
    assert not third.has_git
    (tmp_path / "pointer").rename(work / ".git")
    fourth = store.build(request(work, git_reach=GitReach.AGREED))
    assert shown(fourth).keys() == shown(second).keys()
    with used(fourth, tmp_path) as copy:
        assert git(copy, "status", "--porcelain") == ""
        git(copy, "fsck", "--strict")


def test_borrowed_objects_come_along(store: BaseStore, repository: Path, tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", "--shared", str(repository), str(clone))
    write(clone / "own", "x")
    commit(clone, "own")
    store.build(request(clone, git_reach=GitReach.AGREE))
    first = store.build(request(clone, git_reach=GitReach.AGREED))
    assert store.build(request(clone, git_reach=GitReach.AGREED)).base_id == first.base_id
    git(repository, "gc", "-q")
    second = store.build(request(clone, git_reach=GitReach.AGREED))
    repository.rename(tmp_path / "hidden")
    for base in (first, second):
        with used(base, tmp_path) as copy:
            git(copy, "fsck", "--strict", "--full")
            assert git(copy, "status", "--porcelain") == ""


def test_submodules_come_along(store: BaseStore, repository: Path, tmp_path: Path) -> None:
    inner = make_repository(tmp_path / "inner")
    git(repository, "submodule", "add", "-q", str(inner), "lib/inner")
    commit(repository, "with a submodule")
    settle(repository)
    base = store.build(request(repository))
    with used(base, tmp_path) as copy:
        assert git(copy, "status", "--porcelain") == ""
        assert git(copy / "lib/inner", "log", "--oneline").count("\n") == 2


def test_a_repository_at_a_ref(store: BaseStore, repository: Path, tmp_path: Path) -> None:
    git(repository, "tag", "old", "HEAD~1")
    base = store.build(at(repository, "old"))
    assert base.has_git
    assert (base.layers[0] / "a.txt").read_text() == "one\n"
    assert all(believed(base).values())
    with used(base, tmp_path) as copy:
        assert git(copy, "status", "--porcelain") == ""
        git(copy, "fsck", "--strict")
    assert store.build(at(repository, "old")).base_id == base.base_id


def test_a_later_commit_is_a_thin_layer(
    store: BaseStore, data: Path, repository: Path, tmp_path: Path
) -> None:
    for number in range(60):
        write(repository / f"files/{number}", str(number))
    commit(repository, "many")
    first = store.build(at(repository))
    write(repository / "files/7", "changed")
    (repository / "files/8").unlink()
    write(repository / "new/deep/file", "x")
    made = commit(repository, "few")
    second = store.build(at(repository))
    assert len(second.layers) == 2
    assert believed(second) == dict.fromkeys(believed(second), True)
    with used(second, tmp_path) as copy:
        assert git(copy, "rev-parse", "HEAD").strip() == made
        assert git(copy, "status", "--porcelain") == ""
        git(copy, "fsck", "--strict")
        assert not (copy / "files/8").exists()
    assert first.base_id != second.base_id
    assert left_in_staging(data) == []


def test_what_is_excluded_from_a_ref(store: BaseStore, repository: Path) -> None:
    base = store.build(at(repository, exclude=("src/",)))
    found = shown(base)
    assert b"src" not in found
    assert b"a.txt" in found
    write(repository / "src/more", "x")
    write(repository / "more", "x")
    commit(repository, "more")
    found = shown(store.build(at(repository, exclude=("src/",))))
    assert b"src/more" not in found
    assert b"more" in found


def test_bad_refs_and_repositories(
    store: BaseStore, data: Path, repository: Path, tmp_path: Path
) -> None:
    with pytest.raises(RefNotFound):
        store.build(at(repository, "nowhere"))
    with pytest.raises(GitFailed):
        store.build(at("https://localhost:1/nothing.git", git_timeout_s=20))
    with pytest.raises(ProjectTooLarge):
        store.build(at(repository, max_files=1))
    assert left_in_staging(data) == []
    assert store.list() == []
