"""What all drivers share: where things lie, how trouble is told, what a tree costs on disk beyond
its base; and the choice of the driver that is best on this machine.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import stat
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from carrel.domain.availability import Availability
from carrel.domain.errors import (
    CarrelError,
    InsufficientDisk,
    TreeDamaged,
    TreeExists,
    TreeNotFound,
    TreeUnavailable,
)
from carrel.domain.trees import Base, Change, Owner, Tree, TreeDriver, TreeRequest, TreeUsage
from carrel.linux.descriptors import Descriptor
from carrel.linux.ids import uid_range
from carrel.linux.reflink import unshared_bytes
from carrel.trees.changes import Comparison, Ignore, PathTest, every_path, ignore_nothing
from carrel.trees.contents import STAT_BLOCK
from carrel.trees.drivers.written import Written, WrittenFiles
from carrel.trees.folders import Root, walk
from carrel.trees.layers import TRUSTED, USER, Layers
from carrel.trees.removal import remove_tree

Cost = Callable[[Root, str, os.stat_result], tuple[int, int]]
"""Bytes and files that one entry costs."""


def measure(root: Root, cost: Cost) -> TreeUsage:
    """Adds up every entry below `root`; a file with several names counts once."""
    used = files = 0
    seen: set[tuple[int, int]] = set()
    for path, status in walk(root):
        if status.st_nlink > 1 and not stat.S_ISDIR(status.st_mode):
            key = (status.st_dev, status.st_ino)
            if key in seen:
                continue
            seen.add(key)
        more_bytes, more_files = cost(root, path, status)
        used += more_bytes
        files += more_files
    return TreeUsage(used, files)


def all_blocks(_root: Root, _path: str, status: os.stat_result) -> tuple[int, int]:
    """The cost where nothing is shared: an upper folder, a plain copy."""
    return status.st_blocks * STAT_BLOCK, 1


def own_blocks(owner: Owner) -> Cost:
    """The cost of a copy some of whose files are somebody else's, under another name."""

    def cost(root: Root, path: str, status: os.stat_result) -> tuple[int, int]:
        if status.st_nlink > 1 and status.st_uid != owner.uid:
            return 0, 0
        return all_blocks(root, path, status)

    return cost


def unshared_since(settled_ns: int) -> Cost:
    """The cost of clones: what was written since, and is not shared with another file."""

    def cost(root: Root, path: str, status: os.stat_result) -> tuple[int, int]:
        if status.st_ctime_ns < settled_ns:
            return 0, 0
        if not stat.S_ISREG(status.st_mode):
            return status.st_blocks * STAT_BLOCK, 1
        try:
            descriptor = root.open_file(path)
        except FileNotFoundError:
            return 0, 0
        try:
            own = unshared_bytes(descriptor)
        finally:
            os.close(descriptor)
        return (status.st_blocks * STAT_BLOCK if own is None else own), 1

    return cost


# Where things lie, and how trouble is told

PRIVATE = "tree"
"""The folder beside the project in which a driver keeps what is its own."""
PROBE_PREFIX = ".probe-"
_SETTLE_S = 1.0
"""The kernel's clock for files moves every 1 to 10 ms."""
_STAMP = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class DriverBases(Protocol):
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
            hint="Somebody has deleted it. Remove its space: carrel rm --force SPACE",
        )
    for path in paths:
        if not path.is_dir():
            raise TreeDamaged(
                f"The tree {tree.tree_id} has lost its folder {path.name!r}.",
                hint="Remove its space (carrel rm --force SPACE), and make a new one.",
            )


@runtime_checkable
class Comparable(Protocol):
    """A driver that can also tell which files got or lost other names (`links`), can leave
    it to others to see that two changes are one file that was renamed, and what is in new folders
    (`into_added`)."""

    def compare(
        self,
        tree: Tree,
        *,
        links: bool,
        renames: PathTest | None = every_path,
        into_added: bool = True,
    ) -> Iterator[Change]: ...


@runtime_checkable
class Restful(Protocol):
    """A driver that tells without a comparison that nobody touched a tree."""

    def is_untouched(self, tree: Tree, since_ns: int) -> bool:
        """For sure; see `settle`. It may have been touched, or not be known, otherwise. Changes
        nothing itself."""
        ...


@runtime_checkable
class Layered(Protocol):
    """A driver that keeps what was written in a tree beside its base."""

    def written(self, tree: Tree) -> list[Written]:
        """What differs from the base, sorted; of a folder that went only the folder. Raises
        OSError, FileNotFoundError if something went meanwhile."""
        ...

    def open_written(self, tree: Tree) -> WrittenFiles:
        """To read the same files, without the tree's mount. They have the inodes that `written`
        tells, which the mount may not."""
        ...


class Freezable(Comparable, Protocol):
    def open_root(self, tree: Tree) -> int: ...


