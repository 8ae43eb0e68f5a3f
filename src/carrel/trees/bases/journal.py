"""What an unfinished build has stored already, so that the next one carries on.

Records are only ever appended. A last one that is not whole is as none.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import msgspec

from carrel.trees.bases.manifest import Item

_LENGTH = 4


class Note(NamedTuple):
    """A stored file: the row that it was seen with, and what was kept."""

    path: bytes
    row: bytes
    item: Item


class _Record(msgspec.Struct, array_like=True):
    path: bytes
    row: bytes
    mode: int
    size: int
    mtime_ns: int
    digest: bytes
    inode: int
    ctime_ns: int


class _Opening(msgspec.Struct, array_like=True):
    version: int
    over: str


_FORMAT = 1
_decoder = msgspec.msgpack.Decoder(_Record)
_opening_decoder = msgspec.msgpack.Decoder(_Opening)
_encoder = msgspec.msgpack.Encoder()


class Journal:
    """Open for one build. `over` is the base that is built upon: what was stored over
    another one is no good."""

    def __init__(self, path: Path, over: str) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._descriptor = os.open(path, flags, 0o600)
        whole = sum(_LENGTH + len(record) for record in _split(path.read_bytes()))
        os.ftruncate(self._descriptor, whole)
        if not whole:
            self._append([_encoder.encode(_Opening(_FORMAT, over))])

    def note(self, notes: Iterable[Note]) -> None:
        self._append(
            _encoder.encode(
                _Record(note.path, note.row, *note.item[:4], note.item.inode, note.item.ctime_ns)
            )
            for note in notes
        )

    def close(self) -> None:
        os.close(self._descriptor)

    def _append(self, records: Iterable[bytes]) -> None:
        pieces = [len(record).to_bytes(_LENGTH, "little") + record for record in records]
        data = memoryview(b"".join(pieces))
        while data:
            data = data[os.write(self._descriptor, data) :]


def read_journal(path: Path, over: str, layer: int) -> dict[bytes, Note] | None:
    """The notes by path, the last one of each; None when it belongs to another build."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    records = _split(data)
    try:
        opening = _opening_decoder.decode(records[0])
        if (opening.version, opening.over) != (_FORMAT, over):
            return None
        notes = [_note(_decoder.decode(record), layer) for record in records[1:]]
    except (IndexError, msgspec.MsgspecError):
        return None
    return {note.path: note for note in notes}


def _note(record: _Record, layer: int) -> Note:
    item = Item(
        record.mode,
        record.size,
        record.mtime_ns,
        record.digest,
        layer,
        record.inode,
        record.ctime_ns,
    )
    return Note(record.path, record.row, item)


def _split(data: bytes) -> list[bytes]:
    records = []
    at = 0
    while at + _LENGTH <= len(data):
        end = at + _LENGTH + int.from_bytes(data[at : at + _LENGTH], "little")
        if end > len(data):
            break
        records.append(data[at + _LENGTH : end])
        at = end
    return records
