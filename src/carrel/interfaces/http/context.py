"""What the agent of a space is given to read, beside its tree."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request
from starlette.responses import Response

from carrel.domain.errors import TooLarge
from carrel.interfaces.http.documenting import BINARY, SPACE, STREAM_BODY, errors
from carrel.interfaces.http.encoding import answer, bytes_answer
from carrel.interfaces.http.models.agents import ContextList
from carrel.interfaces.http.serving import caller, serving

MAX_BYTES = 16 << 20
NAMED = (*SPACE, "state_conflict", "path_not_found", "path_invalid")
Name = Annotated[str, Path(max_length=255)]

router = APIRouter(tags=["agents"])


@router.get(
    "/v1/spaces/{space}/context",
    response_model=ContextList,
    responses=errors(*SPACE, "state_conflict"),
)
async def list_context(request: Request, space: str) -> Response:
    return await _list(request, space)


@router.get(
    "/v1/spaces/{space}/context/{name}",
    response_class=Response,
    responses={
        **errors(*NAMED),
        200: {"description": "The file", "content": {"application/octet-stream": BINARY}},
    },
)
async def read_context(request: Request, space: str, name: Name) -> Response:
    return bytes_answer(
        await serving(request).services.context.read(caller(request), space, name), {}
    )


@router.put(
    "/v1/spaces/{space}/context/{name}",
    response_model=ContextList,
    openapi_extra=STREAM_BODY,
    responses=errors(*NAMED),
)
async def put_context(request: Request, space: str, name: Name) -> Response:
    """Instead of what had that name; agents see it at once."""
    here, who = serving(request), caller(request)
    # Whoever may not write is told before the body is read.
    await here.services.spaces.existing(who, space)
    await here.services.context.put(who, space, name, await _whole(request))
    return await _list(request, space)


@router.delete(
    "/v1/spaces/{space}/context/{name}", response_model=ContextList, responses=errors(*NAMED)
)
async def remove_context(request: Request, space: str, name: Name) -> Response:
    await serving(request).services.context.remove(caller(request), space, name)
    return await _list(request, space)


async def _list(request: Request, space: str) -> Response:
    found = await serving(request).services.context.list(caller(request), space)
    return answer({"files": found})


async def _whole(request: Request) -> bytes:
    kept = bytearray()
    async for piece in request.stream():
        kept += piece
        if len(kept) > MAX_BYTES:
            raise TooLarge(
                f"A context file has at most {MAX_BYTES} bytes.", hint="Put it into the tree."
            )
    return bytes(kept)
