"""What all drivers share: where things lie, and how trouble is told."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol, runtime_checkable

from carrel.domain.errors import (
    InsufficientDisk,
    TreeDamaged,
    TreeExists,
    TreeNotFound,
    TreeUnavailable,
)
from carrel.domain.trees import Base, Change, Owner, Tree, TreeRequest
from carrel.linux.ids import uid_range
from carrel.trees.folders import Root
from carrel.trees.layers import TRUSTED, USER
from carrel.trees.removal import remove_tree
from carrel.trees.usage import all_blocks, measure

PRIVATE = "tree"
"""The folder beside the project in which a driver keeps what is its own."""
PROBE_PREFIX = ".probe-"
_SETTLE_S = 1.0
"""The kernel's clock for files moves every 1 to 10 ms."""
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class Bases(Protocol):
    """What drivers ask of the store of bases."""

    def get(self, base_id: str) -> Base: ...

    def freeze(self, parent: Base, changes: Iterable[Change], root_fd: int) -> Base: ...


def private_folder(tree: Tree) -> Path:
    return tree.folder / PRIVATE


def note_prefix() -> str:
    """Where overlays of this process keep their notes."""
    return TRUSTED if os.geteuid() == 0 else USER


def begin(request: TreeRequest) -> Path:
    """Claims the folder for a tree, atomically; gives the driver's private one."""
    private = request.folder / PRIVATE
    with tree_errors("prepare the tree's folder"):
        try:
            private.mkdir(0o700)
        except FileExistsError:
            raise TreeExists(
                f"There is a tree in {str(request.folder)!r} already.", hint="Drop it first."
            ) from None
    return private


def make(request: TreeRequest, driver: str, created_ns: int) -> Tree:
    return Tree(
        tree_id=request.tree_id,
        driver=driver,
        base_id=request.base.base_id,
        folder=request.folder,
        owner=request.owner,
        created_ns=created_ns,
    )


def expect(tree: Tree, *paths: Path) -> None:
    """That the tree and these parts of it are there."""
    if not private_folder(tree).is_dir():
        raise TreeNotFound(
            f"There is no tree {tree.tree_id} in {str(tree.folder)!r}.",
            hint="Somebody has deleted it; remove what stands on it.",
        )
    for path in paths:
        if not path.is_dir():
            raise TreeDamaged(
                f"The tree {tree.tree_id} has lost its folder {path.name!r}.",
                hint="Drop it, and start again from its base.",
            )


@runtime_checkable
class Comparable(Protocol):
    """A driver that can also tell which files got or lost other names (`links`), and can leave
    it to others to see that two changes are one file that was renamed."""

    def compare(self, tree: Tree, *, links: bool, renames: bool = True) -> Iterator[Change]: ...


class Freezable(Comparable, Protocol):
    def open_root(self, tree: Tree) -> int: ...


def freeze(driver: Freezable, bases: Bases, tree: Tree) -> Base:
    """What every driver does, once it can open a tree and compare it with its base."""
    root = driver.open_root(tree)
    try:
        changes = driver.compare(tree, links=True)
        return bases.freeze(bases.get(tree.base_id), changes, root)
    finally:
        os.close(root)


def remove_folders(tree: Tree) -> None:
    """The last step of every drop; the private folder goes last, so that a drop that was
    interrupted still looks like a tree."""
    with tree_errors("remove the tree"):
        remove_tree(tree.path)
        remove_tree(private_folder(tree))


@contextlib.contextmanager
def tree_errors(what: str) -> Iterator[None]:
    """Tells what the machine refused."""
    try:
        yield
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise InsufficientDisk(
                f"There is no room on the disk to {what}.", hint="Make room: carrel gc"
            ) from error
        raise TreeUnavailable(f"The machine refused to {what}: {error}.") from error


def settle(private: Path) -> int:
    """Waits until the clock of the file system has moved on, and gives its time. Whatever
    is touched from now on has this ctime or a later one; all before, an earlier one."""
    stamp = private / "stamp"
    stamp.touch()
    first = now = stamp.stat().st_ctime_ns
    deadline = time.monotonic() + _SETTLE_S
    while now <= first:
        if time.monotonic() > deadline:
            raise TreeUnavailable("The file system's clock stands still.")
        time.sleep(0.0005)
        os.utime(stamp)
        now = stamp.stat().st_ctime_ns
    return now


@contextlib.contextmanager
def open_roots(folders: tuple[Path, ...]) -> Iterator[list[Root]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(Root.at(folder)) for folder in folders]


@contextlib.contextmanager
def probe_folder(data: Path) -> Iterator[Path]:
    """A folder of its own in the data folder, for trying things in."""
    folder = data / (PROBE_PREFIX + secrets.token_hex(6))
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        with contextlib.suppress(OSError):
            remove_tree(folder)


def some_owner() -> Owner:
    """Somebody that a sandbox could run as."""
    if os.geteuid() != 0:
        return Owner(os.geteuid(), os.getegid())
    ids = uid_range()
    number = ids[min(1, len(ids) - 1)]
    return Owner(number, number)


def enough_room(folder: Path, base: Base) -> None:
    """That a copy of the base would fit. Raises `InsufficientDisk`."""
    free = shutil.disk_usage(folder).free
    if base.size_bytes <= free:
        return
    # Sparse files are bigger than what they take.
    wanted = 0
    with open_roots(base.layers) as roots:
        wanted = sum(measure(root, all_blocks).bytes_used for root in roots)
    if wanted > free:
        raise InsufficientDisk(
            f"A copy of the base takes {wanted >> 20} MiB, and {free >> 20} MiB are free.",
            hint="Make room, or put the data folder on a disk that shares blocks (btrfs, xfs).",
        )
