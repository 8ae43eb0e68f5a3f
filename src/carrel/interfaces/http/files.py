"""Files of a space from outside."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Annotated, BinaryIO

from fastapi import APIRouter, Header, Query, Request
from starlette.responses import Response

from carrel.domain.errors import PathNotFound
from carrel.domain.files import Files
from carrel.interfaces.http.bodies import Pieces, whole_or_rest
from carrel.interfaces.http.byte_streams import ByteStream, Source
from carrel.interfaces.http.documenting import (
    BINARY,
    OPTIONAL_PATH,
    PATH,
    PATHS,
    STREAM_BODY,
    errors,
)
from carrel.interfaces.http.encoding import answer, bytes_answer
from carrel.interfaces.http.models.files import (
    Done,
    FileList,
    FileView,
    FolderBody,
    Mode,
    MoveBody,
)
from carrel.interfaces.http.problems import RangeNotSatisfiable, problem_response
from carrel.interfaces.http.ranges import part_of
from carrel.interfaces.http.serving import caller, serving
from carrel.interfaces.http.texts import path_of
from carrel.interfaces.http.views import View, file_view

PIECE = 256 * 1024

router = APIRouter(tags=["files"])


@dataclass(frozen=True)
class _Reading:
    """A file, or a part of it, of which the beginning was read."""

    file: BinaryIO
    size: int
    part: tuple[int, int] | None
    first: bytes

    @property
    def length(self) -> int:
        return self.size if self.part is None else self.part[1] - self.part[0]


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
    try:
        reading = await here.services.files.use(
            caller(request), space, lambda files: _open(files, path, range)
        )
    except RangeNotSatisfiable as error:
        return problem_response(error, {"Content-Range": f"bytes */{error.details['size']}"})
    headers = {"Accept-Ranges": "bytes", "Content-Length": str(reading.length)}
    if reading.part is not None:
        begin, end = reading.part
        headers["Content-Range"] = f"bytes {begin}-{end - 1}/{reading.size}"
    status = 200 if reading.part is None else 206
    if len(reading.first) == reading.length:
        return bytes_answer(reading.first, headers, status)
    headers["X-Content-Type-Options"] = "nosniff"
    return ByteStream(_source(reading), here.background, status=status, headers=headers)


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


def _open(files: Files, path: str, range_header: str | None) -> _Reading:
    """In a worker thread. Most files are done with the first piece."""
    file = files.open_read(path)
    try:
        size = os.fstat(file.fileno()).st_size
        part = part_of(range_header, size)
        begin, end = part or (0, size)
        file.seek(begin)
        first = file.read(min(PIECE, end - begin))
    except BaseException:
        file.close()
        raise
    if len(first) == end - begin:
        file.close()
    return _Reading(file, size, part, first)


def _source(reading: _Reading) -> Source:
    left = reading.length - len(reading.first)

    def read() -> bytes:
        nonlocal left
        piece = reading.file.read(min(PIECE, left))
        if left and not piece:
            # Somebody cut it short while it was sent.
            raise PathNotFound("The file became shorter.")
        left -= len(piece)
        return piece

    return Source(reading.first, read, reading.file.close)
