"""What a state that was kept says of a tree's files, how that is written down, and how it is read.

`states.py` makes states, puts them back and gives them to others. Here is a state as one side of a
comparison, without any tree that has it.
"""

from __future__ import annotations

import os
import secrets
import stat
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path

import msgspec

from carrel.domain.errors import TreeDamaged
from carrel.linux.descriptors import Descriptor
from carrel.trees.contents import write_at
from carrel.trees.differences import Importer, take
from carrel.trees.folders import HeldPaths, Root, join, split
from carrel.trees.layers import LayerEntry, Layers

VERSION = 1
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class StateEntry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`mode` is 0 for what the tree does not have any more. `content` is the name of the kept
    file, or what a symlink says. `mark` is the inode and the ctime that it had."""

    path: bytes
    mode: int = 0
    mtime_ns: int = 0
    size: int = 0
    content: bytes = b""
    mark: tuple[int, int] = (0, 0)
    owner: tuple[int, int] = (0, 0)
    """Uid and gid as the image has them; only of the parts of a space beside its tree."""

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.mode)


class FilesState(msgspec.Struct, frozen=True):
    version: int
    base_id: str
    tree: tuple[StateEntry, ...] = ()
    agent: tuple[StateEntry, ...] | None = None
    """None: only the files were kept."""
    parts: dict[str, tuple[StateEntry, ...]] = {}
    """Of what the space has beside its tree, by name. A part that is not named was not there."""

    def all(self) -> Iterator[StateEntry]:
        return chain(self.tree, self.agent or (), *self.parts.values())

    def files(self) -> Iterator[StateEntry]:
        return (one for one in self.all() if one.is_file)


def mark_of(status: os.stat_result) -> tuple[int, int]:
    return status.st_ino, status.st_ctime_ns


def by_path(entries: Iterable[StateEntry]) -> dict[str, StateEntry]:
    return {os.fsdecode(one.path): one for one in entries}


def damaged(why: str) -> TreeDamaged:
    return TreeDamaged(
        f"The checkpoint cannot be used: {why}.", hint="Use another: carrel checkpoints SPACE"
    )


def read_state(path: Path, base_id: str) -> FilesState:
    """Raises FileNotFoundError, and `TreeDamaged`."""
    try:
        state = msgspec.msgpack.decode(zlib.decompress(path.read_bytes()), type=FilesState)
    except (zlib.error, msgspec.DecodeError) as error:
        raise damaged("it cannot be read") from error
    if state.version != VERSION or state.base_id != base_id:
        raise damaged("it is of another tree, or of another version of Carrel")
    return state


def packed(state: FilesState) -> bytes:
    return zlib.compress(msgspec.msgpack.encode(state), 1)


def write_state(path: Path, content: bytes) -> None:
    """`content` is a state, packed."""
    draft = path.with_name(f".{secrets.token_hex(8)}")
    try:
        with Descriptor(os.open(draft, _NEW, 0o600)) as target:
            write_at(target, content, 0)
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


class KeptEntries:
    """The entries of a state. What it does not name is as the base has it."""

    def __init__(self, entries: Iterable[StateEntry], base: Layers | None) -> None:
        self.named: Mapping[str, StateEntry] = by_path(entries)
        self._base = base

    def get(self, path: str) -> StateEntry | None:
        return self.named.get(path)

    def in_base(self, path: str) -> LayerEntry | None:
        """What the state does not name, unless it took away a folder around it."""
        above = split(path)[0]
        while above:
            found = self.named.get(above)
            if found is not None and not stat.S_ISDIR(found.mode):
                return None
            above = split(above)[0]
        return self._base.find(path) if self._base is not None else None


class KeptSide:
    """A state as one side of a comparison. `objects` has the kept files; `now` tells what the tree
    has at a path."""

    def __init__(
        self,
        state: FilesState,
        objects: Root,
        base: Layers,
        now: Callable[[str], os.stat_result | None],
    ) -> None:
        self._now = now
        self._entries = KeptEntries(state.tree, base)
        self._objects = objects
        self._base = base

    def is_still(self, path: str) -> bool:
        """Whether what is there now has not been touched since; if not, it may be the same yet."""
        named, status = self._entries.get(path), self._now(path)
        return named is not None and status is not None and named.mark == mark_of(status)

    def has(self, path: str) -> bool:
        """A file, or a folder with something in it that the state names or the base has."""
        named = self._entries.get(path)
        if named is not None:
            return bool(named.mode)
        inside = f"{path}/"
        above = (one.mode and name.startswith(inside) for name, one in self._entries.named.items())
        return any(above) or self._entries.in_base(path) is not None

    def changed(self) -> list[str]:
        """What is not as the base has it, sorted, without folders."""
        found, held = [], HeldPaths()
        for path, one in self._entries.named.items():
            in_base = self._base.find(path)
            if not stat.S_ISDIR(one.mode):
                found.append(path)
                if in_base is not None and in_base.is_folder:
                    found += self._below(path, in_base, held)
            elif in_base is not None and not in_base.is_folder:
                found.append(path)
        return sorted(found)

    def _below(self, path: str, folder: LayerEntry, held: HeldPaths) -> Iterator[str]:
        """The base's files in a folder that the state does not have."""
        folders = [(path, folder)]
        while folders:
            above, folder = folders.pop()
            for name, entry in self._base.children(folder).items():
                inside = join(above, name)
                held.add(inside)
                if entry.is_folder:
                    folders.append((inside, entry))
                else:
                    yield inside

    def take(self, importer: Importer, raw: bytes, path: str) -> None:
        """As `differences.take`."""
        named = self._entries.get(path)
        if named is None:
            if (old := self._entries.in_base(path)) is not None:
                take(importer, raw, old.content.root, old.content.path, old.status)
        elif named.is_file:
            take(importer, raw, self._objects, os.fsdecode(named.content))
        elif stat.S_ISLNK(named.mode):
            importer.link(raw, named.content)
