"""Turns a written layer into a base, and keeps stacks of layers from getting deep.

Deep stacks are folded without reading the project. Usually all thin layers become one over the
lowest, which costs what they hold together. When they hold more than half of the base,
everything becomes one flat layer.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import msgspec

from carrel.domain.errors import InsufficientDisk, TreeDamaged
from carrel.domain.projects import Project
from carrel.domain.trees import Base, Owner, Skipped
from carrel.linux.descriptors import Descriptor
from carrel.trees.bases.disk import (
    BuildContext,
    StackGone,
    Staging,
    check_room,
    no_room_as_error,
    publish,
)
from carrel.trees.bases.indexes import Indexes
from carrel.trees.bases.jobs import Job, Meter
from carrel.trees.bases.layer import LayerWriter
from carrel.trees.bases.manifest import (
    Document,
    Draft,
    Finished,
    FolderRecord,
    Manifest,
    StoredItem,
    base_id_of,
    encode_record,
    read_document,
    read_manifest,
)
from carrel.trees.bases.records import LAYER, IndexFile, Record, boot_id, check_record, read_record
from carrel.trees.bases.views import Origin
from carrel.trees.paths import join, open_folder, split

MAX_LAYERS = 8
"""Every layer costs each lookup a little, and each mount."""
_MAX_LAYERS_IN_NEED = 32
"""So deep a stack may get when there is no room to make it flat."""


@dataclass(frozen=True)
class About:
    """What base.json says beside what the layer itself shows."""

    project: Project
    owner: Owner
    has_git: bool
    skipped: tuple[Skipped, ...]
    unstable: tuple[str, ...] = ()
    indexes: tuple[IndexFile, ...] = ()


@dataclass(frozen=True)
class Stack:
    """The base that a new one stands on (or, flat, was made from)."""

    record: Record
    manifest: Manifest


@dataclass(frozen=True)
class Publisher:
    context: BuildContext
    staging: Staging
    meter: Meter

    def finish(self, draft: Draft, stack: Stack | None, about: About) -> Record:
        """Publishes the staged layer, or finds that its content is a base already.

        Raises `StackGone` when a base below was removed meanwhile; OSError.
        """
        finished = draft.finish()
        layout = self.context.layout
        base_id, found = self._identify(finished.root.digest)
        if found is not None:
            self.staging.discard()
            return found
        if stack is not None and layout.layered and _is_deep(stack.manifest, finished):
            try:
                with no_room_as_error(self.context.bases):
                    return self._fold(base_id, finished, stack.manifest, about)
            except InsufficientDisk:
                if len(stack.manifest.layers) >= _MAX_LAYERS_IN_NEED:
                    raise
        if stack is None:
            document = finished.document((base_id,), "", {})
        elif layout.layered:
            ids = (*stack.manifest.layers, base_id)
            document = finished.document(ids, stack.record.base.base_id, {})
        else:
            document = finished.document((base_id,), "", stack.manifest.folders)
        return self._publish(self.staging, base_id, document, about)

    def _identify(self, digest: bytes) -> tuple[str, Record | None]:
        """The base's id, and the base itself if there is one already."""
        layout = self.context.layout
        for number in itertools.count():
            # One that is damaged stays for those who use it; its successor has another id.
            salt = f"{'' if layout.layered else layout.name}{number or ''}"
            base_id = base_id_of(digest, salt)
            with contextlib.suppress(TreeDamaged):
                try:
                    return base_id, check_record(read_record(self.context.bases / base_id))
                except FileNotFoundError:
                    return base_id, None
        raise AssertionError("counting ended")

    def _fold(self, base_id: str, finished: Finished, below: Manifest, about: About) -> Record:
        merged = _merged(below, finished)
        paths = [self.context.bases / layer / LAYER for layer in below.layers]
        staging = Staging(self.staging.folder / "folded", self.context.layout)
        try:
            fold = Fold(self.context, staging, self.meter, merged, [*paths, self.staging.layer])
            document = fold.run(base_id, about.indexes)
            record = self._publish(staging, base_id, document, about)
        except BaseException:
            staging.discard()
            raise
        self.staging.discard()
        return record

    def _publish(self, staging: Staging, base_id: str, document: Document, about: About) -> Record:
        bases = self.context.bases
        base = Base(
            base_id=base_id,
            project=about.project,
            folder=bases / base_id,
            layers=tuple(bases / name / LAYER for name in reversed(document.layers)),
            entries=document.entries,
            size_bytes=document.size,
            created_at=time.time(),
            store_owner=self.context.owner,
            project_owner=about.owner,
            has_git=about.has_git,
            skipped=about.skipped,
            unstable=about.unstable,
        )
        record = Record(base, self.context.layout.name, about.indexes, boot_id())
        publish(self.context, staging, record, document)
        # Somebody else may have published the same content first, on other layers.
        return read_record(base.folder)


