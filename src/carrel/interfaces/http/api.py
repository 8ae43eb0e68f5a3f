"""The application: all routes, and the layers around them."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError, WebSocketRequestValidationError
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from carrel.domain.errors import CarrelError, MessageInvalid
from carrel.interfaces.http import (
    about,
    agents,
    archives,
    bases,
    context,
    events,
    exec_socket,
    files,
    gc,
    hub_socket,
    inbox,
    instances,
    looking,
    request_files,
    requests,
    requests_socket,
    runs,
    servers,
    sessions,
    spaces,
    tokens,
    trash,
    turns,
)
from carrel.interfaces.http.access import Access
from carrel.interfaces.http.body_limits import BodyLimits, too_large
from carrel.interfaces.http.closing import Closing
from carrel.interfaces.http.documenting import finish
from carrel.interfaces.http.encoding import encode
from carrel.interfaces.http.guard import Guard
from carrel.interfaces.http.metrics import Metering
from carrel.interfaces.http.problems import MethodNotAllowed, RouteNotFound, problem_response
from carrel.interfaces.http.services import Options, Services
from carrel.interfaces.http.serving import make_serving
from carrel.interfaces.http.validation import invalid

_ROUTERS = (
    spaces,
    looking,
    runs,
    exec_socket,
    hub_socket,
    files,
    archives,
    events,
    trash,
    bases,
    tokens,
    gc,
    inbox,
    agents,
    turns,
    context,
    instances,
    servers,
    sessions,
    requests_socket,
    requests,
    request_files,
)
_SILENT: Any = {
    "tracing": False,
    "metrics": False,
    "logs": False,
    "operation_spans": False,
    "auto_configure": False,
}
"""The framework would send traces wherever the environment says; the daemon tells nobody."""


class Api(FastAPI):
    _document = b""

    def document(self) -> bytes:
        """The OpenAPI document, made when somebody first asks for it; that takes a while."""
        if not self._document:
            self._document = encode(self.openapi())
        return self._document

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            document = get_openapi(
                title=self.title,
                version=self.version,
                description=self.description,
                routes=self.routes,
            )
            self.openapi_schema = finish(document)
        return self.openapi_schema


def make_api(services: Services, options: Options, closing: Closing | None = None) -> FastAPI:
    """`closing` is begun by whoever serves the application, when that ends."""
    serving = make_serving(services, options, closing or Closing())
    api = Api(
        title="Carrel",
        version=options.version,
        description="Private desks for coding agents. Errors are problem details (RFC 9457).",
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        telemetry=_SILENT,
        middleware=[
            Middleware(Metering, metrics=serving.metrics),
            Middleware(Guard),
            Middleware(Access, tokens=services.tokens, options=options),
            Middleware(BodyLimits),
        ],
    )
    api.state.serving = serving
    for room in (*_ROUTERS, about):
        # Flat, so that finding a route is one pass over one list.
        api.router.routes.extend(room.router.routes)
    api.router.default = _nowhere
    api.add_exception_handler(CarrelError, _problem)
    api.add_exception_handler(RequestValidationError, _invalid)
    api.add_exception_handler(WebSocketRequestValidationError, _invalid_socket)
    api.add_exception_handler(HTTPException, _http_problem)
    return api


async def _nowhere(scope: Scope, receive: Receive, send: Send) -> None:
    """A path that no route has, for a WebSocket too."""
    error = RouteNotFound("There is nothing at this path.", hint="See /v1/openapi.json.")
    await problem_response(error)(scope, receive, send)


async def _problem(_request: Request, error: Exception) -> Response:
    assert isinstance(error, CarrelError)
    return problem_response(error)


async def _invalid(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return problem_response(invalid(error.errors()))


async def _invalid_socket(socket: WebSocket, error: Exception) -> None:
    assert isinstance(error, WebSocketRequestValidationError)
    await socket.send_denial_response(problem_response(invalid(error.errors())))


async def _http_problem(request: Request, error: Exception) -> Response:
    """What the framework refuses by itself."""
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        allowed = ", ".join(_methods(request))
        hint = f"Use {allowed}."
        return problem_response(
            MethodNotAllowed("This path knows other methods.", hint=hint), {"Allow": allowed}
        )
    if error.status_code == 413:
        return problem_response(too_large())
    return problem_response(
        MessageInvalid("The body cannot be understood.", hint="Send JSON in UTF-8.", field="body")
    )


def _methods(request: Request) -> list[str]:
    """Of all routes of the path; the framework names those of the first only."""
    found: set[str] = set()
    for route in request.app.routes:
        if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE:
            found |= route.methods or set()
    return sorted(found)
