"""A folder of the host as the tree itself: what is written there is written there.

For callers who name a folder of theirs to work in. Nothing is copied and nothing is private;
of its own the driver has only a note which folder it is and a list of what was in it. Nothing
of a tree's folder leads to the other one, so that whatever removes a tree removes no more.

There is no copy to compare the folder with. What the kernel alone writes (the ctime) says of most
files that nobody touched them; of those that were, a digest says whether their bytes are others.
Both lists are in the order of their paths, and are read side by side: neither is ever in memory as
a whole.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
import struct
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO

import msgspec

from carrel.domain.availability import Availability
from carrel.domain.errors import CarrelError, TreeDamaged, TreeUnavailable
from carrel.domain.trees import (
    DIRECT,
    Base,
    Change,
    ChangeKind,
    Owner,
    Tree,
    TreeCapabilities,
    TreeMount,
    TreeRequest,
    TreeUsage,
)
from carrel.linux.descriptors import Descriptor
from carrel.linux.openat2 import open_real, open_same_mount
from carrel.trees.contents import digest
from carrel.trees.drivers.common import (
    all_blocks,
    begin,
    expect,
    make,
    measure,
    private_folder,
    settle,
    tree_errors,
)
from carrel.trees.files import entry_type
from carrel.trees.folders import ENTRY_ERRORS, FoundEntry, Root, walk
from carrel.trees.host_folders import shown_clone
from carrel.trees.removal import remove_tree

DIGEST_FILE_BYTES = 4 << 20
"""Larger files go by size and ctime: reading them takes longer than most requests."""
DIGEST_BYTES = 512 << 20
"""Of all files together: about a second."""
_GIT = ".git"
_LENGTH = struct.Struct("<I")
_FOLDER = os.O_PATH | os.O_DIRECTORY


class Noted(msgspec.Struct, array_like=True, frozen=True):
    """One entry. `size` of a device is its number. Without a `digest` only times tell."""

    path: bytes
    mode: int
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    digest: bytes = b""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Noted)


def _entries(root: Root) -> Iterator[FoundEntry]:
    """Every entry below. What is mounted in there is not part of it, nor is what is in a
    folder that may not be read."""
    top = root.status("")
    device = top.st_dev if top is not None else 0

    def enters(folder: FoundEntry) -> bool:
        if folder.status.st_dev != device and not _same_mount(root, folder.path):
            return False
        try:
            root.folder(folder.path)
        except (PermissionError, FileNotFoundError, NotADirectoryError):
            return False
        return True

    return walk(root, enters)


def _same_mount(root: Root, path: str) -> bool:
    """Another device on the same mount is a subvolume of btrfs."""
    above, _, name = path.rpartition("/")
    try:
        os.close(open_same_mount(root.folder(above), os.fsencode(name), _FOLDER))
    except OSError as error:
        if error.errno == errno.EXDEV or error.errno in ENTRY_ERRORS:
            return False
        raise
    return True


def write_index(root: Root, target: Path) -> None:
    """What the folder holds now. Raises OSError."""
    left = DIGEST_BYTES
    with target.open("xb") as file:
        for found in _entries(root):
            told = b""
            if _digested(found) and found.status.st_size <= left:
                told = content_digest(root, found)
                left -= found.status.st_size
            status = found.status
            raw = _encoder.encode(
                Noted(
                    os.fsencode(found.path),
                    status.st_mode,
                    _size(status),
                    status.st_mtime_ns,
                    status.st_ctime_ns,
                    status.st_ino,
                    told,
                )
            )
            file.write(_LENGTH.pack(len(raw)) + raw)


def _digested(found: FoundEntry) -> bool:
    """Git's own files never change (its objects), or all the time."""
    mode = found.status.st_mode
    if stat.S_ISLNK(mode):
        return True
    small = stat.S_ISREG(mode) and found.status.st_size <= DIGEST_FILE_BYTES
    return small and _GIT not in found.path.split("/")


