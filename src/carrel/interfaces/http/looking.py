"""What a space has changed, what it uses, and whether its walls hold."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from carrel.domain.access import Caller
from carrel.domain.errors import CarrelError
from carrel.domain.spaces import Space, SpaceQuery
from carrel.interfaces.http.documenting import CHANGING, SPACE, errors
from carrel.interfaces.http.encoding import answer
from carrel.interfaces.http.models.spaces import ChangeList, ProofView, UsageList, UsageView
from carrel.interfaces.http.serving import Serving, caller, serving
from carrel.interfaces.http.views import View, change_view, proof_view, usage_view
from carrel.lifecycle.table import LIVE

MAX_CHANGES = 100_000
PAGE = 1000
AT_ONCE = 4
"""Each look at a disk has a worker thread."""

router = APIRouter(tags=["spaces"])


@router.get(
    "/v1/spaces/{space}/changes",
    response_model=ChangeList,
    responses=errors(*SPACE, *CHANGING),
)
async def list_changes(
    request: Request, space: str, limit: Annotated[int, Query(ge=1, le=MAX_CHANGES)] = 10_000
) -> Response:
    changes = await serving(request).services.spaces.changes(caller(request), space)
    shown = [change_view(change) for change in changes[:limit]]
    return answer({"changes": shown, "total": len(changes)})


@router.get(
    "/v1/spaces/{space}/usage", response_model=UsageView, responses=errors(*SPACE, *CHANGING)
)
async def show_usage(
    request: Request, space: str, disk: Annotated[bool, Query()] = True
) -> Response:
    spaces = serving(request).services.spaces
    found = await spaces.existing(caller(request), space)
    return answer(usage_view(await spaces.usage(found, disk=disk)))


@router.get("/v1/usage", response_model=UsageList, responses=errors())
async def list_usage(request: Request, disk: Annotated[bool, Query()] = False) -> Response:
    """Of every space that is ready or running; what they use on disk takes longer to find."""
    here = serving(request)
    gate = asyncio.Semaphore(AT_ONCE)

    async def look(space: Space) -> View | None:
        async with gate:
            try:
                return usage_view(await here.services.spaces.usage(space, disk=disk))
            except CarrelError:
                # It was stopped or removed meanwhile.
                return None

    live = await _live(here, caller(request))
    found = await asyncio.gather(*(look(space) for space in live))
    return answer({"usage": [usage for usage in found if usage is not None]})


@router.post(
    "/v1/spaces/{space}/verify",
    response_model=ProofView,
    responses=errors(*SPACE, *CHANGING, "launcher_unavailable", "isolation_unproven"),
)
async def verify_space(request: Request, space: str) -> Response:
    spaces = serving(request).services.spaces
    found = await spaces.existing(caller(request), space)
    proof = await spaces.verify(caller(request), found.space_id)
    return answer(proof_view(found.space_id, proof))


async def _live(here: Serving, who: Caller) -> list[Space]:
    spaces: list[Space] = []
    after = ""
    while True:
        query = SpaceQuery(states=frozenset(LIVE), limit=PAGE, after=after)
        page = await here.services.spaces.list(who, query)
        spaces += page.spaces
        after = page.next
        if not after:
            return spaces
