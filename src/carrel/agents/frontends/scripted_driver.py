"""One turn by the scripted agent."""

from __future__ import annotations

import asyncio
import os
import signal

from carrel.agents.frontends.lines import log, message, tool_call, tool_result
from carrel.agents.frontends.script import Step, steps
from carrel.agents.frontends.script_hands import DOES, Hands, call_of
from carrel.agents.frontends.script_memory import Memory, recall
from carrel.agents.frontends.space_tools import SpaceTools
from carrel.agents.listening import Inbox, listening
from carrel.agents.permitting import Permissions, permission_of
from carrel.agents.results import failed
from carrel.domain.agents import Seat, Stage, TurnRequest, TurnResult
from carrel.domain.errors import AgentCrashed, Interrupted

_BREATH = 64
"""Steps between two looks at what was said to the agent."""


class ScriptedDriver:
    """Implements `Driver`. `own_process` says that a `crash` may end the process."""

    def __init__(self, own_process: bool = False) -> None:
        self._own_process = own_process

    async def __call__(self, request: TurnRequest, seat: Seat, stage: Stage) -> TurnResult:
        permissions = Permissions(permission_of(request, seat), stage, request.answer_s)
        play = _Play(recall(request, seat), stage, self._own_process)
        inbox = Inbox()

        async def act() -> TurnResult:
            async with SpaceTools(seat) as tools:
                hands = Hands(request, seat, permissions, tools)
                return await play.run(request.prompt, inbox, hands)

        async def interrupt() -> None:
            acting.cancel()

        acting = asyncio.ensure_future(act())
        async with listening(stage, permissions, inbox, interrupt):
            try:
                await asyncio.wait({acting})
            finally:
                acting.cancel()
                await asyncio.wait({acting})
        return (
            failed(Interrupted("The turn was interrupted."))
            if acting.cancelled()
            else acting.result()
        )


class _Play:
    """One turn."""

    def __init__(self, memory: Memory, stage: Stage, own_process: bool) -> None:
        self._memory = memory
        self._stage = stage
        self._own_process = own_process
        self._said = ""
        self._done = 0

    async def run(self, prompt: str, inbox: Inbox, hands: Hands) -> TurnResult:
        self._stage.tell(log(f"turn {self._memory.turns}", self._memory.key))
        try:
            said: str | None = prompt
            while said is not None:
                await self._play(said, hands)
                said = inbox.next()
        except AgentCrashed as error:
            return failed(error)
        finally:
            self._memory.keep()
        return TurnResult(True, self._said)

    async def _play(self, prompt: str, hands: Hands) -> None:
        for step in steps(prompt):
            self._done += 1
            if self._done % _BREATH == 0:
                await asyncio.sleep(0)
            await self._step(step, hands)

    async def _step(self, step: Step, hands: Hands) -> None:
        if step.verb in DOES:
            await self._do(step, hands)
            return
        match step.verb:
            case "say":
                self._say(step.text)
            case "sleep":
                await asyncio.sleep(step.seconds)
            case "fail":
                raise AgentCrashed(step.text)
            case "crash":
                self._crash()
            case _:
                self._say(f"turn {self._memory.turns}: {step.text}")

    def _say(self, text: str) -> None:
        self._said = text
        self._memory.say(text)
        self._stage.tell(message(text))

    async def _do(self, step: Step, hands: Hands) -> None:
        id = f"call-{self._memory.turns}-{self._done}"
        self._stage.tell(tool_call(id, *call_of(step)))
        output, is_error = await hands.do(id, step)
        self._stage.tell(tool_result(id, output, is_error))

    def _crash(self) -> None:
        if self._own_process:
            os.kill(os.getpid(), signal.SIGKILL)
        raise AgentCrashed("The agent crashed.")
