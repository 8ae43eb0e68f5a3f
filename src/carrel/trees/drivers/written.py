"""What was written in an overlay, read where it lies on the disk: in the upper folder.

`changes.Comparison` tells of any overlay how it differs from its base. Checkpoints ask that after
each turn, so here is the ordinary case, in less time: folders that lie right on those of
the base, or on nothing. What is of another kind, such as a folder that was moved, is left to it.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from carrel.domain.trees import Change, ChangeKind, EntryType
from carrel.trees.folders import MOST_ENTRIES, HeldPaths, Root, join, split, too_many
from carrel.trees.paths import FOLDER

Written = tuple[str, os.stat_result | None]
"""A path, and what is there now; None: nothing is, and the base has something."""


class ReadableFiles(Protocol):
    """What files are read from; see `Root`."""

    def status(self, path: str) -> os.stat_result | None: ...

    def link(self, path: str) -> bytes: ...

    def open_regular(self, path: str) -> tuple[int, os.stat_result]: ...


_DEEPEST = 32
"""Levels of which all folders are open at once; what is deeper is left to the comparison."""
_LONG = 300
"""Letters of a path from which on it counts what is held of it."""
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


def as_written(
    changes: Iterable[Change],
    status: Callable[[str], os.stat_result | None],
    *,
    whole: bool = False,
) -> Iterator[Written]:
    """Of a folder that went only the folder, unless `whole`."""
    gone: set[str] = set()
    for change in changes:
        if change.old_type is EntryType.FOLDER and change.new_type is not EntryType.FOLDER:
            gone.add(change.path)
        if change.kind is not ChangeKind.DELETED:
            yield change.path, status(change.path)
        elif whole or split(change.path)[0] not in gone:
            yield change.path, None


class WrittenEntries:
    """What differs from the base, sorted by path; of a folder that went only the folder."""

    def __init__(self, prefix: str, compare: Callable[[str], Iterable[Written]]) -> None:
        """`prefix` of the notes that overlayfs keeps. `compare` tells the same of one entry and
        all that is in it, whatever it is."""
        self._opaque, self._redirect = f"{prefix}opaque", f"{prefix}redirect"
        self._compare = compare
        self._held = HeldPaths()
        self._found: list[Written] = []

    def read(self, tree: Sequence[int], base: Sequence[int]) -> list[Written]:
        """Of open folders, the uppermost first: those that the tree has above its base, and the
        base's. Raises OSError; FileNotFoundError if something went meanwhile."""
        self._folder("", tree, base, 0)
        return self._found

    def _folder(self, path: str, tree: Sequence[int], base: Sequence[int], depth: int) -> None:
        names = _names(path, tree)
        items = list(names)
        # What is in a folder sorts by the slash, so after `a.txt` comes `a/b`.
        items += [f"{name}/" for name, status in names.items() if stat.S_ISDIR(status.st_mode)]
        items.sort()
        for item in items:
            if item[-1] == "/":
                self._inner(join(path, item[:-1]), item[:-1], tree, base, depth)
            else:
                self._entry(join(path, item), names[item], _status(item, base))

    def _entry(self, path: str, new: os.stat_result, old: os.stat_result | None) -> None:
        if len(path) > _LONG:
            self._held.add(path)
        if stat.S_ISCHR(new.st_mode) and not new.st_rdev:
            # A whiteout of what the base does not have is left of something temporary.
            if old is not None:
                self._found.append((path, None))
        elif old is None or new.st_mode != old.st_mode:
            self._found.append((path, new))
        elif not stat.S_ISDIR(new.st_mode):
            if new.st_size != old.st_size:
                self._found.append((path, new))
            else:
                self._found += self._compare(path)

    def _inner(
        self, path: str, name: str, tree: Sequence[int], base: Sequence[int], depth: int
    ) -> None:
        """What is in the folder `name` of these."""
        begun, opened = len(self._found), list[int]()
        try:
            above = self._parts(name, tree, opened)
            below = self._parts(name, base, opened, last_is_plain=True)
            if above is not None and not above[0]:
                raise FileNotFoundError(errno.ENOENT, "gone meanwhile", path)
            hidden = above is not None and above[1]
            if above is None or below is None or depth > _DEEPEST or (hidden and below[0]):
                self._left(path)
            else:
                self._folder(path, above[0], below[0], depth + 1)
        except PermissionError:
            # The comparison has a way into folders that keep their owner out.
            del self._found[begun:]
            self._left(path)
        except OSError as error:
            if error.errno in _GONE:
                raise FileNotFoundError(errno.ENOENT, "gone meanwhile", path) from None
            raise
        finally:
            for descriptor in opened:
                os.close(descriptor)

    def _left(self, path: str) -> None:
        self._found += (one for one in self._compare(path) if one[0] != path)

    def _parts(
        self, name: str, folders: Sequence[int], opened: list[int], *, last_is_plain: bool = False
    ) -> tuple[list[int], bool] | None:
        """The folders `name` in these that are shown as one, and whether they hide what is below;
        None if one is not what it seems."""
        parts: list[int] = []
        for folder in folders:
            try:
                part = os.open(name, FOLDER, dir_fd=folder)
            except FileNotFoundError:
                continue
            except OSError as error:
                if error.errno not in _GONE:
                    raise
                return parts, True
            opened.append(part)
            parts.append(part)
            if last_is_plain and folder == folders[-1]:
                break
            notes = os.listxattr(part)
            if self._redirect in notes:
                return None
            if self._opaque in notes:
                return (parts, True) if os.getxattr(part, self._opaque) == b"y" else None
        return parts, False


