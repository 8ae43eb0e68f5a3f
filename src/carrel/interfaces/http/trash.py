"""What was kept of removed spaces."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from carrel.interfaces.http.documenting import CHANGING, errors
from carrel.interfaces.http.encoding import answer
from carrel.interfaces.http.models.spaces import SpaceView, TrashList
from carrel.interfaces.http.serving import caller, serving

router = APIRouter(tags=["trash"])


@router.get("/v1/trash", response_model=TrashList, responses=errors())
async def list_trash(request: Request) -> Response:
    here = serving(request)
    found = await here.services.spaces.trashed(caller(request))
    return answer({"trash": [await here.views.trashed(one) for one in found]})


@router.post(
    "/v1/trash/{space}/restore",
    status_code=201,
    response_model=SpaceView,
    responses=errors("space_not_found", "base_not_found", "name_taken", *CHANGING),
)
async def restore_space(request: Request, space: str) -> Response:
    here = serving(request)
    restored = await here.services.spaces.undelete(caller(request), space)
    return answer(await here.views.one(restored), 201)
