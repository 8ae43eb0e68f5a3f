"""What a stack of folders in overlayfs's format shows, read without mounting it.

A base's layers, and a tree's upper folder on top of them: whiteouts hide names, opaque
folders hide what is below, redirects say that a folder was moved, and a metacopy is a
file whose bytes are still in a layer below.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from carrel.trees.folders import Root, join

TRUSTED = "trusted.overlay."
"""Where overlays that root mounted keep their notes."""
USER = "user.overlay."
"""Where those of ordinary users do."""


@dataclass(slots=True)
class LayerPlace:
    """One real entry: the path of its folder, which all entries of that share, and its name. Any
    number of them may be held, and their folder may be deep."""

    root: Root
    above: str = ""
    name: str = ""
    _path: str | None = field(default=None, compare=False)

    @property
    def path(self) -> str:
        return join(self.above, self.name)

    def below(self, name: str) -> LayerPlace:
        if self._path is None:
            self._path = self.path
        return LayerPlace(self.root, self._path, name)


@dataclass(frozen=True, slots=True)
class LayerEntry:
    """One entry of the merged view. `content` is where its bytes are, and `key` names
    that file; `parts` are the folders that a folder merges, the uppermost first."""

    status: os.stat_result
    content: LayerPlace
    key: tuple[int, int]
    parts: tuple[LayerPlace, ...] = ()

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

    def top(self) -> LayerEntry:
        places = tuple(LayerPlace(root) for root in self._roots)
        status = places[0].root.status("")
        if status is None:
            raise FileNotFoundError("a layer is gone")
        return _folder(status, places[0], places[1:])

    def child(self, folder: LayerEntry, name: str) -> LayerEntry | None:
        return self._look_up(folder.parts, name)

    def children(self, folder: LayerEntry) -> dict[str, LayerEntry]:
        listings = [place.root.list(place.path) for place in folder.parts]
        return self._choose(folder, listings, {name for names in listings for name in names})

    def uppermost(self, folder: LayerEntry, count: int) -> dict[str, LayerEntry | None]:
        """Only what so many of the folder's parts name, from the top; None is what they hide."""
        listings = [place.root.list(place.path) for place in folder.parts[:count]]
        names = {name for listing in listings for name in listing}
        return {name: self._look_up(folder.parts, name, listings) for name in names}

    def find(self, path: str) -> LayerEntry | None:
        return self._find(tuple(LayerPlace(root) for root in self._roots), path)

    def _choose(
        self, folder: LayerEntry, listings: Sequence[Mapping[str, os.stat_result]], names: set[str]
    ) -> dict[str, LayerEntry]:
        found = ((name, self._look_up(folder.parts, name, listings)) for name in names)
        return {name: entry for name, entry in found if entry is not None}

    def _find(self, parts: tuple[LayerPlace, ...], path: str) -> LayerEntry | None:
        if not parts:
            return None
        names = [name for name in path.split("/") if name]
        entry: LayerEntry | None = None
        for name in names:
            entry = self._look_up(parts, name)
            if entry is None:
                return None
            parts = entry.parts
        return entry

    def _look_up(
        self,
        parts: tuple[LayerPlace, ...],
        name: str,
        listings: Sequence[Mapping[str, os.stat_result]] = (),
    ) -> LayerEntry | None:
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

    def _merged_below(
        self, place: LayerPlace, below: tuple[LayerPlace, ...]
    ) -> tuple[LayerPlace, ...]:
        lower = self._origin(place, below)
        return lower.parts if lower is not None else ()

    def _origin(self, place: LayerPlace, below: tuple[LayerPlace, ...]) -> LayerEntry | None:
        """What an entry covers in the layers below, also where it was moved from."""
        if self._prefix is None or place.root is self._roots[-1]:
            return None
        if self._note(place, "opaque") == b"y":
            return None
        redirect = os.fsdecode(self._note(place, "redirect") or b"")
        if redirect.startswith("/"):
            lower_roots = self._roots[self._roots.index(place.root) + 1 :]
            return self._find(tuple(LayerPlace(root) for root in lower_roots), redirect)
        return self._look_up(below, redirect or place.name)

    def _file(
        self, status: os.stat_result, place: LayerPlace, below: tuple[LayerPlace, ...]
    ) -> LayerEntry:
        if stat.S_ISREG(status.st_mode) and self._is_metacopy(place):
            origin = self._origin(place, below)
            if origin is not None and origin.is_file:
                return LayerEntry(status, origin.content, origin.key)
        return LayerEntry(status, place, (status.st_dev, status.st_ino))

    def _is_metacopy(self, place: LayerPlace) -> bool:
        # Ordinary users' overlays make none: the notes would be in their own hands.
        if self._prefix != TRUSTED or place.root is self._roots[-1]:
            return False
        return self._note(place, "metacopy") is not None

    def _is_whiteout(self, part: LayerPlace, place: LayerPlace, status: os.stat_result) -> bool:
        if self._prefix is None:
            return False
        if stat.S_ISCHR(status.st_mode):
            return status.st_rdev == 0
        if not stat.S_ISREG(status.st_mode) or status.st_size or place.root is self._roots[-1]:
            return False
        return self._note(place, "whiteout") is not None and self._note(part, "opaque") == b"x"

    def _note(self, place: LayerPlace, name: str) -> bytes | None:
        return place.root.xattr(place.path, f"{self._prefix}{name}")


def _folder(status: os.stat_result, place: LayerPlace, below: tuple[LayerPlace, ...]) -> LayerEntry:
    return LayerEntry(status, place, (status.st_dev, status.st_ino), (place, *below))
