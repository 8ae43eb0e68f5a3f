"""One turn by an ACP agent. The protocol's library is loaded here and nowhere else."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from carrel.agents.children import Child, child
from carrel.agents.environing import environment
from carrel.agents.frontends import acp_servers, lines, requests
from carrel.agents.frontends.acp_client import Choices, Client
from carrel.agents.frontends.acp_presets import PRESETS, Preset, environment_of, write_settings
from carrel.agents.frontends.acp_stream import problem_of
from carrel.agents.listening import Inbox, listening
from carrel.agents.permitting import Permissions, permission_of
from carrel.agents.results import failed
from carrel.domain.agents import Seat, Stage, TurnRequest, TurnResult
from carrel.domain.errors import (
    AgentCrashed,
    ContinuationNotFound,
    FrontendNotInstalled,
    Interrupted,
    ModelNotSupported,
)

if TYPE_CHECKING:
    from acp.client.connection import ClientSideConnection

START_S = 60.0
"""For an agent to answer before its first turn: some need ten seconds, on an idle machine."""

_NONE = Preset("")


class AcpDriver:
    """Implements `Driver`."""

    def __init__(self, argv: Sequence[str], preset: str = "") -> None:
        self._argv = argv
        self._preset = PRESETS.get(preset, _NONE)

    async def __call__(self, request: TurnRequest, seat: Seat, stage: Stage) -> TurnResult:
        mode = permission_of(request, seat)
        env = environment(request, seat, environment_of(self._preset, seat, mode))
        write_settings(self._preset, request, seat, env)
        try:
            async with child(self._argv, seat.workspace, env) as agent:
                client = Client(stage, Permissions(mode, stage, request.answer_s))
                return await self._speak(agent, request, seat, client)
        except FileNotFoundError as error:
            raise FrontendNotInstalled(f"The agent cannot be started: {error}") from error

    async def _speak(
        self, agent: Child, request: TurnRequest, seat: Seat, client: Client
    ) -> TurnResult:
        from acp import RequestError
        from acp.client.connection import ClientSideConnection

        connection = ClientSideConnection(
            # What it has is all that an agent is told it has.
            cast("Any", client),
            agent.stdin,
            agent.stdout,
            observers=[client.observe],
        )
        turn = _Turn(connection, client, self._preset)
        try:
            async with listening(client.stage, client.permissions, turn.inbox, turn.interrupt):
                return await turn.run(request, seat)
        except RequestError as error:
            raise problem_of(str(error), error.data) from error
        except ConnectionError as error:
            raise await agent.ending("The agent") from error
        finally:
            await connection.close()


class _Turn:
    def __init__(self, connection: ClientSideConnection, client: Client, preset: Preset) -> None:
        self._agent = connection
        self._client = client
        self._preset = preset
        self.inbox = Inbox()
        self._session = ""
        self._interrupted = False

    async def interrupt(self) -> None:
        self._interrupted = True
        if self._client.listens:
            await self._agent.cancel(session_id=self._session)

    async def run(self, request: TurnRequest, seat: Seat) -> TurnResult:
        try:
            async with asyncio.timeout(START_S):
                await self._begin(request, seat)
        except TimeoutError:
            raise AgentCrashed(f"The agent did not answer within {START_S:g} s.") from None
        said = [requests.prompt(request, seat)]
        if request.system_prompt:
            said.insert(0, request.system_prompt)
        while True:
            result = await self._prompt(said)
            more = self.inbox.next() if result.success else None
            if more is None:
                return result
            said = [more]

    async def _begin(self, request: TurnRequest, seat: Seat) -> None:
        from acp import PROTOCOL_VERSION
        from acp.schema import ClientCapabilities, Implementation

        met = await self._agent.initialize(
            protocol_version=PROTOCOL_VERSION,
            client_capabilities=ClientCapabilities(),
            client_info=Implementation(name="carrel", version="1"),
        )
        can_load = bool(met.agent_capabilities and met.agent_capabilities.load_session)
        servers, left_out = acp_servers.known(seat, met.agent_capabilities)
        session = await self._open(request, seat.workspace, can_load, servers)
        who = f"{met.agent_info.name} {met.agent_info.version}" if met.agent_info else "An agent"
        self._client.stage.tell(lines.log(f"{who} by ACP", self._session))
        for name in left_out:
            text = f"The MCP server {name} is left out: this agent does not speak its transport."
            self._client.stage.tell(lines.log(text))
        await self._set_up(session, request.model)

    async def _open(
        self, request: TurnRequest, cwd: str, can_load: bool, servers: list[Any]
    ) -> Any:
        if request.continuation is None:
            new = await self._agent.new_session(cwd=cwd, mcp_servers=servers)
            self._session = self._client.session = new.session_id
            return new
        key = request.continuation.key
        if not can_load:
            raise ContinuationNotFound("This agent cannot go on with a conversation.", asked=key)
        return await self._load(key, cwd, servers)

    async def _load(self, key: str, cwd: str, servers: list[Any]) -> Any:
        from acp import RequestError

        try:
            known = await self._agent.load_session(cwd=cwd, session_id=key, mcp_servers=servers)
        except RequestError as error:
            why = problem_of(str(error), error.data).message
            raise ContinuationNotFound(f"The agent has no such conversation: {why}") from error
        self._session = self._client.session = key
        return known

    async def _set_up(self, session: Any, model: str) -> None:
        from acp import RequestError

        choices = Choices.of(session)
        mode = self._preset.modes.get(self._client.permissions.mode)
        if mode in choices.modes:
            await self._agent.set_session_mode(session_id=self._session, mode_id=str(mode))
        if not model:
            return
        if not choices.model:
            raise ModelNotSupported("This agent does not let a model be chosen.")
        try:
            await self._agent.set_config_option(
                config_id=choices.model, session_id=self._session, value=model
            )
        except RequestError as error:
            why = problem_of(str(error), error.data).message
            raise ModelNotSupported(f"The agent does not take {model!r}: {why}") from error

    async def _prompt(self, said: list[str]) -> TurnResult:
        from acp.schema import TextContentBlock

        if self._interrupted:
            return failed(Interrupted("The turn was interrupted."))
        blocks: list[Any] = [TextContentBlock(type="text", text=text) for text in said]
        self._client.listens = True
        answer = await self._agent.prompt(session_id=self._session, prompt=blocks)
        usage = answer.usage.model_dump(by_alias=True) if answer.usage else {}
        return self._client.ended(answer.stop_reason, usage)
