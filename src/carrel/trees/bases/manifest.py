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
import os
import stat
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import msgspec

from carrel.domain.errors import TreeDamaged
from carrel.domain.trees import Base, EntryType
from carrel.trees.bases.places import join

FORMAT = 1
DIGEST = 16
_FACTS = struct.Struct("<IQq16s")
_PLACES = struct.Struct("<BQq")
_ID_LENGTH = 26
_NOTHING = b"\xc0"


class Item(NamedTuple):
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

    def items(self) -> dict[bytes, Item]:
        packed = zip(
            self.item_names(),
            _FACTS.iter_unpack(self.facts),
            _PLACES.iter_unpack(self.places),
            strict=True,
        )
        leader = self.leaders.get
        return {
            name: Item._make((*facts, *places, leader(at, b"")))
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
    folder: FolderFacts, items: dict[bytes, Item], digests: dict[bytes, bytes]
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


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a base. `path` is relative, b"" for the root. `layer` is the folder
    that has it on disk, at the same path below. Files with the same `link_group` are
    one file under several names."""

    path: bytes
    mode: int
    size: int
    mtime_ns: int
    digest: bytes
    layer: Path
    link_group: bytes | None = None

    @property
    def kind(self) -> EntryType:
        if stat.S_ISDIR(self.mode):
            return EntryType.FOLDER
        return EntryType.SYMLINK if stat.S_ISLNK(self.mode) else EntryType.FILE

    @property
    def source(self) -> Path:
        return self.layer / os.fsdecode(self.path)


def iter_entries(base: Base) -> Iterator[Entry]:
    """All that a base shows, the root first and each folder before what is in it."""
    manifest = read_manifest(base.folder)
    layers = base.layers[::-1]
    for path, record in manifest.walk():
        layer = layers[record.layer]
        yield Entry(path, record.mode, 0, record.mtime_ns, record.digest, layer)
        for name, item in record.items().items():
            yield Entry(join(path, name), *item[:4], layers[item.layer], item.leader or None)
