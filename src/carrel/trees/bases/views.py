"""What a live project looks like at one moment, what in it is new, and what it looked like when
its last base was built; and the contracts of sources and producers.

What was seen of a folder is a listing: every path in it, and a row of facts for each. Listings are
written down, one file per project. It only saves work: who has none looks at everything anew, so a
file that cannot be read is as none, and none is ever forced to disk.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol, cast

import msgspec

from carrel.domain.projects import BaseRequest, OnProgress
from carrel.domain.trees import Owner, Skipped
from carrel.linux.openat2 import open_real
from carrel.linux.statx import ROW, Row, unpack_row
from carrel.trees.bases.records import IndexFile
from carrel.trees.git.checkout import Delta
from carrel.trees.paths import join

_CHUNK = 512
"""Rows compared at once, when two listings are not equal as a whole."""
_RACY_NS = 50_000_000
"""A file that changed so shortly before it was looked at may change again and still show
the same times: the kernel's clock for files steps every 1 to 10 ms."""
_COARSE_NS = 2_000_000_000
"""The same for file systems that keep whole seconds, or two."""
_CTIME_AT = 32
_CTIME_SIZE = 16


@dataclass(frozen=True)
class Origin:
    """A real folder (or a single file), and where in the base it comes to lie."""

    path: bytes
    target: bytes = b""
    is_file: bool = False
    objects: bool = field(default=False, compare=False)
    """A store of git's objects: only they are taken from it, and looked into."""

    ours: bool = field(default=False, compare=False)
    """Carrel's own folder, by whatever path."""

    def open(self) -> int:
        """The folder, or the one that the file is in, for reading. A project's path is a
        real one: a symlink on it raises OSError, ELOOP or ENOTDIR."""
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        if self.ours:
            return os.open(self.path, flags)
        return open_real(os.path.dirname(self.path) if self.is_file else self.path, flags)


