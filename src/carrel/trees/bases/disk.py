"""How and where bases lie on disk: the layout (layers over one another, or whole subvolumes of
btrfs), whether there is room, and the staging area, from which a base is published in one step.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from carrel.domain.errors import InsufficientDisk
from carrel.domain.trees import Base, Owner
from carrel.linux import btrfs
from carrel.linux.descriptors import Descriptor
from carrel.linux.ids import may_give
from carrel.linux.reflink import clone_file
from carrel.trees.bases.manifest import Document, encode_document
from carrel.trees.bases.records import FILE, LAYER, Record, encode_record
from carrel.trees.locks import build_lock
from carrel.trees.paths import sync_folder
from carrel.trees.removal import remove_entry, remove_tree


class Layout(Protocol):
    """What the store asks for while it makes one base. All raise OSError."""

    @property
    def name(self) -> str: ...

    @property
    def layered(self) -> bool:
        """A base is what its layers show together; else its one layer has everything."""
        ...

    def begin(self, place: Path, previous: Path | None) -> None:
        """Makes the folder that is to become a layer. `previous` is the uppermost layer of
        the base that it follows."""
        ...

    def resume(self, place: Path) -> None:
        """Makes a folder that was begun, and maybe sealed, writable again."""
        ...

    def hide(self, folder: int, name: bytes) -> None:
        """Makes an entry of the previous base not appear in the new one."""
        ...

    def seal(self, place: Path) -> None:
        """Nothing is written any more."""
        ...

    def discard(self, place: Path) -> None:
        """Removes a layer, a half-made one too; idempotent."""
        ...


class LayeredLayout:
    """Thin layers in overlayfs's format. `owner` is whom all entries belong to."""

    name = "layered"
    layered = True

    def __init__(self, owner: Owner) -> None:
        self._owner = owner

    def begin(self, place: Path, previous: Path | None) -> None:
        place.mkdir(mode=0o700)

    def resume(self, place: Path) -> None:
        pass

    def hide(self, folder: int, name: bytes) -> None:
        remove_entry(folder, name)
        # A whiteout. Linux lets everybody make this one device since 5.8.
        os.mknod(name, stat.S_IFCHR, os.makedev(0, 0), dir_fd=folder)
        if may_give():
            os.chown(name, self._owner.uid, self._owner.gid, dir_fd=folder)

    def seal(self, place: Path) -> None:
        pass

    def discard(self, place: Path) -> None:
        remove_tree(place)


class SubvolumeLayout:
    """Each base is a read-only subvolume: a snapshot of the one before, with the changes
    made in it."""

    name = "subvolume"
    layered = False

    def begin(self, place: Path, previous: Path | None) -> None:
        if previous is None:
            btrfs.create_subvolume(place)
            place.chmod(0o700)
        else:
            btrfs.snapshot(previous, place)

    def resume(self, place: Path) -> None:
        btrfs.set_read_only(place, False)

    def hide(self, folder: int, name: bytes) -> None:
        remove_entry(folder, name)

    def seal(self, place: Path) -> None:
        btrfs.set_read_only(place, True)

    def discard(self, place: Path) -> None:
        if not btrfs.is_subvolume(place):
            remove_tree(place)
            return
        btrfs.set_read_only(place, False)
        with contextlib.suppress(PermissionError):
            btrfs.delete_subvolume(place)
        # Ordinary users may not delete a subvolume, but an empty one goes like a folder.
        remove_tree(place)


# Room on the disk

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_ENTRY_BYTES = 512
"""For the inode and the name of an entry."""


def check_room(folder: Path, sizes: Iterable[int], measure: Callable[[], int]) -> None:
    """Raises `InsufficientDisk`. `sizes` are those of the files; when they do not fit,
    `measure` gives what they really need, which for sparse and shared files is less."""
    disk = os.statvfs(folder)
    block = disk.f_frsize or 4096
    free = disk.f_bavail * block
    needed = count = 0
    for size in sizes:
        needed += (size + block - 1) // block * block + _ENTRY_BYTES
        count += 1
    if needed > free:
        needed = measure() + count * _ENTRY_BYTES
    if needed > free:
        raise InsufficientDisk(
            f"The project needs {_shown(needed)} on the disk of {str(folder)!r}, "
            f"and {_shown(free)} are free.",
            hint="Make room, exclude what is not needed, or move the data folder.",
            needed_bytes=needed,
            free_bytes=free,
        )
    # Some file systems do not count inodes.
    if disk.f_files and count > disk.f_favail:
        raise InsufficientDisk(
            f"The project has {count} files, and the file system of {str(folder)!r} can "
            f"take {disk.f_favail} more.",
            hint="Remove files there, or move the data folder.",
            needed_files=count,
            free_files=disk.f_favail,
        )


