"""Git's object files: how they are named, and whether one is what its name says.

Objects that come from outside of a project are taken by these names only, and looked into
once they are stored: a file that merely lies at such a place is no object of git's.
"""

from __future__ import annotations

import hashlib
import os
import re
import zlib
from collections.abc import Iterator

_FAN_OUT = re.compile(rb"[0-9a-f]{2}")
_LOOSE = re.compile(rb"[0-9a-f]{38}(?:[0-9a-f]{24})?")
# Without bitmaps and indexes over many packs: there can be one of each, and a store has
# its own. They only speed things up.
_PACK = re.compile(rb"pack-[0-9a-f]+\.(?:pack|idx|rev|keep|promisor|mtimes)")
_WANTED = re.compile(
    rb"(?P<loose>[0-9a-f]{2}/[0-9a-f]{38}(?:[0-9a-f]{24})?)"
    rb"|pack/pack-(?P<id>[0-9a-f]{40}(?:[0-9a-f]{24})?)\.(?P<kind>pack|idx|rev|mtimes|promisor)"
)
_MAGIC = {b"pack": b"PACK", b"idx": b"\xfftOc", b"rev": b"RIDX", b"mtimes": b"MTME"}
_KINDS = (b"blob ", b"tree ", b"commit ", b"tag ")
_HASHES = {20: hashlib.sha1, 32: hashlib.sha256}
_FETCHED = re.compile(rb"(?:[0-9a-f]{40,64} [!-~]+\n)*")
_CHUNK = 1 << 20
_MAX_HEADER = 32
"""A kind and a size in decimal."""
_MAX_LOOSE = 2 << 30
"""Bytes that a loose object may have: git itself keeps bigger ones in packs, and a small file
can be made to inflate without end."""


def object_files(objects: bytes) -> Iterator[bytes]:
    """Every object and pack of a store of ours, relative to it."""
    for folder in _names(objects):
        if _FAN_OUT.fullmatch(folder):
            for name in _names(os.path.join(objects, folder)):
                if _LOOSE.fullmatch(name):
                    yield os.path.join(folder, name)
    for name in _names(os.path.join(objects, b"pack")):
        if _PACK.fullmatch(name):
            yield os.path.join(b"pack", name)


def _names(folder: bytes) -> list[bytes]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def is_object_name(path: bytes) -> bool:
    """Whether a path, relative to a store of objects, is that of an object or a pack."""
    return _WANTED.fullmatch(path) is not None


def is_object_folder(path: bytes) -> bool:
    return path == b"pack" or _FAN_OUT.fullmatch(path) is not None


def is_genuine(file: int, path: bytes) -> bool:
    """Whether an open file is the object or the pack that its path in the store says. Reads
    all of it; what it holds is bounded, however it is packed."""
    named = _WANTED.fullmatch(path)
    if named is None:
        return False
    if named["loose"] is not None:
        return _is_loose(file, bytes.fromhex(path.replace(b"/", b"").decode()))
    if named["kind"] == b"promisor":
        # A mark; what is in it only says what was fetched.
        return _FETCHED.fullmatch(os.pread(file, _CHUNK, 0)) is not None
    return _has_checksum(file, _MAGIC[named["kind"]], len(named["id"]) // 2)


def _has_checksum(file: int, magic: bytes, size: int) -> bool:
    end = os.fstat(file).st_size - size
    if end < len(magic) or os.pread(file, len(magic), 0) != magic:
        return False
    digest = _HASHES[size]()
    position = 0
    while position < end:
        data = os.pread(file, min(_CHUNK, end - position), position)
        if not data:
            return False
        digest.update(data)
        position += len(data)
    return os.pread(file, size, end) == digest.digest()


def _is_loose(file: int, oid: bytes) -> bool:
    digest = _HASHES[len(oid)]()
    inflating = zlib.decompressobj()
    begin, total, position = b"", 0, 0
    try:
        while not inflating.eof:
            data = inflating.unconsumed_tail
            if not data:
                data = os.pread(file, _CHUNK, position)
                position += len(data)
                if not data:
                    return False
            plain = inflating.decompress(data, _CHUNK)
            begin = begin or plain[:_MAX_HEADER]
            total += len(plain)
            if total > _MAX_LOOSE or not begin.startswith(_KINDS):
                return False
            digest.update(plain)
    except zlib.error:
        return False
    return digest.digest() == oid
