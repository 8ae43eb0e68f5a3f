"""Git indexes that a base has from the one before, because they did not change.

A base may date an index later than the project has it (see `carrel.trees.git.racy`). A file
of the project that was written in the index's own second, and is written once more in that
second, then has an entry that git in a tree would not doubt any more, though git in the
project does. If git compares no more than times and sizes, it would take it for unchanged.
So such an index is brought along, with that entry marked.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from carrel.trees.bases.copying import Wanted
from carrel.trees.bases.drafting import Draft
from carrel.trees.bases.manifest import Item
from carrel.trees.bases.places import FOLDER, open_folder, split
from carrel.trees.bases.records import IndexFile
from carrel.trees.bases.writing import LayerWriter

_SECOND = 1_000_000_000


@dataclass(frozen=True)
class Inheritance:
    """`find` gives a file of the last base, and where it is."""

    draft: Draft
    writer: LayerWriter
    find: Callable[[bytes], tuple[Item, Path] | None]

    def bring(
        self, indexes: Iterable[IndexFile], stored: set[bytes]
    ) -> dict[IndexFile, set[bytes]]:
        """Stores those indexes again that have to be. `stored` are the paths that are new
        in this base. Gives the paths, as the index has them, that git must not believe."""
        doubted = {}
        for index in indexes:
            found = self.find(index.path)
            if index.path in stored or found is None:
                continue
            item, place = found
            young = self._young(index, item.mtime_ns // _SECOND, stored)
            if young and place.stat().st_mtime_ns != item.mtime_ns:
                self._store(index.path, item, place)
                doubted[index] = young
        return doubted

    def _young(self, index: IndexFile, second: int, stored: set[bytes]) -> set[bytes]:
        """The new files of the second in which the project's index was written."""
        prefix = index.worktree + b"/" if index.worktree else b""
        found = set()
        for path in stored:
            item = self.draft.item(path) if path.startswith(prefix) else None
            if item is not None and item.mtime_ns // _SECOND == second:
                found.add(path[len(prefix) :])
        return found

    def _store(self, path: bytes, item: Item, source: Path) -> None:
        above, name = split(path)
        self.writer.make_folders([above])
        origin = os.open(source.parent, FOLDER)
        folder = open_folder(self.writer.root, above)
        try:
            wanted = Wanted(origin, name, None, path, ours=True)
            stored = self.writer.copier.store_file(wanted, folder, name)
        finally:
            os.close(folder)
            os.close(origin)
        # Else it stays what it is in the project; see `indexes`.
        self.draft.put(path, item._replace(layer=stored.layer))