def _names(path: str, folders: Sequence[int]) -> dict[str, os.stat_result]:
    """What they have, each as the uppermost has it."""
    names: dict[str, os.stat_result] = {}
    for folder in reversed(folders):
        with os.scandir(folder) as entries:
            for entry in entries:
                names[entry.name] = entry.stat(follow_symlinks=False)
                if len(names) > MOST_ENTRIES:
                    raise too_many(path)
    return names


def _status(name: str, folders: Sequence[int]) -> os.stat_result | None:
    for folder in folders:
        try:
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            continue
        return None if stat.S_ISCHR(status.st_mode) else status
    return None


def untouched(folder: int, since_ns: int, depth: int = 0) -> bool:
    """Whether nothing in an open folder has been touched since then, for sure. Raises OSError."""
    with os.scandir(folder) as entries:
        for entry in entries:
            status = entry.stat(follow_symlinks=False)
            if status.st_ctime_ns >= since_ns:
                return False
            if stat.S_ISDIR(status.st_mode):
                if depth > _DEEPEST:
                    return False
                inner = os.open(entry.name, FOLDER, dir_fd=folder)
                try:
                    if not untouched(inner, since_ns, depth + 1):
                        return False
                finally:
                    os.close(inner)
    return True


class WrittenFiles:
    """Reads files where they were written, and by the tree's mount what is not there."""

    def __init__(self, upper: Root, prefix: str, shown: Callable[[], Root]) -> None:
        """Takes over the folder, and what `shown` gives."""
        self._upper = upper
        self._metacopy = f"{prefix}metacopy"
        self._open_shown = shown
        self._opened: Root | None = None

    def __enter__(self) -> WrittenFiles:
        return self

    def __exit__(self, *_error: object) -> None:
        self._upper.close()
        if self._opened is not None:
            self._opened.close()

    def status(self, path: str) -> os.stat_result | None:
        status = self._upper.status(path)
        if status is None:
            return self._shown.status(path)
        is_whiteout = stat.S_ISCHR(status.st_mode) and not status.st_rdev
        return None if is_whiteout else status

    def link(self, path: str) -> bytes:
        return self._upper.link(path) or self._shown.link(path)

    def open_regular(self, path: str) -> tuple[int, os.stat_result]:
        """As that of `Root`. Of a file whose mode alone was changed, the bytes are elsewhere."""
        try:
            opened, status = self._upper.open_regular(path)
        except FileNotFoundError:
            if self._upper.status(path) is not None:
                raise
            return self._shown.open_regular(path)
        if self._metacopy not in os.listxattr(opened):
            return opened, status
        os.close(opened)
        return self._shown.open_regular(path)[0], status

    @property
    def _shown(self) -> Root:
        if self._opened is None:
            self._opened = self._open_shown()
        return self._opened
