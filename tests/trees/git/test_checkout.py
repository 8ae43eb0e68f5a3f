"""Checkouts from a mirror: whole, and as a difference that comes to the same."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from carrel.domain.errors import GitFailed
from carrel.domain.projects import Progress
from carrel.trees.git.checkout import Delta, export_commit, export_delta
from carrel.trees.git.mirror import Mirror, Resolved
from tests.accounts import PYTHON, Account, run_as
from tests.trees.git.repositories import (
    commit,
    digest,
    exercise,
    found_at,
    git,
    head,
    make_repository,
)

TIMEOUT_S = 60.0


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "origin")


@pytest.fixture
def mirror(origin: Path, tmp_path: Path) -> Mirror:
    return Mirror(tmp_path / "mirrors", found_at(str(origin)), timeout_s=TIMEOUT_S)


def exported(mirror: Mirror, ref: str | None, into: Path) -> tuple[Path, Resolved]:
    into.mkdir()
    resolved = mirror.resolve(ref)
    export_commit(mirror, resolved, into)
    return into, resolved


def apply(base: Path, delta: Delta, part: Path) -> None:
    """As a layer does: removals first, then what is new."""
    for path in delta.deleted:
        target = os.path.join(os.fsencode(base), path)
        if os.path.isdir(target) and not os.path.islink(target):
            os.rmdir(target)
        else:
            os.unlink(target)
    for path in delta.changed:
        source, target = (os.path.join(os.fsencode(top), path) for top in (part, base))
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if os.path.isdir(source):
            if os.path.isfile(target):
                os.unlink(target)
            os.mkdir(target)
            continue
        if os.path.isdir(target) and not os.path.islink(target):
            os.rmdir(target)
        os.replace(source, target)


def listing(folder: Path) -> dict[str, object]:
    """All but the git folder."""
    found: dict[str, object] = {}
    for parent, folders, files in os.walk(folder):
        if parent == str(folder):
            folders.remove(".git")
        for name in [*folders, *files]:
            path = Path(parent) / name
            key = str(path.relative_to(folder))
            if path.is_symlink():
                found[key] = os.readlink(path)
            elif path.is_dir():
                found[key] = None
            else:
                found[key] = (path.read_bytes(), path.stat().st_mode)
    return found


def test_branch(origin: Path, mirror: Mirror, tmp_path: Path) -> None:
    git(origin, "branch", "other", "HEAD~1")
    git(origin, "tag", "-a", "-m", "x", "v1")
    base, resolved = exported(mirror, "main", tmp_path / "base")
    assert listing(base) == listing(origin)
    assert head(base) == resolved.commit == head(origin)
    assert git(base, "symbolic-ref", "HEAD").strip() == "refs/heads/main"
    assert git(base, "status", "--porcelain=2", "--branch").splitlines()[1:] == [
        "# branch.head main",
        "# branch.upstream origin/main",
        "# branch.ab +0 -0",
    ]
    assert git(base, "remote", "get-url", "origin").strip() == str(origin)
    assert git(base, "rev-parse", "origin/HEAD").strip() == resolved.commit
    assert git(base, "for-each-ref", "--format=%(refname)").split() == [
        "refs/heads/main",
        "refs/remotes/origin/HEAD",
        "refs/remotes/origin/main",
        "refs/remotes/origin/other",
        "refs/tags/v1",
    ]
    assert git(base, "rev-list", "--count", "HEAD").strip() == "2"
    assert git(base, "fsck", "--strict") == ""


def test_tag_and_id_are_detached(origin: Path, mirror: Mirror, tmp_path: Path) -> None:
    git(origin, "tag", "v1", "HEAD~1")
    base, resolved = exported(mirror, "v1", tmp_path / "base")
    assert git(base, "symbolic-ref", "-q", "HEAD", check=False) == ""
    assert head(base) == resolved.commit
    assert (base / "a.txt").read_text() == "one\n"
    assert git(base, "status", "--porcelain") == ""


def test_work_in_it_touches_neither_mirror_nor_origin(
    origin: Path, mirror: Mirror, tmp_path: Path
) -> None:
    base, _ = exported(mirror, None, tmp_path / "base")
    shutil.copytree(base, tmp_path / "tree", symlinks=True)
    before = digest(origin), digest(mirror.folder), digest(base)
    exercise(tmp_path / "tree")
    assert (digest(origin), digest(mirror.folder), digest(base)) == before


def test_objects_are_shared_not_copied(mirror: Mirror, tmp_path: Path) -> None:
    base, _ = exported(mirror, None, tmp_path / "base")
    packs = list((base / ".git/objects/pack").glob("*.pack"))
    assert packs and all(pack.stat().st_nlink == 2 for pack in packs)
    assert not (base / ".git/objects/info/alternates").exists()


def test_status_reads_no_file(mirror: Mirror, tmp_path: Path) -> None:
    """The stat data is right (`diff-files` does not look at contents), and no entry is
    racy: everything is older than the index."""
    base, _ = exported(mirror, None, tmp_path / "base")
    assert git(base, "diff-files", "--name-only") == ""
    written = (base / ".git/index").stat().st_mtime
    assert all(path.stat().st_mtime < written - 1 for path in (base / "a.txt", base / "src/b.txt"))


def test_a_change_right_after_is_seen(mirror: Mirror, tmp_path: Path) -> None:
    base, _ = exported(mirror, None, tmp_path / "base")
    (base / "a.txt").write_text("TWO\n")
    assert git(base, "status", "--porcelain") == " M a.txt\n"


def test_sha256_and_shallow(tmp_path: Path) -> None:
    full = make_repository(tmp_path / "full", "--object-format=sha256")
    git(tmp_path, "clone", "-q", "--depth=1", f"file://{full}", "shallow")
    mirror = Mirror(tmp_path / "m", found_at(str(tmp_path / "shallow")), timeout_s=TIMEOUT_S)
    base, resolved = exported(mirror, None, tmp_path / "base")
    assert len(resolved.commit) == 64
    assert git(base, "rev-list", "--count", "HEAD").strip() == "1"
    assert git(base, "status", "--porcelain") == ""
    exercise(base)


def test_submodules_and_lfs_are_reported(origin: Path, mirror: Mirror, tmp_path: Path) -> None:
    make_repository(tmp_path / "library")
    git(origin, "submodule", "--quiet", "add", str(tmp_path / "library"), "lib")
    (origin / ".gitattributes").write_text("*.bin filter=lfs diff=lfs\n")
    (origin / "src/.gitattributes").write_text("*.txt text\n")
    commit(origin, "more")
    (tmp_path / "base").mkdir()
    skipped = export_commit(mirror, mirror.resolve(None), tmp_path / "base")
    assert [note.path for note in skipped] == ["lib", ".gitattributes"]
    assert (tmp_path / "base/lib").is_dir()
    assert git(tmp_path / "base", "status", "--porcelain") == ""


def test_credentials_stay_out(origin: Path, tmp_path: Path) -> None:
    remote = found_at(f"file://{origin}")
    secret = type(remote)(remote.address, "https://host/x", remote.key, remote.folders)
    base, _ = exported(Mirror(tmp_path / "m", secret, timeout_s=TIMEOUT_S), None, tmp_path / "base")
    assert git(base, "remote", "get-url", "origin").strip() == "https://host/x"


def test_filters_and_hooks_of_the_user_are_not_run(
    origin: Path, mirror: Mirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    canary = tmp_path / "canary"
    settings = tmp_path / "settings"
    settings.write_text(f'[filter "x"]\n\tsmudge = touch {canary}; cat\n\trequired = true\n')
    (origin / ".gitattributes").write_text("* filter=x\n")
    commit(origin, "attributes")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(settings))
    base, _ = exported(mirror, None, tmp_path / "base")
    assert (base / "a.txt").read_text() == "two\n"
    assert not canary.exists()
    git(tmp_path, "clone", "-q", str(origin), "plain")
    assert canary.exists(), "the trap does not work, so the test says nothing"


def test_a_commit_that_would_write_into_the_git_folder(
    origin: Path, mirror: Mirror, tmp_path: Path
) -> None:
    blob = git(origin, "rev-parse", "HEAD:a.txt").strip()
    tree = _piped(origin, f"100755 blob {blob}\tpost-checkout\n", "mktree")
    tree = _piped(origin, f"040000 tree {tree}\thooks\n", "mktree")
    tree = _piped(origin, f"040000 tree {tree}\t.git\n", "mktree")
    evil = git(origin, "commit-tree", "-m", "evil", tree).strip()
    git(origin, "update-ref", "refs/heads/evil", evil)
    (tmp_path / "base").mkdir()
    with pytest.raises(GitFailed, match="invalid path"):
        export_commit(mirror, mirror.resolve("evil"), tmp_path / "base")
    assert not (tmp_path / "base/.git/hooks/post-checkout").exists()


def _piped(folder: Path, text: str, *args: str) -> str:
    result = subprocess.run(
        ["git", *args], cwd=folder, input=text.encode(), capture_output=True, timeout=30, check=True
    )
    return result.stdout.decode().strip()


def test_modes_do_not_depend_on_ours(mirror: Mirror, tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        base, _ = exported(mirror, None, tmp_path / "base")
    finally:
        os.umask(before)
    for parent, folders, files in os.walk(base / ".git"):
        for name in folders:
            assert stat.S_IMODE(os.stat(os.path.join(parent, name)).st_mode) == 0o755
        for name in files:
            assert stat.S_IMODE(os.stat(os.path.join(parent, name)).st_mode) in (0o644, 0o444)
    assert stat.S_IMODE((base / "a.txt").stat().st_mode) == 0o644


def test_an_ordinary_user_and_the_repository_of_another(data: Path, ordinary_user: Account) -> None:
    origin = make_repository(data / "origin")
    desk = data / "desk"
    desk.mkdir()
    os.chown(desk, *ordinary_user)
    script = """
