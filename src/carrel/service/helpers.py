"""What a space takes over of the spaces that it made: their changes, read and taken file by file.

A file is taken as it is in the helper's tree, beneath the roots of both. One that both have changed
since they began is a conflict and stays, unless the taker wants the helper's, or has the same. What
was taken counts as copied out of the helper.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple, TypeVar
from weakref import WeakValueDictionary

from carrel.domain.access import Caller, Scope, ScopeKind
from carrel.domain.errors import (
    CarrelError,
    Forbidden,
    PathError,
    PathEscapes,
    PathNotFound,
    TooLarge,
)
from carrel.domain.files import Files
from carrel.domain.spaces import Space
from carrel.domain.trees import Change, ChangeKind, EntryType, Review, ReviewQuery
from carrel.service.family import Family
from carrel.service.files import Copy, SpaceFiles, WriteRoom
from carrel.service.spaces import Spaces

T = TypeVar("T")

MOST = 10_000
"""Changes that are taken in one go."""
MOST_BYTES = 64 << 20
"""Of one file, which is in memory while it is taken."""
_CONFLICT = "this space has changed it, too"


class NotTaken(NamedTuple):
    path: str
    why: str


@dataclass(frozen=True)
class Taken:
    written: tuple[str, ...]
    deleted: tuple[str, ...]
    left: tuple[NotTaken, ...]


class _Read(NamedTuple):
    data: bytes
    mode: int
    ticket: str


class HelperFiles:
    def __init__(self, family: Family, spaces: Spaces, files: SpaceFiles) -> None:
        self._family = family
        self._spaces = spaces
        self._files = files
        self._takes: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """One at a time for each account: a file is in memory while it is taken."""

    def helper(self, own: str, word: str) -> Space:
        """One that this space made. `SpaceNotFound`, `Forbidden`."""
        found = self._family.member(own, word)
        if found.parent != own:
            raise Forbidden(
                "A space may look into those that it made, and no others.",
                hint="`list_spaces` says which have it as their `parent`.",
            )
        return found

    async def changes(self, caller: Caller, space_id: str, most: int) -> Review:
        return await self._spaces.review(caller, space_id, ReviewQuery(most=most))

    async def read(self, caller: Caller, space_id: str, path: str, start: int, size: int) -> bytes:
        """`PathError`s."""

        def work(files: Files) -> bytes:
            with files.open_read(path) as file:
                # No file system takes every number.
                file.seek(min(start, os.fstat(file.fileno()).st_size))
                return file.read(size)

        return await self._files.use(caller, space_id, work)

    async def take(self, own: str, word: str, paths: Sequence[str], *, replace: bool) -> Taken:
        """All of its changes, or what of them is at these paths and below. Raises `PathNotFound`
        for one that it has not changed, `TooLarge` for too many."""
        taker, helper = self._family.member(own, ""), self.helper(own, word)
        async with self._takes.setdefault(taker.counts_for, asyncio.Lock()):
            return await self._take(taker, helper, paths, replace=replace)

    async def _take(
        self, taker: Space, helper: Space, paths: Sequence[str], *, replace: bool
    ) -> Taken:
        found = await self.changes(acting_in(helper), helper.space_id, MOST)
        # Its own rules may ignore what the helper's do not.
        mine = await self._spaces.review(
            acting_in(taker), taker.space_id, ReviewQuery(most=MOST, ignored=True)
        )
        for one in (found, mine):
            if one.total > MOST:
                raise TooLarge(
                    f"A space has {one.total} changes; up to {MOST} can be looked through.",
                    hint="Ask the user to copy what is wanted: carrel cp",
                )
        changed = {one.path for one in mine.listed} | {one.old_path for one in mine.listed}
        written, deleted, left = list[str](), list[str](), list[NotTaken]()
        for change in wanted_changes(found.listed, paths, "`list_changes` says what it has."):
            try:
                conflicts = not replace and change.path in changed
                if change.new_type is EntryType.FILE:
                    if not await self._copy(taker, helper, change.path, unless_other=conflicts):
                        left.append(NotTaken(change.path, _CONFLICT))
                        continue
                    written.append(change.path)
                    if change.old_path and (replace or change.old_path not in changed):
                        await self._delete(taker, change.old_path)
                        deleted.append(change.old_path)
                elif conflicts:
                    left.append(NotTaken(change.path, _CONFLICT))
                elif change.kind is ChangeKind.DELETED:
                    await self._delete(taker, change.path)
                    deleted.append(change.path)
                elif change.new_type is not EntryType.FOLDER:
                    left.append(NotTaken(change.path, "only files are taken"))
            except CarrelError as error:
                left.append(NotTaken(change.path, error.message))
        return Taken(tuple(written), tuple(deleted), tuple(left))

    async def _copy(self, taker: Space, helper: Space, path: str, *, unless_other: bool) -> bool:
        """`unless_other`: only where the taker has the same already. Whether it has it now."""

        def begin(file: BinaryIO, copy: Copy) -> _Read:
            with file:
                data = file.read(MOST_BYTES + 1)
                if len(data) > MOST_BYTES:
                    raise TooLarge(f"It is larger than {MOST_BYTES} bytes.", hint="Ask the user.")
                copy.sent()
                return _Read(data, os.fstat(file.fileno()).st_mode & 0o777, copy.ticket)

        caller = acting_in(helper)
        found = await self._files.read(caller, helper.space_id, path, begin)
        folder = os.path.dirname(path)

        def write(files: Files) -> bool:
            if unless_other:
                return _has(files, path, found)
            if folder:
                _expect_no_links(files, folder)
                files.mkdir(folder, parents=True)
            with suppress(PathNotFound):
                if files.stat(path).type is EntryType.SYMLINK:
                    # The file takes the place of the link, not of what the link leads to.
                    files.delete(path)
            files.write(path, found.data, found.mode)
            return True

        if not await self._change(taker, write):
            return False
        await self._files.copied(caller, helper.space_id, found.ticket)
        return True

    async def _delete(self, taker: Space, path: str) -> None:
        def delete(files: Files) -> None:
            _expect_no_links(files, os.path.dirname(path))
            if files.stat(path).type is not EntryType.FOLDER:
                files.delete(path)

        try:
            await self._change(taker, delete)
        except PathNotFound:
            return

    async def _change(self, taker: Space, work: Callable[[Files], T]) -> T:
        """Within the disk limit of the space that takes it."""
        caller = acting_in(taker)
        use = self._files.use
        return await use(caller, taker.space_id, work, writes=True, room=WriteRoom(caller))


def _has(files: Files, path: str, wanted: _Read) -> bool:
    """As a file of its own; what links lead to does not count."""
    _expect_no_links(files, path)
    with suppress(PathError), files.open_read(path) as file:
        same_mode = os.fstat(file.fileno()).st_mode & 0o777 == wanted.mode
        return same_mode and file.read(len(wanted.data) + 1) == wanted.data
    return False


def _expect_no_links(files: Files, folder: str) -> None:
    """Raises `PathEscapes` where a link is on the way: what it leads to has another name, by which
    nobody looked for changes."""
    parts = folder.split("/") if folder else []
    for path in itertools.accumulate(parts, lambda one, two: f"{one}/{two}"):
        try:
            if files.stat(path).type is EntryType.SYMLINK:
                raise PathEscapes(f"{path!r} is a link in this space.", hint="Remove it first.")
        except PathNotFound:
            return


def acting_in(space: Space) -> Caller:
    """What code in a space does takes the share of that space."""
    return Caller(space.counts_for, Scope(ScopeKind.SPACE, space.space_id))


def wanted_changes(changes: Sequence[Change], paths: Sequence[str], hint: str) -> list[Change]:
    """Each once, in one pass: there may be a thousand paths and ten thousand changes. Raises
    `PathNotFound` for a path without any."""
    if not paths:
        return list(changes)
    names = {os.path.normpath(path): path for path in paths}
    found, met = list[Change](), set[str]()
    for change in changes:
        above = {change.path, *itertools.accumulate(change.path.split("/"), os.path.join)}
        if here := above & names.keys():
            found.append(change)
            met |= here
    for name, path in names.items():
        if name not in met and not (name == "." and changes):
            raise PathNotFound(f"The space has not changed {path!r}.", hint=hint)
    return list(changes) if "." in names else found
