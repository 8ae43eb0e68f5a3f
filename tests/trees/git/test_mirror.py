"""Mirrors: any ref of any repository, bounded, and nothing of the origin is ever run."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from carrel.domain.errors import (
    GitFailed,
    GitTimeout,
    ProjectInvalid,
    ProjectNotAFolder,
    ProjectNotFound,
    RefNotFound,
)
from carrel.domain.projects import GitReach, Progress
from carrel.linux import landlock
from carrel.trees.git.checkout import export_commit
from carrel.trees.git.mirror import Mirror, Resolved
from carrel.trees.locks import fetch_lock
from tests.trees.git.repositories import commit, digest, found_at, git, head, make_repository

TIMEOUT_S = 60.0


def mirror_of(location: Path | str, tmp_path: Path, timeout_s: float = TIMEOUT_S) -> Mirror:
    return Mirror(tmp_path / "mirrors", found_at(str(location)), timeout_s=timeout_s)


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "origin")


def test_every_way_to_name_a_commit(origin: Path, tmp_path: Path) -> None:
    git(origin, "tag", "light")
    git(origin, "tag", "-a", "-m", "x", "heavy", "HEAD~1")
    git(origin, "branch", "topic/a", "HEAD~1")
    git(origin, "update-ref", "refs/pull/1/head", "HEAD~1")
    git(origin, "update-ref", "refs/remotes/up/main", "HEAD~1")
    first, second = git(origin, "rev-parse", "HEAD~1").strip(), head(origin)
    mirror = mirror_of(origin, tmp_path)
    assert mirror.resolve(None) == Resolved(second, "main")
    assert mirror.resolve("HEAD") == Resolved(second, "main")
    assert mirror.resolve("main") == Resolved(second, "main")
    assert mirror.resolve("refs/heads/topic/a") == Resolved(first, "topic/a")
    assert mirror.resolve("topic/a") == Resolved(first, "topic/a")
    for ref in ("light", second, second[:8], second.upper()):
        assert mirror.resolve(ref) == Resolved(second)
    for ref in ("heavy", "refs/tags/heavy", "refs/pull/1/head", "pull/1/head", "up/main"):
        assert mirror.resolve(ref) == Resolved(first)
    for ref in ("HEAD~1", "main^", "main~1^0", "heavy^{}", second + "~1"):
        assert mirror.resolve(ref) == Resolved(first)


def test_a_branch_is_followed_and_a_known_id_asks_nobody(origin: Path, tmp_path: Path) -> None:
    mirror = mirror_of(origin, tmp_path)
    old = mirror.resolve("main").commit
    (origin / "a.txt").write_text("three\n")
    new = commit(origin, "third")
    assert mirror.resolve("main").commit == new
    git(origin, "update-ref", "refs/heads/main", git(origin, "rev-parse", "HEAD~2").strip())
    assert mirror.resolve("main").commit != new
    origin.rename(tmp_path / "moved")
    assert mirror.resolve(new).commit == new
    assert mirror.resolve(old).commit == old


def test_a_commit_that_no_branch_has(origin: Path, tmp_path: Path) -> None:
    mirror = mirror_of(origin, tmp_path)
    mirror.resolve(None)
    git(origin, "checkout", "-q", "--detach")
    (origin / "a.txt").write_text("three\n")
    lone = commit(origin, "on no branch")
    assert mirror.resolve(None) == Resolved(lone)
    (origin / "a.txt").write_text("four\n")
    lone = commit(origin, "on no branch either")
    git(origin, "checkout", "-q", "main")
    assert mirror.resolve(lone) == Resolved(lone)


@pytest.mark.parametrize(
    "ref",
    [
        "nope",
        "-x",
        "--upload-pack=touch x",
        "a b",
        "a\nb",
        "a\0b",
        "",
        "..",
        "a..b",
        "HEAD@{1}",
        "main:a.txt",
        "refs/heads/",
        "deadbeef",
        "0" * 40,
        "0" * 64,
        "main~999999",
        "main^{tree}",
        "x" * 5000,
    ],
)
def test_bad_refs(origin: Path, tmp_path: Path, ref: str) -> None:
    with pytest.raises(RefNotFound):
        mirror_of(origin, tmp_path).resolve(ref)


def test_a_tag_of_a_file_is_no_commit(origin: Path, tmp_path: Path) -> None:
    git(origin, "tag", "blob", "HEAD:a.txt")
    with pytest.raises(RefNotFound, match="it names a blob"):
        mirror_of(origin, tmp_path).resolve("blob")


def test_similar_names_are_offered(origin: Path, tmp_path: Path) -> None:
    git(origin, "branch", "feature-one")
    with pytest.raises(RefNotFound, match="feature-one"):
        mirror_of(origin, tmp_path).resolve("feature-on")


def test_no_commits(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "origin")
    with pytest.raises(RefNotFound, match="no commits at all"):
        mirror_of(tmp_path / "origin", tmp_path).resolve(None)
    assert os.listdir(tmp_path / "mirrors") == []


@pytest.mark.parametrize("kind", ["bare", "worktree", "shallow", "sha256", "file-url"])
def test_kinds_of_repositories(origin: Path, tmp_path: Path, kind: str) -> None:
    location: Path | str = tmp_path / kind
    if kind == "bare":
        git(tmp_path, "clone", "-q", "--bare", "origin", kind)
    elif kind == "worktree":
        git(origin, "worktree", "add", "-q", "-b", "feature", str(location))
        commit(tmp_path / kind, "in the worktree")
    elif kind == "shallow":
        git(tmp_path, "clone", "-q", "--depth=1", f"file://{origin}", kind)
    elif kind == "sha256":
        make_repository(tmp_path / kind, "--object-format=sha256")
    else:
        location = f"file://{origin}"
    expected = head(origin if kind == "file-url" else tmp_path / kind)
    found = mirror_of(location, tmp_path).resolve(None)
    assert found == Resolved(expected, "feature" if kind == "worktree" else "main")


def test_worktrees_of_a_repository_share_a_mirror(origin: Path, tmp_path: Path) -> None:
    git(origin, "worktree", "add", "-q", "-b", "feature", str(tmp_path / "linked"))
    assert found_at(str(origin)).key == found_at(str(tmp_path / "linked")).key
    assert mirror_of(origin, tmp_path).resolve(None).branch == "main"
    assert mirror_of(tmp_path / "linked", tmp_path).resolve(None).branch == "feature"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_repository_of_another_user(origin: Path, tmp_path: Path) -> None:
    subprocess.run(["chown", "-R", "12345:12345", str(origin)], check=True, timeout=30)
    before = digest(origin)
    assert mirror_of(origin, tmp_path).resolve(None).branch == "main"
    assert digest(origin) == before


@pytest.mark.parametrize("complete", [True, False])
def test_hostile_settings_are_not_obeyed(origin: Path, tmp_path: Path, complete: bool) -> None:
    canary = tmp_path / "canary"
    touch = f"touch {canary};"
    (origin / "included").write_text(f"[core]\n\tsshCommand = {touch}\n")
    for name, value in {
        "core.fsmonitor": touch,
        "core.sshCommand": touch,
        "core.gitProxy": touch,
        "core.alternateRefsCommand": touch,
        "core.pager": touch,
        "uploadpack.packObjectsHook": touch,
        "include.path": str(origin / "included"),
        "filter.x.smudge": touch,
        "filter.x.clean": touch,
        "credential.helper": f"!{touch}",
        "extensions.partialClone": "evil",
        "remote.evil.promisor": "true",
        "remote.evil.url": str(tmp_path / "nowhere"),
        "remote.evil.uploadpack": touch,
    }.items():
        git(origin, "config", name, value)
    git(origin, "config", "core.repositoryFormatVersion", "1")
    for hook in ("post-checkout", "pre-receive", "update", "post-upload-pack"):
        path = origin / ".git/hooks" / hook
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{touch}\n")
        path.chmod(0o755)
    blob = git(origin, "-c", "core.fsmonitor=false", "rev-parse", "HEAD:a.txt").strip()
    mirror = mirror_of(origin, tmp_path)
    canary.unlink(missing_ok=True)
    if complete:
        into = tmp_path / "base"
        into.mkdir()
        export_commit(mirror, mirror.resolve(None), into)
        assert (into / "a.txt").read_text() == "two\n"
    else:
        # A missing object would make it ask its `evil` remote.
        (origin / ".git/objects" / blob[:2] / blob[2:]).unlink()
        with pytest.raises(GitFailed):
            mirror.resolve(None)
        assert os.listdir(tmp_path / "mirrors") == []
    assert not canary.exists()
    git(origin, "status", check=False)
    assert canary.exists(), "the trap does not work, so the test says nothing"


def test_an_interrupted_fetch_leaves_nothing(origin: Path, tmp_path: Path) -> None:
    def interrupt(_step: Progress) -> None:
        raise KeyboardInterrupt

    remote = found_at(str(origin))
    mirror = Mirror(tmp_path / "m", remote, timeout_s=TIMEOUT_S, on_progress=interrupt)
    with pytest.raises(KeyboardInterrupt):
        mirror.resolve(None)
    assert os.listdir(tmp_path / "m") == []
    again = Mirror(tmp_path / "m", remote, timeout_s=TIMEOUT_S)
    assert again.resolve(None).commit == head(origin)


def test_waiting_for_another_fetch_is_bounded(origin: Path, tmp_path: Path) -> None:
    mirror = mirror_of(origin, tmp_path, timeout_s=0.2)
    mirror.folder.parent.mkdir()
    with (
        fetch_lock(mirror.folder.with_suffix(".lock"), timeout_s=1),
        pytest.raises(GitTimeout, match="Another fetch"),
    ):
        mirror.resolve(None)


@pytest.fixture
def silent_server() -> Iterator[int]:
    """Accepts connections and never says a word."""
    held: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        done = threading.Event()

        def accept() -> None:
            while not done.is_set():
                try:
                    held.append(server.accept()[0])
                except OSError:
                    return

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            done.set()
            server.shutdown(socket.SHUT_RDWR)
            thread.join(10)
            for connection in held:
                connection.close()


@pytest.mark.parametrize("scheme", ["http", "git"])
def test_a_url_that_hangs(silent_server: int, tmp_path: Path, scheme: str) -> None:
    url = f"{scheme}://127.0.0.1:{silent_server}/x.git"
    with pytest.raises(GitTimeout):
        mirror_of(url, tmp_path, timeout_s=1).resolve(None)
    assert os.listdir(tmp_path / "mirrors") == []


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1:1/x.git", "git://127.0.0.1:1/x.git", "ssh://nobody@127.0.0.1:1/x.git"],
)
def test_a_url_that_fails(tmp_path: Path, url: str) -> None:
    with pytest.raises(GitFailed):
        mirror_of(url, tmp_path).resolve(None)
    assert os.listdir(tmp_path / "mirrors") == []


def test_a_failed_fetch_keeps_the_mirror(origin: Path, tmp_path: Path) -> None:
    mirror = mirror_of(origin, tmp_path)
    known = mirror.resolve(None).commit
    origin.rename(tmp_path / "moved")
    with pytest.raises(GitFailed):
        mirror.resolve("main")
    assert mirror.resolve(known).commit == known


@pytest.mark.parametrize(
    ("location", "error"),
    [
        ("", ProjectInvalid),
        ("-oProxyCommand=x", ProjectInvalid),
        ("ext::sh -c x", ProjectInvalid),
        ("ftp://host/x", ProjectInvalid),
        ("https://h\n/x", ProjectInvalid),
        ("file://elsewhere/x", ProjectInvalid),
        ("/nowhere/at/all", ProjectNotFound),
        ("{}/origin/a.txt", ProjectNotAFolder),
        ("{}/origin/a.txt/below", ProjectNotFound),
        ("{}/plain", ProjectInvalid),
    ],
)
def test_bad_locations(origin: Path, tmp_path: Path, location: str, error: type[Exception]) -> None:
    (tmp_path / "plain").mkdir()
    with pytest.raises(error):
        found_at(location.format(tmp_path))


def test_a_folder_inside_a_repository_says_where_it_is(origin: Path) -> None:
    with pytest.raises(ProjectInvalid, match=f"the repository is {origin}"):
        found_at(str(origin / "src"))


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("https://me:token@host/x.git", "https://host/x.git"),
        ("https://token@host:8443/x.git", "https://host:8443/x.git"),
        ("ssh://git:secret@host/x.git", "ssh://git@host/x.git"),
        ("git@host:me/x.git", "git@host:me/x.git"),
        ("https://host/x.git?y#z", "https://host/x.git?y#z"),
    ],
)
def test_credentials_do_not_get_into_trees(location: str, expected: str) -> None:
    assert found_at(location).origin == expected


def test_what_a_killed_git_left_is_cleared(origin: Path, tmp_path: Path) -> None:
    mirror = mirror_of(origin, tmp_path)
    mirror.resolve(None)
    left = [mirror.folder / "objects/pack/tmp_pack_1", mirror.folder / "refs/heads/main.lock"]
    for path in left:
        path.write_bytes(b"half")
    (origin / "a.txt").write_text("three\n")
    third = commit(origin, "third")
    assert mirror.resolve(None).commit == third
    assert not [path for path in left if path.exists()]


def test_a_killed_first_fetch_is_begun_again(origin: Path, tmp_path: Path) -> None:
    mirror = mirror_of(origin, tmp_path)
    half = mirror.folder.with_name(f".{mirror.folder.name}.abc")
    (half / "objects").mkdir(parents=True)
    git(tmp_path, "init", "-q", "--bare", "--template=", str(mirror.folder))
    (mirror.folder / "objects/pack/tmp_pack_1").write_bytes(b"half")
    assert mirror.resolve(None).commit == head(origin)
    mirror.remove()
    half.mkdir(exist_ok=True)
    assert mirror.resolve(None).commit == head(origin)
    assert not half.exists()


def test_objects_without_a_ref_are_not_trusted(origin: Path, tmp_path: Path) -> None:
    """As a fetch leaves them that is killed between writing its pack and its refs."""
    mirror = mirror_of(origin, tmp_path)
    mirror.resolve("HEAD~1")
    (origin / "big.txt").write_text("big\n")
    new = commit(origin, "new")
    raw = git(origin, "cat-file", "commit", new)
    written = subprocess.run(
        ["git", "hash-object", "-t", "commit", "-w", "--stdin"],
        cwd=mirror.folder,
        input=raw.encode(),
        check=True,
        capture_output=True,
        timeout=30,
    )
    assert written.stdout.decode().strip() == new
    assert mirror.resolve(new).commit == new
    assert mirror.run("cat-file", "-p", f"{new}:big.txt") == b"big\n"


def test_many_at_once(origin: Path, tmp_path: Path) -> None:
    results: list[Resolved] = []
    threads = [
        threading.Thread(target=lambda: results.append(mirror_of(origin, tmp_path).resolve(None)))
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert results == [Resolved(head(origin), "main")] * 6


def test_many_packs_are_merged(origin: Path, tmp_path: Path) -> None:
    mirror = mirror_of(origin, tmp_path)
    mirror.resolve(None)
    for number in range(31):
        commit(origin, str(number))
        mirror.resolve(None)
    packs = list((mirror.folder / "objects/pack").glob("*.pack"))
    assert len(packs) < 10
    assert mirror.run("fsck", "--connectivity-only") == b""


def test_progress_is_told(origin: Path, tmp_path: Path) -> None:
    seen: list[Progress] = []
    remote = found_at(str(origin))
    Mirror(tmp_path / "m", remote, timeout_s=TIMEOUT_S, on_progress=seen.append).resolve(None)
    stages = {step.stage for step in seen}
    assert "receiving" in stages
    assert all(step.done <= step.total for step in seen)


@pytest.mark.skipif(landlock.abi() < 1, reason="this kernel has no Landlock")
@pytest.mark.parametrize("kind", ["alternates", "refs", "settings"])
def test_a_repository_that_reaches_out_after_it_was_looked_at(
    origin: Path, tmp_path: Path, kind: str
) -> None:
    """Git follows what a repository names: it is kept from reading anything else."""
    private = make_repository(tmp_path / "private")
    (private / "own").write_text("what nobody may read")
    secret = commit(private, "private")
    mirror = mirror_of(origin, tmp_path)
    (origin / ".git/refs/heads/main").write_text(secret + "\n")
    if kind == "alternates":
        (origin / ".git/objects/info/alternates").write_text(f"{private}/.git/objects\n")
    elif kind == "refs":
        shutil.rmtree(origin / ".git/objects")
        (origin / ".git/objects").symlink_to(private / ".git/objects")
    else:
        (origin / ".git/objects/info/alternates").write_text(f"{private}/.git/objects\n")
        git(origin, "config", "include.path", str(private / ".git/config"))
    with pytest.raises((GitFailed, RefNotFound)):
        mirror.resolve("main")
    assert not mirror.folder.exists() or not git(
        mirror.folder, "cat-file", "--batch-check", "--batch-all-objects"
    ).count(secret)


@pytest.mark.parametrize("reach", [GitReach.NONE, GitReach.AGREED])
@pytest.mark.parametrize("kind", ["alternates", "pointer", "common folder", "settings"])
def test_a_repository_that_reaches_out(
    origin: Path, tmp_path: Path, kind: str, reach: GitReach
) -> None:
    private = make_repository(tmp_path / "private")
    if kind == "alternates":
        (origin / ".git/objects/info/alternates").write_text(f"{private}/.git/objects\n")
    elif kind == "pointer":
        shutil.rmtree(origin / ".git")
        (origin / ".git").write_text(f"gitdir: {private}/.git\n")
    elif kind == "common folder":
        (origin / ".git/commondir").write_text(f"{private}/.git\n")
    else:
        git(origin, "config", "include.path", str(private / ".git/config"))
    with pytest.raises(ProjectInvalid, match="outside of it"):
        found_at(str(origin), reach)
    found_at(str(origin), GitReach.AGREE)


@pytest.mark.parametrize("name", ["HEAD", "config", "shallow", "objects/info/alternates"])
@pytest.mark.parametrize("kind", ["pipe", "device", "hole"])
def test_what_git_would_read_for_ever(tmp_path: Path, name: str, kind: str) -> None:
    """Ten minutes from a pipe, and from the others all memory of the machine."""
    make_repository(tmp_path / "project")
    path = tmp_path / "project" / ".git" / name
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        with path.open("wb") as file:
            file.truncate(1 << 33)
    for reach in (GitReach.NONE, GitReach.AGREE):
        with pytest.raises(ProjectInvalid):
            found_at(str(tmp_path / "project"), reach)


def test_others_have_no_share_of_the_owners_mirrors(origin: Path) -> None:
    for place in (str(origin), "https://example.org/x.git"):
        assert found_at(place).key != found_at(place, GitReach.NONE, own=False).key