import sys
from pathlib import Path
from carrel.domain.projects import BaseRequest, Project, ProjectKind
from carrel.trees.sources.git import GitProducer
desk = Path(sys.argv[2])
source = GitProducer(BaseRequest(Project(ProjectKind.GIT, sys.argv[1])), desk)
(desk / "base").mkdir()
source.produce(desk / "base")
print(source.resolved.commit)
"""
    result = run_as(ordinary_user, [PYTHON, "-c", script, str(origin), str(desk)])
    assert result.stdout.strip() == head(origin), result.stderr
    status = run_as(ordinary_user, ["git", "-C", str(desk / "base"), "status", "--porcelain"])
    assert (status.stdout, status.returncode) == ("", 0)


def test_branch_names_that_need_care(origin: Path, mirror: Mirror, tmp_path: Path) -> None:
    for name in ('we"ird', "a/b]c", "ünïcode", "HEAD2"):
        git(origin, "branch", name)
    for number, name in enumerate(('we"ird', "a/b]c", "ünïcode")):
        base, _ = exported(mirror, name, tmp_path / str(number))
        assert git(base, "rev-parse", "--abbrev-ref", "HEAD").strip() == name
        assert git(base, "rev-parse", "@{upstream}").strip() == head(origin)


def test_progress(origin: Path, mirror: Mirror, tmp_path: Path) -> None:
    for number in range(300):
        (origin / f"{number}").write_text(f"{number}")
    commit(origin, "many")
    seen: list[Progress] = []
    (tmp_path / "base").mkdir()
    export_commit(mirror, mirror.resolve(None), tmp_path / "base", seen.append)
    assert all(step.stage == "checking out" for step in seen)


def change_everything(origin: Path) -> None:
    """Every kind of difference."""
    (origin / "a.txt").write_text("three\n")
    (origin / "a.txt").chmod(0o755)
    (origin / "added").mkdir()
    (origin / "added/new\nline.txt").write_text("new")
    os.symlink("a.txt", os.fsencode(origin) + b"/link-\xff")
    shutil.rmtree(origin / "gone")
    (origin / "file-to-folder").unlink()
    (origin / "file-to-folder").mkdir()
    (origin / "file-to-folder/x").write_text("x")
    shutil.rmtree(origin / "folder-to-file")
    (origin / "folder-to-file").write_text("file now")
    (origin / "file-to-link").unlink()
    (origin / "file-to-link").symlink_to("src")


@pytest.fixture
def rich(origin: Path) -> Path:
    for name in ("gone/deep/er", "folder-to-file/y", "same/b", "same/c"):
        (origin / name).parent.mkdir(parents=True, exist_ok=True)
        (origin / name).write_text(name)
    (origin / "file-to-folder").write_text("f")
    (origin / "file-to-link").write_text("l")
    commit(origin, "rich")
    return origin


def test_delta_comes_to_the_same(rich: Path, mirror: Mirror, tmp_path: Path) -> None:
    base, old = exported(mirror, "main", tmp_path / "base")
    untouched = (base / "same/b").stat()
    change_everything(rich)
    commit(rich, "all kinds of changes")
    new = mirror.resolve("main")
    part = tmp_path / "part"
    part.mkdir()

    def find(path: bytes) -> Path | None:
        found = base / os.fsdecode(path)
        return found if os.path.lexists(found) else None

    delta = export_delta(mirror, old.commit, new, find, part)
    assert delta is not None
    assert b"same/b" not in delta.changed
    assert b"gone/deep" in delta.deleted and b"gone" in delta.deleted
    apply(base, delta, part)
    whole, _ = exported(mirror, "main", tmp_path / "whole")
    assert listing(base) == listing(whole) == listing(rich)
    assert head(base) == new.commit
    assert git(base, "for-each-ref") == git(whole, "for-each-ref")
    assert git(base, "ls-files", "-s") == git(whole, "ls-files", "-s")
    assert git(base, "diff", "--cached") == ""
    assert git(base, "fsck", "--strict") == ""
    assert (base / "same/b").stat().st_ctime_ns == untouched.st_ctime_ns
    # Only what was moved into place (which changes its ctime) wants another restat.
    stale = set(
        git(base, "-c", "core.quotePath=false", "diff-files", "-z", "--name-only").split("\0")
    )
    assert stale <= {os.fsdecode(path) for path in delta.changed} | {""}
    assert git(base, "status", "--porcelain") == ""
    exercise(base)


def test_delta_brings_new_objects_only(rich: Path, mirror: Mirror, tmp_path: Path) -> None:
    base, old = exported(mirror, "main", tmp_path / "base")
    (rich / "a.txt").write_text("three\n")
    commit(rich, "third")
    (tmp_path / "part").mkdir()
    delta = export_delta(
        mirror,
        old.commit,
        mirror.resolve("main"),
        lambda path: found if (found := base / os.fsdecode(path)).exists() else None,
        tmp_path / "part",
    )
    assert delta is not None
    others = [path for path in delta.changed if b"objects/" not in path]
    assert sorted(others) == [b".git/index", b".git/packed-refs", b"a.txt"]
    assert len(delta.changed) - len(others) in (2, 3)


def test_delta_to_a_tag_and_back(rich: Path, mirror: Mirror, tmp_path: Path) -> None:
    git(rich, "tag", "old", "HEAD~1")
    base, at_main = exported(mirror, "main", tmp_path / "base")
    at_tag = mirror.resolve("old")
    for number, (source, target) in enumerate(((at_main, at_tag), (at_tag, at_main))):
        part = tmp_path / f"part{number}"
        part.mkdir()
        delta = export_delta(
            mirror,
            source.commit,
            target,
            lambda path: found if (found := base / os.fsdecode(path)).exists() else None,
            part,
        )
        assert delta is not None
        apply(base, delta, part)
        assert head(base) == target.commit
        assert git(base, "status", "--porcelain") == ""
        assert bool(git(base, "symbolic-ref", "-q", "HEAD", check=False)) is bool(target.branch)


def test_changed_attributes_want_a_full_checkout(
    rich: Path, mirror: Mirror, tmp_path: Path
) -> None:
    base, old = exported(mirror, "main", tmp_path / "base")
    (rich / "src/.gitattributes").write_text("*.txt eol=crlf\n")
    commit(rich, "attributes")
    (tmp_path / "part").mkdir()
    new = mirror.resolve("main")
    assert (
        export_delta(mirror, old.commit, new, lambda path: base / os.fsdecode(path), tmp_path)
        is None
    )


def test_attributes_count_in_a_delta_too(rich: Path, mirror: Mirror, tmp_path: Path) -> None:
    (rich / ".gitattributes").write_text("*.txt eol=crlf\n")
    commit(rich, "attributes")
    base, old = exported(mirror, "main", tmp_path / "base")
    (rich / "a.txt").write_text("changed\n")
    commit(rich, "a change")
    (tmp_path / "part").mkdir()
    delta = export_delta(
        mirror,
        old.commit,
        mirror.resolve("main"),
        lambda path: found if (found := base / os.fsdecode(path)).exists() else None,
        tmp_path / "part",
    )
    assert delta is not None
    assert (tmp_path / "part/a.txt").read_bytes() == b"changed\r\n"


def test_delta_without_a_fitting_index(rich: Path, mirror: Mirror, tmp_path: Path) -> None:
    base, old = exported(mirror, "HEAD~1", tmp_path / "base")
    new = mirror.resolve("main")
    (tmp_path / "part").mkdir()
    assert export_delta(mirror, old.commit, new, lambda _path: None, tmp_path / "part") is None
    (base / ".git/index").write_bytes(b"garbage")
    part = tmp_path / "part2"
    part.mkdir()
    assert (
        export_delta(mirror, old.commit, new, lambda path: base / os.fsdecode(path), part) is None
    )
