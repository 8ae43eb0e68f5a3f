"""Serving over HTTP, to whom names this server by its own name and has the token."""

from __future__ import annotations

import hmac
import ipaddress
import resource
import socket
import sys
from collections.abc import Iterable
from typing import Any, cast

import psutil
import uvicorn
from mcp.server.transport_security import TransportSecuritySettings
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from carrel.domain.errors import CarrelError
from carrel.interfaces.http.connections import ROOM, ConnectionLimits, HttpConnection
from carrel.mcp.address import Http
from carrel.mcp.hub import OpenHub, open_tool_hub
from carrel.mcp.server import NAME, CarrelServer

PATH = "/mcp"
CONNECTIONS = 1024
"""Of which one in four is for who has the token, and one in eight for who has shown none yet."""
KNOWN = "known"
"""The name of who was let in, for its share of the connections."""
GOODBYE_S = 2
"""For streams to end when the server does: clients hold them open for as long as they can."""


async def serve_http(open_hub: OpenHub, http: Http) -> None:
    host = http.host
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, http.port), family=family) as listener:
        port = listener.getsockname()[1]
        async with open_tool_hub(open_hub) as hub:
            app: ASGIApp = CarrelServer(hub).streamable_http_app(
                streamable_http_path=PATH, transport_security=known_as(host, port, http.names)
            )
            app = Bearer(app, http.token)
            shown = f"[{host}]" if ":" in host else host
            print(f"{NAME} mcp: http://{shown}:{port}{PATH}", file=sys.stderr, flush=True)
            if http.made:
                header = f"Authorization: Bearer {http.token}"
                print(f"{NAME} mcp: {header}", file=sys.stderr, flush=True)
            await uvicorn.Server(_config(app)).serve(sockets=[listener])


def _config(app: ASGIApp) -> uvicorn.Config:
    """With the daemon's own connections: who says nothing, or has no token, keeps nobody out."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most[1], most[1]))
    room = ConnectionLimits(min(CONNECTIONS, most[1] // 2))

    def connect(
        config: uvicorn.Config, server_state: Any, app_state: dict[str, Any], _loop: Any = None
    ) -> HttpConnection:
        return HttpConnection(config, server_state, {**app_state, ROOM: room}, _loop)

    return uvicorn.Config(
        app,
        http=cast(Any, connect),
        ws="none",
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=GOODBYE_S,
    )


# Who may come over HTTP: by the Host and Origin that are named, by token.

LOOPBACK = ("127.0.0.1", "localhost", "::1")
WEB_PORT = 80


def known_as(host: str, port: int, also: Iterable[str]) -> TransportSecuritySettings:
    """What requests may call this server: a page whose name was made to lead here calls it
    something else."""
    names = [*LOOPBACK, *_names(host), *also]
    hosts = [f"[{name}]" if ":" in name else name for name in dict.fromkeys(names)]
    found = [f"{name}:{port}" for name in hosts] + (hosts if port == WEB_PORT else [])
    return TransportSecuritySettings(
        enable_dns_rebinding_protection=True,
        allowed_hosts=found,
        allowed_origins=[f"http://{one}" for one in found],
    )


def _names(host: str) -> list[str]:
    """Of all addresses when it listens on all."""
    try:
        every = ipaddress.ip_address(host).is_unspecified
    except ValueError:
        every = False
    if not every:
        return [host]
    families = (socket.AF_INET, socket.AF_INET6)
    found = [one for several in psutil.net_if_addrs().values() for one in several]
    return [socket.gethostname(), *(one.address for one in found if one.family in families)]


class Bearer:
    """Lets in who has the token; without one, everybody. Who is let in is no stranger."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._wanted = f"bearer {token}".encode() if token else b""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if self._wanted and not self._admits(Headers(scope=scope)):
            problem = {"code": "authentication_failed", "message": "This needs the token."}
            answer = JSONResponse(problem, 401, {"WWW-Authenticate": "Bearer"})
            await answer(scope, receive, send)
            return
        try:
            scope["state"]["know"](KNOWN)
        except CarrelError as error:
            await JSONResponse({"code": error.code, "message": str(error)}, 503)(
                scope, receive, send
            )
            return
        await self._app(scope, receive, send)

    def _admits(self, headers: Headers) -> bool:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        given = f"{scheme.lower()} {token}".encode()
        return hmac.compare_digest(given, self._wanted)
