"""Writes what an archive holds into a folder, and nothing anywhere else."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from carrel.domain.errors import ArchiveInvalid, InsufficientDisk, ProjectTooLarge
from carrel.domain.trees import Skipped
from carrel.trees.bases.copying import make_folder
from carrel.trees.bases.places import open_folder, split
from carrel.trees.removal import remove_entry

_CHUNK = 1 << 16
_ZEROS = bytes(_CHUNK)
_SPARE_BYTES = 64 << 20
"""So much room is left on the disk: an archive may claim any size."""
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_MODE = 0o777
"""Permissions that archives may give: none to become somebody else."""


@dataclass
class Limits:
    max_files: int | None = None
    max_bytes: int | None = None


@dataclass
class Unpacker:
    """Fills one empty folder. Names come as the archive has them."""

    root: int
    limits: Limits
    on_entry: Callable[[int, int], None]
    skipped: list[Skipped] = field(default_factory=list)
    _folders: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    _files: int = 0
    _bytes: int = 0

    @property
    def count(self) -> int:
        return self._files + len(self.skipped)

    def folder(self, name: bytes, mode: int, mtime_ns: int) -> None:
        path = clean(name)
        self._count(0)
        if path:
            os.close(self._open(path))
        self._folders[path] = (mode & _MODE | 0o700, mtime_ns)

    def file(self, name: bytes, mode: int, mtime_ns: int, size: int, content: IO[bytes]) -> None:
        path = clean(name, needed=True)
        self._count(size)
        folder, last = self._place(path)
        try:
            target = os.open(last, _NEW, 0o600, dir_fd=folder)
            try:
                self._fill(path, target, size, content)
                os.fchmod(target, mode & _MODE)
                os.utime(target, ns=(mtime_ns, mtime_ns))
            finally:
                os.close(target)
        finally:
            os.close(folder)

    def symlink(self, name: bytes, target: bytes, mtime_ns: int) -> None:
        path = clean(name, needed=True)
        self._count(0)
        _refuse_escape(path, target)
        folder, last = self._place(path)
        try:
            os.symlink(target, last, dir_fd=folder)
            os.utime(last, ns=(mtime_ns, mtime_ns), dir_fd=folder, follow_symlinks=False)
        finally:
            os.close(folder)

    def hard_link(self, name: bytes, target: bytes) -> None:
        path, first = clean(name, needed=True), clean(target, needed=True)
        self._count(0)
        if path == first:
            return
        above, old = split(first)
        try:
            source = open_folder(self.root, above)
        except OSError as error:
            raise _bad(f"{_shown(path)} is a link to {_shown(first)}, which it has not") from error
        try:
            folder, last = self._place(path)
            try:
                os.link(old, last, src_dir_fd=source, dst_dir_fd=folder, follow_symlinks=False)
            except (FileNotFoundError, PermissionError) as error:
                raise _bad(
                    f"{_shown(path)} is a link to {_shown(first)}, which it has not"
                ) from error
            finally:
                os.close(folder)
        finally:
            os.close(source)

    def skip(self, name: bytes, why: str) -> None:
        self.skipped.append(Skipped(os.fsdecode(clean(name)), why))

    def finish(self) -> None:
        """Modes and times of folders, from the inside out."""
        for path in sorted(self._folders, reverse=True):
            mode, mtime_ns = self._folders[path]
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                folder = open_folder(self.root, path)
                try:
                    os.fchmod(folder, mode)
                    os.utime(folder, ns=(mtime_ns, mtime_ns))
                finally:
                    os.close(folder)

    def _open(self, path: bytes) -> int:
        """A folder of the tree, made where it is missing."""
        try:
            return open_folder(self.root, path)
        except FileNotFoundError:
            pass
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                raise _bad(f"{_shown(path)} leads through a symlink or a file") from error
            raise
        above, name = split(path)
        parent = self._open(above)
        try:
            folder = make_folder(parent, name)
            os.fchmod(folder, 0o755)
            return folder
        finally:
            os.close(parent)

    def _place(self, path: bytes) -> tuple[int, bytes]:
        """Where an entry comes to lie; what was there before, of the same name, is gone."""
        above, name = split(path)
        folder = self._open(above)
        remove_entry(folder, name)
        return folder, name

    def _fill(self, path: bytes, target: int, size: int, content: IO[bytes]) -> None:
        left = size
        while left:
            data = content.read(min(_CHUNK, left))
            if not data:
                raise _bad(f"{_shown(path)} is cut short")
            left -= len(data)
            if data == _ZEROS:
                os.lseek(target, len(data), os.SEEK_CUR)
                continue
            view = memoryview(data)
            while view:
                view = view[os.write(target, view) :]
        os.ftruncate(target, size)

    def _count(self, size: int) -> None:
        self._files += 1
        self._bytes += size
        self.on_entry(self._files, self._bytes)
        for found, limit, what in (
            (self._files, self.limits.max_files, "entries"),
            (self._bytes, self.limits.max_bytes, "bytes"),
        ):
            if limit is not None and found > limit:
                raise ProjectTooLarge(
                    f"The archive holds more than the {limit} {what} that were allowed.",
                    hint="Allow more, or give a smaller archive.",
                    limit=limit,
                )
        disk = os.fstatvfs(self.root)
        free = disk.f_bavail * disk.f_frsize
        if size and size + _SPARE_BYTES > free:
            raise InsufficientDisk(
                f"The archive holds a file of {size} bytes, and {free} are free on the disk.",
                hint="Make room, or move the data folder.",
                needed_bytes=size,
                free_bytes=free,
            )


def clean(name: bytes, *, needed: bool = False) -> bytes:
    """The path below the root that a name means. Raises `ArchiveInvalid`."""
    if name.startswith(b"/"):
        raise _bad(f"{_shown(name)} is an absolute path")
    parts = [part for part in name.split(b"/") if part not in (b"", b".")]
    if b".." in parts:
        raise _bad(f"{_shown(name)} leads out of it")
    if b"\0" in name or any(len(part) > 255 for part in parts):
        raise _bad(f"{_shown(name)} cannot be the name of a file")
    if needed and not parts:
        raise _bad(f"{_shown(name)} names no file")
    return b"/".join(parts)


def _refuse_escape(path: bytes, target: bytes) -> None:
    if not target or target.startswith(b"/") or b"\0" in target:
        raise _bad(f"{_shown(path)} is a symlink to {_shown(target)}, outside of it")
    depth = path.count(b"/")
    for part in target.split(b"/"):
        if part == b"..":
            depth -= 1
        elif part not in (b"", b"."):
            depth += 1
        if depth < 0:
            raise _bad(f"{_shown(path)} is a symlink to {_shown(target)}, outside of it")


def bad_archive(path: Path, why: str) -> ArchiveInvalid:
    return ArchiveInvalid(
        f"The archive {str(path)!r} cannot be used: {why}.",
        hint="Pack it again, as tar (plain, gz, bz2, xz or zst) or as zip.",
    )


def _bad(why: str) -> ArchiveInvalid:
    return ArchiveInvalid(
        f"The archive cannot be used: {why}.",
        hint="Pack it again from within the project's folder, without links that lead out.",
    )


def _shown(name: bytes) -> str:
    return repr(os.fsdecode(name))


def unix_mode(attributes: int, *, folder: bool) -> int:
    """Of a zip's entry; those that other systems made have none."""
    mode = attributes >> 16
    if stat.S_IMODE(mode):
        return mode
    return 0o755 if folder else 0o644
