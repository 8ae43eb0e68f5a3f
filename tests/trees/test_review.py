"""Which files git ignores and which commits are new, told without git: the same as git tells."""

from __future__ import annotations

import os
import struct
import subprocess
import zlib
from pathlib import Path

import pytest

from carrel.trees.folders import Root
from carrel.trees.git.history import (
    Effort,
    HistoryUnread,
    ObjectStore,
    TreeGitFiles,
    new_commits,
)
from carrel.trees.ignored import IgnoredFiles

GIT_S = 60.0


def git(folder: Path, *words: str, given: str = "") -> str:
    settings = ("-c", "user.name=n", "-c", "user.email=e", "-c", "init.defaultBranch=main")
    done = subprocess.run(
        ["git", "-C", str(folder), *settings, *words],
        input=given,
        capture_output=True,
        text=True,
        timeout=GIT_S,
        env={"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1"},
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "now"
    folder.mkdir()
    git(folder, "init", "-q")
    return folder


def write(folder: Path, path: str, text: str = "x\n") -> None:
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_text(text)


def test_ignored_as_git_has_it(repository: Path) -> None:
    write(repository, ".gitignore", "*.log\n!keep.log\nbuild/\n/top\ndoc/**/*.pdf\n\\#x\na b \n!\n")
    write(repository, "sub/.gitignore", "!*.log\n/top\n*.tmp\n[\n")
    write(repository, ".git/info/exclude", "excluded\nkeep.log\n")
    (repository / "sub" / "deep").mkdir()
    (repository / "sub" / "deep" / ".gitignore").symlink_to("../../.gitignore")
    paths = [
        *("a.log", "keep.log", "build/x", "build/keep.log", "src/build/y", "top", "sub/top"),
        *("sub/a.log", "sub/b.tmp", "sub/deep/a.log", "sub/deep/top", "doc/a.pdf", "doc/x/a.pdf"),
        *("#x", "a b", "excluded", "sub/excluded", "plain", "naïve.log", "force.log", "[", "!"),
    ]
    for path in paths:
        write(repository, path)
    git(repository, "add", "-f", "force.log")
    told = git(repository, "check-ignore", "-z", "--stdin", given="\0".join(paths))
    wanted = set(told.split("\0")) - {""}
    with Root.at(repository) as root:
        files = TreeGitFiles(root)
        found = IgnoredFiles(files, files, b"")
        assert {path for path in paths if found.has(path)} == wanted
        own = IgnoredFiles(files, files, b"plain\nforce.log\n")
        assert own.has("plain") and not own.has("force.log") and not own.has("keep.log.not")


def test_rules_without_end_hide_nothing_and_take_no_time(repository: Path) -> None:
    write(repository, ".gitignore", "*\n" * 300_000)
    write(repository, "sub/.gitignore", "*a*a*a*a*a*a*b\n" * 900 + "!x\n")
    with Root.at(repository) as root:
        files = TreeGitFiles(root)
        found = IgnoredFiles(files, files, b"")
        assert not found.has("top")
        assert not any(found.has(f"sub/{'a' * 200}{number}") for number in range(2000))


def commit(folder: Path, subject: str) -> str:
    write(folder, "file", f"{subject}\n")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", f"{subject}\n\nbody of {subject}")
    return git(folder, "rev-parse", "HEAD").strip()


def found_commits(now: Path, before: Path, effort: Effort | None = None) -> list[tuple[str, str]]:
    with Root.at(now) as one, Root.at(before) as other:
        made = new_commits(TreeGitFiles(one), TreeGitFiles(other), ".git", effort or Effort())
        return [(commit.oid, commit.subject) for commit in made]


def test_commits_that_were_made(repository: Path, tmp_path: Path) -> None:
    for number in range(3):
        commit(repository, f"old {number}")
    before = tmp_path / "before"
    subprocess.run(["cp", "-a", repository, before], check=True, timeout=GIT_S)
    assert found_commits(repository, before) == []
    git(repository, "checkout", "-q", "-b", "side", "HEAD~1")
    side = commit(repository, "on a side")
    git(repository, "tag", "-a", "-m", "v1", "v1")
    git(repository, "checkout", "-q", "main")
    main = commit(repository, "\x1b[31mred\x07")
    write(repository, "file", "stashed")
    git(repository, "stash")
    stash = git(repository, "rev-parse", "stash").strip()
    found = found_commits(repository, before)
    assert {oid for oid, _ in found} == {side, main, stash}
    assert dict(found)[side] == "on a side"
    # As references and objects are after git has tidied up, deltas included.
    for number in range(40):
        commit(repository, "x" * 500 + f" {number}")
    git(repository, "update-ref", "refs/remotes/origin/main", "HEAD~5")
    git(repository, "gc", "-q", "--aggressive", "--prune=now")
    wanted = git(repository, "rev-list", "main", "side", "--not", "main~41", "origin/main")
    assert {oid for oid, _ in found_commits(repository, before)} == {*wanted.split(), side, stash}


def test_what_is_no_repository(repository: Path, tmp_path: Path) -> None:
    """Whatever stands there: nothing is followed, nothing is read without end."""
    new = commit(repository, "one")
    empty = tmp_path / "empty"
    empty.mkdir()
    assert [oid for oid, _ in found_commits(repository, empty)] == [new]
    assert found_commits(empty, repository) == []
    loose = repository / ".git/objects" / new[:2] / new[2:]
    loose.chmod(0o600)
    bomb = zlib.compress(b"commit 9\0" + bytes(50 << 20))
    for content in (b"", b"not zlib", zlib.compress(b"blob 1\0x"), bomb):
        loose.write_bytes(content)
        assert found_commits(repository, empty) == []
    loose.unlink()
    os.mkfifo(loose)
    (repository / ".git/refs/heads/loop").symlink_to("loop")
    (repository / ".git/packed-refs").write_bytes(b"\xff" * 1000)
    (repository / ".git/objects/pack/pack-1.idx").write_bytes(b"\xfftOc\0\0\0\2" + b"\xff" * 2000)
    assert found_commits(repository, empty) == []
    with Root.at(repository) as root, ObjectStore(TreeGitFiles(root), ".git", Effort()) as store:
        assert not store.has(b"0" * 64) and store.read(b"f" * 40) == (0, b"")


def _number(value: int) -> bytes:
    """As packs and deltas have sizes: seven bits at a time, the lowest first."""
    found = bytearray()
    while value >> 7:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*found, value))


