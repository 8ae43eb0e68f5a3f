"""Requests for callers without a WebSocket."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Annotated

from fastapi import APIRouter, Header, Query
from fastapi import Request as Http
from starlette.background import BackgroundTask
from starlette.responses import Response

from carrel.domain.access import Caller
from carrel.domain.errors import MessageInvalid
from carrel.domain.requests import FrameKind, Request, RequestQuery
from carrel.interfaces.http.closing import while_wanted
from carrel.interfaces.http.documenting import (
    ASKED,
    FRAMES,
    PROJECT,
    SPACE,
    errors,
)
from carrel.interfaces.http.encoding import answer
from carrel.interfaces.http.events import start_of
from carrel.interfaces.http.models.files import Done
from carrel.interfaces.http.models.requests import (
    AnswerBody,
    ExtendBody,
    GenerateBody,
    RequestList,
    RequestView,
)
from carrel.interfaces.http.request_parts import (
    answer_of,
    asked_of,
    frame_view,
    request_view,
    span_of,
    summary_view,
)
from carrel.interfaces.http.serving import Serving, caller, serving
from carrel.interfaces.http.streams import EventStream, Told, comment, told
from carrel.service.requests.viewing import outcome

LONGEST_WAIT_S = 60.0
ONLY_OUTCOME = 1 << 62
_OUTCOMES = (FrameKind.RESULT, FrameKind.ERROR)

router = APIRouter(tags=["requests"])


@router.post(
    "/v1/requests",
    status_code=202,
    response_model=RequestView,
    responses=errors(
        *("request_invalid", "request_id_reused", "capacity", "space_invalid"),
        *("unsupported_frontend", "project_read_only", "project_in_use", *PROJECT, *SPACE),
    ),
)
async def generate(
    request: Http,
    body: GenerateBody,
    idempotency_key: Annotated[str, Header(max_length=128, pattern=r"^[ -~]*$")] = "",
) -> Response:
    """`Idempotency-Key` is a `request_id`."""
    requests = serving(request).services.requests
    made = await requests.submit(caller(request), asked_of(body, idempotency_key))
    return answer(request_view(requests, made), 202)


@router.get("/v1/requests", response_model=RequestList, responses=errors())
async def list_requests(
    request: Http,
    live: Annotated[bool | None, Query()] = None,
    owner: Annotated[str | None, Query(max_length=256)] = None,
    series: Annotated[str | None, Query(max_length=128)] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
    before: Annotated[str, Query(max_length=128)] = "",
) -> Response:
    """Newest first. `live`: only those that have not ended, or (false) that have."""
    requests = serving(request).services.requests
    query = RequestQuery(owner=owner, series=series, live=live, limit=limit + 1, before=before)
    found = await requests.list(caller(request), query)
    following = found[limit - 1].key if len(found) > limit else ""
    shown = [summary_view(requests, one) for one in found[:limit]]
    return answer({"requests": shown, "next": following})


@router.get("/v1/requests/{request_id}", response_model=RequestView, responses=errors(*ASKED))
async def show_request(
    request: Http,
    request_id: str,
    wait: Annotated[float, Query(ge=0, le=LONGEST_WAIT_S, allow_inf_nan=False)] = 0.0,
) -> Response:
    """`wait`: for its end, at most so many seconds. Who asked for it and reads it here when it
    has ended has its outcome, unless another connection is there to hear it."""
    here, who = serving(request), caller(request)
    found = await here.services.requests.get(who, request_id)
    if wait and not found.ended:
        found = await while_wanted(request, here.closing, _ended(here, who, found, wait))
    here.services.requests.noticed(who, found)
    response = answer(request_view(here.services.requests, found))
    if _is_delivery(who, found) and not here.services.requests.followed(found):
        response.background = BackgroundTask(here.services.requests.delivered, who, found.key)
    return response


async def _ended(here: Serving, who: Caller, request: Request, wait_s: float) -> Request:
    requests = here.services.requests
    frames = requests.follow(who, request.key, ONLY_OUTCOME)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(wait_s), contextlib.aclosing(frames):
            async for frame in frames:
                if frame.kind in _OUTCOMES:
                    break
    return await requests.get(who, request.key)


def _is_delivery(who: Caller, request: Request) -> bool:
    mine = who.name == request.caller
    return mine and request.ended and request.delivered_at is None


@router.post(
    "/v1/requests/{request_id}/cancel",
    response_model=RequestView,
    responses=errors(*ASKED, "launcher_unavailable"),
)
async def cancel_request(request: Http, request_id: str) -> Response:
    """Nothing of it runs, and its workspace is gone, when this is answered. What has ended
    stays as it is."""
    requests = serving(request).services.requests
    return answer(request_view(requests, await requests.cancel(caller(request), request_id)))


@router.post(
    "/v1/requests/{request_id}/answer",
    response_model=Done,
    responses=errors(*ASKED, "state_conflict"),
)
async def answer_request(request: Http, request_id: str, body: AnswerBody) -> Response:
    """To what its agent asks."""
    requests = serving(request).services.requests
    await requests.answer(caller(request), request_id, answer_of(body))
    return answer({})


@router.post(
    "/v1/requests/{request_id}/extend",
    response_model=RequestView,
    responses=errors(*ASKED, "request_invalid", "state_conflict", "workspace_gone"),
)
async def extend_request(request: Http, request_id: str, body: ExtendBody) -> Response:
    """So long from now on what is retained stays."""
    requests = serving(request).services.requests
    seconds = span_of(body)
    if seconds is None:
        raise MessageInvalid("How long?", hint="Give `seconds` or `for`.", field="body.seconds")
    extended = await requests.extend(caller(request), request_id, seconds)
    return answer(request_view(requests, extended))


@router.post(
    "/v1/requests/{request_id}/done",
    response_model=RequestView,
    responses=errors(*ASKED, "state_conflict"),
)
async def finish_request(request: Http, request_id: str) -> Response:
    """Its files were fetched: what was held for that goes."""
    requests = serving(request).services.requests
    return answer(request_view(requests, await requests.done(caller(request), request_id)))


@router.delete(
    "/v1/requests/{request_id}",
    response_model=RequestView,
    responses=errors(*ASKED, "launcher_unavailable"),
)
async def remove_request(request: Http, request_id: str) -> Response:
    """Ends it if it has not; nothing of it is left but its record."""
    requests = serving(request).services.requests
    return answer(request_view(requests, await requests.remove(caller(request), request_id)))


@router.get(
    "/v1/requests/{request_id}/events",
    response_class=Response,
    responses={
        **errors(*ASKED),
        200: {"description": "Frames, to the outcome", "content": FRAMES},
        204: {"description": "`Last-Event-ID` is the outcome: there is no more"},
    },
)
async def follow_request(
    request: Http,
    request_id: str,
    after: Annotated[int | None, Query(ge=0, lt=1 << 62)] = None,
    last_event_id: Annotated[str | None, Header(max_length=20)] = None,
) -> Response:
    """The frames of the WebSocket, one an event, ending with the outcome."""
    here, who = serving(request), caller(request)
    found = await here.services.requests.get(who, request_id)
    start = start_of(last_event_id, after) or 0
    if last_event_id and found.ended and start >= outcome(found).seq:
        # Browsers would come back for ever.
        return Response(status_code=204)
    return EventStream(_frames(here, who, found.key, start), here.closing)


async def _frames(here: Serving, who: Caller, key: str, after: int) -> Told:
    requests = here.services.requests
    yield comment("listening")
    async with contextlib.aclosing(requests.follow(who, key, after)) as frames:
        async for frame in frames:
            yield told(str(frame.kind), frame_view(frame), frame.seq or None)
            if frame.kind in _OUTCOMES:
                await requests.delivered(who, key)
