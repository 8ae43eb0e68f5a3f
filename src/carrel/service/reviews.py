"""How much a space has changed: the one place that the numbers come from, whoever tells them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from carrel.domain.collaborators import Reviews, Taking
from carrel.domain.errors import (
    SpaceInvalid,
    StateConflict,
    TreeDamaged,
    TreeNotFound,
    UnexportedChanges,
    counted,
)
from carrel.domain.spaces import Space
from carrel.domain.trees import ChangeKind, EntryType, Review, ReviewQuery
from carrel.service.open_spaces import OpenSpace, OpenSpaces

COUNTED = ReviewQuery()
"""Only the numbers are wanted."""
ROUGH = ReviewQuery(rough=True)
_OF_FOLDERS = (ChangeKind.ADDED, ChangeKind.DELETED)
"""What is in a folder counts, it does not itself."""


@dataclass(frozen=True)
class SpaceReviews:
    open_spaces: OpenSpaces
    reviews: Reviews

    async def of(self, space: Space, query: ReviewQuery = COUNTED) -> Review:
        """Raises `StateConflict` for a space that was never completed."""
        return await self.of_opened(await self.open_spaces.of(space), query)

    async def of_opened(self, opened: OpenSpace, query: ReviewQuery) -> Review:
        asked = _asked(opened.space, query)
        return await self.open_spaces.look(
            opened, lambda: self.reviews.review(opened.driver, opened.tree, asked)
        )

    async def of_system(self, space: Space, most: int) -> Review:
        """As `Review.listed` and `Review.total`, of what was written over its image. Raises
        `SpaceInvalid` for a space without one."""
        opened = await self.open_spaces.of(space)
        if not self.open_spaces.systems(space):
            raise SpaceInvalid(
                f"{space.name} has no image, so it has no system of its own.",
                hint="Leave --system out.",
            )

        def look() -> Review:
            listed, total = [], 0
            for change in self.open_spaces.system_changes(space):
                kind = change.new_type or change.old_type
                if kind is EntryType.FOLDER and change.kind in _OF_FOLDERS:
                    continue
                total += 1
                if total <= most:
                    old = None if change.old_path is None else f"/{change.old_path}"
                    shown = dataclasses.replace(change, path=f"/{change.path}", old_path=old)
                    listed.append(shown)
            return Review(listed=tuple(listed), total=total)

        return await self.open_spaces.look(opened, look)

    async def left(self, space: Space) -> Review:
        """The same for a space that goes: of one that is half gone nothing can be lost."""
        try:
            return await self.of(space)
        except (StateConflict, TreeNotFound, TreeDamaged):
            return Review()

    async def check_taken(self, space: Space) -> None:
        """Raises `UnexportedChanges` when something would be lost."""
        found = await self.left(space)
        if found.left_files or found.left_commits:
            commits = (
                " (commits are in .git, or with git fetch: docs/spaces.md)"
                if found.left_commits
                else ""
            )
            raise UnexportedChanges(
                f"{space.name} has {counted(found.left_files, found.left_commits)} that you have"
                " not copied out.",
                hint=f"Copy out what you need with `carrel cp`{commits}, or remove the space with "
                "--force; `carrel undelete` can restore it for a while.",
                changes=found.left_files,
                commits=found.left_commits,
                first=list(found.left),
            )

    async def taking(self, opened: OpenSpace, path: str) -> Taking:
        """See `Reviews.taking`."""
        asked = _asked(opened.space, COUNTED)
        return await self.open_spaces.look(
            opened, lambda: self.reviews.taking(opened.driver, opened.tree, path, asked)
        )


def _asked(space: Space, query: ReviewQuery) -> ReviewQuery:
    # The owner's own rules are not for others to guess by what is hidden.
    return dataclasses.replace(query, personal=not space.guest)
