"""The MCP servers of a seat, in the protocol's words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from carrel.agents.environing import headers_for
from carrel.domain.agents import Seat, SeatServer

if TYPE_CHECKING:
    from acp.schema import AgentCapabilities


def known(seat: Seat, can: AgentCapabilities | None) -> tuple[list[Any], list[str]]:
    """Those that an agent which can do that is told of, and the names of the others."""
    found = [_own(seat)] if seat.mcp else []
    left_out = []
    for server in seat.servers:
        if _speaks(can, server):
            found.append(_over_http(server, seat))
        else:
            left_out.append(server.name)
    return found, left_out


def _own(seat: Seat) -> Any:
    from acp.schema import EnvVariable, McpServerStdio

    command, *args = seat.mcp
    env = [EnvVariable(name=name, value=value) for name, value in seat.mcp_env.items()]
    return McpServerStdio(name="carrel", command=command, args=args, env=env)


def _speaks(can: AgentCapabilities | None, server: SeatServer) -> bool:
    transports = can.mcp_capabilities if can else None
    if transports is None:
        return False
    return bool(transports.sse if server.sse else transports.http)


def _over_http(server: SeatServer, seat: Seat) -> Any:
    from acp.schema import HttpHeader, HttpMcpServer, SseMcpServer

    sent = headers_for(server, seat)
    headers = [HttpHeader(name=name, value=value) for name, value in sent.items()]
    if server.sse:
        return SseMcpServer(type="sse", name=server.name, url=server.url, headers=headers)
    return HttpMcpServer(type="http", name=server.name, url=server.url, headers=headers)
