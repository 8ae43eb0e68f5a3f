"""What uses the disk: measured now, in a bounded time, and without a write."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from carrel.domain.access import Caller
from carrel.domain.cleanup import DiskPart, DiskReport
from carrel.domain.collaborators import Bases, Disk
from carrel.domain.store import Store
from carrel.domain.trees import Base
from carrel.service.access import require_admin
from carrel.service.journal import Journal

BUDGET_S = 20.0
"""For all of it: some million files. What is not measured then is shown without a size."""
SPACE = (
    *("tree", "project", "system", "services", "volumes"),
    *("home", "tmp", "runs", "agent", "checkpoints"),
)
"""What a space's size is said to consist of."""
KINDS = {
    "trash": "trash",
    "layers": "forks",
    "mirrors": "mirrors",
    "images": "images",
    "engines": "engines",
    "agents": "agents",
    "instances": "instances",
    "requests": "requests",
    "setups": "records",
    "downloads": "downloads",
    "compiled": "compiled",
    "warm": "compiled",
    "carrel.db": "records",
    "carrel.db-wal": "records",
    "carrel.db-shm": "records",
    "hub.db": "messages",
    "hub.db-wal": "messages",
    "hub.db-shm": "messages",
    "daemon": "logs",
    "launcher": "logs",
    "reserve": "reserve",
}
"""Of what is in the data folder, beside bases and spaces; the rest is `other`."""

Measure = Callable[[Sequence[Path], float], int]
"""What folders and files take on disk. Blocking; TimeoutError after that moment of the
monotonic clock, OSError for what cannot be measured."""


class _Size(NamedTuple):
    bytes: int | None
    why: str = ""
    """… it is not known."""


class DiskUse:
    def __init__(
        self,
        data: Path,
        journal: Journal,
        store: Store,
        bases: Bases,
        disk: Disk,
        measure: Measure,
    ) -> None:
        self._data = data
        self._journal = journal
        self._store = store
        self._bases = bases
        self._disk = disk
        self._measure = measure

    async def report(self, caller: Caller) -> DiskReport:
        """For administrators: it names everybody's spaces and projects."""
        require_admin(caller)
        bases = await asyncio.to_thread(self._bases.list)
        kept = Counter(entry.space.base_id for entry in await self._store.trash())
        users = Counter(space.base_id for space in self._journal.all())
        names = {space.space_id: space.name for space in self._journal.all()}
        return await asyncio.to_thread(self._report, bases, users, kept, names)

    def _report(
        self,
        bases: list[Base],
        users: Counter[str],
        kept: Counter[str],
        names: Mapping[str, str],
    ) -> DiskReport:
        until = time.monotonic() + BUDGET_S
        below = {
            layer.parent.name
            for base in bases
            if users[base.base_id] or kept[base.base_id]
            for layer in base.layers[1:]
        }
        parts = [*self._rest(until)]
        for base in bases:
            note = _use(users[base.base_id], kept[base.base_id], base.base_id in below)
            size = self._size([base.folder], until)
            words = filter(None, (f"{base.project.location or 'empty'}: {note}", size.why))
            parts.append(DiskPart("base", base.base_id, size.bytes, ", ".join(words)))
        parts += self._spaces(names, until)
        disk = os.statvfs(self._data)
        total = disk.f_blocks * disk.f_frsize
        ordered = sorted(parts, key=lambda part: (part.kind, -(part.bytes or 0)))
        return DiskReport(str(self._data), total, self._disk.free()[0], tuple(ordered))

    def _spaces(self, names: Mapping[str, str], until: float) -> Iterator[DiskPart]:
        for folder in _inside(self._data / "spaces"):
            sizes = {name: self._size([folder / name], until) for name in SPACE}
            known = [size.bytes for size in sizes.values() if size.bytes is not None]
            whole = sum(known) if len(known) == len(sizes) else None
            some = {name: size.bytes for name, size in sizes.items() if size.bytes}
            note = ", ".join(f"{name} {size.why}" for name, size in sizes.items() if size.why)
            yield DiskPart("space", names.get(folder.name, folder.name), whole, note, some)

    def _rest(self, until: float) -> Iterator[DiskPart]:
        found: dict[str, list[Path]] = {}
        for path in _inside(self._data):
            if path.name not in ("bases", "spaces"):
                found.setdefault(KINDS.get(path.name, "other"), []).append(path)
        for kind, paths in found.items():
            size = self._size(paths, until)
            yield DiskPart(kind, "", size.bytes, size.why)

    def _size(self, paths: Sequence[Path], until: float) -> _Size:
        try:
            return _Size(self._measure(paths, until))
        except TimeoutError:
            return _Size(None, "not measured in time")
        except OSError as error:
            return _Size(None, error.strerror or str(error))


def _inside(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _use(spaces: int, trashed: int, below: bool) -> str:
    if spaces:
        return "1 space" if spaces == 1 else f"{spaces} spaces"
    if trashed:
        return "kept for the trash"
    return "another base stands on it" if below else "unused"
