"""The daemon itself: alive, what it is, its figures, its end."""

from __future__ import annotations

import asyncio
import os

from fastapi import APIRouter, Request
from starlette.responses import Response

from carrel.domain.access import ScopeKind
from carrel.domain.runtimes import Network
from carrel.domain.spaces import AUTO
from carrel.interfaces.http.documenting import errors
from carrel.interfaces.http.encoding import JSON, answer, moment
from carrel.interfaces.http.metrics import CONTENT_TYPE
from carrel.interfaces.http.models.admin import EndingView, HealthView, InfoView
from carrel.interfaces.http.serving import caller, serving
from carrel.interfaces.http.views import scope_text
from carrel.service.access import require_admin
from carrel.service.space_requests import TIERS

API = "v1"

router = APIRouter(tags=["daemon"])


@router.get("/v1/health", response_model=HealthView, responses=errors())
async def health() -> Response:
    return answer({"status": "ok"})


@router.get("/v1/info", response_model=InfoView, responses=errors())
async def info(request: Request) -> Response:
    options = serving(request).options
    scope = caller(request).scope
    admin = scope.kind is ScopeKind.ADMIN
    return answer(
        {
            "version": options.version,
            "api": API,
            "pid": os.getpid() if admin else None,
            "uid": os.geteuid() if admin else None,
            "data": str(options.data) if admin else None,
            "started_at": moment(options.started_at),
            "scope": scope_text(scope),
            "defaults": {
                "runtime": AUTO,
                "driver": AUTO,
                "network": Network.NONE,
                "tier": "",
                "idle_s": options.idle_s,
                "keep_s": options.keep_s,
            },
            "tiers": TIERS,
        }
    )


@router.get(
    "/metrics",
    response_class=Response,
    responses={
        **errors(),
        200: {
            "description": "In Prometheus's text format",
            "content": {"text/plain": {"schema": {"type": "string"}}},
        },
    },
)
async def metrics(request: Request) -> Response:
    require_admin(caller(request))
    here = serving(request)
    text = await here.metrics.text(here.services, here.options)
    return Response(text, headers={"Content-Type": CONTENT_TYPE})


@router.post("/v1/shutdown", status_code=202, response_model=EndingView, responses=errors())
async def shut_down(request: Request) -> Response:
    require_admin(caller(request))
    # After the answer: those who wait for its end hear of it by the closed connection.
    asyncio.get_running_loop().call_soon(serving(request).options.shutdown)
    return answer({"ending": True}, 202)


@router.get("/v1/openapi.json", include_in_schema=False)
async def openapi(request: Request) -> Response:
    return Response(await asyncio.to_thread(request.app.document), media_type=JSON)
