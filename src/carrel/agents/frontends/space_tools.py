"""The tools of the space's MCP server, for an agent that has no MCP client of its own."""

from __future__ import annotations

from contextlib import AsyncExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any

from carrel.domain.agents import Seat

if TYPE_CHECKING:
    from mcp import Client


class SpaceTools:
    """The server is started with the first call, and ended with the block."""

    def __init__(self, seat: Seat) -> None:
        self._seat = seat
        self._open = AsyncExitStack()
        self._client: Client | None = None

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
        if not self._seat.mcp:
            return "There are no tools of a space here.", True
        try:
            client = await self._connect()
            result = await client.call_tool(name, given)
        except Exception as error:
            return f"{type(error).__name__}: {error}", True
        texts = [getattr(block, "text", "") for block in result.content]
        return "\n".join(text for text in texts if text), bool(result.is_error)

    async def _connect(self) -> Client:
        if self._client is None:
            from mcp import Client, StdioServerParameters

            program, *args = self._seat.mcp
            server = StdioServerParameters(
                command=program,
                args=args,
                env=dict(self._seat.mcp_env),
                cwd=self._seat.workspace,
            )
            self._client = await self._open.enter_async_context(Client(server))
        return self._client
