"""The list of all that a base holds, where each file's bytes are, and a digest of it all.

A manifest has one record per folder. A thin base writes only the records that differ
from those of the base it stands on, so its manifest costs what changed. Each record has a
digest over its entries and over the digests of the folders in it; that of the root names
the base: paths, types, modes, contents, link targets and the times of files. Times of
folders are kept but not named: programs that make and remove a temporary file change
those all the time, and nobody else does.

Records stay encoded until somebody asks for them.
"""

from __future__ import annotations

import base64
import hashlib
import stat
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import msgspec

from carrel.domain.errors import TreeDamaged
from carrel.trees.paths import join, split

FORMAT = 1
DIGEST = 16
_FACTS = struct.Struct("<IQq16s")
_PLACES = struct.Struct("<BQq")
_ID_LENGTH = 26
_NOTHING = b"\xc0"


class StoredItem(NamedTuple):
    """Anything but a folder. `digest` is of the bytes (or the link's target), with the
    extended attributes if there are any; `layer` counts from the lowest; `inode` and
    `ctime_ns` are those of the stored file. Files with the same `leader` are one file
    under several names."""

    mode: int
    size: int
    mtime_ns: int
    digest: bytes
    layer: int = 0
    inode: int = 0
    ctime_ns: int = 0
    leader: bytes = b""


class FolderRecord(msgspec.Struct, array_like=True, frozen=True):
    """`layer` is the uppermost that has the folder. Names are sorted, with zero bytes
    between them; `facts` and `places` are packed in the same order."""

    digest: bytes
    mode: int
    mtime_ns: int
    layer: int
    folders: bytes
    names: bytes
    facts: bytes
    places: bytes
    leaders: dict[int, bytes]

    def folder_names(self) -> list[bytes]:
        return self.folders.split(b"\0") if self.folders else []

    def item_names(self) -> list[bytes]:
        return self.names.split(b"\0") if self.names else []

    def items(self) -> dict[bytes, StoredItem]:
        packed = zip(
            self.item_names(),
            _FACTS.iter_unpack(self.facts),
            _PLACES.iter_unpack(self.places),
            strict=True,
        )
        leader = self.leaders.get
        return {
            name: StoredItem._make((*facts, *places, leader(at, b"")))
            for at, (name, facts, places) in enumerate(packed)
        }

    def sizes(self) -> int:
        return sum(facts[1] for facts in _FACTS.iter_unpack(self.facts))


class Document(msgspec.Struct, array_like=True):
    """What is in a manifest file. `over` is the base whose records count where there is
    none here; empty when all are here. `stored` entries are in this base's own layer."""

    version: int
    layers: list[str]
    over: str
    entries: int
    size: int
    stored: int
    folders: dict[bytes, msgspec.Raw]


_decoder = msgspec.msgpack.Decoder(Document)
_encoder = msgspec.msgpack.Encoder()
_record_decoder = msgspec.msgpack.Decoder(FolderRecord)


def make_record(
    folder: FolderFacts, items: dict[bytes, StoredItem], digests: dict[bytes, bytes]
) -> FolderRecord:
    """`digests` are those of the folders in it, by name."""
    names, folders = sorted(items), sorted(digests)
    ordered = [items[name] for name in names]
    facts = b"".join([_FACTS.pack(*item[:4]) for item in ordered])
    places = b"".join([_PLACES.pack(*item[4:7]) for item in ordered])
    leaders = {at: item.leader for at, item in enumerate(ordered) if item.leader}
    digest = hashlib.blake2b(digest_size=DIGEST)
    pieces = (
        stat.S_IMODE(folder.mode).to_bytes(2, "little"),
        b"\0".join(names),
        facts,
        b"\0".join(leaders.get(at, b"") for at in range(len(names))) if leaders else b"",
        b"\0".join(folders),
        b"".join([digests[name] for name in folders]),
    )
    for piece in pieces:
        digest.update(len(piece).to_bytes(8, "little"))
        digest.update(piece)
    return FolderRecord(
        digest.digest(),
        folder.mode,
        folder.mtime_ns,
        folder.layer,
        pieces[4],
        pieces[1],
        facts,
        places,
        leaders,
    )


