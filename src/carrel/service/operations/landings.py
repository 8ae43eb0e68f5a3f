"""Landings, as the contract has them."""

from __future__ import annotations

from carrel.api.types import landings as types
from carrel.api.types.common import moment, moment_or_none, shared
from carrel.domain.access import Caller
from carrel.domain.landing import LandedFile, Landing, LandingCheck, LandRequest
from carrel.service.landing import Landings


class LandingOperations:
    def __init__(self, landings: Landings) -> None:
        self._landings = landings

    async def land(self, caller: Caller, space: str, body: types.LandBody) -> types.LandingInfo:
        landing, prepared = await self._landings.land(caller, space, _request(body))
        return _info(landing, prepared.files[: types.MOST_LISTED])

    async def list(self, caller: Caller, asked: types.LandingsQuery) -> types.LandingList:
        found = await self._landings.list(caller, asked.limit)
        return types.LandingList(landings=tuple(map(_info, found)))

    async def undo(self, caller: Caller, body: types.UndoBody) -> types.LandingInfo:
        return _info(await self._landings.undo(caller, body.landing))


def _request(body: types.LandBody) -> LandRequest:
    check = LandingCheck(body.check, body.check_s) if body.check else None
    return LandRequest(**{**shared(body, LandRequest), "check": check})


def _info(landing: Landing, listed: tuple[LandedFile, ...] = ()) -> types.LandingInfo:
    told = {
        "id": landing.landing_id,
        "space": landing.space_id,
        "created_at": moment(landing.created_at),
        "undone_at": moment_or_none(landing.undone_at),
        "listed": listed,
    }
    return types.LandingInfo(**{**shared(landing, types.LandingInfo), **told})