@dataclass
class FolderListing:
    """`paths` are relative to the origin; b"" is the origin itself, and always first."""

    origin: Origin
    paths: list[bytes] = field(default_factory=list)
    rows: bytes | bytearray = field(default_factory=bytearray)
    skipped: list[Skipped] = field(default_factory=list)
    joined: bytes | None = None
    """All paths with zero bytes between them, if that is known already."""
    _own: bool = field(default=False, repr=False)

    def __len__(self) -> int:
        return len(self.paths)

    def row(self, index: int) -> Row:
        return unpack_row(self.rows, index)

    def raw(self, index: int) -> bytes:
        return bytes(self.rows[index * ROW : (index + 1) * ROW])

    def in_base(self, path: bytes) -> bytes:
        return join(self.origin.target, path)

    def extend(self, paths: list[bytes], rows: bytes | bytearray) -> None:
        """Never changes what it was made from: that may be somebody else's, too."""
        if not self._own:
            self.paths, self.rows = list(self.paths), bytearray(self.rows)
            self._own = True
        self.joined = None
        self.paths += paths
        self.rows += rows

    def without(self, dropped: set[int]) -> FolderListing:
        """The same but for some entries."""
        if not dropped:
            return self
        kept = [index for index in range(len(self.paths)) if index not in dropped]
        return FolderListing(
            self.origin,
            [self.paths[index] for index in kept],
            bytearray(b"".join(_runs(self.rows, kept))),
            self.skipped,
        )

    def index(self) -> dict[bytes, int]:
        return {path: at for at, path in enumerate(self.paths)}

    def settled(
        self,
        since_ns: int,
        doubtful: Set[bytes] = frozenset(),
        among: Iterable[int] | None = None,
    ) -> FolderListing:
        """To be written down: rows that cannot be trusted next time never match again.
        Nothing was read before `since_ns`, and only entries `among` these were read at
        all (None: any); `doubtful` paths are not trusted anyway."""
        rows = bytearray(self.rows)
        for index in self._recent(since_ns) if among is None else among:
            row = self.row(index)
            margin = _RACY_NS if row.ctime_frac else _COARSE_NS
            if row.ctime_ns >= since_ns - margin:
                _forget(rows, index)
        if doubtful:
            for index, path in enumerate(self.paths):
                if self.in_base(path) in doubtful:
                    _forget(rows, index)
        return FolderListing(self.origin, self.paths, rows, self.skipped, self.joined)

    def _recent(self, since_ns: int) -> list[int]:
        limit = (since_ns - _COARSE_NS) // 1_000_000_000
        seconds = memoryview(self.rows).cast("q")[_CTIME_AT // 8 :: ROW // 8].tolist()
        return [index for index, second in enumerate(seconds) if second >= limit]


def _forget(rows: bytearray, index: int) -> None:
    start = index * ROW + _CTIME_AT
    rows[start : start + _CTIME_SIZE] = bytes(_CTIME_SIZE)


def differing(old: bytes | bytearray, new: bytes | bytearray) -> list[int]:
    """The numbers of the rows that are not equal; both have as many."""
    if old == new:
        return []
    found = []
    step = _CHUNK * ROW
    for start in range(0, len(new), step):
        if old[start : start + step] != new[start : start + step]:
            for at in range(start, min(start + step, len(new)), ROW):
                if old[at : at + ROW] != new[at : at + ROW]:
                    found.append(at // ROW)
    return found


def _runs(rows: bytes | bytearray, kept: list[int]) -> Iterator[bytes | bytearray]:
    """Neighbours are copied together."""
    start = previous = -2
    for index in kept:
        if index != previous + 1:
            if previous >= 0:
                yield rows[start * ROW : (previous + 1) * ROW]
            start = index
        previous = index
    if previous >= 0:
        yield rows[start * ROW : (previous + 1) * ROW]


def shown(path: bytes) -> str:
    """A path for people: the root has a name, too."""
    return os.fsdecode(path) or "."


# What was seen the last time

_FORMAT = 1


@dataclass(frozen=True)
class KnownProject:
    """What a source needs to look again. `named` are the paths that were provided or left
    out by special rules, `provided` those of them that are in no listing, `checkouts` the
    folders that hold a `.git`."""

    listings: tuple[FolderListing, ...]
    named: frozenset[bytes] = frozenset()
    provided: frozenset[bytes] = frozenset()
    checkouts: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class ProjectHead:
    """`state` names the state of a project that is not looked at file by file."""

    base_id: str
    known: KnownProject
    state: bytes = b""


class _SavedListing(msgspec.Struct, array_like=True):
    path: bytes
    target: bytes
    is_file: bool
    paths: bytes
    rows: bytes
    skipped: list[tuple[bytes, str]]


class _HeadDocument(msgspec.Struct, array_like=True):
    version: int
    base_id: str
    listings: list[_SavedListing]
    named: list[bytes]
    provided: list[bytes]
    checkouts: list[bytes]
    state: bytes
    end: str
    """Shows that the file is whole."""


_END = "end"
_decoder = msgspec.msgpack.Decoder(_HeadDocument)
_encoder = msgspec.msgpack.Encoder()


def read_head(path: Path) -> ProjectHead | None:
    try:
        document = _decoder.decode(path.read_bytes())
    except (FileNotFoundError, msgspec.MsgspecError):
        return None
    if document.version != _FORMAT or document.end != _END:
        return None
    listings = tuple(_listing(saved) for saved in document.listings)
    if any(len(listing.rows) != ROW * len(listing) for listing in listings):
        return None
    known = KnownProject(
        listings,
        frozenset(document.named),
        frozenset(document.provided),
        tuple(document.checkouts),
    )
    return ProjectHead(document.base_id, known, document.state)


def write_head(path: Path, head: ProjectHead) -> None:
    document = _HeadDocument(
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


def _listing(saved: _SavedListing) -> FolderListing:
    return FolderListing(
        Origin(saved.path, saved.target, saved.is_file),
        saved.paths.split(b"\0"),
        saved.rows,
        [Skipped(os.fsdecode(path), why) for path, why in saved.skipped],
        saved.paths,
    )


def _saved(listing: FolderListing) -> _SavedListing:
    return _SavedListing(
        listing.origin.path,
        listing.origin.target,
        listing.origin.is_file,
        listing.joined if listing.joined is not None else b"\0".join(listing.paths),
        cast(bytes, listing.rows),  # encoded alike, and big
        [(os.fsencode(skip.path), skip.why) for skip in listing.skipped],
    )


# What is seen now


class SeenEntry(NamedTuple):
    """One entry of a project; `path` is its place in the base."""

    path: bytes
    origin: Origin
    inside: bytes
    row: Row
    raw: bytes


@dataclass(frozen=True)
class ProjectView:
    """`touched` are numbers of entries, by the number of their listing; `gone` are paths
    of the base. `generated` files and `made` folders are in no listing."""

    known: KnownProject
    touched: Mapping[int, list[int]]
    gone: tuple[bytes, ...]
    owner: Owner
    generated: Mapping[bytes, bytes] = field(default_factory=dict)
    made: frozenset[bytes] = frozenset()
    indexes: tuple[IndexFile, ...] = ()
    has_git: bool = False
    notes: tuple[Skipped, ...] = ()

    @property
    def changed(self) -> bool:
        return bool(self.gone) or any(self.touched.values())

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        found = [skip for listing in self.known.listings for skip in listing.skipped]
        return (*found, *self.notes)

    def seen(self) -> list[SeenEntry]:
        """What is touched, sorted by path: folders before what is in them."""
        found = [
            _seen(self.known.listings[number], index)
            for number, indexes in self.touched.items()
            for index in indexes
        ]
        found.sort(key=lambda seen: seen.path)
        return found

    def same_files(self, wanted: set[tuple[bytes, int, int]]) -> list[SeenEntry]:
        """All names of some files, given by origin, file system and inode."""
        inodes = {inode for _, _, inode in wanted}
        found = []
        for listing in self.known.listings:
            all_inodes = memoryview(listing.rows).cast("Q")[2::8].tolist()
            for index, inode in enumerate(all_inodes):
                if inode in inodes:
                    seen = _seen(listing, index)
                    if (seen.origin.path, seen.row.mount, inode) in wanted:
                        found.append(seen)
        return found

    def rows(self) -> Callable[[bytes], Row | None]:
        """Finds the row of a path of the base."""
        places: dict[bytes, tuple[bytes | bytearray, int]] = {}
        for listing in self.known.listings:
            rows, target = listing.rows, listing.origin.target
            prefix = target + b"/" if target else b""
            for at, path in enumerate(listing.paths):
                places[prefix + path if path else target] = (rows, at)

        def find(path: bytes) -> Row | None:
            place = places.get(path)
            return unpack_row(*place) if place is not None else None

        return find


def _seen(listing: FolderListing, index: int) -> SeenEntry:
    path = listing.paths[index]
    return SeenEntry(
        listing.in_base(path), listing.origin, path, listing.row(index), listing.raw(index)
    )


class ProjectSource(Protocol):
    """A project that is read where it is, and may change meanwhile."""

    def look(self, known: KnownProject | None, on_count: Callable[[int], None]) -> ProjectView:
        """Looks at all of it; `known` is from the last time, and saves most of the work.

        Raises `ProjectNotFound`, `ProjectNotAFolder`, `ProjectUnreadable`,
        `ProjectTooLarge`.
        """
        ...


class Producer(Protocol):
    """A project at one state that is produced, not read. Methods raise the errors of
    their kind of project."""

    def state(self) -> bytes:
        """Names what would be produced. Never empty."""
        ...

    @property
    def indexes(self) -> tuple[IndexFile, ...]: ...

    def produce(self, into: Path) -> tuple[Skipped, ...]:
        """Fills an empty folder."""
        ...

    def update(
        self, before: bytes, find: Callable[[bytes], Path | None], into: Path
    ) -> Delta | None:
        """Fills an empty folder with what an earlier state lacks; `find` gives files of
        its base. None when only all of it will do."""
        ...


@dataclass(frozen=True)
class Opened:
    """A project that is ready to be built from: live, or produced. `key` names it among
    all projects: what it is, where, and what is left out."""

    key: str
    source: ProjectSource | None = None
    producer: Producer | None = None


OpenProject = Callable[[BaseRequest, Path, OnProgress], Opened]
"""Finds the project of a request; the path is the data folder. Raises the errors of bad
input. The one there is: `carrel.trees.sources.project.open_project`."""
