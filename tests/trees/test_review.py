"""Which files git ignores and which commits are new, told without git: the same as git tells."""

from __future__ import annotations

import hashlib
import os
import struct
import subprocess
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from carrel.trees.folders import Root
from carrel.trees.git.history import new_commits
from carrel.trees.git.object_store import Effort, HistoryUnread, ObjectStore, TreeGitFiles
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


def test_ignored_by_the_nearest_repository(repository: Path, tmp_path: Path) -> None:
    """Its rules and its index, also of a submodule. Where the index cannot be read nothing is."""
    write(repository, ".gitignore", "vendor/\nbuild/\nlib/*.o\n")
    for path in ("build/forced", "build/other", "lib/a.o", "vendor/lib/.gitignore"):
        write(repository, path, "out/\n")
    for path in ("vendor/plain/x", "vendor/lib/code", "vendor/lib/out/forced", "vendor/lib/out/x"):
        write(repository, path)
    git(repository, "add", "-f", "build/forced")
    git(repository, "init", "-q", "vendor/lib")
    git(repository / "vendor/lib", "add", "-f", "code", "out/forced")
    wanted = {"build/other", "lib/a.o", "vendor/plain/x", "vendor/lib/out/x"}
    paths = {"build/forced", "vendor/lib/code", "vendor/lib/new", "vendor/lib/out/forced", *wanted}
    empty = tmp_path / "empty"
    empty.mkdir()

    def ignored() -> set[str]:
        with Root.at(repository) as root, Root.at(empty) as nothing:
            found = IgnoredFiles(TreeGitFiles(root), TreeGitFiles(nothing), b"")
            return {path for path in paths if found.has(path)}

    assert ignored() == wanted
    (repository / "vendor/lib/.git").rename(repository / ".git/modules")
    write(repository, "vendor/lib/.git", "gitdir: ../../.git/modules\n")
    assert ignored() == wanted
    git(repository, "update-index", "--split-index")
    write(repository, "build/second")
    git(repository, "add", "-f", "build/second")
    assert ignored() == wanted, "in two files"
    index = repository / ".git/index"
    data = index.read_bytes()
    index.write_bytes(data[:-1] + b"x")
    assert ignored() == {"vendor/lib/out/x"}
    index.unlink()
    index.symlink_to("elsewhere")
    assert ignored() == {"vendor/lib/out/x"}
    for shared in (repository / ".git").glob("sharedindex.*"):
        shared.unlink()
    index.unlink()
    index.write_bytes(data)
    assert ignored() == {"vendor/lib/out/x"}
    index.unlink()
    assert ignored() == {*wanted, "build/forced"}


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


def copied(folder: Path) -> Path:
    before = folder.with_name("before")
    subprocess.run(["cp", "-a", folder, before], check=True, timeout=GIT_S)
    return before


def test_commits_that_were_made(repository: Path) -> None:
    for number in range(3):
        commit(repository, f"old {number}")
    before = copied(repository)
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
    git(repository, "remote", "add", "origin", "https://forge.invalid/x.git")
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
        with pytest.raises(HistoryUnread):
            found_commits(repository, empty)
    loose.unlink()
    os.mkfifo(loose)
    (repository / ".git/packed-refs").write_bytes(b"\xff" * 1000)
    (repository / ".git/objects/pack/pack-1.idx").write_bytes(b"\xfftOc\0\0\0\2" + b"\xff" * 2000)
    with pytest.raises(HistoryUnread):
        found_commits(repository, empty)
    with Root.at(repository) as root, ObjectStore(TreeGitFiles(root), ".git", Effort()) as store:
        assert not store.has(b"0" * 64)
        with pytest.raises(HistoryUnread):
            store.read(b"f" * 40)
    (repository / ".git/refs/heads/main").unlink()
    assert found_commits(repository, empty) == [], "nothing leads to it"


def _as_link(path: Path) -> None:
    other = path.with_name(f"other-{path.name}")
    path.rename(other)
    path.symlink_to(other.name)


def _long_message(folder: Path) -> None:
    git(folder, "commit", "-q", "--allow-empty", "-F", "-", given=os.urandom(1 << 20).hex())


def _old_index(folder: Path) -> None:
    git(folder, "-c", "pack.indexVersion=1", "repack", "-adq")


def _packed_behind_link(folder: Path) -> None:
    git(folder, "pack-refs", "--all")
    _as_link(folder / ".git/packed-refs")


def _checkout_behind_link(folder: Path) -> None:
    git(folder, "worktree", "add", "-q", "--detach", str(folder.parent / "further"))
    _as_link(folder / ".git/worktrees/further")


def _blob(folder: Path) -> None:
    oid = git(folder, "hash-object", "-w", "--stdin", given="work").strip()
    git(folder, "update-ref", "refs/kept/blob", oid)


