"""The older spelling of instances, for clients that know no other: its own answers and its own
statuses, with our problem details beside them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import APIRouter, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.responses import Response

from carrel.domain.errors import CarrelError, InstanceFailed, ProjectError, RequestError
from carrel.domain.instances import InstanceRequest
from carrel.interfaces.http.documenting import INSTANCE, STARTING, errors, problem_as
from carrel.interfaces.http.encoding import answer, encode
from carrel.interfaces.http.instances import start
from carrel.interfaces.http.models.instances import (
    ReleaseBody,
    ReleasedView,
    SessionBody,
    SessionView,
)
from carrel.interfaces.http.problems import PROBLEM, details_of
from carrel.interfaces.http.serving import caller, serving
from carrel.interfaces.http.validation import invalid

BAD, FAILED = 400, 500
FIELDS = {"/request-session": "project_path", "/release-session": "session_id"}
"""What each cannot do without."""


class OlderRoute(APIRoute):
    """Errors have an `error` member, a sentence, and the statuses that were promised."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handling(request: Request) -> Response:
            try:
                return await handle(request)
            except RequestValidationError as error:
                return _problem(invalid(error.errors()), request.url.path)
            except HTTPException as error:
                if error.status_code != BAD:
                    raise
                return _problem(invalid(()), request.url.path)
            except CarrelError as error:
                return _problem(error, request.url.path)

        return handling


router = APIRouter(tags=["older"], route_class=OlderRoute)


@router.post(
    "/request-session",
    status_code=201,
    response_model=SessionView,
    responses={**errors(*STARTING), BAD: problem_as("Bad path"), FAILED: problem_as("Failed")},
)
async def request_session(request: Request, body: SessionBody) -> Response:
    """As `POST /v1/instances`, of Serena unless another server is named."""
    handed = await start(request, InstanceRequest(body.server, project_path=body.project_path))
    one = handed.instance
    session = {"session_id": one.instance_id, "host": one.host, "port": one.port}
    return answer({**session, "url": one.url, "token": handed.token or None}, 201)


@router.post(
    "/release-session",
    response_model=ReleasedView,
    responses={**errors(*INSTANCE), BAD: problem_as("Bad session")},
)
async def release_session(request: Request, body: ReleaseBody) -> Response:
    """As `DELETE /v1/instances/{instance}`."""
    status = await serving(request).services.instances.release(caller(request), body.session_id)
    return answer({"status": status})


def _problem(error: CarrelError, path: str) -> Response:
    problem = details_of(error)
    problem["error"] = error.message
    if isinstance(error, ProjectError | RequestError) and problem["status"] == 422:
        problem["status"], problem["title"] = BAD, "Bad Request"
        problem["error"] = f"Invalid or missing '{FIELDS[path]}'"
    elif isinstance(error, InstanceFailed):
        problem["status"], problem["title"] = FAILED, "Internal Server Error"
        problem["error"] = f"{error.message}\n{error.details.get('output', '')}".rstrip()
    return Response(encode(problem), int(str(problem["status"])), media_type=PROBLEM)