def content_digest(root: Root, found: FoundEntry) -> bytes:
    """Of a file's bytes or a link's target; empty when it cannot be read."""
    try:
        if stat.S_ISLNK(found.status.st_mode):
            return hashlib.sha256(root.link(found.path)).digest()
        descriptor = root.open_file(found.path)
    except OSError as error:
        if error.errno in ENTRY_ERRORS:
            return b""
        raise
    try:
        return digest(descriptor, found.status.st_size)
    finally:
        os.close(descriptor)


def read_index(source: Path) -> Iterator[Noted]:
    """Raises `TreeDamaged`, OSError."""
    with source.open("rb") as file:
        while length := file.read(_LENGTH.size):
            yield _read(file, length)


def _read(file: BinaryIO, length: bytes) -> Noted:
    try:
        (size,) = _LENGTH.unpack(length)
        return _decoder.decode(file.read(size))
    except (struct.error, msgspec.MsgspecError) as error:
        raise TreeDamaged(
            "The list of what a folder held cannot be read.", hint="Remove the space."
        ) from error


def changes(root: Root, source: Path) -> Iterator[Change]:
    """Sorted by path. A file that was moved is a deleted and an added one."""
    before = _named(read_index(source))
    old = next(before, None)
    for found in _entries(root):
        while old is not None and old[0] < found.path:
            yield _deleted(*old)
            old = next(before, None)
        if old is None or old[0] != found.path:
            yield _change(found, ChangeKind.ADDED)
            continue
        kind = _kind(root, found, old[1])
        if kind is not None:
            yield _change(found, kind, old[1])
        old = next(before, None)
    while old is not None:
        yield _deleted(*old)
        old = next(before, None)


def _named(entries: Iterator[Noted]) -> Iterator[tuple[str, Noted]]:
    return ((os.fsdecode(noted.path), noted) for noted in entries)


def _kind(root: Root, found: FoundEntry, old: Noted) -> ChangeKind | None:
    status = found.status
    if stat.S_IFMT(status.st_mode) != stat.S_IFMT(old.mode):
        return ChangeKind.TYPE
    if not _same_content(root, found, old):
        return ChangeKind.MODIFIED
    return ChangeKind.MODE if stat.S_IMODE(status.st_mode) != stat.S_IMODE(old.mode) else None


def _same_content(root: Root, found: FoundEntry, old: Noted) -> bool:
    status = found.status
    if stat.S_ISDIR(status.st_mode):
        return True
    if _size(status) != old.size:
        return False
    touched = (status.st_ctime_ns, status.st_ino) != (old.ctime_ns, old.inode)
    if not touched or not (stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)):
        return True
    return bool(old.digest) and content_digest(root, found) == old.digest


def _size(status: os.stat_result) -> int:
    if stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode):
        return status.st_rdev
    return status.st_size if not stat.S_ISDIR(status.st_mode) else 0


def _change(found: FoundEntry, kind: ChangeKind, old: Noted | None = None) -> Change:
    mode = found.status.st_mode
    return Change(
        path=found.path,
        kind=kind,
        old_type=None if old is None else entry_type(old.mode),
        new_type=entry_type(mode),
        old_mode=None if old is None else stat.S_IMODE(old.mode),
        new_mode=stat.S_IMODE(mode),
        size=found.status.st_size if stat.S_ISREG(mode) else 0,
    )


def _deleted(path: str, old: Noted) -> Change:
    return Change(
        path=path,
        kind=ChangeKind.DELETED,
        old_type=entry_type(old.mode),
        old_mode=stat.S_IMODE(old.mode),
        size=old.size if stat.S_ISREG(old.mode) else 0,
    )


# The driver

_PLACE, _INDEX = "place", "index"


class DirectPlace(msgspec.Struct, frozen=True):
    """Which folder it is: the path may come to name another one."""

    path: bytes
    device: int
    inode: int


