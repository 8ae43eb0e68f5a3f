"""Instances: a dedicated MCP server for one client, started, looked at, let go."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from carrel.domain.instances import Handed, InstanceRequest
from carrel.interfaces.http.closing import ClientGone, while_wanted
from carrel.interfaces.http.documenting import INSTANCE, SPACE, STARTING, errors
from carrel.interfaces.http.encoding import answer
from carrel.interfaces.http.instance_parts import handed_view, instance_request, instance_view
from carrel.interfaces.http.models.instances import (
    HandedView,
    InstanceBody,
    InstanceList,
    InstanceView,
    ReleasedView,
)
from carrel.interfaces.http.serving import caller, serving

MAX_LOG = 1 << 20

router = APIRouter(tags=["instances"])


@router.post(
    "/v1/instances",
    status_code=201,
    response_model=HandedView,
    responses=errors(*STARTING),
)
async def start_instance(request: Request, body: InstanceBody) -> Response:
    """It has answered a handshake when this is answered. A caller that goes away meanwhile
    gets none."""
    return answer(handed_view(await start(request, instance_request(body))), 201)


async def start(request: Request, wanted: InstanceRequest) -> Handed:
    here, who = serving(request), caller(request)
    starting = here.services.instances.start(who, wanted)
    handed = await while_wanted(request, here.closing, starting)
    if await request.is_disconnected():
        # It left in the same moment, and nobody else would ever let it go.
        await here.services.instances.release(who, handed.instance.instance_id, handed.hold)
        raise ClientGone
    return handed


@router.get("/v1/instances", response_model=InstanceList, responses=errors(*SPACE))
async def list_instances(
    request: Request,
    space: Annotated[str, Query(max_length=255)] = "",
    ended: Annotated[bool, Query()] = False,
) -> Response:
    """`ended`: those too that are over."""
    instances = serving(request).services.instances
    found = await instances.list(caller(request), space_id=space, ended=ended)
    return answer({"instances": [instance_view(one) for one in found]})


@router.get("/v1/instances/{instance}", response_model=HandedView, responses=errors(*INSTANCE))
async def show_instance(request: Request, instance: str) -> Response:
    handed = await serving(request).services.instances.handed(caller(request), instance)
    return answer(handed_view(handed))


@router.delete("/v1/instances/{instance}", response_model=ReleasedView, responses=errors(*INSTANCE))
async def release_instance(
    request: Request, instance: str, hold: Annotated[str, Query(max_length=255)] = ""
) -> Response:
    """Nothing of it runs when this is answered, unless others share it. `hold` is what the start
    was answered with: with it, nobody else's share is given up, however often this is asked."""
    status = await serving(request).services.instances.release(caller(request), instance, hold)
    return answer({"status": status})


@router.post(
    "/v1/instances/{instance}/heartbeat",
    response_model=InstanceView,
    responses=errors(*INSTANCE),
)
async def keep_instance(request: Request, instance: str) -> Response:
    """It is still wanted: its `lease` begins anew."""
    found = await serving(request).services.instances.heartbeat(caller(request), instance)
    return answer(instance_view(found))


@router.get(
    "/v1/instances/{instance}/logs",
    response_class=Response,
    responses={
        **errors(*INSTANCE),
        200: {"description": "Text", "content": {"text/plain": {"schema": {"type": "string"}}}},
    },
)
async def read_logs(
    request: Request,
    instance: str,
    limit: Annotated[int, Query(ge=1, le=MAX_LOG)] = 65_536,
) -> Response:
    """The last bytes that it wrote on both streams."""
    wrote = await serving(request).services.instances.logs(caller(request), instance, limit)
    text = wrote.decode("utf-8", "replace")
    headers = {"X-Content-Type-Options": "nosniff"}
    return Response(text, headers=headers, media_type="text/plain")
