"""What a live project looks like at one moment, and what in it is new."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from carrel.domain.projects import BaseRequest, OnProgress
from carrel.domain.trees import Owner, Skipped
from carrel.linux.statx import Row, unpack_row
from carrel.trees.bases.heads import Known
from carrel.trees.bases.listing import Listing, Origin
from carrel.trees.bases.records import IndexFile


class Seen(NamedTuple):
    """One entry of a project; `path` is its place in the base."""

    path: bytes
    origin: Origin
    inside: bytes
    row: Row
    raw: bytes


@dataclass(frozen=True)
class View:
    """`touched` are numbers of entries, by the number of their listing; `gone` are paths
    of the base. `generated` files and `made` folders are in no listing."""

    known: Known
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

    def seen(self) -> list[Seen]:
        """What is touched, sorted by path: folders before what is in them."""
        found = [
            _seen(self.known.listings[number], index)
            for number, indexes in self.touched.items()
            for index in indexes
        ]
        found.sort(key=lambda seen: seen.path)
        return found

    def same_files(self, wanted: set[tuple[bytes, int, int]]) -> list[Seen]:
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


def _seen(listing: Listing, index: int) -> Seen:
    path = listing.paths[index]
    return Seen(listing.in_base(path), listing.origin, path, listing.row(index), listing.raw(index))


class Source(Protocol):
    """A project that is read where it is, and may change meanwhile."""

    def look(self, known: Known | None, on_count: Callable[[int], None]) -> View:
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
    ) -> Update | None:
        """Fills an empty folder with what an earlier state lacks; `find` gives files of
        its base. None when only all of it will do."""
        ...


@dataclass(frozen=True)
class Update:
    """What is new against an earlier state: paths to take from a folder, and paths that
    are gone."""

    changed: tuple[bytes, ...]
    deleted: tuple[bytes, ...]
    skipped: tuple[Skipped, ...] = ()


@dataclass(frozen=True)
class Opened:
    """A project that is ready to be built from: live, or produced. `key` names it among
    all projects: what it is, where, and what is left out."""

    key: str
    source: Source | None = None
    producer: Producer | None = None


OpenProject = Callable[[BaseRequest, Path, OnProgress], Opened]
"""Finds the project of a request; the path is the data folder. Raises the errors of bad
input. The one there is: `carrel.trees.sources.opening.open_project`."""
