"""The trash: what was changed in removed spaces, kept for a while.

Each removed space has a folder of its own, with its changes in one file. The records are the
caller's: what no record names was left by a crash, and `stray` finds it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from carrel.domain.checkpoints import PartsKept, PartStates
from carrel.domain.cleanup import Bundler
from carrel.domain.errors import InsufficientDisk, SpaceInvalid, SpaceNotFound, TreeUnavailable
from carrel.domain.ids import is_id
from carrel.domain.spaces import Space, Trashed
from carrel.domain.trees import Tree, TreeDriver

_CHANGES = "changes"
_PARTS = "parts"


class Trash:
    """Blocking. One space is kept, restored or purged by one caller at a time."""

    def __init__(
        self,
        folder: Path,
        budget_bytes: int,
        max_age_s: float,
        bundler: Bundler,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`folder` is made when something is first kept. The budget is of the owner, of each
        label and of the children of each space; what is older than `max_age_s` goes."""
        self._folder = folder
        self._budget_bytes = budget_bytes
        self._max_age_s = max_age_s
        self._bundler = bundler
        self._clock = clock

    def keep(
        self, space: Space, tree: Tree, driver: TreeDriver, parts: PartStates | None = None
    ) -> Trashed | None:
        """None when nothing was changed. What was kept of the space before is replaced.

        Raises `TooLarge` when it is more than the budget, `InsufficientDisk`, and what the
        tree's driver raises; then it leaves what was there.
        """
        folder = self._place(space.space_id)
        with _disk_errors("keep the changes"):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.mkdir(mode=0o700, exist_ok=True)
            for unfinished in set(os.listdir(folder)) - {_CHANGES}:
                self._remove(folder / unfinished)
        try:
            bundle = self._bundler.pack(
                driver, tree, space.base_id, folder / _CHANGES, self._budget_bytes
            )
            kept = PartsKept(0, 0)
            if parts is not None:
                kept = parts.pack_parts(folder / _PARTS, self._budget_bytes - bundle.bytes)
        except BaseException:
            self._remove(folder / _PARTS)
            with contextlib.suppress(OSError):
                folder.rmdir()
            raise
        if not bundle.changes and not kept.files:
            self._remove(folder)
            return None
        size = bundle.bytes + kept.bytes
        return Trashed(space, self._clock(), size, bundle.changes, kept.files, kept.bytes)

    def restore(
        self, trashed: Trashed, tree: Tree, driver: TreeDriver, parts: PartStates | None = None
    ) -> None:
        """Into a fresh tree of the same base; what is kept stays. Raises `SpaceNotFound`
        when it is gone, `TreeDamaged`, and what the tree's driver raises."""
        bundle = self._place(trashed.space.space_id) / _CHANGES
        if not bundle.exists():
            raise SpaceNotFound(
                f"The kept changes of {trashed.space.space_id} are gone.",
                hint="They were older than the trash keeps them, or somebody removed them.",
            )
        self._bundler.restore(driver, tree, bundle)
        if parts is not None:
            parts.unpack_parts(self._place(trashed.space.space_id) / _PARTS)

    def purge(self, trashed: Trashed) -> None:
        """For good; nothing there is fine."""
        self._remove(self._place(trashed.space.space_id))

    def lighten(self, entries: Sequence[Trashed]) -> list[Trashed]:
        """Systems go before anybody's work: what was installed can be installed again."""
        rest = Counter[str]()
        for one in entries:
            rest[_whose(one)] += one.bytes_kept
        lighter = []
        for one in sorted(entries, key=lambda one: (one.trashed_at, one.space.space_id)):
            if one.system_bytes and rest[_whose(one)] > self._budget_bytes:
                rest[_whose(one)] -= one.system_bytes
                left = one.bytes_kept - one.system_bytes
                lighter.append(replace(one, bytes_kept=left, system=0, system_bytes=0))
        return lighter

    def drop_system(self, trashed: Trashed) -> None:
        self._remove(self._place(trashed.space.space_id) / _PARTS)

    def expire(self, entries: Sequence[Trashed], now: float) -> list[Trashed]:
        """Which are to be purged, the oldest first: what is too old, and then of each who
        removed them the oldest until the rest is within the budget. So nobody's is purged for
        what somebody else removed."""
        by_age = sorted(entries, key=lambda one: (one.trashed_at, one.space.space_id))
        rest = Counter[str]()
        for one in by_age:
            rest[_whose(one)] += one.bytes_kept
        due = []
        for one in by_age:
            over = rest[_whose(one)] > self._budget_bytes
            if over or now - one.trashed_at > self._max_age_s:
                due.append(one)
                rest[_whose(one)] -= one.bytes_kept
        return due

    def stray(self, entries: Sequence[Trashed]) -> list[Path]:
        """What is in the folder and in no record."""
        known = {one.space.space_id for one in entries}
        try:
            names = os.listdir(self._folder)
        except FileNotFoundError:
            return []
        return sorted(self._folder / name for name in names if name not in known)

    def discard(self, stray: Path) -> None:
        """Removes what `stray` found; nothing there is fine."""
        if stray.parent != self._folder:
            raise SpaceInvalid(f"{str(stray)!r} is not in the trash.")
        self._remove(stray)

    def _place(self, space_id: str) -> Path:
        if not is_id(space_id) or not space_id.startswith("sp_"):
            raise SpaceInvalid(f"{space_id[:80]!r} is no id of a space.")
        return self._folder / space_id

    def _remove(self, path: Path) -> None:
        with _disk_errors("empty the trash"), contextlib.suppress(FileNotFoundError):
            if stat.S_ISDIR(path.lstat().st_mode):
                shutil.rmtree(path)
            else:
                path.unlink()


def _whose(trashed: Trashed) -> str:
    """A token's label, or the space whose agent asked for it; empty: the owner's own."""
    return trashed.space.account or trashed.space.family


@contextlib.contextmanager
def _disk_errors(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise InsufficientDisk(f"There is no room on the disk to {what}.") from error
        raise TreeUnavailable(f"The machine refused to {what}: {error}.") from error