UNREAD: dict[str, Callable[[Path], object]] = {
    "a commit of more than a megabyte": _long_message,
    "an index of a pack in the first format": _old_index,
    "packed references behind a link": _packed_behind_link,
    "a further checkout behind a link": _checkout_behind_link,
    "a reference to no commit": _blob,
    "a reference to nothing": lambda folder: write(folder, ".git/refs/x", "1" * 40),
    "a reference that says nothing": lambda folder: write(folder, ".git/refs/x", "what?"),
    "references behind a link": lambda folder: _as_link(folder / ".git/refs"),
    "a branch behind a link": lambda folder: _as_link(folder / ".git/refs/heads/main"),
    "a loop": lambda folder: (folder / ".git/refs/loop").symlink_to("loop"),
    "branches behind a link": lambda folder: _as_link(folder / ".git/refs/heads"),
    "objects behind a link": lambda folder: _as_link(folder / ".git/objects"),
    "all of it behind a link": lambda folder: _as_link(folder / ".git"),
}


@pytest.mark.parametrize("how", UNREAD)
def test_what_cannot_be_read_is_not_taken_for_nothing(repository: Path, how: str) -> None:
    commit(repository, "one")
    before = copied(repository)
    commit(repository, "two")
    UNREAD[how](repository)
    with pytest.raises(HistoryUnread):
        found_commits(repository, before)


def test_history_that_is_cut_off(repository: Path) -> None:
    commit(repository, "one")
    before = copied(repository)
    middle = commit(repository, "two")
    last = commit(repository, "three")
    (repository / ".git/objects" / middle[:2] / middle[2:]).unlink()
    with pytest.raises(HistoryUnread):
        found_commits(repository, before)
    # As git fetches it with --depth.
    write(repository, ".git/shallow", f"{last}\n")
    assert found_commits(repository, before) == [(last, "three")]
    # What was broken before is none of ours.
    for folder in (repository, before):
        write(folder, ".git/refs/heads/broken", f"{'1' * 40}\n")
        (folder / ".git/refs/heads/loop").symlink_to("loop")
    assert found_commits(repository, before) == [(last, "three")]


REMOTES = {
    "https://forge.invalid/x.git": True,
    "git@forge.invalid:x.git": True,
    "forge.invalid:/srv/x.git": True,
    "ssh://forge.invalid/x.git": True,
    "/tmp/x.git": False,
    "../x.git": False,
    "file:///tmp/x.git": False,
    "ext::sh -c true": False,
    "git://127.0.0.1/x.git": False,
    "http://u:p@localhost:3000/x.git": False,
    "": False,
}


@pytest.mark.parametrize("address", REMOTES)
def test_only_another_machine_has_what_was_pushed(repository: Path, address: str) -> None:
    commit(repository, "one")
    before = copied(repository)
    commit(repository, "two")
    git(repository, "update-ref", "refs/remotes/o/main", "HEAD")
    if address:
        git(repository, "config", "remote.o.url", address)
    found = [] if REMOTES[address] else ["two"]
    assert [subject for _, subject in found_commits(repository, before)] == found
    git(repository, "config", "remote.o.pushurl", "/tmp/x.git")
    assert [subject for _, subject in found_commits(repository, before)] == ["two"]
    git(repository, "config", "--unset", "remote.o.pushurl")
    git(repository, "config", "url./tmp/.insteadOf", "https://forge.invalid/")
    assert [subject for _, subject in found_commits(repository, before)] == ["two"]


def test_commits_that_only_unusual_references_have(repository: Path, tmp_path: Path) -> None:
    commit(repository, "one")
    before = copied(repository)
    further = tmp_path / "further"
    git(repository, "worktree", "add", "-q", "--detach", str(further))
    for name in ("refs/stash-backup", "refs/worktree/keep", "refs/bisect/bad"):
        commit(further, name)
        git(further, "update-ref", name, "HEAD")
        git(further, "checkout", "-q", "--detach", "HEAD~1")
    git(repository, "tag", "-a", "-m", "v1", "v1", "refs/stash-backup")
    git(repository, "tag", "-a", "-m", "v2", "v2", "refs/stash-backup")
    found = [subject for _, subject in found_commits(repository, before)]
    assert sorted(found) == ["refs/bisect/bad", "refs/stash-backup", "refs/worktree/keep"]


def test_a_file_in_place_of_a_git_folder(repository: Path, tmp_path: Path) -> None:
    commit(repository, "one")
    lib = repository / "lib"
    (repository / ".git/modules").mkdir()
    git(repository, "init", "-q", "--separate-git-dir", str(repository / ".git/modules/lib"), "lib")
    before = tmp_path / "empty"
    before.mkdir()
    for named, read in (
        ("../.git/modules/lib", True),
        ("/workspace/.git/modules/lib", True),
        ("/tmp/elsewhere.git", False),
        ("../../elsewhere.git", False),
    ):
        (lib / ".git").write_text(f"gitdir: {named}\n")
        with Root.at(repository) as one, Root.at(before) as other:
            files = TreeGitFiles(one), TreeGitFiles(other)
            if read:
                assert new_commits(*files, "lib/.git", Effort()) == []
                continue
            with pytest.raises(HistoryUnread):
                new_commits(*files, "lib/.git", Effort())


