"""Looking at a folder, and looking again."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest

from carrel.domain.errors import ProjectInvalid
from carrel.linux import openat2
from carrel.linux.statx import StatBatch
from carrel.trees import mount_table, paths
from carrel.trees.bases.scan import Exclusion, ScanFilter, Scanner, ScanResult
from carrel.trees.bases.store import BaseStore
from carrel.trees.bases.views import FolderListing, Origin, differing
from carrel.trees.mount_table import folder_times_tell
from tests.trees.bases.helpers import picture, request, shown, write


def full(folder: Path, *exclude: str) -> ScanResult:
    return scanner(folder, *exclude).full()


def scanner(folder: Path, *exclude: str) -> Scanner:
    return Scanner(Origin(os.fsencode(folder)), ScanFilter(Exclusion(exclude)), StatBatch())


def test_every_entry_is_seen_once(project: Path) -> None:
    listing = full(project).listing
    assert listing.paths[0] == b""
    assert sorted(listing.paths[1:]) == sorted(picture(project))
    for index, path in enumerate(listing.paths):
        status = os.lstat(os.path.join(os.fsencode(project), path or b"."))
        assert listing.row(index).inode == status.st_ino
        assert listing.row(index).mode == status.st_mode


def test_nothing_new_is_seen_again(project: Path) -> None:
    known = full(project).listing
    scanned = scanner(project).again(known)
    assert not scanned.changed
    assert scanned.listing.paths == known.paths


def test_what_is_new_different_and_gone(project: Path) -> None:
    known = full(project).listing
    write(project / "README", "different")
    write(project / "new/deep/file", "new")
    (project / ".env").unlink()
    (project / "src/app").rename(project / "src/moved")
    scanned = scanner(project).again(known)
    touched = {scanned.listing.paths[index] for index in scanned.touched}
    assert touched == {
        b"",
        b"README",
        b"new",
        b"new/deep",
        b"new/deep/file",
        b"src",
        b"src/moved",
        b"src/moved/main.py",
        b"src/moved/util.py",
    }
    assert set(scanned.gone) == {b".env", b"src/app", b"src/app/main.py", b"src/app/util.py"}
    assert sorted(scanned.listing.paths[1:]) == sorted(picture(project))
    assert not scanner(project).again(scanned.listing).changed


def test_paths_through_a_new_symlink_are_gone(project: Path) -> None:
    known = full(project).listing
    (project / "src").rename(project / "real")
    (project / "src").symlink_to("real")
    scanned = scanner(project).again(known)
    assert {b"src/app", b"src/app/main.py"} <= set(scanned.gone)
    assert sorted(scanned.listing.paths[1:]) == sorted(picture(project))


def test_recent_rows_are_not_trusted_next_time(project: Path) -> None:
    listing = full(project).listing
    newest = max(listing.row(index).ctime_ns for index in range(len(listing)))
    long_after = listing.settled(newest + 10**10)
    assert long_after.rows == listing.rows
    at_once = listing.settled(newest)
    assert differing(at_once.rows, listing.rows) == list(range(len(listing)))
    doubtful = listing.settled(newest + 10**10, {b"README"})
    changed = differing(doubtful.rows, listing.rows)
    assert [listing.paths[index] for index in changed] == [b"README"]


def test_whose_folder_times_tell(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert folder_times_tell(os.fsencode(project.resolve()))
    assert not folder_times_tell(b"/proc/self")
    # The kernel writes names of mount points in its own way.
    mounted = project / "mounted \\ here"
    mounted.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", str(mounted)], check=True, timeout=20)
    assert folder_times_tell(os.fsencode(project.resolve()))
    monkeypatch.setattr(mount_table, "_TRUSTED", frozenset({"ext4", "xfs", "btrfs", "overlay"}))
    assert not folder_times_tell(os.fsencode(project.resolve()))
    assert not folder_times_tell(os.fsencode(mounted.resolve() / "inside"))


def test_where_they_do_not_every_folder_is_listed_again(
    store: BaseStore, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("carrel.trees.sources.folder.folder_times_tell", lambda _path: False)
    first = store.build(request(project))
    assert store.build(request(project)).base_id == first.base_id
    times = (project / "src").stat()
    write(project / "src/new", "x")
    (project / "src/app/util.py").unlink()
    os.utime(project / "src", ns=(times.st_atime_ns, times.st_mtime_ns))
    second = store.build(request(project))
    assert shown(second) == picture(project)


def test_listings_without_some_entries() -> None:
    rows = bytearray(b"".join(bytes([number]) * 64 for number in range(6)))
    listing = FolderListing(Origin(b"/"), [b"%d" % number for number in range(6)], rows)
    for dropped in (set(), {0}, {5}, {1, 2, 4}, set(range(6))):
        kept = [number for number in range(6) if number not in dropped]
        result = listing.without(dropped)
        assert result.paths == [b"%d" % number for number in kept]
        assert result.rows == b"".join(bytes([number]) * 64 for number in kept)


@pytest.mark.parametrize(
    ("patterns", "path", "folder", "matches"),
    [
        (["*.log"], b"a/b.log", False, True),
        (["*.log"], b"a/new\nline.log", False, True),
        (["*.log"], b"a/b.log\n", False, False),
        (["*.log"], b"not\xffutf8.log", False, True),
        (["build/"], b"build", True, True),
        (["build/"], b"build", False, False),
        (["/build"], b"src/build", True, False),
        (["a/**/z"], b"a/b\nc/z", False, True),
        (["*", "!keep"], b"keep", False, False),
        (["*", "!keep"], b"other", False, True),
        (["# comment", "", "  "], b"# comment", False, False),
        ([r"\#x"], b"#x", False, True),
    ],
)
def test_patterns(patterns: list[str], path: bytes, folder: bool, matches: bool) -> None:
    assert Exclusion(patterns).matches(path, folder=folder) is matches


def test_patterns_that_git_would_not_take() -> None:
    with pytest.raises(ProjectInvalid):
        Exclusion(["!"])


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("*a" * 60 + "*b", b"a" * 250, False),
        ("*a" * 60 + "*b", b"x/" + b"a" * 250 + b"b/y", True),
        ("*?" * 60 + "b", b"c" * 250, False),
        ("*[a/]" * 40 + "b", b"a" * 250, False),
        ("a/**/" * 40 + "b", b"a/" * 1000 + b"c", False),
        ("a/**/" * 40 + "b", b"a/" * 1000 + b"b", True),
        ("**/*a*b/**/c*d", b"x/aab/y/z/ceed", True),
        ("**/*a*b/**/c*d", b"x/aab/y/z/cee/d", False),
    ],
)
def test_patterns_of_many_stars_take_no_time(pattern: str, path: bytes, matches: bool) -> None:
    """They are a token's, and Python does nothing else while it looks for them."""
    assert Exclusion([pattern]).matches(path, folder=False) is matches


@pytest.mark.parametrize("by_walking", [False, True])
def test_opening_a_folder_follows_nothing(
    project: Path, by_walking: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert openat2.openat2_works()
    if by_walking:
        monkeypatch.setattr(paths, "openat2_works", lambda: False)
    (project / "alias").symlink_to("src")
    root = os.open(project, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fd = paths.open_folder(root, b"src/app")
        assert stat.S_ISDIR(os.fstat(fd).st_mode)
        os.close(fd)
        for path in (b"alias", b"alias/app", b"README", b"nothing", b"..", b"src/../.."):
            with pytest.raises(OSError):
                paths.open_folder(root, path)
    finally:
        os.close(root)
