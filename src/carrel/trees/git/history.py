"""Which commits a repository has that another one has not, read without git.

Both are git folders on disk, and whoever filled them is a stranger: nothing is followed, every size
and every walk is bounded. Where a reference leads to what cannot be read, nobody knows which
commits there are, and that is said. Only references and HEADs are looked at; what another machine
has was not made here, or is not only here.
"""

from __future__ import annotations

import contextlib
import errno
import heapq
import os
import re
import stat
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from carrel.linux.descriptors import Descriptor
from carrel.trees.folders import ENTRY_ERRORS, Root
from carrel.trees.git import config
from carrel.trees.layers import Layers

_MOST_REFS = 10_000
_MOST_PACKS = 256
"""Git puts them together when there are 50."""
_MOST_DEPTH = 50
"""Of an object that is told by its differences from another; git makes no longer chains."""
_MAX_OBJECT = 1 << 20
"""Bytes of a commit; most have some hundreds."""
_MAX_REFS_FILE, _MAX_REF_FILE, _MAX_CONFIG = 16 << 20, 4 << 10, 1 << 20
_MAX_SUBJECT = 200
_OID = re.compile(rb"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_ELSEWHERE = re.compile(
    rb"(?i)(?!file:|(?:[a-z0-9+.-]+://)?(?:[^/@]*@)?(?:localhost|127\.|\[::1\]))"
    rb"(?:[a-z][a-z0-9+.-]*://|[^/:]+:(?!:|//))"
)
"""The address of a repository on another machine; not a path, a program, or this machine."""
_PACKED = re.compile(rb"^([0-9a-f]{40,64}) (refs/[^\n]+)$", re.MULTILINE)
_COMMIT, _TAG, _NEAR, _NAMED = 1, 4, 6, 7
"""Kinds of objects in a pack: the last two are differences, from what is so many bytes before them
or from what has this name."""
_KINDS = {b"commit": _COMMIT, b"tag": _TAG}
_IDX_MAGIC, _FAN_OUT = b"\xfftOc\0\0\0\2", struct.Struct(">I")
_FAR = 1 << 31


class HistoryUnread(Exception):
    """A repository that takes too long to read, or has what we do not read: nobody knows which
    commits it has."""


class Effort:
    """What one review may spend on git's objects: microseconds, as far as they can be told
    beforehand. Sizes alone do not bound the work: each object may be told by fifty others."""

    def __init__(self, most_us: int = 4_000_000) -> None:
        self._left = most_us

    def spend(self, us: int) -> None:
        """Raises `HistoryUnread`."""
        self._left -= us
        if self._left < 0:
            raise HistoryUnread


_OPEN_US, _FIND_US = 30, 20
"""To open a file or an object in a pack; to look for a name in a pack."""
_BYTES_A_US = 64
"""That are inflated."""


class GitFiles(Protocol):
    """A folder with git folders in it. Paths are relative to it."""

    def open_file(self, path: str) -> int:
        """A regular file to read. Raises OSError."""
        ...

    def mode(self, path: str) -> int:
        """Type and permissions of what is there; 0 for nothing. Raises OSError."""
        ...

    def names(self, path: str) -> Sequence[tuple[str, int]]:
        """What is in a folder, with its mode; nothing for what is none. Raises OSError."""
        ...


class TreeGitFiles:
    """Of a tree as it is mounted, or a plain folder."""

    def __init__(self, root: Root) -> None:
        self._root = root
        self.open_file = root.open_file

    def mode(self, path: str) -> int:
        status = self._root.status(path)
        return 0 if status is None else status.st_mode

    def names(self, path: str) -> Sequence[tuple[str, int]]:
        return [(name, status.st_mode) for name, status in self._root.list(path).items()]


class LayerGitFiles:
    """Of a base, in its layers."""

    def __init__(self, layers: Layers) -> None:
        self._layers = layers

    def open_file(self, path: str) -> int:
        entry = self._layers.find(path)
        if entry is None or not entry.is_file:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return entry.content.root.open_file(entry.content.path)

    def mode(self, path: str) -> int:
        entry = self._layers.find(path)
        return 0 if entry is None else entry.status.st_mode

    def names(self, path: str) -> Sequence[tuple[str, int]]:
        entry = self._layers.find(path)
        if entry is None or not entry.is_folder:
            return ()
        return [(name, one.status.st_mode) for name, one in self._layers.children(entry).items()]


