"""Turns a written layer into a base, and keeps stacks of layers from getting deep."""

from __future__ import annotations

import contextlib
import itertools
import time
from dataclasses import dataclass

import msgspec

from carrel.domain.errors import InsufficientDisk, TreeDamaged
from carrel.domain.projects import Project
from carrel.domain.trees import Base, Owner, Skipped
from carrel.trees.bases.checking import check_record
from carrel.trees.bases.drafting import Draft, Finished
from carrel.trees.bases.folding import Fold
from carrel.trees.bases.manifest import Document, Manifest, base_id_of, encode_record
from carrel.trees.bases.metering import Meter
from carrel.trees.bases.publishing import Shop, Staging, boot_id, publish
from carrel.trees.bases.records import LAYER, IndexFile, Record, read_record
from carrel.trees.bases.room import no_room_as_error

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
class Finisher:
    shop: Shop
    staging: Staging
    meter: Meter

    def finish(self, draft: Draft, stack: Stack | None, about: About) -> Record:
        """Publishes the staged layer, or finds that its content is a base already.

        Raises `StackGone` when a base below was removed meanwhile; OSError.
        """
        finished = draft.finish()
        layout = self.shop.layout
        base_id, found = self._identify(finished.root.digest)
        if found is not None:
            self.staging.discard()
            return found
        if stack is not None and layout.layered and _is_deep(stack.manifest, finished):
            try:
                with no_room_as_error(self.shop.bases):
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
        layout = self.shop.layout
        for number in itertools.count():
            # One that is damaged stays for those who use it; its successor has another id.
            salt = f"{'' if layout.layered else layout.name}{number or ''}"
            base_id = base_id_of(digest, salt)
            with contextlib.suppress(TreeDamaged):
                try:
                    return base_id, check_record(read_record(self.shop.bases / base_id))
                except FileNotFoundError:
                    return base_id, None
        raise AssertionError("counting ended")

    def _fold(self, base_id: str, finished: Finished, below: Manifest, about: About) -> Record:
        merged = _merged(below, finished)
        paths = [self.shop.bases / layer / LAYER for layer in below.layers]
        staging = Staging(self.staging.folder / "folded", self.shop.layout)
        try:
            fold = Fold(self.shop, staging, self.meter, merged, [*paths, self.staging.layer])
            document = fold.run(base_id, about.indexes)
            record = self._publish(staging, base_id, document, about)
        except BaseException:
            staging.discard()
            raise
        self.staging.discard()
        return record

    def _publish(self, staging: Staging, base_id: str, document: Document, about: About) -> Record:
        bases = self.shop.bases
        base = Base(
            base_id=base_id,
            project=about.project,
            folder=bases / base_id,
            layers=tuple(bases / name / LAYER for name in reversed(document.layers)),
            entries=document.entries,
            size_bytes=document.size,
            created_at=time.time(),
            store_owner=self.shop.owner,
            project_owner=about.owner,
            has_git=about.has_git,
            skipped=about.skipped,
            unstable=about.unstable,
        )
        record = Record(base, self.shop.layout.name, about.indexes, boot_id())
        publish(self.shop, staging, record, document)
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
