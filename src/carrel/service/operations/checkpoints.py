"""Checkpoints, rewinds and forks, as the contract has them."""

from __future__ import annotations

from carrel.api.types import checkpoints as types
from carrel.api.types.common import moment, shared
from carrel.domain.access import Caller
from carrel.domain.checkpoints import Checkpoint
from carrel.service.checkpoints import Checkpoints, ForkRequest
from carrel.service.operations.spaces import SpaceViews


class CheckpointOperations:
    def __init__(self, checkpoints: Checkpoints, views: SpaceViews) -> None:
        self._checkpoints = checkpoints
        self._views = views

    async def take(
        self, caller: Caller, space: str, body: types.CheckpointBody
    ) -> types.CheckpointInfo:
        """While a turn runs, without the conversation."""
        return _info(await self._checkpoints.take(caller, space, body.message))

    async def list(self, caller: Caller, space: str) -> types.CheckpointList:
        found = await self._checkpoints.list(caller, space)
        return types.CheckpointList(checkpoints=tuple(map(_info, found)))

    async def rewind(
        self, caller: Caller, space: str, body: types.RewindBody
    ) -> types.CheckpointInfo:
        """Gives the checkpoint of what there was before."""
        return _info(await self._checkpoints.rewind(caller, space, body.checkpoint))

    async def fork(self, caller: Caller, space: str, body: types.ForkBody) -> types.ForkList:
        request = ForkRequest(body.count, body.checkpoint, body.name)
        made = await self._checkpoints.fork(caller, space, request)
        return types.ForkList(
            spaces=tuple([await self._views.one(caller, one) for one in made.spaces]),
            checkpoint=made.checkpoint,
            conversation=made.conversation,
        )


def _info(one: Checkpoint) -> types.CheckpointInfo:
    told = {
        "id": one.checkpoint_id,
        "space": one.space_id,
        "created_at": moment(one.created_at),
        "bytes": one.bytes_new,
    }
    return types.CheckpointInfo(**{**shared(one, types.CheckpointInfo), **told})
