"""The tools of the space's MCP servers, for an agent that has no MCP client of its own."""

from __future__ import annotations

from contextlib import AsyncExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any

from carrel.agents.environing import headers_for
from carrel.domain.agents import Seat, SeatServer

if TYPE_CHECKING:
    from mcp import Client

OWN = "carrel"
_PREFIX, _BETWEEN = "mcp__", "__"


def is_other(name: str) -> bool:
    """It is a tool of another server than the space's own."""
    return _parted(name)[0] != OWN


def _parted(name: str) -> tuple[str, str]:
    """The server and its tool, as others name them: `mcp__SERVER__TOOL`. A name alone is one of
    the space's own."""
    server, between, tool = name.removeprefix(_PREFIX).partition(_BETWEEN)
    return (server, tool) if name.startswith(_PREFIX) and between else (OWN, name)


class SpaceTools:
    """A server is spoken to from the first call of a tool of it, to the end of the block."""

    def __init__(self, seat: Seat) -> None:
        self._seat = seat
        self._open = AsyncExitStack()
        self._clients: dict[str, Client] = {}

    async def __aenter__(self) -> SpaceTools:
        return self

    async def __aexit__(
        self,
        type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._open.__aexit__(type, error, trace)

    async def call(self, name: str, given: dict[str, Any]) -> tuple[str, bool]:
        """What it said, and whether that is an error; also when there is no such server."""
        server, tool = _parted(name)
        if not self._has(server):
            return "There are no tools of a space here.", True
        try:
            client = await self._connected(server)
            result = await client.call_tool(tool, given)
        except Exception as error:
            return f"{type(error).__name__}: {error}", True
        texts = [getattr(block, "text", "") for block in result.content]
        return "\n".join(text for text in texts if text), bool(result.is_error)

    def _has(self, name: str) -> bool:
        return bool(self._seat.mcp) if name == OWN else self._other(name) is not None

    def _other(self, name: str) -> SeatServer | None:
        return next((one for one in self._seat.servers if one.name == name), None)

    async def _connected(self, name: str) -> Client:
        if name not in self._clients:
            other = self._other(name)
            client = self._own() if other is None else await self._over_http(other)
            self._clients[name] = await self._open.enter_async_context(client)
        return self._clients[name]

    def _own(self) -> Client:
        from mcp import Client, StdioServerParameters

        program, *args = self._seat.mcp
        return Client(
            StdioServerParameters(
                command=program,
                args=args,
                env=dict(self._seat.mcp_env),
                cwd=self._seat.workspace,
            )
        )

    async def _over_http(self, server: SeatServer) -> Client:
        from mcp import Client

        headers = headers_for(server, self._seat)
        if server.sse:
            from mcp.client.sse import sse_client

            return Client(sse_client(server.url, headers=headers))
        from mcp.client.streamable_http import streamable_http_client
        from mcp.shared._httpx_utils import create_mcp_http_client

        http = await self._open.enter_async_context(create_mcp_http_client(headers=headers))
        return Client(streamable_http_client(server.url, http_client=http))
