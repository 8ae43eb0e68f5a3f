"""The work of a space as one file, which whoever has it may take elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

from carrel.domain.access import Caller
from carrel.domain.errors import StateConflict
from carrel.domain.events import EventType
from carrel.domain.review import Exporter, ExportFormat, ExportRequest
from carrel.domain.trees import Skipped
from carrel.service.access import require_admin
from carrel.service.files import SpaceFiles, whole
from carrel.service.journal import Journal
from carrel.service.open_spaces import OpenSpaces
from carrel.service.shared import Shared
from carrel.service.spaces import Spaces

_PIECE = 1 << 18


class SpaceExports:
    def __init__(
        self,
        journal: Journal,
        spaces: Spaces,
        files: SpaceFiles,
        open_spaces: OpenSpaces,
        shared: Shared,
        exporter: Exporter,
    ) -> None:
        self._journal = journal
        self._spaces = spaces
        self._files = files
        self._open_spaces = open_spaces
        self._locks = shared.locks
        self._exporter = exporter

    async def export(
        self, caller: Caller, word: str, request: ExportRequest
    ) -> tuple[str, Iterator[bytes]]:
        """A ticket for `SpaceFiles.copied`, and the file: all of it is read from the space when
        this returns. Who stops early closes it. Raises `LandingError`s."""
        space = await self._spaces.existing(caller, word)
        if request.format is ExportFormat.BUNDLE:
            # It is made with the project's own repository, which is the owner's.
            require_admin(caller)
        async with self._locks.shared(space.space_id):
            opened = await self._files.opened(space.space_id)
            if opened.driver.capabilities.stays:
                raise StateConflict(
                    f"{space.name} works in a folder itself, and there is no copy of how it was.",
                    hint="Use git in that folder.",
                    state=str(space.state),
                )
            taking = await self._spaces.taking(caller, opened, "")
            taking.skips(Skipped(".git", "commits are not exported"))
            file = await self._open_spaces.look(
                opened,
                lambda: self._exporter.export(
                    space, opened.driver, opened.tree, request, taking.sends, taking.skips
                ),
            )
            copy = self._files.begin_copy(caller, space.space_id, taking.done)
            told = {"format": str(request.format)}
            await self._journal.write(
                self._journal.event(EventType.EXPORTED, space.space_id, **told)
            )
        return copy.ticket, whole(_pieces(file), copy.sent)


def _pieces(file: BinaryIO) -> Iterator[bytes]:
    with file:
        while piece := file.read(_PIECE):
            yield piece
