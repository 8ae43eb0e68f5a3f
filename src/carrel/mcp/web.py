"""Serving over HTTP."""

from __future__ import annotations

import socket
import sys

import uvicorn
from starlette.types import ASGIApp

from carrel.mcp.addressing import Http
from carrel.mcp.desk import OpenHub, open_desk
from carrel.mcp.guarding import Bearer, known_as
from carrel.mcp.server import NAME, CarrelServer

PATH = "/mcp"
GOODBYE_S = 2
"""For streams to end when the server does: clients hold them open for as long as they can."""


async def serve_http(open_hub: OpenHub, http: Http) -> None:
    host = http.host
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, http.port), family=family) as listener:
        port = listener.getsockname()[1]
        async with open_desk(open_hub) as desk:
            app: ASGIApp = CarrelServer(desk).streamable_http_app(
                streamable_http_path=PATH, transport_security=known_as(host, port, http.names)
            )
            app = Bearer(app, http.token) if http.token else app
            shown = f"[{host}]" if ":" in host else host
            print(f"{NAME} mcp: http://{shown}:{port}{PATH}", file=sys.stderr, flush=True)
            await uvicorn.Server(_config(app)).serve(sockets=[listener])


def _config(app: ASGIApp) -> uvicorn.Config:
    return uvicorn.Config(
        app, log_config=None, access_log=False, timeout_graceful_shutdown=GOODBYE_S
    )
