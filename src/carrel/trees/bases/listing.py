"""What was seen of a folder: every path in it, and a row of facts for each."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, field

from carrel.domain.trees import Skipped
from carrel.linux.statx import ROW, Row, unpack_row
from carrel.trees.bases.places import join

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


@dataclass
class Listing:
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

    def without(self, dropped: set[int]) -> Listing:
        """The same but for some entries."""
        if not dropped:
            return self
        kept = [index for index in range(len(self.paths)) if index not in dropped]
        return Listing(
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
    ) -> Listing:
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
        return Listing(self.origin, self.paths, rows, self.skipped, self.joined)

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
