"""Instances: what needs more of HTTP than a row says, and their older spelling, for clients that
know no other: its own answers and its own statuses, with our problem details beside them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response

from carrel.api.types.instances import (
    LogQuery,
    NewInstance,
    ReleaseBody,
    SessionBody,
    SessionInfo,
    SessionRelease,
)
from carrel.domain.errors import (
    CarrelError,
    InstanceFailed,
    InstanceNotFound,
    MessageInvalid,
    ProjectError,
    RequestError,
)
from carrel.domain.instances import Handed, InstanceRequest
from carrel.interfaces.http.answers import PROBLEM, answer, details_of, encode
from carrel.interfaces.http.lifetime import ClientGone, while_wanted
from carrel.interfaces.http.operations import body_of, query_of
from carrel.interfaces.http.services import caller, serving
from carrel.service.operations.instances import instance_request

BAD, FAILED = 400, 500


async def start(request: Request) -> Response:
    """A caller that goes away meanwhile gets none."""
    handed = await _start(request, instance_request(await body_of(request, NewInstance)))
    instances = serving(request).services.operations.instances
    return answer(instances.info(caller(request), handed), 201)


async def _start(request: Request, wanted: InstanceRequest) -> Handed:
    here, who = serving(request), caller(request)
    starting = here.services.instances.start(who, wanted)
    handed = await while_wanted(request, here.closing, starting)
    if await request.is_disconnected():
        # It left in the same moment, and nobody else would ever let it go.
        await here.services.instances.release(who, handed.instance.instance_id, handed.hold)
        raise ClientGone
    return handed


async def logs(request: Request) -> Response:
    """The last bytes that it wrote on both streams."""
    instance, limit = request.path_params["instance"], query_of(request, LogQuery).limit
    wrote = await serving(request).services.instances.logs(caller(request), instance, limit)
    text = wrote.decode("utf-8", "replace")
    headers = {"X-Content-Type-Options": "nosniff"}
    return Response(text, headers=headers, media_type="text/plain")


# The older spelling


def _older(
    handle: Callable[[Request], Awaitable[Response]],
) -> Callable[[Request], Awaitable[Response]]:
    """Errors have an `error` member, a sentence, and the statuses that were promised."""

    async def handling(request: Request) -> Response:
        try:
            return await handle(request)
        except CarrelError as error:
            return _problem(error)

    return handling


@_older
async def request_session(request: Request) -> Response:
    """As `POST /v1/instances`, of Serena unless another server is named."""
    asked = await body_of(request, SessionBody)
    handed = await _start(request, InstanceRequest(asked.server, project_path=asked.project_path))
    one = handed.instance
    session = SessionInfo(
        session_id=one.instance_id,
        host=one.host,
        port=one.port,
        url=one.url,
        token=handed.token or None,
    )
    return answer(session, 201)


@_older
async def release_session(request: Request) -> Response:
    """As `DELETE /v1/instances/{instance}`. What is no id is nobody's."""
    try:
        named = str((await body_of(request, ReleaseBody)).session_id)
    except MessageInvalid:
        raise InstanceNotFound(
            "Invalid or missing 'session_id'", hint="Send the one of /request-session."
        ) from None
    status = await serving(request).services.instances.release(caller(request), named)
    return answer(SessionRelease(status=status, session_id=named))


def _problem(error: CarrelError) -> Response:
    problem = details_of(error)
    problem["error"] = error.message
    if isinstance(error, ProjectError | RequestError) and problem["status"] == 422:
        problem["status"], problem["title"] = BAD, "Bad Request"
        problem["error"] = "Invalid or missing 'project_path'"
    elif isinstance(error, InstanceFailed):
        problem["status"], problem["title"] = FAILED, "Internal Server Error"
        problem["error"] = f"{error.message}\n{error.details.get('output', '')}".rstrip()
    return Response(encode(problem), int(str(problem["status"])), media_type=PROBLEM)
