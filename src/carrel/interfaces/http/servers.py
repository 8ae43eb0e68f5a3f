"""The kinds of MCP servers that can be had as instances."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Path, Request
from starlette.responses import Response

from carrel.interfaces.http.documenting import errors
from carrel.interfaces.http.encoding import answer
from carrel.interfaces.http.instance_parts import server_of, server_view
from carrel.interfaces.http.models.instances import ServerBody, ServerList
from carrel.interfaces.http.serving import caller, serving
from carrel.service.access import require_admin

Name = Annotated[str, Path(max_length=63)]

router = APIRouter(tags=["instances"])


@router.get("/v1/servers", response_model=ServerList, responses=errors())
async def list_servers(request: Request) -> Response:
    """What is installed, and how to install what is not."""
    return await _list(request)


@router.put("/v1/servers/{name}", response_model=ServerList, responses=errors())
async def put_server(request: Request, name: Name, body: ServerBody) -> Response:
    """Instead of one that had that name."""
    require_admin(caller(request))
    servers = serving(request).services.instances.servers
    await asyncio.to_thread(servers.add, server_of(name, body))
    return await _list(request)


@router.delete(
    "/v1/servers/{name}", response_model=ServerList, responses=errors("server_not_found")
)
async def remove_server(request: Request, name: Name) -> Response:
    """One that was added; a built-in one is then as it was."""
    require_admin(caller(request))
    await asyncio.to_thread(serving(request).services.instances.servers.remove, name)
    return await _list(request)


async def _list(request: Request) -> Response:
    found = await asyncio.to_thread(serving(request).services.instances.servers.list)
    return answer({"servers": [server_view(one) for one in found]})