def read_small(files: GitFiles, path: str, most: int) -> bytes | None:
    """Nothing where nothing is, or not any more; None for what is no file, larger, or cannot be
    read."""
    try:
        mode = files.mode(path)
        if not stat.S_ISREG(mode):
            return None if mode else b""
        with Descriptor(files.open_file(path)) as descriptor:
            size = os.fstat(descriptor).st_size
            return os.pread(descriptor, size, 0) if size <= most else None
    except FileNotFoundError:
        return b""
    except OSError as error:
        if error.errno not in ENTRY_ERRORS:
            raise
        return None


def _names(files: GitFiles, path: str) -> Sequence[tuple[str, int]]:
    """Of a folder; nothing where nothing is. Raises `HistoryUnread` for a symlink or whatever else
    stands there: git may find there what we do not."""
    try:
        mode = files.mode(path)
        if mode and not stat.S_ISDIR(mode):
            raise HistoryUnread
        return files.names(path)
    except OSError as error:
        if error.errno not in ENTRY_ERRORS:
            raise
        raise HistoryUnread from error


@dataclass(frozen=True)
class MadeCommit:
    """`oid` as git writes it; `subject` is the first line of its message."""

    oid: str
    subject: str


def new_commits(now: GitFiles, before: GitFiles, folder: str, effort: Effort) -> list[MadeCommit]:
    """Those of the git folder that `now` has at this path and `before` has not, newest first.
    Raises `HistoryUnread`."""
    if stat.S_ISREG(now.mode(folder)):
        if not git_folder(now, folder):
            raise HistoryUnread
        # That one is looked at by itself.
        return []
    _names(now, folder)
    old = refs(before, folder, effort)
    tips = {name: oid for name, oid in refs(now, folder, effort).items() if old.get(name) != oid}
    if UNREADABLE in tips.values():
        raise HistoryUnread
    others = _other_machines(now, folder)
    fetched = {name: tips.pop(name) for name in list(tips) if name.startswith(others)}
    stash = tips.pop(b"refs/stash", None)
    with ObjectStore(now, folder, effort) as objects, ObjectStore(before, folder, effort) as known:
        walk = _Walk(objects, known.has, _shallow(now, folder))
        for oid in fetched.values():
            walk.begin(oid)
        not_made = {commit.oid for commit in walk}
        for oid in tips.values():
            walk.begin(oid)
        made = [commit for commit in walk if commit.oid not in not_made]
        # A stash is two commits or three, and one thing.
        return [*walk.only([stash] if stash else []), *made]


def git_folder(files: GitFiles, path: str) -> str:
    """What a file in place of a git folder names; empty when that is not in the tree. It is a path
    of the sandbox, where the tree has several: its end is that in the tree."""
    said = read_small(files, path, _MAX_REF_FILE) or b""
    named = os.fsdecode(said.removeprefix(b"gitdir:").strip())
    found = os.path.normpath(os.path.join("/", os.path.dirname(path), named))
    while found := found.partition("/")[2]:
        if files.mode(f"{found}/HEAD"):
            return found
    return ""


def _other_machines(files: GitFiles, folder: str) -> tuple[bytes, ...]:
    """How references begin that say what another machine has: it was fetched from there or pushed
    to it. A remote without such an address goes with the space."""
    items = config.parse(read_small(files, f"{folder}/config", _MAX_CONFIG) or b"")
    if any(one.name.startswith("include") or one.name.endswith("insteadof") for one in items):
        return ()
    found: dict[str, bool] = {}
    for one in items:
        section, _, key = one.name.rpartition(".")
        if section.startswith("remote.") and key in ("url", "pushurl"):
            found[section] = found.get(section, True) and bool(_ELSEWHERE.match(one.value))
    names = [section.removeprefix("remote.") for section, there in found.items() if there]
    return tuple(os.fsencode(f"refs/remotes/{name}/") for name in names)


# References

UNREADABLE = b""


