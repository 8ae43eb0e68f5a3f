"""A program that is spoken to by JSON objects, a line each."""

from __future__ import annotations

import json
from collections.abc import Mapping

from carrel.agents.children import Child
from carrel.agents.frontends import lines
from carrel.domain.agents import Stage
from carrel.domain.errors import AgentCrashed


class Talk:
    """`who` is its name for people."""

    def __init__(self, program: Child, stage: Stage, who: str) -> None:
        self._program = program
        self._stage = stage
        self._who = who

    async def send(self, message: Mapping[str, object]) -> None:
        """Whole, also when several tasks send. To one that is gone it goes nowhere: what that
        said last tells why."""
        self._program.stdin.write(json.dumps(message).encode() + b"\n")
        try:
            await self._program.stdin.drain()
        except ConnectionError:
            return

    async def line(self) -> bytes:
        """Without its end; a line of nothing is left out. Empty when there are no more."""
        while True:
            try:
                line = await self._program.stdout.readline()
            except ValueError as error:
                raise AgentCrashed(f"{self._who} wrote a line that is too long.") from error
            if not line or line.strip():
                return line.rstrip()

    async def next(self) -> lines.Object:
        """What is no object is logged. Raises `AgentCrashed` when there are no more."""
        while line := await self.line():
            message = lines.decode(line)
            if message is not None:
                return message
            self._stage.tell(lines.raw(line))
        raise await self._program.ending(self._who)
