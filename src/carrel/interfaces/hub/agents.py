"""What people say to the agents that Carrel drives, which are no clients of the hub."""

from __future__ import annotations

from carrel.domain.agents import Control, ControlKind, TurnRequest
from carrel.domain.errors import StateConflict
from carrel.hub import types
from carrel.hub.client import Client
from carrel.hub.hub import no_receiver
from carrel.service.spaces import Spaces
from carrel.service.turns import Turns


class AgentRequests:
    def __init__(self, spaces: Spaces, turns: Turns) -> None:
        self._spaces = spaces
        self._turns = turns

    async def answer(
        self, client: Client, word: str, asked: types.AgentCommand | types.AgentInterrupt
    ) -> object:
        caller = client.identity.caller
        space = await self._spaces.existing(caller, word)
        working = self._turns.working(space.space_id)
        if not working and not space.agent:
            raise no_receiver("agent", space.space_id)
        if isinstance(asked, types.AgentInterrupt):
            await self._turns.interrupt(caller, self._running(working))
        elif working or asked.inject == "terminal":
            said = Control(ControlKind.INPUT, text=asked.command)
            await self._turns.control(caller, self._running(working), said)
        else:
            turn = await self._turns.start(caller, word, TurnRequest("", asked.command))
            working = turn.run_id
        return {"turn": working}

    @staticmethod
    def _running(working: str) -> str:
        if not working:
            raise StateConflict("No agent works there now.", hint="`carrel attach` starts one.")
        return working
