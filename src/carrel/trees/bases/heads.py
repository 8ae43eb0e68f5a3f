"""What a project looked like when its last base was built.

One file per project. It only saves work: without it the next base is built from nothing,
so a file that cannot be read is as none, and none is ever forced to disk.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import msgspec

from carrel.domain.trees import Skipped
from carrel.linux.statx import ROW
from carrel.trees.bases.listing import Listing, Origin

_FORMAT = 1


@dataclass(frozen=True)
class Known:
    """What a source needs to look again. `named` are the paths that were provided or left
    out by special rules, `provided` those of them that are in no listing, `checkouts` the
    folders that hold a `.git`."""

    listings: tuple[Listing, ...]
    named: frozenset[bytes] = frozenset()
    provided: frozenset[bytes] = frozenset()
    checkouts: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class Head:
    """`state` names the state of a project that is not looked at file by file."""

    base_id: str
    known: Known
    state: bytes = b""


class _Listing(msgspec.Struct, array_like=True):
    path: bytes
    target: bytes
    is_file: bool
    paths: bytes
    rows: bytes
    skipped: list[tuple[bytes, str]]


class _Document(msgspec.Struct, array_like=True):
    version: int
    base_id: str
    listings: list[_Listing]
    named: list[bytes]
    provided: list[bytes]
    checkouts: list[bytes]
    state: bytes
    end: str
    """Shows that the file is whole."""


_END = "end"
_decoder = msgspec.msgpack.Decoder(_Document)
_encoder = msgspec.msgpack.Encoder()


def read_head(path: Path) -> Head | None:
    try:
        document = _decoder.decode(path.read_bytes())
    except (FileNotFoundError, msgspec.MsgspecError):
        return None
    if document.version != _FORMAT or document.end != _END:
        return None
    listings = tuple(_listing(saved) for saved in document.listings)
    if any(len(listing.rows) != ROW * len(listing) for listing in listings):
        return None
    known = Known(
        listings,
        frozenset(document.named),
        frozenset(document.provided),
        tuple(document.checkouts),
    )
    return Head(document.base_id, known, document.state)


def write_head(path: Path, head: Head) -> None:
    document = _Document(
        _FORMAT,
        head.base_id,
        [_saved(listing) for listing in head.known.listings],
        sorted(head.known.named),
        sorted(head.known.provided),
        list(head.known.checkouts),
        head.state,
        _END,
    )
    path.parent.mkdir(mode=0o700, exist_ok=True)
    fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
    fresh.write_bytes(_encoder.encode(document))
    # To replace a file by renaming makes some file systems write it to disk at once.
    path.unlink(missing_ok=True)
    fresh.rename(path)


def _listing(saved: _Listing) -> Listing:
    return Listing(
        Origin(saved.path, saved.target, saved.is_file),
        saved.paths.split(b"\0"),
        saved.rows,
        [Skipped(os.fsdecode(path), why) for path, why in saved.skipped],
        saved.paths,
    )


def _saved(listing: Listing) -> _Listing:
    return _Listing(
        listing.origin.path,
        listing.origin.target,
        listing.origin.is_file,
        listing.joined if listing.joined is not None else b"\0".join(listing.paths),
        cast(bytes, listing.rows),  # encoded alike, and big
        [(os.fsencode(skip.path), skip.why) for skip in listing.skipped],
    )