def _is_deep(below: Manifest, finished: Finished) -> bool:
    thin = below.thin + finished.stored
    return len(below.layers) + 1 > MAX_LAYERS or thin * 2 > finished.entries


def _merged(below: Manifest, finished: Finished) -> Manifest:
    folders: dict[bytes, msgspec.Raw] = dict(below.folders)
    for path, record in finished.records.items():
        if record is None:
            folders.pop(path, None)
        else:
            folders[path] = encode_record(record)
    stored = (*below.stored, finished.stored)
    return Manifest((*below.layers, ""), finished.entries, finished.size, stored, folders)


# Folding


@dataclass
class Fold:
    """`merged` is the manifest of what is to be folded, whose layers are at `layers`, the
    lowest first; the uppermost is not published."""

    context: BuildContext
    staging: Staging
    meter: Meter
    merged: Manifest
    layers: list[Path]

    def run(self, base_id: str, indexes: tuple[IndexFile, ...]) -> Document:
        """Raises `StackGone`, `InsufficientDisk`, OSError."""
        self.staging.begin(None)
        draft = Draft(self._below, 0 if self._below is None else 1)
        writer = LayerWriter(self.context, self.staging.layer, draft, self.meter, lambda _: None)
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
        with Indexes(self.context, draft, layers) as patcher:
            for index in indexes:
                if draft.item(index.path) is not None:
                    patcher.moved(index, before.item)
                    writer.refresh(index.path)

    @cached_property
    def _below(self) -> Manifest | None:
        """What the folded layer is to stand on."""
        if self.merged.thin * 2 > self.merged.entries:
            return None
        return read_manifest(self.context.bases / self.merged.layers[0])

    def _folders(self, also: set[bytes]) -> Iterator[tuple[bytes, FolderRecord]]:
        """Those that may differ from what is below, each before what is in it."""
        if self._below is None:
            yield from self.merged.walk()
            return
        touched = set(also)
        for name in self.merged.layers[1:-1]:
            touched.update(read_document(self.context.bases / name).folders)
        # Of the uppermost, which has no file yet: what it has is in its own layer.
        top = len(self.layers) - 1
        for path, record in self.merged.walk():
            if path in touched or record.layer == top:
                yield path, record

    def _copy(self, draft: Draft, writer: LayerWriter, copied_anyway: set[bytes]) -> None:
        jobs: list[Job] = []
        items: dict[bytes, StoredItem] = {}
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
        self, draft: Draft, path: bytes, found: dict[bytes, StoredItem], record: FolderRecord
    ) -> None:
        folder = draft.folder(path)
        assert folder is not None
        kept = found.keys() | set(record.folder_names())
        for name in [*folder.items, *folder.folders]:
            if name not in kept:
                draft.drop(join(path, name))

    def _job(self, path: bytes, item: StoredItem) -> Job:
        origin = Origin(os.fsencode(self.layers[item.layer]), ours=True)
        return Job(path, origin, path, item.mode, None, b"")

    def _fill(
        self, jobs: list[Job], draft: Draft, writer: LayerWriter, items: dict[bytes, StoredItem]
    ) -> None:
        sizes = [items[job.path].size for job in jobs if stat.S_ISREG(job.mode)]
        check_room(self.context.bases, sizes, lambda: sum(sizes))
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
        with Descriptor(os.open(self.layers[record.layer], flags)) as root:
            return open_folder(root, path)
