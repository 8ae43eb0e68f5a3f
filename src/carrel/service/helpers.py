"""What a space takes over of the spaces that it made: their changes, read and taken file by file.

A file is taken as it is in the helper's tree, beneath the roots of both. One that both have changed
since they began is a conflict and stays, unless the taker wants the helper's. What was taken counts
as copied out of the helper.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple

from carrel.domain.access import Caller, Scope, ScopeKind
from carrel.domain.errors import CarrelError, Forbidden, PathNotFound, TooLarge
from carrel.domain.files import Files
from carrel.domain.spaces import Space
from carrel.domain.trees import Change, ChangeKind, EntryType, Review, ReviewQuery
from carrel.service.family import Family
from carrel.service.files import Copy, SpaceFiles, WriteRoom
from carrel.service.spaces import Spaces

MOST = 10_000
"""Changes that are taken in one go."""
MOST_BYTES = 64 << 20
"""Of one file, which is in memory while it is taken."""


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
                file.seek(start)
                return file.read(size)

        return await self._files.use(caller, space_id, work)

    async def take(self, own: str, word: str, paths: Sequence[str], *, replace: bool) -> Taken:
        """All of its changes, or what of them is at these paths and below. Raises `PathNotFound`
        for one that it has not changed, `TooLarge` for too many."""
        taker, helper = self._family.member(own, ""), self.helper(own, word)
        found = await self.changes(acting_in(helper), helper.space_id, MOST)
        if found.total > MOST and not paths:
            raise TooLarge(
                f"The space has {found.total} changes, and {MOST} can be taken at once.",
                hint="Name `paths`.",
            )
        mine = await self.changes(acting_in(taker), own, MOST)
        changed = {one.path for one in mine.listed} | {one.old_path for one in mine.listed}
        written, deleted, left = list[str](), list[str](), list[NotTaken]()
        for change in _wanted(found.listed, paths):
            try:
                if not replace and change.path in changed:
                    left.append(NotTaken(change.path, "this space has changed it, too"))
                elif change.kind is ChangeKind.DELETED:
                    await self._delete(taker, change.path)
                    deleted.append(change.path)
                elif change.new_type is EntryType.FILE:
                    await self._copy(taker, helper, change.path)
                    written.append(change.path)
                    if change.old_path and (replace or change.old_path not in changed):
                        await self._delete(taker, change.old_path)
                        deleted.append(change.old_path)
                elif change.new_type is not EntryType.FOLDER:
                    left.append(NotTaken(change.path, "only files are taken"))
            except CarrelError as error:
                left.append(NotTaken(change.path, error.message))
        return Taken(tuple(written), tuple(deleted), tuple(left))

    async def _copy(self, taker: Space, helper: Space, path: str) -> None:
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

        def write(files: Files) -> None:
            if folder:
                files.mkdir(folder, parents=True)
            files.write(path, found.data, found.mode)

        await self._change(taker, write)
        await self._files.copied(caller, helper.space_id, found.ticket)

    async def _delete(self, taker: Space, path: str) -> None:
        def delete(files: Files) -> None:
            if files.stat(path).type is not EntryType.FOLDER:
                files.delete(path)

        try:
            await self._change(taker, delete)
        except PathNotFound:
            return

    async def _change(self, taker: Space, work: Callable[[Files], None]) -> None:
        """Within the disk limit of the space that takes it."""
        caller = acting_in(taker)
        use = self._files.use
        await use(caller, taker.space_id, work, writes=True, room=WriteRoom(caller))


def acting_in(space: Space) -> Caller:
    """What code in a space does takes the share of that space."""
    return Caller(space.counts_for, Scope(ScopeKind.SPACE, space.space_id))


def _wanted(changes: Sequence[Change], paths: Sequence[str]) -> list[Change]:
    found = list[Change]()
    for path in paths:
        name = os.path.normpath(path)
        below = [one for one in changes if one.path == name or one.path.startswith(f"{name}/")]
        if not below:
            raise PathNotFound(
                f"The space has not changed {path!r}.", hint="`list_changes` says what it has."
            )
        found += below
    return found if paths else list(changes)
