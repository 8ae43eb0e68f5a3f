"""Serving: on standard input and output, or over HTTP."""

from __future__ import annotations

import asyncio
import functools
import logging
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import uvicorn
from starlette.types import ASGIApp

from carrel.client.hub_aio import AsyncHub
from carrel.mcp.desk import OpenHub, open_desk
from carrel.mcp.guarding import Bearer, check_token, known_as, parse_address
from carrel.mcp.server import NAME, CarrelServer

PATH = "/mcp"
GOODBYE_S = 2
"""For streams to end when the server does: clients hold them open for as long as they can."""


@dataclass(frozen=True)
class Http:
    """`address` is HOST:PORT; port 0 is any that is free."""

    address: str
    token: str = ""
    names: Sequence[str] = ()
    """By which the server is known beside its addresses."""


def serve(
    *, data: str = "", url: str = "", autostart: bool = True, http: Http | None = None
) -> None:
    """Until the client is gone, or somebody ends it. Raises what the hub refuses for,
    `Forbidden` and `MessageInvalid`."""
    logging.basicConfig(
        stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s"
    )
    open_hub = functools.partial(AsyncHub, data=data, url=url, autostart=autostart, name=NAME)
    asyncio.run(_stdio(open_hub) if http is None else _http(open_hub, http))


async def _stdio(open_hub: OpenHub) -> None:
    # The SDK reads in a thread that cannot be interrupted; Ctrl-C would wait for a line.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    async with open_desk(open_hub) as desk:
        await CarrelServer(desk).run_stdio_async()


async def _http(open_hub: OpenHub, http: Http) -> None:
    host, port = parse_address(http.address)
    check_token(host, http.token)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, port), family=family) as listener:
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
