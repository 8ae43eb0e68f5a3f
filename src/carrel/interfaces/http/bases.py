"""Bases, for administrators: they tell of projects that not everybody may see."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request
from starlette.responses import Response

from carrel.domain.projects import BaseRequest
from carrel.interfaces.http.documenting import PROJECT, errors
from carrel.interfaces.http.encoding import answer
from carrel.interfaces.http.models.admin import BaseBody, BaseList, BaseView
from carrel.interfaces.http.serving import caller, serving
from carrel.interfaces.http.spaces import project_of
from carrel.interfaces.http.views import base_view
from carrel.service.access import require_admin
from carrel.service.space_requests import check_project

router = APIRouter(tags=["bases"])


@router.get("/v1/bases", response_model=BaseList, responses=errors("tree_damaged"))
async def list_bases(request: Request) -> Response:
    require_admin(caller(request))
    found = await asyncio.to_thread(serving(request).services.bases.list)
    return answer({"bases": [base_view(base) for base in found]})


@router.post(
    "/v1/bases",
    status_code=201,
    response_model=BaseView,
    responses=errors(*PROJECT, "space_invalid", "tree_unavailable", "tree_damaged"),
)
async def build_base(request: Request, body: BaseBody) -> Response:
    require_admin(caller(request))
    project = project_of(body.project)
    check_project(project)
    wanted = BaseRequest(
        project=project,
        exclude=tuple(body.exclude),
        max_bytes=body.max_bytes,
        max_files=body.max_files,
        allow_changing=body.allow_changing,
    )
    base = await asyncio.to_thread(serving(request).services.bases.build, wanted)
    return answer(base_view(base), 201)