class DirectDriver:
    """Implements `TreeDriver`; is never chosen, only asked for by name."""

    name = DIRECT

    @property
    def capabilities(self) -> TreeCapabilities:
        return TreeCapabilities(
            copy_on_write=False,
            instant=False,
            visible_on_host=True,
            renames_base_folders=True,
            stays=True,
            notes=(
                "The tree is the folder itself: others see each change at once.",
                "Files that are too large for a digest count as changed when they were touched.",
                "Limits of disk space do not count what is in the folder.",
            ),
        )

    def probe(self) -> Availability:
        return Availability(False, "Only the service asks for it, with a folder.")

    def create(self, request: TreeRequest) -> Tree:
        if request.place is None:
            raise TreeUnavailable(f"The driver {DIRECT!r} needs a folder.", hint="Name one.")
        private = begin(request)
        tree = make(request, self.name, 0)
        try:
            with tree_errors("look at the folder"), Root(open_real(request.place)) as root:
                _note(root, request.place, private)
                write_index(root, private / _INDEX)
                created_ns = settle(private)
        except BaseException:
            with contextlib.suppress(CarrelError):
                self.drop(tree)
            raise
        return make(request, self.name, created_ns)

    def ensure(self, tree: Tree) -> None:
        os.close(self.open_root(tree))

    def open_root(self, tree: Tree) -> int:
        expect(tree)
        return _open(tree.tree_id, _noted(tree))

    @contextlib.contextmanager
    def mount(self, tree: Tree) -> Iterator[TreeMount]:
        self.ensure(tree)
        place = _noted(tree)
        path = Path(os.fsdecode(place.path))
        if os.geteuid() != 0:
            yield TreeMount(path)
        else:
            yield TreeMount(path, detached=partial(_clone, tree.tree_id, place, tree.owner))

    def changes(self, tree: Tree) -> Iterator[Change]:
        with Root(self.open_root(tree)) as root, tree_errors("compare the folder"):
            yield from changes(root, private_folder(tree) / _INDEX)

    def usage(self, tree: Tree) -> TreeUsage:
        """What would be free without it: its own notes."""
        expect(tree)
        with Root.at(private_folder(tree)) as root, tree_errors("measure the tree"):
            return measure(root, all_blocks)

    def freeze(self, tree: Tree) -> Base:
        raise TreeUnavailable(
            f"The space {tree.tree_id} works in a folder itself, which is no base.",
            hint="Make a space from the folder, and fork that.",
        )

    def drop(self, tree: Tree) -> None:
        with tree_errors("remove the tree"):
            remove_tree(private_folder(tree))


def _note(root: Root, path: Path, private: Path) -> None:
    found = root.status("")
    assert found is not None
    place = DirectPlace(os.fsencode(path), found.st_dev, found.st_ino)
    (private / _PLACE).write_bytes(msgspec.msgpack.encode(place))


def _noted(tree: Tree) -> DirectPlace:
    try:
        raw = (private_folder(tree) / _PLACE).read_bytes()
        return msgspec.msgpack.decode(raw, type=DirectPlace)
    except (OSError, msgspec.MsgspecError) as error:
        raise TreeDamaged(
            f"The space {tree.tree_id} does not know its folder any more.", hint="Remove it."
        ) from error


def _open(tree_id: str, place: DirectPlace) -> int:
    name = os.fsdecode(place.path)
    try:
        opened = open_real(Path(name))
    except OSError as error:
        raise _swapped(tree_id, name) from error
    found = os.fstat(opened)
    if (found.st_dev, found.st_ino) != (place.device, place.inode):
        os.close(opened)
        raise _swapped(tree_id, name)
    return opened


def _clone(tree_id: str, place: DirectPlace, owner: Owner) -> int:
    with Descriptor(_open(tree_id, place)) as opened:
        return shown_clone(opened, owner)


def _swapped(tree_id: str, name: str) -> TreeDamaged:
    return TreeDamaged(
        f"{name} is not the folder any more that the space {tree_id} works in.",
        hint="Put it back, or remove the space.",
    )
