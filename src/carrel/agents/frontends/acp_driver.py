"""One turn by an ACP agent. The protocol's library is loaded here and nowhere else."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from carrel.agents import requests
from carrel.agents.events import NO_LOGIN, failed, key_refused
from carrel.agents.frontends import lines
from carrel.agents.frontends.acp_presets import (
    PRESETS,
    Preset,
    environment_of,
    environment_of_model,
    write_settings,
)
from carrel.agents.frontends.lines import Object
from carrel.agents.processes import ChildProcess, child
from carrel.agents.requests import environment, headers_for
from carrel.agents.turns import OWN_TOOLS, InputQueue, Permissions, listening, permission_of
from carrel.domain.errors import (
    AgentCrashed,
    AgentError,
    ContinuationNotFound,
    Interrupted,
    ModelNotSupported,
)
from carrel.domain.keys import names_service
from carrel.domain.turns import (
    AgentEventType,
    AgentServer,
    AgentSetup,
    Stage,
    Told,
    TurnRequest,
    TurnResult,
)

if TYPE_CHECKING:
    from acp.client.connection import ClientSideConnection
    from acp.connection import StreamEvent
    from acp.schema import (
        AgentCapabilities,
        PermissionOption,
        RequestPermissionResponse,
        ToolCallUpdate,
    )


START_S = 60.0
"""For an agent to answer before its first turn: some need ten seconds, on an idle machine."""

_NONE = Preset("")


class AcpDriver:
    """Implements `Driver`."""

    def __init__(self, argv: Sequence[str], preset: str = "") -> None:
        self._argv = argv
        self._name = preset
        self._preset = PRESETS.get(preset, _NONE)

    async def __call__(self, request: TurnRequest, setup: AgentSetup, stage: Stage) -> TurnResult:
        mode = permission_of(request, setup)
        env = environment(request, setup, environment_of(self._preset, setup, mode))
        env |= environment_of_model(self._name, request, env)
        write_settings(self._name, request, setup, env)
        async with child(self._argv, setup.workspace, env, "The agent") as agent:
            client = AcpClient(stage, Permissions(mode, stage, request.answer_s))
            return await self._speak(agent, request, setup, client)

    async def _speak(
        self, agent: ChildProcess, request: TurnRequest, setup: AgentSetup, client: AcpClient
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
                return await turn.run(request, setup)
        except RequestError as error:
            raise problem_of(str(error), error.data) from error
        except ConnectionError as error:
            raise await agent.ending("The agent") from error
        finally:
            await connection.close()


class _Turn:
    def __init__(self, connection: ClientSideConnection, client: AcpClient, preset: Preset) -> None:
        self._agent = connection
        self._client = client
        self._preset = preset
        self.inbox = InputQueue()
        self._session = ""
        self._interrupted = False

    async def interrupt(self) -> None:
        self._interrupted = True
        if self._client.listens:
            await self._agent.cancel(session_id=self._session)

    async def run(self, request: TurnRequest, setup: AgentSetup) -> TurnResult:
        try:
            async with asyncio.timeout(START_S):
                await self._begin(request, setup)
        except TimeoutError:
            raise AgentCrashed(f"The agent did not answer within {START_S:g} s.") from None
        said = [requests.prompt(request, setup)]
        if request.system_prompt:
            said.insert(0, request.system_prompt)
        while True:
            result = await self._prompt(said)
            more = self.inbox.next() if result.success else None
            if more is None:
                return result
            said = [more]

    async def _begin(self, request: TurnRequest, setup: AgentSetup) -> None:
        from acp import PROTOCOL_VERSION
        from acp.schema import ClientCapabilities, Implementation

        met = await self._agent.initialize(
            protocol_version=PROTOCOL_VERSION,
            client_capabilities=ClientCapabilities(),
            client_info=Implementation(name="carrel", version="1"),
        )
        can_load = bool(met.agent_capabilities and met.agent_capabilities.load_session)
        servers, left_out = known(setup, met.agent_capabilities)
        without = dict(self._preset.without) if setup.untrusted else {}
        session = await self._open(request, setup.workspace, can_load, servers, without)
        who = f"{met.agent_info.name} {met.agent_info.version}" if met.agent_info else "An agent"
        self._client.stage.tell(lines.log(f"{who} by ACP", self._session))
        for name in left_out:
            text = f"The MCP server {name} is left out: this agent does not speak its transport."
            self._client.stage.tell(lines.log(text))
        await self._set_up(session, request)

    async def _open(
        self,
        request: TurnRequest,
        cwd: str,
        can_load: bool,
        servers: list[Any],
        without: dict[str, Any],
    ) -> Any:
        if request.continuation is None:
            new = await self._agent.new_session(cwd=cwd, mcp_servers=servers, **without)
            self._session = self._client.session = new.session_id
            return new
        key = request.continuation.key
        if not can_load:
            raise ContinuationNotFound("This agent cannot resume a conversation.", asked=key)
        return await self._load(key, cwd, servers, without)

    async def _load(self, key: str, cwd: str, servers: list[Any], without: dict[str, Any]) -> Any:
        from acp import RequestError

        try:
            known = await self._agent.load_session(
                cwd=cwd, session_id=key, mcp_servers=servers, **without
            )
        except RequestError as error:
            why = problem_of(str(error), error.data).message
            raise ContinuationNotFound(f"The agent has no such conversation: {why}") from error
        self._session = self._client.session = key
        return known

    async def _set_up(self, session: Any, request: TurnRequest) -> None:
        choices = Choices.of(session, self._client.models)
        mode = self._preset.modes.get(self._client.permissions.mode)
        if mode in choices.modes:
            await self._agent.set_session_mode(session_id=self._session, mode_id=str(mode))
        # What takes it by a variable has it already.
        if request.model and not self._preset.model_by:
            await self._choose(choices, request)

    async def _choose(self, choices: Choices, request: TurnRequest) -> None:
        from acp import RequestError

        model, known = request.model, list(choices.models)
        listed = f" Known are: {', '.join(known)}." if known else ""
        if not choices.model and not known:
            raise ModelNotSupported("This agent has no option for the model.")
        if not choices.model and model not in known and not names_service(request.env):
            # Some take any name, and fail when they ask for an answer.
            raise ModelNotSupported(f"The agent has no model {model!r}.{listed}", known=known)
        named = {"session_id": self._session, "value": model}
        try:
            if choices.model:
                await self._agent.set_config_option(config_id=choices.model, **named)
            else:
                # Older than options, and left out of the library.
                params = {"sessionId": self._session, "modelId": model}
                await self._agent._conn.send_request(SET_MODEL, params)
        except RequestError as error:
            why = problem_of(str(error), error.data).message.rstrip(".")
            said = f"The agent does not take {model!r}: {why}.{listed}"
            raise ModelNotSupported(said, known=known) from error

    async def _prompt(self, said: list[str]) -> TurnResult:
        from acp.schema import TextContentBlock

        if self._interrupted:
            return failed(Interrupted("The turn was interrupted."))
        blocks: list[Any] = [TextContentBlock(type="text", text=text) for text in said]
        self._client.listens = True
        answer = await self._agent.prompt(session_id=self._session, prompt=blocks)
        usage = answer.usage.model_dump(by_alias=True) if answer.usage else {}
        return self._client.ended(answer.stop_reason, usage)


# The client's side of the protocol

UPDATE = "session/update"
SET_MODEL = "session/set_model"


class AcpClient:
    """The protocol's client of one turn. Updates are taken as they come over the wire: the
    library drops those that it does not know."""

    def __init__(self, stage: Stage, permissions: Permissions) -> None:
        self.stage = stage
        self.permissions = permissions
        self.session = ""
        self.listens = False
        """False while an earlier conversation is told again."""
        self.models: Sequence[str] = ()
        """Those that a session has beside its options."""
        self._translator = AcpTranslator()

    def observe(self, event: StreamEvent) -> None:
        message = event.message
        if listed := lines.objects(message, "result", "models", "availableModels"):
            self.models = [lines.text(one, "modelId") for one in listed]
        if not self.listens or message.get("method") != UPDATE:
            return
        params = lines.mapping(message, "params")
        if params.get("sessionId") != self.session:
            self.stage.tell(lines.raw(lines.encode(params).encode()))
            return
        for told in self._translator.update(lines.mapping(params, "update")):
            self.stage.tell(told)

    def ended(self, reason: str, usage: Mapping[str, Any]) -> TurnResult:
        told, result = self._translator.ended(reason, usage)
        for one in told:
            self.stage.tell(one)
        return result

    async def session_update(self, session_id: str, update: Any, **kwargs: Any) -> None:
        """See `observe`."""

    async def request_permission(
        self,
        session_id: str,
        tool_call: ToolCallUpdate,
        options: list[PermissionOption],
        **kwargs: Any,
    ) -> RequestPermissionResponse:
        name = tool_call.title or tool_call.kind or ""
        own = name.startswith(OWN_TOOLS)
        allow = own or await self.permissions.allowed(
            tool_call.tool_call_id, name, tool_call.raw_input
        )
        return _answer(options, allow)

    async def ext_method(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        from acp import RequestError

        raise RequestError.method_not_found(method)

    async def ext_notification(self, method: str, params: dict[str, Any]) -> None:
        """Extensions of an agent mean nothing here."""


@dataclass(frozen=True)
class Choices:
    """What a session lets be chosen."""

    modes: Sequence[str]
    model: str
    """The option that the model is; empty when there is none."""
    models: Sequence[str] = ()

    @classmethod
    def of(cls, session: Any, models: Sequence[str]) -> Choices:
        modes = getattr(session, "modes", None)
        options = getattr(session, "config_options", None) or []
        found = next((one for one in options if getattr(one, "category", None) == "model"), None)
        can = [mode.id for mode in modes.available_modes] if modes else []
        if found is None:
            return cls(can, "", models)
        # Some agents have them in groups.
        listed = [
            one
            for each in getattr(found, "options", ())
            for one in getattr(each, "options", [each])
        ]
        return cls(can, str(found.id), [str(one.value) for one in listed])


def _answer(options: list[PermissionOption], allow: bool) -> RequestPermissionResponse:
    """Once rather than always: the next question is asked again."""
    from acp.schema import AllowedOutcome, DeniedOutcome, RequestPermissionResponse

    kinds = ("allow_once", "allow_always") if allow else ("reject_once", "reject_always")
    for kind in kinds:
        for option in options:
            if option.kind == kind:
                chosen = AllowedOutcome(outcome="selected", option_id=option.option_id)
                return RequestPermissionResponse(outcome=chosen)
    return RequestPermissionResponse(outcome=DeniedOutcome(outcome="cancelled"))


# The MCP servers of a setup, in the protocol's types


def known(setup: AgentSetup, can: AgentCapabilities | None) -> tuple[list[Any], list[str]]:
    """Those that an agent which can do that is told of, and the names of the others."""
    found = [_own(setup)] if setup.mcp else []
    left_out = []
    for server in setup.servers:
        if _speaks(can, server):
            found.append(_over_http(server, setup))
        else:
            left_out.append(server.name)
    return found, left_out


def _own(setup: AgentSetup) -> Any:
    from acp.schema import EnvVariable, McpServerStdio

    command, *args = setup.mcp
    env = [EnvVariable(name=name, value=value) for name, value in setup.mcp_env.items()]
    return McpServerStdio(name="carrel", command=command, args=args, env=env)


def _speaks(can: AgentCapabilities | None, server: AgentServer) -> bool:
    transports = can.mcp_capabilities if can else None
    if transports is None:
        return False
    return bool(transports.sse if server.sse else transports.http)


def _over_http(server: AgentServer, setup: AgentSetup) -> Any:
    from acp.schema import HttpHeader, HttpMcpServer, SseMcpServer

    sent = headers_for(server, setup)
    headers = [HttpHeader(name=name, value=value) for name, value in sent.items()]
    if server.sse:
        return SseMcpServer(type="sse", name=server.name, url=server.url, headers=headers)
    return HttpMcpServer(type="http", name=server.name, url=server.url, headers=headers)


# The translation of a session's updates

_UNKNOWN_MODEL = re.compile(
    r"model_not_found|issue with the selected model|model .{0,200} does not exist", re.I
)
_QUIET = frozenset(
    {
        "available_commands_update",
        "config_option_update",
        "current_mode_update",
        "session_info_update",
        "usage_update",
        "user_message_chunk",
    }
)
_ENDED = ("completed", "failed")


class AcpTranslator:
    """Updates of one turn. A message comes in parts, and is whole when something else comes."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._kind = ("", "")
        self._said = ""
        self._open: dict[str, str] = {}
        """Calls whose input was not told yet, with their names."""

    def update(self, update: Object) -> Sequence[Told]:
        kind = lines.text(update, "sessionUpdate")
        if kind in ("agent_message_chunk", "agent_thought_chunk"):
            return self._part(kind, update)
        if kind in _QUIET:
            return _retry(lines.mapping(update, "_meta", "codex", "error"))
        whole = self._whole()
        if kind == "tool_call":
            name = lines.text(update, "title") or lines.text(update, "kind")
            self._open[lines.text(update, "toolCallId")] = name
        if kind in ("tool_call", "tool_call_update"):
            return [*whole, *self._tool(update)]
        return [*whole, lines.raw(lines.encode(update).encode())]

    def ended(self, reason: str, usage: Object) -> tuple[Sequence[Told], TurnResult]:
        """What is still to be told, and how the turn went."""
        told = list(self._whole())
        if usage:
            told.append(_usage(usage))
        match reason:
            case "end_turn":
                return told, TurnResult(True, self._said)
            case "cancelled":
                return told, failed(Interrupted("The turn was interrupted."))
        return told, failed(AgentCrashed(f"The agent stopped: {reason}.", reason=reason))

    def _part(self, kind: str, update: Object) -> Sequence[Told]:
        said = lines.text(update, "content", "text")
        what = (kind, lines.text(update, "messageId"))
        told = list(self._whole()) if what != self._kind else []
        self._kind = what
        self._parts.append(said)
        if said and kind == "agent_message_chunk":
            told.append(lines.delta(said))
        return told

    def _whole(self) -> Sequence[Told]:
        said, kind = "".join(self._parts), self._kind[0]
        self._parts, self._kind = [], ("", "")
        if not said:
            return ()
        if kind == "agent_thought_chunk":
            return (lines.thought(said),)
        self._said = said
        return (lines.message(said),)

    def _tool(self, update: Object) -> Sequence[Told]:
        """A call is told with its input, which may come after its beginning."""
        id = lines.text(update, "toolCallId")
        given = update.get("rawInput")
        ended = lines.text(update, "status") in _ENDED
        told = []
        if id in self._open and (given or ended):
            told.append(lines.tool_call(id, self._open.pop(id), given or {}))
        if ended:
            is_error = lines.text(update, "status") == "failed"
            told.append(lines.tool_result(id, _output(update), is_error))
        return told