def can_clone(source: bytes, folder: Path) -> bool:
    """Tries whether copies of a file in a folder share its blocks."""
    reads = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    writes = os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC
    with (
        Descriptor(os.open(source, reads)) as reader,
        Descriptor(os.open(folder, writes, 0o600)) as writer,
    ):
        return clone_file(reader, writer)


@contextlib.contextmanager
def no_room_as_error(folder: Path) -> Iterator[None]:
    """Tells in a coded error that the disk became full."""
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        disk = os.statvfs(folder)
        free = disk.f_bavail * disk.f_frsize
        why = "The disk quota is used up" if error.errno == errno.EDQUOT else "The disk is full"
        raise InsufficientDisk(
            f"{why} ({_shown(free)} are free in {str(folder)!r}): the base was not built.",
            hint="Make room, exclude what is not needed, or move the data folder.",
            free_bytes=free,
        ) from error


def _shown(count: int) -> str:
    size = float(count)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


# Staging and publishing

STAGING = ".staging"
HEADS = ".heads"
LOCK = ".lock"


class StackGone(Exception):
    """A base that this one was to stand on was removed meanwhile."""


@dataclass(frozen=True)
class BuildContext:
    """Where bases are made, and how."""

    bases: Path
    layout: Layout
    owner: Owner
    """Whom everything belongs to on disk."""
    shown: Owner
    """Whom sandboxes see it belong to."""
    verify_after_s: float
    """A project that took longer to read is looked at a second time."""
    patience_s: float
    """How long a build waits for a project that keeps changing."""

    @property
    def lock(self) -> Path:
        return self.bases / STAGING / LOCK

    def head(self, key: str) -> Path:
        return self.bases / HEADS / key

    def kept_indexes(self, key: str) -> Path:
        return self.bases / HEADS / f"{key}.indexes"

    def staging(self, key: str) -> Staging:
        return Staging(self.bases / STAGING / key, self.layout)

    def key_lock(self, key: str) -> Path:
        return self.bases / STAGING / f"{key}.lock"


@dataclass(frozen=True)
class Staging:
    """The private place of one build."""

    folder: Path
    layout: Layout

    @property
    def journal(self) -> Path:
        return self.folder / "journal"

    @property
    def base(self) -> Path:
        """What is renamed in the end."""
        return self.folder / "base"

    @property
    def layer(self) -> Path:
        return self.base / LAYER

    def begin(self, previous: Path | None) -> None:
        self.discard()
        self.base.mkdir(mode=0o700, parents=True)
        self.layout.begin(self.layer, previous)

    def discard(self) -> None:
        """Idempotent."""
        self.layout.discard(self.layer)
        remove_tree(self.folder)


def publish(context: BuildContext, staging: Staging, record: Record, document: Document) -> Base:
    """Raises `StackGone`; OSError when the disk refuses."""
    files = ((FILE, encode_record(record)), ("manifest", encode_document(document)))
    with contextlib.ExitStack() as stack:
        # All is written before any is forced to disk: then that takes one round.
        written = [stack.enter_context(open(staging.base / name, "wb")) for name, _ in files]
        for file, (_, data) in zip(written, files, strict=True):
            file.write(data)
            file.flush()
        for file in written:
            os.fsync(file.fileno())
    sync_folder(staging.base)
    base = record.base
    with build_lock(context.lock):
        if not all(layer.is_dir() for layer in base.layers[1:]):
            raise StackGone
        with contextlib.suppress(FileExistsError):
            _rename(staging.base, base.folder)
            sync_folder(context.bases)
    staging.discard()
    return base


def _rename(source: Path, target: Path) -> None:
    try:
        source.rename(target)
    except OSError as error:
        if error.errno == errno.ENOTEMPTY:
            # Somebody else built the same content: theirs is as good.
            raise FileExistsError from error
        raise
