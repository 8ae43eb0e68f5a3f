"""Files of a space from outside."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request
from starlette.responses import Response

from carrel.domain.files import Files
from carrel.interfaces.http.bodies import Pieces, whole_or_rest
from carrel.interfaces.http.documenting import (
    BINARY,
    OPTIONAL_PATH,
    PATH,
    PATHS,
    STREAM_BODY,
    errors,
)
from carrel.interfaces.http.encoding import answer
from carrel.interfaces.http.file_streams import begin, file_answer
from carrel.interfaces.http.models.files import (
    Done,
    FileList,
    FileView,
    FolderBody,
    Mode,
    MoveBody,
)
from carrel.interfaces.http.serving import caller, serving
from carrel.interfaces.http.texts import path_of
from carrel.interfaces.http.views import View, file_view

router = APIRouter(tags=["files"])


@router.get(
    "/v1/spaces/{space}/files",
    response_class=Response,
    openapi_extra=PATH,
    responses={
        **errors(*PATHS, "range_not_satisfiable"),
        200: {"description": "The file", "content": {"application/octet-stream": BINARY}},
        206: {"description": "The part", "content": {"application/octet-stream": BINARY}},
    },
)
async def read_file(
    request: Request,
    space: str,
    range: Annotated[str | None, Header(description="One range of bytes")] = None,
) -> Response:
    here = serving(request)
    path = path_of(request.scope)
    reading = here.services.files.use(
        caller(request), space, lambda files: begin(files.open_read(path), range)
    )
    return await file_answer(reading, here.background)


@router.put(
    "/v1/spaces/{space}/files",
    response_model=FileView,
    openapi_extra={**PATH, **STREAM_BODY},
    responses=errors(*PATHS, "request_timeout"),
)
async def write_file(
    request: Request, space: str, mode: Annotated[Mode | None, Query()] = None
) -> Response:
    here = serving(request)
    path = path_of(request.scope)
    bits = None if mode is None else int(mode, 8)
    # Whoever may not write is told before the body is read.
    await here.services.spaces.existing(caller(request), space)
    first, rest = await whole_or_rest(request)

    def write(data: bytes | Iterator[bytes], files: Files) -> View:
        files.write(path, data, bits)
        return file_view(files.stat(path))

    use = here.services.files.use
    if rest is None:
        return answer(await use(caller(request), space, partial(write, first), writes=True))
    async with here.streams:
        work = partial(write, Pieces(first, rest))
        return answer(await use(caller(request), space, work, writes=True))


@router.delete(
    "/v1/spaces/{space}/files", response_model=Done, openapi_extra=PATH, responses=errors(*PATHS)
)
async def delete_file(
    request: Request, space: str, recursive: Annotated[bool, Query()] = False
) -> Response:
    path = path_of(request.scope)
    await serving(request).services.files.use(
        caller(request), space, lambda files: files.delete(path, recursive=recursive), writes=True
    )
    return answer({})


@router.get(
    "/v1/spaces/{space}/files/stat",
    response_model=FileView,
    openapi_extra=PATH,
    responses=errors(*PATHS),
)
async def stat_file(request: Request, space: str) -> Response:
    path = path_of(request.scope)
    info = await serving(request).services.files.use(
        caller(request), space, lambda files: files.stat(path)
    )
    return answer(file_view(info))


@router.get(
    "/v1/spaces/{space}/files/list",
    response_model=FileList,
    openapi_extra=OPTIONAL_PATH,
    responses=errors(*PATHS),
)
async def list_files(request: Request, space: str) -> Response:
    path = path_of(request.scope, ".")
    entries = await serving(request).services.files.use(
        caller(request), space, lambda files: files.list(path)
    )
    return answer({"entries": [file_view(entry) for entry in entries]})


@router.post("/v1/spaces/{space}/files/move", response_model=Done, responses=errors(*PATHS))
async def move_file(request: Request, space: str, body: MoveBody) -> Response:
    await serving(request).services.files.use(
        caller(request),
        space,
        lambda files: files.move(body.source, body.target, replace=body.replace),
        writes=True,
    )
    return answer({})


@router.post("/v1/spaces/{space}/files/mkdir", response_model=Done, responses=errors(*PATHS))
async def make_folder(request: Request, space: str, body: FolderBody) -> Response:
    await serving(request).services.files.use(
        caller(request),
        space,
        lambda files: files.mkdir(body.path, int(body.mode, 8), parents=body.parents),
        writes=True,
    )
    return answer({})
