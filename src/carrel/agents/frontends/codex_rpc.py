"""JSON-RPC with `codex app-server`: what is asked of it, and what it says meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from carrel.agents.frontends import lines
from carrel.agents.frontends.codex_stream import problem_of
from carrel.agents.talking import Talk

NOT_SUPPORTED = {"code": -32601, "message": "This is not supported."}


class CodexRpc:
    """`hear` gets all that is no answer, as it comes."""

    def __init__(self, talk: Talk, hear: Callable[[lines.Object], None]) -> None:
        self._talk = talk
        self._hear = hear
        self._calls = 0

    async def meet(self) -> None:
        about = {"name": "carrel", "title": "Carrel", "version": "1"}
        await self.call("initialize", {"clientInfo": about, "capabilities": None})
        await self._talk.send({"method": "initialized"})

    async def call(self, method: str, params: Mapping[str, object]) -> lines.Object:
        """What it answers. Raises `AgentError` when it refuses."""
        id = await self.post(method, params)
        while "method" in (message := await self._talk.next()) or message.get("id") != id:
            self._take(message)
        if "error" in message:
            raise problem_of(lines.text(message, "error", "message"))
        return lines.mapping(message, "result")

    async def post(self, method: str, params: Mapping[str, object]) -> int:
        """As `call`, but nobody waits for the answer."""
        self._calls += 1
        await self._talk.send({"id": self._calls, "method": method, "params": params})
        return self._calls

    async def listen(self) -> None:
        """For the next thing that it says."""
        self._take(await self._talk.next())

    async def answer(self, id: object, result: Mapping[str, object] | None) -> None:
        """None: what it asks for cannot be had."""
        outcome = {"error": NOT_SUPPORTED} if result is None else {"result": result}
        await self._talk.send({"id": id, **outcome})

    def _take(self, message: lines.Object) -> None:
        if "method" in message:
            self._hear(message)
