"""Makes a deep stack of layers shallow, without reading the project.

Usually all thin layers become one over the lowest, which costs what they hold together.
When they hold more than half of the base, everything becomes one flat layer.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from carrel.trees.bases.drafting import Draft
from carrel.trees.bases.filling import Job
from carrel.trees.bases.indexes import Indexes
from carrel.trees.bases.listing import Origin
from carrel.trees.bases.manifest import (
    Document,
    FolderRecord,
    Item,
    Manifest,
    read_document,
    read_manifest,
)
from carrel.trees.bases.metering import Meter
from carrel.trees.bases.places import join, open_folder, split
from carrel.trees.bases.publishing import Shop, StackGone, Staging
from carrel.trees.bases.records import IndexFile
from carrel.trees.bases.room import check_room
from carrel.trees.bases.writing import LayerWriter


@dataclass
class Fold:
    """`merged` is the manifest of what is to be folded, whose layers are at `layers`, the
    lowest first; the uppermost is not published."""

    shop: Shop
    staging: Staging
    meter: Meter
    merged: Manifest
    layers: list[Path]

    def run(self, base_id: str, indexes: tuple[IndexFile, ...]) -> Document:
        """Raises `StackGone`, `InsufficientDisk`, OSError."""
        self.staging.begin(None)
        draft = Draft(self._below, 0 if self._below is None else 1)
        writer = LayerWriter(
            self.staging.layer, self.shop.layout, self.shop.owner, draft, self.meter, lambda _: None
        )
        try:
            self._copy(draft, writer, {index.path for index in indexes})
            writer.clean(stale=False)
            self._patch_indexes(draft, writer, indexes)
            writer.finish(self._open_layer_folder)
        finally:
            writer.close()
        lowest = self.merged.layers[0]
        ids, over = ((base_id,), "") if self._below is None else ((lowest, base_id), lowest)
        return draft.finish().document(ids, over, {})

    def _patch_indexes(
        self, draft: Draft, writer: LayerWriter, indexes: tuple[IndexFile, ...]
    ) -> None:
        before = Draft(self.merged, 0)
        layers = [*self.layers[: draft.layer], writer.place]
        with Indexes(self.shop, draft, layers) as patcher:
            for index in indexes:
                if draft.item(index.path) is not None:
                    patcher.moved(index, before.item)
                    writer.refresh(index.path)

    @cached_property
    def _below(self) -> Manifest | None:
        """What the folded layer is to stand on."""
        if self.merged.thin * 2 > self.merged.entries:
            return None
        return read_manifest(self.shop.bases / self.merged.layers[0])

    def _folders(self, also: set[bytes]) -> Iterator[tuple[bytes, FolderRecord]]:
        """Those that may differ from what is below, each before what is in it."""
        if self._below is None:
            yield from self.merged.walk()
            return
        touched = set(also)
        for name in self.merged.layers[1:-1]:
            touched.update(read_document(self.shop.bases / name).folders)
        # Of the uppermost, which has no file yet: what it has is in its own layer.
        top = len(self.layers) - 1
        for path, record in self.merged.walk():
            if path in touched or record.layer == top:
                yield path, record

    def _copy(self, draft: Draft, writer: LayerWriter, copied_anyway: set[bytes]) -> None:
        jobs: list[Job] = []
        items: dict[bytes, Item] = {}
        groups: dict[bytes, list[bytes]] = {}
        for path, record in self._folders({split(path)[0] for path in copied_anyway}):
            draft.put_folder(path, record.mode, record.mtime_ns)
            found = record.items()
            self._drop_missing(draft, path, found, record)
            for name, item in found.items():
                full = join(path, name)
                if self._below is not None and not item.layer and full not in copied_anyway:
                    continue
                items[full] = item
                if item.leader:
                    groups.setdefault(item.leader, []).append(full)
        others = {path for paths in groups.values() for path in paths[1:]}
        jobs = [self._job(path, item) for path, item in items.items() if path not in others]
        self._fill(jobs, draft, writer, items)
        writer.link({paths[0]: paths[1:] for paths in groups.values() if len(paths) > 1})

    def _drop_missing(
        self, draft: Draft, path: bytes, found: dict[bytes, Item], record: FolderRecord
    ) -> None:
        folder = draft.folder(path)
        assert folder is not None
        kept = found.keys() | set(record.folder_names())
        for name in [*folder.items, *folder.folders]:
            if name not in kept:
                draft.drop(join(path, name))

    def _job(self, path: bytes, item: Item) -> Job:
        return Job(path, Origin(os.fsencode(self.layers[item.layer])), path, item.mode, None, b"")

    def _fill(
        self, jobs: list[Job], draft: Draft, writer: LayerWriter, items: dict[bytes, Item]
    ) -> None:
        sizes = [items[job.path].size for job in jobs if stat.S_ISREG(job.mode)]
        check_room(self.shop.bases, sizes, lambda: sum(sizes))
        filled = writer.fill(jobs, "squashing")
        if filled.moved or filled.failed:
            raise StackGone
        for path, item in filled.items.items():
            old = items[path]
            # What names the base stays: of an index that is the project's, see `indexes`.
            draft.put(
                path, old._replace(layer=item.layer, inode=item.inode, ctime_ns=item.ctime_ns)
            )

    def _open_layer_folder(self, path: bytes) -> int | None:
        record = self.merged.folder(path)
        if record is None:
            return None
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        root = os.open(self.layers[record.layer], flags)
        try:
            return open_folder(root, path)
        finally:
            os.close(root)
