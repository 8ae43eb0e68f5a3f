"""Serving: on standard input and output, or over HTTP."""

from __future__ import annotations

import asyncio
import functools
import logging
import signal
import sys

from carrel.client.hub_aio import AsyncHub
from carrel.mcp.addressing import Http
from carrel.mcp.desk import OpenHub, open_desk
from carrel.mcp.front import Begun
from carrel.mcp.server import NAME, CarrelServer
from carrel.mcp.wire import take_over


def serve(
    *, data: str = "", url: str = "", autostart: bool = True, client: Begun | Http | None = None
) -> None:
    """Until the client is gone, or somebody ends it: over HTTP, or on standard input and
    output, which the front may have `Begun`. Raises what the hub refuses for."""
    logging.basicConfig(
        stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s"
    )
    open_hub = functools.partial(AsyncHub, data=data, url=url, autostart=autostart, name=NAME)
    if isinstance(client, Http):
        from carrel.mcp.web import serve_http

        asyncio.run(serve_http(open_hub, client))
    else:
        asyncio.run(_stdio(open_hub, client))


async def _stdio(open_hub: OpenHub, begun: Begun | None) -> None:
    # The SDK reads in a thread that cannot be interrupted; Ctrl-C would wait for a line.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    async with open_desk(open_hub, inside=begun.inside if begun else None) as desk:
        server = CarrelServer(desk)
        if begun is None:
            await server.run_stdio_async()
        else:
            await server.serve_lines(*take_over(begun))
