"""What people use today to get a second copy of a project."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.measuring import say
from bench.places import xfs_volume
from bench.projects import git

COPY_S = 1200.0
"""For one copy; the longest takes half a minute on a slow disk."""
WORKTREE = "git worktree add"
WORKTREE_REMOVE = "git worktree remove --force"
COPY = "cp -a"


@dataclass(frozen=True)
class Rival:
    """`make` makes a copy at a path; `remove` takes it away, timed under `removal`."""

    name: str
    make: Callable[[Path], object]
    removal: str
    remove: Callable[[Path], object]
    place: Path


def rivals(project: Path, place: Path) -> list[Rival]:
    def worktree(*options: str) -> Callable[[Path], object]:
        words = ("-C", str(project), *options, "worktree", "add", "--quiet", "--detach")
        return lambda path: git(*words, str(path))

    def remove_worktree(path: Path) -> None:
        git("-C", str(project), "worktree", "remove", "--force", str(path))

    def clone(path: Path) -> None:
        git("clone", "--quiet", "--local", str(project), str(path))

    parallel = worktree("-c", "checkout.workers=4")
    return [
        Rival(WORKTREE, worktree(), WORKTREE_REMOVE, remove_worktree, place),
        Rival(f"{WORKTREE}, 4 workers", parallel, WORKTREE_REMOVE, remove_worktree, place),
        Rival("git clone --local", clone, "rm -rf of the clone", _remove, place),
        Rival(COPY, lambda path: copy(project, path), "rm -rf of the copy", _remove, place),
    ]


@contextmanager
def reflink_rival(project: Path, place: Path) -> Iterator[Rival | str]:
    """Where the disk cannot share blocks, on a file system in a file. Else why not."""
    if _can_reflink(place):
        yield _reflink("cp -a --reflink", project, place)
        return
    if os.geteuid() != 0 or shutil.which("mkfs.xfs") is None:
        yield "this disk shares no blocks, and another file system takes root and mkfs.xfs"
        return
    size = 4 * _size(project) + (1 << 30)
    with xfs_volume(place, size) as volume:
        say("copying the project to an xfs file system")
        copied = volume / "project"
        copy(project, copied)
        yield _reflink("cp -a --reflink, on xfs in a file", copied, volume)


def copy(source: Path, target: Path, *options: str) -> None:
    subprocess.run(
        ["cp", "-a", *options, str(source), str(target)],
        check=True,
        capture_output=True,
        timeout=COPY_S,
    )


def _reflink(name: str, project: Path, place: Path) -> Rival:
    def make(path: Path) -> None:
        copy(project, path, "--reflink=always")

    return Rival(name, make, "rm -rf of the reflinks", _remove, place)


def _can_reflink(place: Path) -> bool:
    source, target = place / "reflink-source", place / "reflink-target"
    source.write_text("some content")
    try:
        copy(source, target, "--reflink=always")
    except subprocess.CalledProcessError:
        return False
    finally:
        source.unlink()
        target.unlink(missing_ok=True)
    return True


def _remove(path: Path) -> None:
    subprocess.run(["rm", "-rf", str(path)], check=True, capture_output=True, timeout=COPY_S)


def _size(folder: Path) -> int:
    found = subprocess.run(
        ["du", "-s", "-B1", str(folder)], check=True, capture_output=True, text=True
    )
    return int(found.stdout.split()[0])
