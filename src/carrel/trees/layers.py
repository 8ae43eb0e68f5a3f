"""What a stack of folders in overlayfs's format shows, read without mounting it.

A base's layers, and a tree's upper folder on top of them: whiteouts hide names, opaque
folders hide what is below, redirects say that a folder was moved, and a metacopy is a
file whose bytes are still in a layer below.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from carrel.trees.folders import Root, join, split

TRUSTED = "trusted.overlay."
"""Where overlays that root mounted keep their notes."""
USER = "user.overlay."
"""Where those of ordinary users do."""


@dataclass(frozen=True, slots=True)
class Place:
    """One real entry."""

    root: Root
    path: str

    def below(self, name: str) -> Place:
        return Place(self.root, join(self.path, name))


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the merged view. `content` is where its bytes are, and `key` names
    that file; `parts` are the folders that a folder merges, the uppermost first."""

    status: os.stat_result
    content: Place
    key: tuple[int, int]
    parts: tuple[Place, ...] = ()

    @property
    def is_folder(self) -> bool:
        return stat.S_ISDIR(self.status.st_mode)

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.status.st_mode)


class Layers:
    """`roots` are the layers, the uppermost first. With no `prefix` they are plain folders
    (then one), in which nothing has a special meaning."""

    def __init__(self, roots: Sequence[Root], prefix: str | None) -> None:
        self._roots = tuple(roots)
        self._prefix = prefix

    def top(self) -> Entry:
        places = tuple(Place(root, "") for root in self._roots)
        status = places[0].root.status("")
        if status is None:
            raise FileNotFoundError("a layer is gone")
        return _folder(status, places[0], places[1:])

    def child(self, folder: Entry, name: str) -> Entry | None:
        return self._look_up(folder.parts, name)

    def children(self, folder: Entry) -> dict[str, Entry]:
        listings = [place.root.list(place.path) for place in folder.parts]
        return self._choose(folder, listings, {name for names in listings for name in names})

    def uppermost(self, folder: Entry) -> dict[str, Entry | None]:
        """Only what the uppermost of the folder's parts names; None is what it hides."""
        place = folder.parts[0]
        listing = place.root.list(place.path)
        return {name: self._look_up(folder.parts, name, (listing,)) for name in listing}

    def find(self, path: str) -> Entry | None:
        return self._find(tuple(Place(root, "") for root in self._roots), path)

    def _choose(
        self, folder: Entry, listings: Sequence[Mapping[str, os.stat_result]], names: set[str]
    ) -> dict[str, Entry]:
        found = ((name, self._look_up(folder.parts, name, listings)) for name in names)
        return {name: entry for name, entry in found if entry is not None}

    def _find(self, parts: tuple[Place, ...], path: str) -> Entry | None:
        if not parts:
            return None
        names = [name for name in path.split("/") if name]
        entry: Entry | None = None
        for name in names:
            entry = self._look_up(parts, name)
            if entry is None:
                return None
            parts = entry.parts
        return entry

    def _look_up(
        self,
        parts: tuple[Place, ...],
        name: str,
        listings: Sequence[Mapping[str, os.stat_result]] = (),
    ) -> Entry | None:
        """`listings` are those of the first parts, when they have been read already."""
        for index, part in enumerate(parts):
            place = part.below(name)
            if index < len(listings):
                status = listings[index].get(name)
            else:
                status = place.root.status(place.path)
            if status is None:
                continue
            if self._is_whiteout(part, place, status):
                return None
            below = parts[index + 1 :]
            if not stat.S_ISDIR(status.st_mode):
                return self._file(status, place, below)
            return _folder(status, place, self._merged_below(place, below))
        return None

    def _merged_below(self, place: Place, below: tuple[Place, ...]) -> tuple[Place, ...]:
        lower = self._origin(place, below)
        return lower.parts if lower is not None else ()

    def _origin(self, place: Place, below: tuple[Place, ...]) -> Entry | None:
        """What an entry covers in the layers below, also where it was moved from."""
        if self._prefix is None or place.root is self._roots[-1]:
            return None
        if self._note(place, "opaque") == b"y":
            return None
        redirect = os.fsdecode(self._note(place, "redirect") or b"")
        if redirect.startswith("/"):
            lower_roots = self._roots[self._roots.index(place.root) + 1 :]
            return self._find(tuple(Place(root, "") for root in lower_roots), redirect)
        return self._look_up(below, redirect or split(place.path)[1])

    def _file(self, status: os.stat_result, place: Place, below: tuple[Place, ...]) -> Entry:
        if stat.S_ISREG(status.st_mode) and self._is_metacopy(place):
            origin = self._origin(place, below)
            if origin is not None and origin.is_file:
                return Entry(status, origin.content, origin.key)
        return Entry(status, place, (status.st_dev, status.st_ino))

    def _is_metacopy(self, place: Place) -> bool:
        # Ordinary users' overlays make none: the notes would be in their own hands.
        if self._prefix != TRUSTED or place.root is self._roots[-1]:
            return False
        return self._note(place, "metacopy") is not None

    def _is_whiteout(self, part: Place, place: Place, status: os.stat_result) -> bool:
        if self._prefix is None:
            return False
        if stat.S_ISCHR(status.st_mode):
            return status.st_rdev == 0
        if not stat.S_ISREG(status.st_mode) or status.st_size or place.root is self._roots[-1]:
            return False
        return self._note(place, "whiteout") is not None and self._note(part, "opaque") == b"x"

    def _note(self, place: Place, name: str) -> bytes | None:
        return place.root.xattr(place.path, f"{self._prefix}{name}")


def _folder(status: os.stat_result, place: Place, below: tuple[Place, ...]) -> Entry:
    return Entry(status, place, (status.st_dev, status.st_ino), (place, *below))
