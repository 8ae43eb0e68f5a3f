"""How the files of two versions differ, in git's words.

Both sides are given to git as they are read, so no path of theirs is ever made on the disk:
what strangers called their files can lead nowhere. The repository that this takes is one for
each comparison, and is gone afterwards.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Generator, Iterator
from pathlib import Path

from carrel.domain.requests import VersionFiles
from carrel.domain.trees import Tree, TreeDriver
from carrel.trees.drivers.common import tree_errors
from carrel.trees.git.runner import run_git
from carrel.trees.git.streaming import feed_git, read_git
from carrel.trees.removal import remove_tree
from carrel.trees.version_files import Importer, from_archive, from_tree

_PREFIX = ".diff-"
_BEFORE, _AFTER = "refs/heads/before", "refs/heads/after"
_INIT_S = 30.0
_IMPORT_S = 600.0
"""For a hundred thousand files it takes ten seconds; the rest is for a slow disk."""
_IDLE_S = 120.0
"""Two files of the most that is compared take git a second at worst."""
_IMPORT = (
    *("-c", "fastimport.unpackLimit=0", "-c", "core.compression=0", "-c", "pack.compression=0"),
    *("-c", "core.fsync=none", "-c", "core.protectNTFS=false", "-c", "core.protectHFS=false"),
    *("fast-import", "--quiet", "--done", "--depth=0"),
)
_DIFF = (
    *("-c", "core.quotePath=false"),
    *("diff-tree", "-r", "-p", "--no-ext-diff", "--no-textconv", "--no-color", "--no-renames"),
    *("--src-prefix=a/", "--dst-prefix=b/", _BEFORE, _AFTER, "--"),
)


class GitDiffs:
    """Implements `carrel.domain.requests.Differing`."""

    def __init__(self, work: Path) -> None:
        """A folder of our own for what is needed meanwhile; made when it is missing."""
        self._work = work

    def diff(
        self, before: VersionFiles | None, after: VersionFiles
    ) -> Generator[bytes, None, None]:
        """Nothing is done before it is first read. Who stops early closes it."""
        with self._repository() as folder:
            only = _changed_in_either(before, after)
            with feed_git(_IMPORT, folder=folder, timeout_s=_IMPORT_S) as write:
                importer = Importer(write)
                importer.begin(_BEFORE)
                if before is not None:
                    _import(importer, before, only)
                importer.begin(_AFTER)
                _import(importer, after, only)
                importer.end()
            yield from read_git(_DIFF, folder=folder, idle_s=_IDLE_S)

    def sweep(self) -> None:
        """What a process that was killed has left. Nobody may be comparing meanwhile."""
        with tree_errors("clear the work folder"):
            for folder in self._work.glob(f"{_PREFIX}*"):
                remove_tree(folder)

    @contextlib.contextmanager
    def _repository(self) -> Iterator[Path]:
        folder = self._work / (_PREFIX + secrets.token_hex(8))
        with tree_errors("compare two versions"):
            self._work.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.mkdir(mode=0o700)
        try:
            run_git(["init", "--quiet", "--bare", "--template=", str(folder)], timeout_s=_INIT_S)
            yield folder
        finally:
            with tree_errors("clear the work folder"):
                remove_tree(folder)


def _import(importer: Importer, files: VersionFiles, only: list[str] | None) -> None:
    if files.archive is not None:
        from_archive(importer, files.archive)
        return
    driver, tree = _tree(files)
    from_tree(importer, driver, tree, only)


def _tree(files: VersionFiles) -> tuple[TreeDriver, Tree]:
    if files.driver is None or files.tree is None:
        raise ValueError("a version is in a tree or in an archive")
    return files.driver, files.tree


def _changed_in_either(before: VersionFiles | None, after: VersionFiles) -> list[str] | None:
    """The paths that can differ when both stand on one base; None: any."""
    if before is None or before.archive is not None or after.archive is not None:
        return None
    sides = [_tree(before), _tree(after)]
    if len({tree.base_id for _, tree in sides}) > 1:
        return None
    if any(driver.capabilities.stays for driver, _ in sides):
        # What such a one changed is not told from its base.
        return None
    found: set[str] = set()
    for driver, tree in sides:
        for change in driver.changes(tree):
            found.add(change.path)
            if change.old_path is not None:
                found.add(change.old_path)
    return sorted(found)