def _number(value: int) -> bytes:
    """As packs and deltas have sizes: seven bits at a time, the lowest first."""
    found = bytearray()
    while value >> 7:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*found, value))


def _place(back: int) -> bytes:
    """How far before it the object is that a difference stands on."""
    found = [back & 0x7F]
    back >>= 7
    while back:
        back -= 1
        found.insert(0, 0x80 | back & 0x7F)
        back >>= 7
    return bytes(found)


def _write_pack(folder: Path, pack: bytes, places: dict[bytes, int]) -> None:
    """With an index that says where each name is, and a branch for each."""
    names = sorted(places)
    counts = [sum(name[0] <= first for name in names) for first in range(256)]
    index = b"\xfftOc\0\0\0\2" + struct.pack(">256I", *counts) + b"".join(names)
    index += bytes(4 * len(names)) + struct.pack(f">{len(names)}I", *map(places.get, names))
    place = folder / ".git/objects/pack/pack-1"
    place.with_suffix(".idx").write_bytes(index + bytes(40))
    place.with_suffix(".pack").write_bytes(pack)
    lines = [f"{name.hex()} refs/heads/b{number}\n" for number, name in enumerate(names)]
    (folder / ".git/packed-refs").write_text("".join(lines))


def _entry(kind: int, content: bytes, before: bytes = b"") -> bytes:
    size = len(content)
    head = bytes((kind << 4 | 0x80 | size & 15,)) + _number(size >> 4)
    return head + before + zlib.compress(content)


def _deltas(folder: Path, step: bytes) -> None:
    """A pack with one commit, fifty differences upon one another of a million bytes of such steps,
    and a branch that has the last one."""
    base = b"tree " + b"0" * 40 + b"\ncommitter x <x> 1 +0000\n\nhello\n"
    pack = bytearray(b"PACK\0\0\0\2\0\0\0\x33")
    last = len(pack)
    pack += _entry(1, base)
    count = 500_000
    size = len(base)
    for _ in range(50):
        after = count if step[0] else size
        delta = _number(size) + _number(after) + step * count
        at = len(pack)
        pack += _entry(6, delta, _place(at - last))
        last, size = at, after
    _write_pack(folder, bytes(pack), {bytes(20): last})


def test_differences_without_end_take_a_bounded_time(repository: Path, tmp_path: Path) -> None:
    """Fifty times half a million steps for each commit: nobody waits for that."""
    empty = tmp_path / "empty"
    empty.mkdir()
    _deltas(repository, b"\x90\x01")
    with pytest.raises(HistoryUnread):
        found_commits(repository, empty, Effort(100_000))
    _deltas(repository, b"\0")
    with pytest.raises(HistoryUnread):
        found_commits(repository, empty, Effort(100_000))


def _large_commits(folder: Path, count: int) -> list[bytes]:
    """Each of a megabyte, told by a few bytes: it repeats another object. Gives their names."""
    base = b"x\n" * 4096
    pack = bytearray(b"PACK\0\0\0\2" + struct.pack(">I", count + 1))
    first = len(pack)
    pack += _entry(1, base)
    places = {}
    for number in range(count):
        head = b"tree %b\nauthor x <x> 1 +0\ncommitter x <x> 1 +0\n\n%d\n" % (b"0" * 40, number)
        content = head + base * 127
        steps = bytes((len(head),)) + head + b"\xa0\x20" * 127
        name = hashlib.sha1(b"commit %d\0" % len(content) + content).digest()
        at = places[name] = len(pack)
        delta = _number(len(base)) + _number(len(content)) + steps
        pack += _entry(6, delta, _place(at - first))
    _write_pack(folder, bytes(pack), places)
    return list(places)


def test_small_packs_of_large_commits_take_a_bounded_time(repository: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    names = _large_commits(repository, 20)
    found = found_commits(repository, empty)
    assert {bytes.fromhex(oid) for oid, _ in found} == set(names)
    with pytest.raises(HistoryUnread):
        found_commits(repository, empty, Effort(100_000))
    with pytest.raises(HistoryUnread):
        found_commits(repository, empty, Effort(most_s=0.0))


def test_an_object_has_one_name(repository: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    one = commit(repository, "one")
    objects = repository / ".git/objects"
    other = "1" * 40
    (objects / "11").mkdir()
    (objects / "11" / other[2:]).write_bytes((objects / one[:2] / one[2:]).read_bytes())
    write(repository, ".git/refs/heads/other", f"{other}\n")
    with pytest.raises(HistoryUnread):
        found_commits(repository, empty)
