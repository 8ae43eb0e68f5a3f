"""Whole folders of a space, as tar.zst."""

from __future__ import annotations

import io

from fastapi import APIRouter, Request
from starlette.responses import Response

from carrel.interfaces.http.bodies import PieceReader, Pieces, whole_or_rest
from carrel.interfaces.http.byte_streams import ByteStream, begun
from carrel.interfaces.http.documenting import (
    BINARY,
    OPTIONAL_PATH,
    PATHS,
    STREAM_BODY,
    errors,
)
from carrel.interfaces.http.encoding import answer
from carrel.interfaces.http.models.files import Done
from carrel.interfaces.http.serving import caller, serving
from carrel.interfaces.http.texts import path_of

MEDIA_TYPE = "application/zstd"
BUFFER = 256 * 1024

router = APIRouter(tags=["files"])


@router.get(
    "/v1/spaces/{space}/archive",
    response_class=Response,
    openapi_extra=OPTIONAL_PATH,
    responses={
        **errors(*PATHS),
        200: {"description": "A tar.zst", "content": {MEDIA_TYPE: BINARY}},
    },
)
async def read_archive(request: Request, space: str) -> Response:
    path = path_of(request.scope, ".")
    here = serving(request)
    pieces = await here.services.files.archive(caller(request), space, path)
    return ByteStream(await begun(pieces), here.background, media_type=MEDIA_TYPE)


@router.put(
    "/v1/spaces/{space}/archive",
    response_model=Done,
    openapi_extra={**OPTIONAL_PATH, **STREAM_BODY},
    responses=errors(*PATHS, "archive_invalid", "request_timeout"),
)
async def write_archive(request: Request, space: str) -> Response:
    here = serving(request)
    path = path_of(request.scope, ".")
    await here.services.spaces.existing(caller(request), space)
    first, rest = await whole_or_rest(request)
    unpack = here.services.files.unpack
    if rest is None:
        await unpack(caller(request), space, io.BytesIO(first), path)
        return answer({})
    async with here.streams:
        reader = io.BufferedReader(PieceReader(Pieces(first, rest)), BUFFER)
        await unpack(caller(request), space, reader, path)
    return answer({})
