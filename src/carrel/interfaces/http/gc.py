"""Clean-up, and what this machine can do."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from carrel.interfaces.http.documenting import errors
from carrel.interfaces.http.encoding import answer
from carrel.interfaces.http.models.admin import CollectBody, DiagnosisView, ReportView
from carrel.interfaces.http.serving import caller, serving
from carrel.interfaces.http.views import diagnosis_view
from carrel.service.access import require_admin

router = APIRouter(tags=["clean-up"])


@router.post("/v1/gc", response_model=ReportView, responses=errors("tree_damaged"))
async def collect(request: Request, body: CollectBody | None = None) -> Response:
    dry_run = body is not None and body.dry_run
    report = await serving(request).services.collector.run(caller(request), dry_run=dry_run)
    return answer(report)


@router.get("/v1/doctor", response_model=DiagnosisView, responses=errors())
async def examine(request: Request) -> Response:
    require_admin(caller(request))
    return answer(diagnosis_view(await serving(request).services.doctor.examine()))
