"""A manifest that is being made: that of the base below, with changes."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from carrel.trees.bases.manifest import (
    FORMAT,
    Document,
    FolderFacts,
    FolderRecord,
    Item,
    Manifest,
    encode_record,
    make_record,
)
from carrel.trees.bases.places import join, split


@dataclass
class FolderDraft:
    mode: int
    mtime_ns: int
    layer: int
    items: dict[bytes, Item] = field(default_factory=dict)
    folders: set[bytes] = field(default_factory=set)
    changed: bool = False
    """Its mode or time, or which names it has, or what is stored here in the new layer."""


class Draft:
    """`layer` is the number of the layer that is being filled."""

    def __init__(self, parent: Manifest | None, layer: int) -> None:
        self.parent = parent
        self.layer = layer
        self.folders: dict[bytes, FolderDraft | None] = {}
        """Those that were touched; None for those that are gone."""

    def folder(self, path: bytes) -> FolderDraft | None:
        """To look at or to change; None when there is no such folder."""
        if path in self.folders:
            return self.folders[path]
        record = self.parent.folder(path) if self.parent else None
        if record is None:
            return None
        draft = FolderDraft(
            record.mode,
            record.mtime_ns,
            record.layer,
            record.items(),
            set(record.folder_names()),
        )
        self.folders[path] = draft
        return draft

    def item(self, path: bytes) -> Item | None:
        above, name = split(path)
        folder = self.folder(above)
        return folder.items.get(name) if folder else None

    def put(self, path: bytes, item: Item) -> None:
        """The folder it is in must be there."""
        above, name = split(path)
        folder = self._must(above)
        if name in folder.folders:
            self.drop(path)
        folder.items[name] = item
        folder.changed = True

    def put_folder(self, path: bytes, mode: int, mtime_ns: int) -> None:
        """Makes a folder, or gives it another mode and time."""
        found = self.folder(path)
        if found is None:
            self.folders[path] = FolderDraft(mode, mtime_ns, self.layer, changed=True)
            if path:
                above, name = split(path)
                folder = self._must(above)
                folder.items.pop(name, None)
                folder.folders.add(name)
                folder.changed = True
        elif (found.mode, found.mtime_ns) != (mode, mtime_ns):
            found.mode, found.mtime_ns, found.changed = mode, mtime_ns, True

    def drop(self, path: bytes) -> None:
        """Takes out an entry with all below it; nothing there is fine."""
        above, name = split(path)
        folder = self.folder(above)
        if folder is None:
            return
        if folder.items.pop(name, None) is not None:
            folder.changed = True
        if name in folder.folders:
            folder.folders.discard(name)
            folder.changed = True
            self._drop_folder(path)

    def hidden(self, path: bytes) -> list[bytes]:
        """The names that the base below has in a folder, and this one not."""
        record = self.parent.folder(path) if self.parent else None
        draft = self.folders.get(path)
        if record is None or draft is None:
            return []
        before = (*record.item_names(), *record.folder_names())
        return [name for name in before if name not in draft.items and name not in draft.folders]

    def needed(self) -> list[bytes]:
        """The folders that the new layer must have, each before what is in it."""
        wanted: set[bytes] = {b""}
        for path, draft in self.folders.items():
            if draft is None or not draft.changed:
                continue
            while path and path not in wanted:
                wanted.add(path)
                path = split(path)[0]
        return sorted(wanted)

    def _must(self, path: bytes) -> FolderDraft:
        folder = self.folder(path)
        if folder is None:
            raise LookupError(f"no folder {path!r} in the draft")
        return folder

    def _drop_folder(self, path: bytes) -> None:
        pending = [path]
        while pending:
            current = pending.pop()
            found = self.folder(current)
            if found is not None:
                pending += [join(current, name) for name in found.folders]
            self.folders[current] = None

    # Finishing

    def finish(self) -> Finished:
        """Computes the records of all that was touched."""
        for path in self.needed():
            # Folders that only lead to a change lie in the new layer, too.
            self._must(path).layer = self.layer
        touched = self._touched()
        records: dict[bytes, FolderRecord | None] = {
            path: None for path, draft in self.folders.items() if draft is None
        }
        for path in sorted(touched, key=lambda path: -path.count(b"/") if path else 1):
            records[path] = self._record(path, records)
        return Finished(records, *self._totals(records))

    def _touched(self) -> set[bytes]:
        """Changed folders, and those above: their digests depend on it."""
        found: set[bytes] = {b""}
        for path, draft in self.folders.items():
            if draft is None or not draft.changed:
                continue
            while path not in found:
                found.add(path)
                path = split(path)[0]
        return found

    def _record(self, path: bytes, records: dict[bytes, FolderRecord | None]) -> FolderRecord:
        draft = self._must(path)
        digests = {}
        for name in draft.folders:
            below = join(path, name)
            record = records.get(below)
            if record is None and self.parent is not None:
                record = self.parent.folder(below)
            if record is None:
                raise LookupError(f"no record of {below!r}")
            digests[name] = record.digest
        facts = FolderFacts(draft.mode, draft.mtime_ns, draft.layer)
        return make_record(facts, draft.items, digests)

    def _totals(self, records: dict[bytes, FolderRecord | None]) -> tuple[int, int, int]:
        entries = self.parent.entries if self.parent else 0
        size = self.parent.size if self.parent else 0
        stored = 0
        for path, record in records.items():
            before = self.parent.folder(path) if self.parent else None
            if before is not None:
                entries -= before.folders.count(b"\0") + bool(before.folders)
                entries -= before.names.count(b"\0") + bool(before.names)
                size -= before.sizes()
            if record is not None:
                items = self._must(path).items.values()
                entries += len(items) + len(self._must(path).folders)
                size += record.sizes()
                stored += sum(item.layer == self.layer for item in items)
                stored += record.layer == self.layer
        return entries, size, stored


@dataclass(frozen=True)
class Finished:
    records: dict[bytes, FolderRecord | None]
    entries: int
    size: int
    stored: int

    @property
    def root(self) -> FolderRecord:
        record = self.records[b""]
        assert record is not None
        return record

    def document(
        self, layers: tuple[str, ...], over: str, inherited: dict[bytes, msgspec.Raw]
    ) -> Document:
        """`over` is the base whose records count where there is none here; else the
        records of folders that were not touched are `inherited`."""
        folders = {
            path: encode_record(record)
            for path, record in self.records.items()
            if over or record is not None
        }
        if inherited:
            rest = {path: raw for path, raw in inherited.items() if path not in self.records}
            folders = {**rest, **folders}
        return Document(FORMAT, list(layers), over, self.entries, self.size, self.stored, folders)
