"""One turn by the scripted agent: its language, what it does, and what it remembers."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import signal
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any

from carrel.agents.events import failed
from carrel.agents.frontends.lines import MAX_OUTPUT, log, message, tool_call, tool_result
from carrel.agents.requests import environment, headers_for
from carrel.agents.turns import (
    DENIED,
    InputQueue,
    Permissions,
    listening,
    permission_of,
)
from carrel.domain.errors import AgentCrashed, ContinuationNotFound, Interrupted
from carrel.domain.turns import AgentServer, AgentSetup, Stage, TurnRequest, TurnResult

if TYPE_CHECKING:
    from mcp import Client


_BREATH = 64
"""Steps between two looks at what was said to the agent."""


class ScriptedDriver:
    """Implements `Driver`. `own_process` says that a `crash` may end the process."""

    def __init__(self, own_process: bool = False) -> None:
        self._own_process = own_process

    async def __call__(self, request: TurnRequest, setup: AgentSetup, stage: Stage) -> TurnResult:
        permissions = Permissions(permission_of(request, setup), stage, request.answer_s)
        play = _Turn(recall(request, setup), stage, self._own_process)
        inbox = InputQueue()

        async def act() -> TurnResult:
            async with McpTools(setup) as tools:
                actions = Actions(request, setup, permissions, tools)
                return await play.run(request.prompt, inbox, actions)

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


class _Turn:
    """One turn."""

    def __init__(self, conversation: Conversation, stage: Stage, own_process: bool) -> None:
        self._conversation = conversation
        self._stage = stage
        self._own_process = own_process
        self._said = ""
        self._done = 0

    async def run(self, prompt: str, inbox: InputQueue, actions: Actions) -> TurnResult:
        self._stage.tell(log(f"turn {self._conversation.turns}", self._conversation.key))
        try:
            said: str | None = prompt
            while said is not None:
                await self._play(said, actions)
                said = inbox.next()
        except AgentCrashed as error:
            return failed(error)
        finally:
            self._conversation.keep()
        return TurnResult(True, self._said)

    async def _play(self, prompt: str, actions: Actions) -> None:
        for step in steps(prompt):
            self._done += 1
            if self._done % _BREATH == 0:
                await asyncio.sleep(0)
            await self._step(step, actions)

    async def _step(self, step: ScriptStep, actions: Actions) -> None:
        if step.verb in DOES:
            await self._do(step, actions)
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
                self._say(f"turn {self._conversation.turns}: {step.text}")

    def _say(self, text: str) -> None:
        self._said = text
        self._conversation.say(text)
        self._stage.tell(message(text))

    async def _do(self, step: ScriptStep, actions: Actions) -> None:
        id = f"call-{self._conversation.turns}-{self._done}"
        self._stage.tell(tool_call(id, *call_of(step)))
        output, is_error = await actions.do(id, step)
        self._stage.tell(tool_result(id, output, is_error))

    def _crash(self) -> None:
        if self._own_process:
            os.kill(os.getpid(), signal.SIGKILL)
        raise AgentCrashed("The agent crashed.")


# The script: one step a line

_WITH_TEXT = ("run", "say", "ask", "fail")
_WITH_PATH = ("write", "append")

ECHO = "echo"
"""For every line that is no step: it is said back."""


@dataclass(frozen=True)
class ScriptStep:
    verb: str
    text: str = ""
    target: str = ""
    """The path, or the tool's name."""
    given: dict[str, Any] | None = None
    seconds: float = 0.0


def steps(prompt: str) -> Iterator[ScriptStep]:
    """Lazily: `repeat` may stand for more steps than one wants to have in conversation."""
    for line in prompt.split("\n"):
        if line.strip():
            yield from _steps(line.strip())


def _steps(line: str) -> Iterator[ScriptStep]:
    times, line = _repeated(line)
    verb, _, rest = line.partition(" ")
    step = _step(verb, rest.strip()) or ScriptStep(ECHO, line)
    for _ in range(times):
        yield step


def _repeated(line: str) -> tuple[int, str]:
    """How often, and what."""
    times = 1
    while True:
        verb, _, rest = line.partition(" ")
        number, _, repeated = rest.strip().partition(" ")
        if verb != "repeat" or not number.isdecimal() or not repeated.strip():
            return times, line
        times, line = times * int(number), repeated.strip()


def _step(verb: str, rest: str) -> ScriptStep | None:
    """None: this is no step."""
    if verb == "crash" and not rest:
        return ScriptStep(verb)
    if verb in _WITH_TEXT and rest:
        return ScriptStep(verb, rest)
    target, _, text = rest.partition(" ")
    if verb in _WITH_PATH and target:
        return ScriptStep(verb, text, target)
    if verb == "tool" and target:
        return _tool(target, text)
    return _sleep(rest) if verb == "sleep" else None


def _tool(name: str, text: str) -> ScriptStep | None:
    try:
        given = json.loads(text or "{}")
    except ValueError:
        return None
    return ScriptStep("tool", target=name, given=given) if isinstance(given, dict) else None


def _sleep(text: str) -> ScriptStep | None:
    try:
        seconds = float(text)
    except ValueError:
        return None
    return ScriptStep("sleep", seconds=seconds) if 0 <= seconds < 1e6 else None


# What a step does: files, commands and tools

DOES = ("write", "append", "run", "ask", "tool")
_BY_TOOL = ("ask", "tool")