def _retry(error: Object) -> Sequence[Told]:
    """What Codex says beside the protocol when its API fails and is asked again."""
    if not lines.flag(error, "willRetry"):
        return ()
    said = [lines.text(error, name) for name in ("message", "additionalDetails")]
    how = lines.mapping(error, "codexErrorInfo")
    status = next((lines.number(how, name, "httpStatusCode") for name in how), 0)
    return (lines.retry(": ".join(filter(None, said)), status),)


def problem_of(message: str, data: object) -> AgentError:
    """Of an error that the agent answered with."""
    said = f"{message}: {lines.encode(data)}" if data else message
    if _UNKNOWN_MODEL.search(said):
        return ModelNotSupported(lines.bounded(said, lines.MAX_RAW))
    if NO_LOGIN.search(said):
        return key_refused("the agent", "anthropic", "claude-code")
    return AgentCrashed(lines.bounded(said, lines.MAX_RAW))


def _output(update: Object) -> str:
    texts = [lines.text(part, "content", "text") for part in lines.objects(update, "content")]
    shown = "\n".join(text for text in texts if text)
    raw = update.get("rawOutput")
    if shown or raw is None:
        return shown
    return raw if isinstance(raw, str) else lines.encode(raw)


def _usage(usage: Object) -> Told:
    cached = lines.number(usage, "cachedReadTokens")
    written = lines.number(usage, "cachedWriteTokens")
    payload = {
        "input_tokens": lines.number(usage, "inputTokens") + cached + written,
        "output_tokens": lines.number(usage, "outputTokens"),
        "cached_tokens": cached,
    }
    return Told(AgentEventType.USAGE, payload)