def refs(files: GitFiles, folder: str, effort: Effort) -> dict[bytes, bytes]:
    """What they point to, by name. HEADs and references of further checkouts are there too, those
    that only name another one are not. Raises `HistoryUnread`."""
    packed = read_small(files, f"{folder}/packed-refs", _MAX_REFS_FILE)
    if packed is None or _names(files, f"{folder}/reftable"):
        raise HistoryUnread
    effort.spend(len(packed) // _BYTES_A_US)
    found = {name: oid for oid, name in _PACKED.findall(packed)}
    folders, files_of_refs = ["refs"], ["HEAD"]
    for name, mode in _names(files, f"{folder}/worktrees"):
        if stat.S_ISLNK(mode):
            raise HistoryUnread
        folders.append(f"worktrees/{name}/refs")
        files_of_refs.append(f"worktrees/{name}/HEAD")
    while folders:
        above = folders.pop()
        for name, mode in sorted(_names(files, f"{folder}/{above}")):
            into = folders if stat.S_ISDIR(mode) else files_of_refs
            into.append(f"{above}/{name}")
        if len(found) + len(folders) + len(files_of_refs) > _MOST_REFS:
            raise HistoryUnread
        effort.spend(_OPEN_US)
    for path in files_of_refs:
        effort.spend(_OPEN_US)
        said = read_small(files, f"{folder}/{path}", _MAX_REF_FILE)
        # One that is being written is not there yet, and an empty one is left of a crash.
        if said is None or (said.strip() and not said.startswith(b"ref:")):
            first = (said or b"").partition(b"\n")[0].split(b" ")[0]
            found[os.fsencode(path)] = first if _OID.fullmatch(first) else UNREADABLE
    return {name: oid for name, oid in found.items() if not name.endswith(b".lock")}


def _shallow(files: GitFiles, folder: str) -> frozenset[bytes]:
    """Commits whose parents were never fetched."""
    return frozenset(_OID.findall(read_small(files, f"{folder}/shallow", _MAX_REFS_FILE) or b""))


# Walking


class _Commit(NamedTuple):
    oid: bytes
    parents: tuple[bytes, ...]
    time: int
    subject: str


class _Walk:
    """Every commit that can be reached from where it begins, up to those that are known. It can
    begin again elsewhere: what it has seen it does not give twice."""

    def __init__(
        self, objects: ObjectStore, known: Callable[[bytes], bool], shallow: frozenset[bytes]
    ) -> None:
        self._objects = objects
        self._known = known
        self._shallow = shallow
        self._seen: set[bytes] = set()
        self._next: list[tuple[int, _Commit]] = []

    def begin(self, oid: bytes) -> None:
        if oid in self._seen:
            return
        self._seen.add(oid)
        if self._known(oid):
            return
        commit = self._read(oid)
        if commit is not None:
            heapq.heappush(self._next, (-commit.time, commit))

    def __iter__(self) -> Iterator[MadeCommit]:
        while self._next:
            commit = heapq.heappop(self._next)[1]
            for parent in () if commit.oid in self._shallow else commit.parents:
                self.begin(parent)
            yield MadeCommit(commit.oid.decode(), commit.subject)

    def only(self, oids: Sequence[bytes]) -> Iterator[MadeCommit]:
        """These themselves, without those before them."""
        for oid in oids:
            commit = None if oid in self._seen or self._known(oid) else self._read(oid)
            if commit is not None:
                yield MadeCommit(commit.oid.decode(), commit.subject)

    def _read(self, oid: bytes) -> _Commit | None:
        """None for the tag of one that is known, or was seen."""
        for _ in range(_MOST_DEPTH):
            kind, content = self._objects.read(oid)
            if kind == _COMMIT:
                return _parsed(oid, content)
            target = content.partition(b"\n")[0].removeprefix(b"object ")
            if kind != _TAG or not _OID.fullmatch(target):
                raise HistoryUnread
            oid = target
            if oid in self._seen or self._known(oid):
                return None
            self._seen.add(oid)
        raise HistoryUnread


def _parsed(oid: bytes, content: bytes) -> _Commit:
    head, _, message = content.partition(b"\n\n")
    lines = head.split(b"\n")
    parents = [line[7:] for line in lines if line.startswith(b"parent ")]
    committer = next((line for line in lines if line.startswith(b"committer ")), b"")
    said = committer.rsplit(b" ", 2)[1:2]
    subject = message.strip().partition(b"\n")[0].decode("utf-8", "replace")
    return _Commit(
        oid,
        tuple(one for one in parents if _OID.fullmatch(one)),
        int(said[0]) if said and said[0][:15].isdigit() and len(said[0]) < 16 else 0,
        subject[:_MAX_SUBJECT],
    )


# Objects


class ObjectStore:
    """The objects of one git folder: each in a file of its own, or in packs."""

    def __init__(self, files: GitFiles, folder: str, effort: Effort) -> None:
        self._files = files
        self._effort = effort
        self._objects = f"{folder}/objects"
        self._packs: list[_Pack] | None = None

    def __enter__(self) -> ObjectStore:
        return self

    def __exit__(self, *_error: object) -> None:
        for pack in self._packs or ():
            pack.close()
        self._packs = None

    def has(self, oid: bytes) -> bool:
        self._effort.spend(_OPEN_US)
        with _reading(), Descriptor(self._files.open_file(self._loose(oid))):
            return True
        self._effort.spend(_FIND_US * len(self._all_packs()))
        return any(pack.find(oid) is not None for pack in self._all_packs())

    def read(self, oid: bytes, depth: int = 0) -> tuple[int, bytes]:
        """Its kind and its content; 0 when it is neither a commit nor a tag, or told by too many
        others. Raises `HistoryUnread` when it is not there, or cannot be read."""
        self._effort.spend(_OPEN_US)
        with _reading(), Descriptor(self._files.open_file(self._loose(oid))) as descriptor:
            found = _inflated(descriptor, 0, _MAX_OBJECT, self._effort)
            header, _, content = found.partition(b"\0")
            return _KINDS.get(header.partition(b" ")[0], 0), content
        for pack in self._all_packs():
            self._effort.spend(_FIND_US)
            place = pack.find(oid)
            if place is not None:
                with _reading():
                    return self._unpacked(pack, place, depth)
        raise HistoryUnread

    def _unpacked(self, pack: _Pack, place: int, depth: int) -> tuple[int, bytes]:
        if depth > _MOST_DEPTH:
            return 0, b""
        self._effort.spend(_OPEN_US)
        kind, at = pack.header(place)
        if kind in (_COMMIT, _TAG):
            return kind, pack.inflate(at, self._effort)
        if kind == _NEAR:
            back, at = pack.offset(at)
            if not 0 < back <= place:
                return 0, b""
            kind, base = self._unpacked(pack, place - back, depth + 1)
        elif kind == _NAMED:
            oid = pack.name_at(at)
            at += len(oid) // 2
            kind, base = self.read(oid, depth + 1)
        else:
            return 0, b""
        if not kind:
            return 0, b""
        return kind, _patched(base, pack.inflate(at, self._effort), self._effort)

    def _all_packs(self) -> list[_Pack]:
        if self._packs is None:
            self._packs = []
            folder = f"{self._objects}/pack"
            names = [name for name, _ in _names(self._files, folder) if name.endswith(".idx")]
            if len(names) > _MOST_PACKS:
                raise HistoryUnread
            for name in sorted(names):
                with _reading():
                    self._packs.append(_Pack(self._files, f"{folder}/{name[:-4]}"))
        return self._packs

    def _loose(self, oid: bytes) -> str:
        text = oid.decode("ascii")
        return f"{self._objects}/{text[:2]}/{text[2:]}"


class _Pack:
    """A pack and its index. Raises OSError and `_Malformed`."""

    def __init__(self, files: GitFiles, path: str) -> None:
        self._files = files
        self._path = path
        self._pack: int | None = None
        self._index = files.open_file(f"{path}.idx")
        try:
            if os.pread(self._index, 8, 0) != _IDX_MAGIC:
                raise _Malformed
            self._count = self._number(8 + 4 * 255)
            rest = os.fstat(self._index).st_size - 8 - 1024 - 40
            # A name, a checksum and a place for each; more for places beyond 2 GiB.
            self._hash = 32 if self._count and rest >= self._count * 40 else 20
        except BaseException:
            os.close(self._index)
            raise

    def close(self) -> None:
        os.close(self._index)
        if self._pack is not None:
            os.close(self._pack)

    def find(self, oid: bytes) -> int | None:
        """Where the object begins in the pack."""
        wanted = bytes.fromhex(oid.decode("ascii"))
        if len(wanted) != self._hash:
            return None
        with _reading():
            low = self._number(8 + 4 * (wanted[0] - 1)) if wanted[0] else 0
            high = min(self._number(8 + 4 * wanted[0]), self._count)
            while low < high:
                middle = (low + high) // 2
                name = os.pread(self._index, self._hash, 8 + 1024 + middle * self._hash)
                if name == wanted:
                    return self._place(middle)
                if name < wanted:
                    low = middle + 1
                else:
                    high = middle
        return None

    def _place(self, number: int) -> int:
        places = 8 + 1024 + self._count * (self._hash + 4)
        near = self._number(places + 4 * number)
        if near < _FAR:
            return near
        far = places + 4 * self._count + 8 * (near - _FAR)
        return self._number(far) << 32 | self._number(far + 4)

    def _number(self, at: int) -> int:
        data = os.pread(self._index, 4, at)
        if len(data) != 4:
            raise _Malformed
        return int(_FAN_OUT.unpack(data)[0])

    @property
    def _data(self) -> int:
        if self._pack is None:
            self._pack = self._files.open_file(f"{self._path}.pack")
        return self._pack

    def header(self, at: int) -> tuple[int, int]:
        """The kind of an object, and where what follows begins."""
        data = os.pread(self._data, 16, at)
        for number, byte in enumerate(data):
            if byte < 0x80:
                return data[0] >> 4 & 7, at + number + 1
        raise _Malformed

    def offset(self, at: int) -> tuple[int, int]:
        """How far before it the other object is, and where its differences begin."""
        found = -1
        for number, byte in enumerate(os.pread(self._data, 10, at)):
            found = (found + 1) << 7 | byte & 0x7F
            if byte < 0x80:
                return found, at + number + 1
        raise _Malformed

    def name_at(self, at: int) -> bytes:
        data = os.pread(self._data, self._hash, at)
        if len(data) != self._hash:
            raise _Malformed
        return data.hex().encode()

    def inflate(self, at: int, effort: Effort) -> bytes:
        return _inflated(self._data, at, _MAX_OBJECT, effort)


class _Malformed(Exception):
    """Not what git writes."""


@contextlib.contextmanager
def _reading() -> Iterator[None]:
    """What is no file of git's, or none any more, is passed over."""
    try:
        yield
    except (_Malformed, zlib.error):
        pass
    except OSError as error:
        if error.errno not in ENTRY_ERRORS:
            raise


def _inflated(descriptor: int, at: int, most: int, effort: Effort) -> bytes:
    inflating, found = zlib.decompressobj(), bytearray()
    while not inflating.eof:
        data = inflating.unconsumed_tail or os.pread(descriptor, 1 << 14, at)
        if not inflating.unconsumed_tail:
            at += len(data)
        before = len(found)
        found += inflating.decompress(data, most + 1 - len(found))
        effort.spend(1 + (len(found) - before) // _BYTES_A_US)
        if not data or len(found) > most:
            raise _Malformed
    return bytes(found)


def _patched(base: bytes, delta: bytes, effort: Effort) -> bytes:
    """What a delta makes of it. Raises `_Malformed`."""
    try:
        before, at = _size(delta, 0)
        after, at = _size(delta, at)
        if before != len(base) or after > _MAX_OBJECT:
            raise _Malformed
        found = bytearray()
        while at < len(delta) and len(found) <= after:
            effort.spend(1)
            at = _step(base, delta, at, found)
    except IndexError as error:
        raise _Malformed from error
    if len(found) != after:
        raise _Malformed
    return bytes(found)


def _step(base: bytes, delta: bytes, at: int, found: bytearray) -> int:
    code, at = delta[at], at + 1
    if not code:
        raise _Malformed
    if code < 0x80:
        found += delta[at : at + code]
        return at + code
    start = length = 0
    for bit in range(7):
        if code >> bit & 1:
            if bit < 4:
                start |= delta[at] << 8 * bit
            else:
                length |= delta[at] << 8 * (bit - 4)
            at += 1
    found += base[start : start + (length or 0x10000)]
    return at


def _size(delta: bytes, at: int) -> tuple[int, int]:
    found = shift = 0
    while True:
        byte, at = delta[at], at + 1
        found |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80 or shift > 63:
            return found, at