class Actions:
    def __init__(
        self, request: TurnRequest, setup: AgentSetup, permissions: Permissions, tools: McpTools
    ) -> None:
        self._request = request
        self._setup = setup
        self._permissions = permissions
        self._tools = tools

    async def do(self, id: str, step: ScriptStep) -> tuple[str, bool]:
        """What came of it, and whether that is an error."""
        name, given = call_of(step)
        by_tool = step.verb in _BY_TOOL
        # The space's own tools need no permission.
        free = by_tool and not is_other(name)
        if not free and not await self._permissions.allowed(id, name, given):
            return DENIED, True
        if by_tool:
            return await self._tools.call(name, given)
        try:
            if step.verb == "run":
                return await self._run(step.text)
            return self._write(step)
        except OSError as error:
            return str(error), True

    async def _run(self, command: str) -> tuple[str, bool]:
        env = environment(self._request, self._setup)
        output, code = await run_shell(command, self._setup.workspace, env)
        return output, code != 0

    def _write(self, step: ScriptStep) -> tuple[str, bool]:
        path = os.path.join(self._setup.workspace, step.target)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "a" if step.verb == "append" else "w") as file:
            file.write(f"{step.text}\n")
        return f"{len(step.text) + 1} characters", False


def call_of(step: ScriptStep) -> tuple[str, dict[str, Any]]:
    """The tool's name and what it is given, as it is told."""
    match step.verb:
        case "ask":
            return "ask_user", {"question": step.text}
        case "tool":
            return step.target, step.given or {}
        case "run":
            return "run", {"command": step.text}
        case verb:
            return verb, {"path": step.target, "text": step.text}


# Shell commands


async def run_shell(command: str, cwd: str, env: Mapping[str, str]) -> tuple[str, int]:
    """The beginning of what it wrote, and its exit code. What it left behind is ended."""
    from carrel.agents.processes import END_S, child  # Only turns that run something pay for it.

    output = bytearray()
    async with child(("sh", "-c", command), cwd, env, merged=True) as shell:
        shell.stdin.close()
        reading = asyncio.ensure_future(_read(shell.stdout, output))
        try:
            code = await shell.exited
            # All it wrote is in the pipe; whatever it left behind may hold that open.
            await asyncio.wait({reading}, timeout=END_S)
        finally:
            reading.cancel()
    return output.decode("utf-8", "replace"), code


async def _read(stream: asyncio.StreamReader, output: bytearray) -> None:
    while part := await stream.read(65536):
        output += part[: max(0, MAX_OUTPUT - len(output))]


# MCP tools, for an agent that has no MCP client of its own

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


class McpTools:
    """A server is spoken to from the first call of a tool of it, to the end of the block."""

    def __init__(self, setup: AgentSetup) -> None:
        self._setup = setup
        self._open = AsyncExitStack()
        self._clients: dict[str, Client] = {}

    async def __aenter__(self) -> McpTools:
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
        return bool(self._setup.mcp) if name == OWN else self._other(name) is not None

    def _other(self, name: str) -> AgentServer | None:
        return next((one for one in self._setup.servers if one.name == name), None)

    async def _connected(self, name: str) -> Client:
        if name not in self._clients:
            other = self._other(name)
            client = self._own() if other is None else await self._over_http(other)
            self._clients[name] = await self._open.enter_async_context(client)
        return self._clients[name]

    def _own(self) -> Client:
        from mcp import Client, StdioServerParameters

        program, *args = self._setup.mcp
        return Client(
            StdioServerParameters(
                command=program,
                args=args,
                env=dict(self._setup.mcp_env),
                cwd=self._setup.workspace,
            )
        )

    async def _over_http(self, server: AgentServer) -> Client:
        from mcp import Client

        headers = headers_for(server, self._setup)
        if server.sse:
            from mcp.client.sse import sse_client

            return Client(sse_client(server.url, headers=headers))
        from mcp.client.streamable_http import streamable_http_client
        from mcp.shared._httpx_utils import create_mcp_http_client

        http = await self._open.enter_async_context(create_mcp_http_client(headers=headers))
        return Client(streamable_http_client(server.url, http_client=http))


# Conversations: a small file for each

KEPT = 100
"""Of the lines that it said, the last ones."""

_KEY = re.compile(r"[0-9a-f]{32}")


@dataclass
class Conversation:
    key: str
    file: str
    turns: int
    said: list[str] = field(default_factory=list)

    def say(self, text: str) -> None:
        self.said.append(text)
        if len(self.said) > 2 * KEPT:
            del self.said[:-KEPT]

    def keep(self) -> None:
        """Whole or not at all: the process may be killed at any time."""
        new = f"{self.file}.{os.getpid()}"
        with open(new, "w") as file:
            file.write(json.dumps({"turns": self.turns, "said": self.said[-KEPT:]}))
        os.replace(new, self.file)


def recall(request: TurnRequest, setup: AgentSetup) -> Conversation:
    """The conversation that this turn belongs to, with the turn counted. It is kept at once:
    also a turn that is killed can be gone on with."""
    folder = f"{setup.state}/scripted"
    if request.continuation is not None:
        conversation = _load(folder, request.continuation.key)
    else:
        os.makedirs(folder, exist_ok=True)
        key = _new_key(request)
        conversation = Conversation(key, f"{folder}/{key}.json", 0)
    conversation.turns += 1
    conversation.keep()
    return conversation


def _load(folder: str, key: str) -> Conversation:
    path = f"{folder}/{key}.json"
    if not _KEY.fullmatch(key) or not os.path.exists(path):
        raise ContinuationNotFound(f"There is no conversation {key!r} here.")
    with open(path) as file:
        known = json.load(file)
    return Conversation(key, path, known["turns"], known["said"])


def _new_key(request: TurnRequest) -> str:
    """The same for the same turn, and another for another: a session's id alone would let a
    new conversation overwrite an older one."""
    if not request.session_id:
        return os.urandom(16).hex()
    named = f"{request.session_id}\0{request.run_id}".encode()
    return hashlib.sha256(named).hexdigest()[:32]