def _deltas(folder: Path, step: bytes) -> None:
    """A pack with one commit, fifty differences upon one another of a million bytes of such steps,
    and a branch that has the last one."""
    base = b"tree " + b"0" * 40 + b"\ncommitter x <x> 1 +0000\n\nhello\n"
    pack = bytearray(b"PACK\0\0\0\2\0\0\0\x33")
    last = len(pack)
    pack += bytes((0x10 | 0x80 | len(base) & 15, len(base) >> 4)) + zlib.compress(base)
    count = 500_000
    size = len(base)
    for _ in range(50):
        after = count if step[0] else size
        delta = _number(size) + _number(after) + step * count
        at, back = len(pack), len(pack) - last
        head = len(delta)
        pack += bytes((0x60 | 0x80 | head & 15,)) + _number(head >> 4)
        places = [back & 0x7F]
        back >>= 7
        while back:
            back -= 1
            places.insert(0, 0x80 | back & 0x7F)
            back >>= 7
        pack += bytes(places) + zlib.compress(delta)
        last, size = at, after
    name = bytes(20)
    index = b"\xfftOc\0\0\0\2" + struct.pack(">I", 1) * 256 + name + bytes(4)
    place = folder / ".git/objects/pack/pack-1"
    place.with_suffix(".idx").write_bytes(index + struct.pack(">I", last) + bytes(40))
    place.with_suffix(".pack").write_bytes(pack)
    (folder / ".git/packed-refs").write_text(f"{name.hex()} refs/heads/bomb\n")


def test_differences_without_end_take_a_bounded_time(repository: Path, tmp_path: Path) -> None:
    """Fifty times half a million steps for each commit: nobody waits for that."""
    empty = tmp_path / "empty"
    empty.mkdir()
    _deltas(repository, b"\x90\x01")
    with pytest.raises(HistoryUnread):
        found_commits(repository, empty, Effort(100_000))
    _deltas(repository, b"\0")
    assert found_commits(repository, empty, Effort(100_000)) == []
