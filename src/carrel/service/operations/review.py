"""Reviews of spaces, as the contract has them."""

from __future__ import annotations

from collections.abc import Iterator

from carrel.api.types import review as types
from carrel.api.types.common import shared
from carrel.domain.access import Caller
from carrel.domain.review import ExportRequest
from carrel.service.diffs import DiffRequest, SpaceDiffs
from carrel.service.exports import SpaceExports
from carrel.service.shared import CallerSlots

LISTS = 4
"""Of files that differ, at the same time: both sides of each are on the disk meanwhile."""


class ReviewOperations:
    def __init__(self, diffs: SpaceDiffs, exports: SpaceExports) -> None:
        self._diffs = diffs
        self._exports = exports
        self._lists = CallerSlots(LISTS)

    async def diff(self, caller: Caller, space: str, asked: types.DiffBody) -> Iterator[bytes]:
        """Made while it is read, by a worker thread. Who stops early closes it."""
        return await self._diffs.text(caller, _request(space, asked))

    async def export(
        self, caller: Caller, space: str, asked: types.ExportBody
    ) -> tuple[str, Iterator[bytes]]:
        """With the ticket of the copy."""
        request = ExportRequest(asked.format, asked.message)
        return await self._exports.export(caller, space, request)

    async def files(
        self, caller: Caller, space: str, asked: types.DiffFilesBody
    ) -> types.DiffSummary:
        async with self._lists.of(caller.account):
            found = await self._diffs.files(caller, _request(space, asked), asked.limit)
        return types.DiffSummary(**shared(found, types.DiffSummary))


def _request(space: str, asked: types.DiffBody) -> DiffRequest:
    return DiffRequest(space, asked.to, asked.paths, asked.ignored, asked.since)