def freeze(driver: Freezable, bases: DriverBases, tree: Tree) -> Base:
    """What every driver does, once it can open a tree and compare it with its base."""
    with Descriptor(driver.open_root(tree)) as root:
        changes = driver.compare(tree, links=True)
        return bases.freeze(bases.get(tree.base_id), changes, root)


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
    with Descriptor(os.open(private / "stamp", _STAMP, 0o600)) as stamp:
        os.utime(stamp)
        first = os.fstat(stamp).st_ctime_ns
        deadline = time.monotonic() + _SETTLE_S
        while True:
            # A kernel with finer times moves at once the clock of what somebody has looked at.
            os.utime(stamp)
            if (now := os.fstat(stamp).st_ctime_ns) > first:
                return now
            if time.monotonic() > deadline:
                raise TreeUnavailable("The file system's clock stands still.")
            time.sleep(0.0005)


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


class FolderDriver(ABC):
    """Base of the drivers whose trees are folders of their own, which every program of the host
    sees. They say how such a folder is made, and what it costs."""

    name: str
    _making: str
    """What the machine may refuse."""

    def __init__(self, data: Path, bases: DriverBases) -> None:
        self._data = data
        self._bases = bases

    @abstractmethod
    def _check(self, base: Base) -> None:
        """That trees of the base can be made, before work that may take minutes."""

    @abstractmethod
    def _make(self, request: TreeRequest, private: Path, path: Path) -> None:
        """Makes the tree's folder at `path`; `private` is the driver's own. Raises OSError."""

    @abstractmethod
    def _cost(self, tree: Tree) -> Cost: ...

    def _ignores(self, _tree: Tree) -> Ignore:
        """What is not compared."""
        return ignore_nothing

    def create(self, request: TreeRequest) -> Tree:
        self._check(request.base)
        private = begin(request)
        tree = make(request, self.name, 0)
        try:
            with tree_errors(self._making):
                self._make(request, private, tree.path)
                created_ns = settle(private)
        except BaseException:
            with contextlib.suppress(CarrelError):
                self.drop(tree)
            raise
        return make(request, self.name, created_ns)

    def ensure(self, tree: Tree) -> None:
        expect(tree, tree.path)

    def open_root(self, tree: Tree) -> int:
        expect(tree, tree.path)
        with tree_errors("open the tree"):
            return os.open(tree.path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)

    def changes(self, tree: Tree) -> Iterator[Change]:
        return self.compare(tree, links=False)

    def compare(
        self,
        tree: Tree,
        *,
        links: bool,
        renames: PathTest | None = every_path,
        into_added: bool = True,
    ) -> Iterator[Change]:
        expect(tree, tree.path)
        base = self._bases.get(tree.base_id)
        ignore = self._ignores(tree)
        folders = (tree.path, *base.layers)
        with open_roots(folders) as roots, tree_errors("compare the tree"):
            yield from Comparison(
                Layers(roots[:1], None),
                Layers(roots[1:], note_prefix()),
                settled_ns=tree.created_ns,
                links=links,
                renames=renames,
                into_added=into_added,
                ignore=ignore,
            ).changes()

    def usage(self, tree: Tree) -> TreeUsage:
        expect(tree, tree.path)
        with Root.at(tree.path) as root, tree_errors("measure the tree"):
            return measure(root, self._cost(tree))

    def freeze(self, tree: Tree) -> Base:
        return freeze(self, self._bases, tree)

    def drop(self, tree: Tree) -> None:
        remove_folders(tree)


# The choice between drivers


@dataclass(frozen=True)
class Judgement:
    """What became of one candidate; `why` is a sentence."""

    name: str
    availability: Availability
    chosen: bool
    why: str


def choose_driver(candidates: Sequence[TreeDriver]) -> tuple[TreeDriver, tuple[Judgement, ...]]:
    """The best that works: one whose trees cost the same however big the project is, then
    one whose trees every program of the host sees, then the first in order.

    Raises `TreeUnavailable` when none works.
    """
    tried = [(driver, driver.probe()) for driver in candidates]
    working = [driver for driver, found in tried if found.available]
    if not working:
        reasons = " ".join(f"{driver.name}: {found.reason}" for driver, found in tried)
        raise TreeUnavailable(f"No tree driver works on this machine. {reasons}")
    best = min(working, key=_rank)
    return best, tuple(
        Judgement(driver.name, found, driver is best, _why(driver, found, best))
        for driver, found in tried
    )


def _rank(driver: TreeDriver) -> tuple[bool, bool]:
    """`min` takes the first of equals."""
    return not driver.capabilities.instant, not driver.capabilities.visible_on_host


def _why(driver: TreeDriver, found: Availability, best: TreeDriver) -> str:
    if not found.available:
        return found.reason
    if driver is best:
        return f"Chosen: {found.reason}"
    if _rank(driver)[0] > _rank(best)[0]:
        return f"Works, but takes longer the bigger the project is; {best.name} does not."
    if _rank(driver)[1] > _rank(best)[1]:
        return f"Works, but the host's programs do not see its trees; {best.name}'s they do."
    return f"Works; {best.name} comes first."
