"""What requests have made: file by file, as one archive, and version against version."""

from __future__ import annotations

import asyncio
from typing import Annotated
from urllib.parse import unquote_to_bytes

from fastapi import APIRouter, Header, Query
from fastapi import Request as Http
from starlette.responses import Response

from carrel.domain.errors import MessageInvalid
from carrel.interfaces.http.byte_streams import ByteStream, begun
from carrel.interfaces.http.documenting import (
    BINARY,
    MADE,
    PATH_ERRORS,
    VERSIONS,
    errors,
    query,
)
from carrel.interfaces.http.encoding import answer
from carrel.interfaces.http.file_streams import begin, file_answer
from carrel.interfaces.http.models.requests import ResultFileList, VersionList
from carrel.interfaces.http.request_parts import summary_view
from carrel.interfaces.http.serving import caller, serving
from carrel.interfaces.http.texts import MAX_PATH, query_values
from carrel.service.requests.viewing import file_view

MOST_FILES = 10_000
DIFF = "text/x-diff"
GZIP = "application/gzip"

router = APIRouter(tags=["requests"])


@router.get(
    "/v1/requests/{request_id}/files",
    response_model=ResultFileList,
    openapi_extra={
        "parameters": [query("after", "The last path of the page before.", minLength=0)]
    },
    responses=errors(*MADE),
)
async def list_made(
    request: Http, request_id: str, limit: Annotated[int, Query(ge=1, le=MOST_FILES)] = 1000
) -> Response:
    """What is not as it was, in the order of paths."""
    requests = serving(request).services.requests
    after = _after(request)
    found = await requests.files(caller(request), request_id, after, limit + 1)
    files = [file_view(file) for file in found.files[:limit]]
    following = found.files[limit - 1].path if len(found.files) > limit else ""
    return answer({"files": files, "total": found.total, "next": following})


def _after(request: Http) -> str:
    found = query_values(request.scope["query_string"], "after")
    if len(found) > 1 or any(len(one) > MAX_PATH for one in found):
        raise MessageInvalid("`after` is one path.", hint="Take it from `next`.", field="after")
    return found[0] if found else ""


@router.get(
    "/v1/requests/{request_id}/files/{path:path}",
    response_class=Response,
    responses={
        **errors(*MADE, *PATH_ERRORS, "range_not_satisfiable"),
        200: {"description": "The file", "content": {"application/octet-stream": BINARY}},
        206: {"description": "The part", "content": {"application/octet-stream": BINARY}},
    },
)
async def fetch_made(
    request: Http,
    request_id: str,
    range: Annotated[str | None, Header(include_in_schema=False)] = None,
) -> Response:
    """One file of the workspace, or a `Range` of it. Bytes that are no UTF-8 are
    percent-encoded as they are."""
    here = serving(request)
    file = await here.services.requests.open(caller(request), request_id, _path(request))
    return await file_answer(asyncio.to_thread(begin, file, range), here.background)


def _path(request: Http) -> str:
    """As it stands in the request: the usual decoding would replace what is no UTF-8."""
    raw: bytes = request.scope["raw_path"].partition(b"?")[0]
    words = raw.split(b"/", 5)
    if len(words) < 6:
        # Some slash of the route was encoded.
        raise MessageInvalid("The path names no file.", hint="Write /files/PATH.", field="path")
    named = words[5]
    return unquote_to_bytes(named).decode("utf-8", "surrogateescape")


@router.get(
    "/v1/requests/{request_id}/archive",
    response_class=Response,
    responses={
        **errors(*MADE),
        200: {"description": "A tar.gz", "content": {GZIP: BINARY}},
    },
)
async def read_made(
    request: Http, request_id: str, all: Annotated[bool, Query()] = False
) -> Response:
    """What was added and modified; with `all` everything that is there. A version that is
    archived has everything only."""
    here = serving(request)
    pieces = await here.services.requests.archive(caller(request), request_id, everything=all)
    return ByteStream(await begun(pieces), here.background, media_type=GZIP)


# Versions. A series may have slashes in its name: all that stands before the last word is it.


@router.get(
    "/v1/series/{series:path}/versions",
    response_model=VersionList,
    responses=errors(*VERSIONS),
)
async def list_versions(request: Http, series: str) -> Response:
    """Newest first."""
    requests = serving(request).services.requests
    found = await requests.versions(caller(request), series)
    return answer({"versions": [summary_view(requests, one) for one in found]})


@router.get(
    "/v1/series/{series:path}/diff",
    response_class=Response,
    responses={
        **errors(*VERSIONS, "workspace_gone", "tree_damaged", "tree_unavailable", "git_failed"),
        200: {"description": "As `git diff` has it", "content": {DIFF: BINARY}},
    },
)
async def compare_versions(
    request: Http,
    series: str,
    from_: Annotated[int | None, Query(alias="from", ge=0, lt=1 << 31)] = None,
    to: Annotated[int | None, Query(ge=1, lt=1 << 31)] = None,
) -> Response:
    """By default the newest against the one before it; `from=0` is against nothing."""
    here, who = serving(request), caller(request)
    known = [one.version for one in await here.services.requests.versions(who, series)]
    after = known[0] if to is None else to
    before = max((one for one in known if one < after), default=0) if from_ is None else from_
    pieces = await here.services.requests.diff(who, series, before, after)
    headers = {"X-Content-Type-Options": "nosniff", "Carrel-Versions": f"{before}..{after}"}
    return ByteStream(await begun(pieces), here.background, headers=headers, media_type=DIFF)
