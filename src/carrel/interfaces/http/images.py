"""An image is taken in: from the daemon's own machine, told step by step, or as it comes."""

from __future__ import annotations

import contextlib
import io

from starlette.requests import Request
from starlette.responses import Response

from carrel.api.types.images import ImageToBuild, ImageToPull, ImageUploadQuery, NewImage
from carrel.interfaces.http.answers import answer
from carrel.interfaces.http.files import BUFFER, PieceReader, Pieces
from carrel.interfaces.http.operations import body_of, query_of
from carrel.interfaces.http.progress import step_by_step
from carrel.interfaces.http.responses import EventStream
from carrel.interfaces.http.services import caller, serving
from carrel.service.access import require_admin


async def take(request: Request) -> Response:
    here, who = serving(request), caller(request)
    new, images = await body_of(request, NewImage), here.services.operations.images
    require_admin(who)
    if "text/event-stream" in request.headers.get("Accept", ""):
        steps = step_by_step(lambda tell: images.take(who, new, tell), "image", "an import")
        return EventStream(steps, here.closing)
    return answer(await images.take(who, new), 201)


async def build(request: Request) -> Response:
    return await _made(request, ImageToBuild, "build")


async def pull(request: Request) -> Response:
    return await _made(request, ImageToPull, "pull")


async def _made(request: Request, kind: type[ImageToBuild | ImageToPull], verb: str) -> Response:
    here, who = serving(request), caller(request)
    new = await body_of(request, kind)
    work = getattr(here.services.operations.images, verb)
    require_admin(who)
    if "text/event-stream" in request.headers.get("Accept", ""):
        steps = step_by_step(lambda tell: work(who, new, tell), "image", f"a {verb}")
        return EventStream(steps, here.closing)
    return answer(await work(who, new), 201)


async def upload(request: Request) -> Response:
    here, who, asked = serving(request), caller(request), query_of(request, ImageUploadQuery)
    require_admin(who)
    async with here.stream(who):
        with contextlib.closing(Pieces(b"", request.stream())) as pieces:
            reader = io.BufferedReader(PieceReader(pieces), BUFFER)
            return answer(await here.services.operations.images.upload(who, asked, reader), 201)
