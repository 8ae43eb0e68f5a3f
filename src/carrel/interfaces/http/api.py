"""The application: all routes, and the layers around them."""

from __future__ import annotations

import asyncio

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route, WebSocketRoute
from starlette.types import Receive, Scope, Send

from carrel.api.types.admin import Health
from carrel.domain.errors import CarrelError, MessageInvalid
from carrel.interfaces.http import (
    events,
    files,
    hub_socket,
    images,
    instances,
    operations,
    requests,
    runs,
    spaces,
)
from carrel.interfaces.http.access import AccessLayer
from carrel.interfaces.http.answers import (
    JSON,
    ErrorLayer,
    MethodNotAllowed,
    RouteNotFound,
    answer,
    encode,
    problem_response,
)
from carrel.interfaces.http.body_limits import BodyLimitLayer, too_deep, too_large, too_much_at_once
from carrel.interfaces.http.lifetime import Shutdown
from carrel.interfaces.http.metrics import CONTENT_TYPE, MetricsLayer
from carrel.interfaces.http.openapi import document
from carrel.interfaces.http.services import ApiContext, ApiOptions, ApiServices, caller, serving


async def _health(_request: Request) -> Response:
    return answer(Health())


async def _metrics(request: Request) -> Response:
    here = serving(request)
    figures = await here.services.operations.daemon.figures(caller(request))
    text = here.metrics.text(figures, here.options.version)
    return Response(text, headers={"Content-Type": CONTENT_TYPE})


async def _shut_down(request: Request) -> Response:
    here = serving(request)
    ending = await here.services.operations.daemon.shutdown(caller(request))
    # After the answer: those who wait for its end hear of it by the closed connection.
    asyncio.get_running_loop().call_soon(here.options.shutdown)
    return answer(ending, 202)


async def _openapi(request: Request) -> Response:
    return Response(await asyncio.to_thread(request.app.document), media_type=JSON)


BY_HAND: operations.ByHand = {
    "spaces.create": spaces.create,
    "review.diff": spaces.diff,
    "review.export": spaces.export,
    "runs.execute": runs.execute,
    "runs.start": runs.start,
    "runs.wait": runs.wait,
    "runs.output": runs.output,
    "files.read": files.read,
    "files.write": files.write,
    "files.read_archive": files.read_archive,
    "files.write_archive": files.write_archive,
    "context.read": files.read_context,
    "context.put": files.put_context,
    "images.take": images.take,
    "images.build": images.build,
    "images.pull": images.pull,
    "images.upload": images.upload,
    "instances.start": instances.start,
    "instances.logs": instances.logs,
    "sessions.request": instances.request_session,
    "sessions.release": instances.release_session,
    "requests.submit": requests.submit,
    "requests.show": requests.show,
    "requests.follow": requests.follow,
    "requests.fetch": requests.fetch,
    "requests.archive": requests.read_archive,
    "requests.diff": requests.compare,
    "events.read": events.read,
    "daemon.health": _health,
    "daemon.metrics": _metrics,
    "daemon.shutdown": _shut_down,
}
_DOCUMENT = operations.route("GET", "/v1/openapi.json", _openapi)
_SOCKETS = (
    WebSocketRoute("/v1/spaces/{space}/exec", runs.exec_socket),
    WebSocketRoute("/v1/runs/{run}/attach", runs.attach_socket),
    WebSocketRoute("/v1/hub", hub_socket.hub_socket),
    WebSocketRoute("/v1/requests", requests.requests_socket),
)


class Api(Starlette):
    """With the OpenAPI document, made when somebody first asks for it; that takes a while."""

    version = ""
    _document = b""

    def document(self) -> bytes:
        if not self._document:
            self._document = encode(document(self.version))
        return self._document


def make_api(services: ApiServices, options: ApiOptions, closing: Shutdown | None = None) -> Api:
    """`closing` is begun by whoever serves the application, when that ends."""
    here = ApiContext(services, options, closing or Shutdown())
    api = Api(
        routes=[*operations.routes(BY_HAND), *_SOCKETS, _DOCUMENT],
        middleware=[
            Middleware(MetricsLayer, metrics=here.metrics),
            Middleware(ErrorLayer),
            Middleware(AccessLayer, tokens=services.tokens, options=options),
            Middleware(BodyLimitLayer),
        ],
        exception_handlers={CarrelError: _problem, HTTPException: _http_problem},
    )
    api.version = options.version
    api.state.serving = here
    api.router.redirect_slashes = False
    api.router.default = _nowhere
    return api


async def _nowhere(scope: Scope, receive: Receive, send: Send) -> None:
    """A path that no route has, for a WebSocket too."""
    error = RouteNotFound("There is nothing at this path.", hint="See /v1/openapi.json.")
    await problem_response(error)(scope, receive, send)


async def _problem(_request: Request, error: Exception) -> Response:
    assert isinstance(error, CarrelError)
    return problem_response(error)


async def _http_problem(request: Request, error: Exception) -> Response:
    """What the framework refuses by itself."""
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        allowed = ", ".join(_methods(request))
        hint = f"Use {allowed}."
        return problem_response(
            MethodNotAllowed("This path does not support this method.", hint=hint),
            {"Allow": allowed},
        )
    if error.status_code == 413:
        return problem_response(too_large(request.url.path))
    if error.status_code == 422:
        return problem_response(too_deep())
    if error.status_code == 503:
        return problem_response(too_much_at_once())
    return problem_response(
        MessageInvalid("The body is not valid JSON.", hint="Send JSON in UTF-8.", field="body")
    )


def _methods(request: Request) -> list[str]:
    """Of all routes of the path; the framework names those of the first only."""
    found: set[str] = set()
    for route in request.app.routes:
        if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE:
            found |= route.methods or set()
    return sorted(found)
