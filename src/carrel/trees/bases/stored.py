"""Reads files of a base that is being made, in whichever of its layers they lie."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from carrel.trees.bases.contents import ReadFailed
from carrel.trees.bases.copying import Moved, Wanted, open_source
from carrel.trees.bases.manifest import Item
from carrel.trees.bases.places import open_folder, split
from carrel.trees.git.racy import blob_id, blob_id_of_file

_NO_FOLDER = (-1, b"")


class StoredFiles:
    """`layers` are those of the base, the lowest first. Files of one folder are best asked
    for one after another."""

    def __init__(self, layers: Sequence[Path], items: Callable[[bytes], Item | None]) -> None:
        self._layers = layers
        self._items = items
        self._roots: dict[int, int] = {}
        self._folder = -1
        self._at = _NO_FOLDER

    def close(self) -> None:
        for descriptor in (*self._roots.values(), self._folder):
            if descriptor >= 0:
                os.close(descriptor)
        self._roots.clear()
        self._folder, self._at = -1, _NO_FOLDER

    def root(self, layer: int) -> int:
        """A descriptor of a layer's root, which stays ours."""
        if layer not in self._roots:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
            self._roots[layer] = os.open(self._layers[layer], flags)
        return self._roots[layer]

    def has_blob(self, path: bytes, oid: bytes) -> bool:
        """Whether the content of a file, or a symlink's target, is a blob of git's. What
        cannot be read is not."""
        item = self._items(path)
        if item is None:
            return False
        with suppress(OSError, Moved, ReadFailed):
            if stat.S_ISLNK(item.mode):
                target = os.readlink(split(path)[1], dir_fd=self._open_folder(item.layer, path))
                return blob_id(target, len(oid)) == oid
            with self._opened(path, item) as file:
                return blob_id_of_file(file, len(oid)) == oid
        return False

    @contextmanager
    def _opened(self, path: bytes, item: Item) -> Iterator[int]:
        folder = self._open_folder(item.layer, path)
        # Nothing is done to read what may not be read: it would change the ctime.
        file = open_source(Wanted(folder, split(path)[1], None, path))
        try:
            yield file
        finally:
            os.close(file)

    def _open_folder(self, layer: int, path: bytes) -> int:
        """The folder that a file is in; open until another one is asked for."""
        wanted = (layer, split(path)[0])
        if self._at != wanted:
            if self._folder >= 0:
                os.close(self._folder)
                self._folder, self._at = -1, _NO_FOLDER
            self._folder, self._at = open_folder(self.root(layer), wanted[1]), wanted
        return self._folder