class FolderFacts(NamedTuple):
    mode: int
    mtime_ns: int
    layer: int


def base_id_of(root_digest: bytes, layout: str = "") -> str:
    """The same content in another layout is another base: drivers need theirs."""
    if layout:
        salt = layout.encode()
        root_digest = hashlib.blake2b(root_digest, digest_size=DIGEST, person=salt).digest()
    text = base64.b32encode(root_digest).decode().lower()
    return "ba_" + text[:_ID_LENGTH]


@dataclass
class Manifest:
    """`layers` are ids of bases, the lowest first; `thin` is how many entries are stored
    in layers above the lowest."""

    layers: tuple[str, ...]
    entries: int
    size: int
    stored: tuple[int, ...]
    folders: dict[bytes, msgspec.Raw] = field(repr=False)
    _decoded: dict[bytes, FolderRecord] = field(default_factory=dict, repr=False)

    @property
    def thin(self) -> int:
        return sum(self.stored[1:])

    def folder(self, path: bytes) -> FolderRecord | None:
        found = self._decoded.get(path)
        if found is None:
            raw = self.folders.get(path)
            if raw is None:
                return None
            found = self._decoded[path] = _record_decoder.decode(raw)
        return found

    def root(self) -> FolderRecord:
        record = self.folder(b"")
        if record is None:
            raise TreeDamaged("A base's manifest has no root.", hint="Remove the base.")
        return record

    def walk(self, path: bytes = b"") -> Iterator[tuple[bytes, FolderRecord]]:
        """Every folder at or below `path`, each before what is in it."""
        pending = [path]
        while pending:
            current = pending.pop()
            record = self.folder(current)
            if record is None:
                continue
            yield current, record
            pending += [join(current, name) for name in reversed(record.folder_names())]


def encode_document(document: Document) -> bytes:
    return _encoder.encode(document)


def encode_record(record: FolderRecord | None) -> msgspec.Raw:
    """None says that a folder of the base below is not there any more."""
    return msgspec.Raw(_NOTHING if record is None else _encoder.encode(record))


def read_document(folder: Path) -> Document:
    """Of the base in `folder`. Raises `TreeDamaged`; FileNotFoundError for no base."""
    try:
        document = _decoder.decode((folder / "manifest").read_bytes())
    except msgspec.MsgspecError as error:
        raise _damaged(folder, str(error)) from error
    if document.version != FORMAT:
        raise _damaged(folder, f"its format is {document.version}")
    return document


def read_manifest(folder: Path) -> Manifest:
    """The whole manifest of the base in `folder`. Raises as `read_document`."""
    chain = [read_document(folder)]
    while chain[-1].over:
        chain.append(read_document(folder.parent / chain[-1].over))
    folders: dict[bytes, msgspec.Raw] = {}
    for document in reversed(chain):
        if not folders:
            folders = document.folders
            continue
        for path, raw in document.folders.items():
            if bytes(raw) == _NOTHING:
                folders.pop(path, None)
            else:
                folders[path] = raw
    top = chain[0]
    stored = tuple(document.stored for document in reversed(chain))
    return Manifest(tuple(top.layers), top.entries, top.size, stored, folders)


def _damaged(folder: Path, why: str) -> TreeDamaged:
    return TreeDamaged(
        f"The manifest of base {folder.name} cannot be read: {why}.",
        hint="Remove the base, and build it again.",
    )


# A manifest that is being made: that of the base below, with changes


class NoFolder(LookupError):
    """An entry was seen where there is no folder: the project changed between two looks."""

    def __init__(self, path: bytes) -> None:
        super().__init__(f"no folder {path!r} in the draft")
        self.path = path


@dataclass
class FolderDraft:
    mode: int
    mtime_ns: int
    layer: int
    items: dict[bytes, StoredItem] = field(default_factory=dict)
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

    def item(self, path: bytes) -> StoredItem | None:
        above, name = split(path)
        folder = self.folder(above)
        return folder.items.get(name) if folder else None

    def put(self, path: bytes, item: StoredItem) -> None:
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
            raise NoFolder(path)
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
                raise NoFolder(below)
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
