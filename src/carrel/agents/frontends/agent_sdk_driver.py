"""One turn by the Claude Agent SDK, which is loaded here and nowhere else."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from carrel.agents import requests
from carrel.agents.frontends.claude_config import FOLDER, KEEP_DAYS, QUIET, servers
from carrel.agents.frontends.claude_driver import ClaudeTranslator
from carrel.agents.frontends.lines import encode
from carrel.agents.processes import TAIL, ProcessTree
from carrel.agents.requests import credentials_of
from carrel.agents.turns import (
    DENIED,
    OWN_TOOLS,
    InputQueue,
    Permissions,
    listening,
    permission_of,
)
from carrel.domain.turns import AgentSetup, Permission, Stage, TurnRequest, TurnResult

if TYPE_CHECKING:
    from claude_agent_sdk import (
        ClaudeAgentOptions,
        ClaudeSDKClient,
        PermissionResultAllow,
        PermissionResultDeny,
        ToolPermissionContext,
    )


BUFFER = 64 * 1024 * 1024
"""A message is a line, and may hold a file."""

_MODES: dict[Permission, Any] = {
    Permission.SANDBOXED: "bypassPermissions",
    Permission.ASK: "default",
    Permission.DENY: "dontAsk",
}


class AgentSdkDriver:
    """Implements `Driver`."""

    def __init__(self, program: str) -> None:
        self._program = program

    async def __call__(self, request: TurnRequest, setup: AgentSetup, stage: Stage) -> TurnResult:
        from claude_agent_sdk import ClaudeSDKClient

        mode = permission_of(request, setup)
        turn = _Turn(request, stage, Permissions(mode, stage, request.answer_s))
        options = _options(request, setup, mode, self._program)
        options.stderr = turn.hear_error
        if mode is Permission.ASK:
            options.can_use_tool = turn.may_use
        async with _ended(ClaudeSDKClient(options)) as client:
            return await turn.run(client, requests.prompt(request, setup))


class _Turn:
    def __init__(self, request: TurnRequest, stage: Stage, permissions: Permissions) -> None:
        self._stage = stage
        self._permissions = permissions
        self._translator = ClaudeTranslator(requests.asked_key(request))
        self._inbox = InputQueue()
        self._stderr = ""

    def hear_error(self, line: str) -> None:
        self._stderr = f"{self._stderr}\n{line}"[-TAIL:]

    async def may_use(
        self, name: str, given: dict[str, Any], context: ToolPermissionContext
    ) -> PermissionResultAllow | PermissionResultDeny:
        from claude_agent_sdk import PermissionResultAllow, PermissionResultDeny

        if name.startswith(OWN_TOOLS):
            return PermissionResultAllow()
        call = context.tool_use_id or name
        self._translator.decided(call)
        if await self._permissions.allowed(call, name, given):
            return PermissionResultAllow()
        return PermissionResultDeny(message=DENIED)

    async def run(self, client: ClaudeSDKClient, prompt: str) -> TurnResult:
        from claude_agent_sdk import ClaudeSDKError

        try:
            await client.connect()
            async with listening(self._stage, self._permissions, self._inbox, client.interrupt):
                await client.query(prompt)
                await self._follow(client)
        except ClaudeSDKError as error:
            self.hear_error(str(error))
            return self._translator.ended(getattr(error, "exit_code", None) or 1, self._stderr)
        return self._translator.ended(0, self._stderr)

    async def _follow(self, client: ClaudeSDKClient) -> None:
        async for said in _messages(client):
            for told in self._translator.line(encode(said).encode()):
                self._stage.tell(told)
            if said["type"] == "result":
                more = None if said["is_error"] else self._inbox.next()
                if more is None:
                    return
                await client.query(more)


def _options(
    request: TurnRequest, setup: AgentSetup, mode: Permission, program: str
) -> ClaudeAgentOptions:
    """Texts go by files, and values by the environment: argv is in process lists."""
    from claude_agent_sdk import ClaudeAgentOptions

    own = ["mcp__carrel"] if setup.mcp and mode is Permission.DENY else []
    return ClaudeAgentOptions(
        cli_path=program,
        cwd=setup.workspace,
        env=_environment(request, setup, mode),
        add_dirs=[*requests.readable(setup)],
        resume=requests.asked_uuid(request) or None,
        model=request.model or None,
        permission_mode=_MODES[mode],
        allowed_tools=own,
        mcp_servers=servers(setup),
        strict_mcp_config=True,
        system_prompt={"type": "preset", "preset": "claude_code", "snapshot": False},
        extra_args=_system_prompt(request, setup),
        settings=json.dumps({"cleanupPeriodDays": KEEP_DAYS}),
        setting_sources=[],
        include_partial_messages=True,
        max_buffer_size=BUFFER,
    )


def _environment(request: TurnRequest, setup: AgentSetup, mode: Permission) -> dict[str, str]:
    """Of this client only: the SDK adds it to what this process has."""
    return {
        **QUIET,
        **credentials_of(setup),
        **setup.mcp_env,
        **setup.server_env,
        **request.env,
        "CLAUDE_CONFIG_DIR": f"{setup.state}/{FOLDER}",
        "IS_SANDBOX": "1" if mode is Permission.SANDBOXED else "",
    }


def _system_prompt(request: TurnRequest, setup: AgentSetup) -> dict[str, str | None]:
    if not request.system_prompt:
        return {}
    file = Path(setup.state, FOLDER, "system-prompt.md")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(request.system_prompt)
    return {"append-system-prompt-file": str(file)}


@asynccontextmanager
async def _ended(client: ClaudeSDKClient) -> AsyncIterator[ClaudeSDKClient]:
    """What the program has started ends with it; the SDK itself ends the program only, and
    waits long for one that is in the middle of something."""
    hurried = True
    try:
        yield client
        hurried = False
    finally:
        pid = _pid(client)
        tree = ProcessTree(pid) if pid else None
        if pid and hurried:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        await client.disconnect()
        if tree is not None:
            tree.kill()


def _pid(client: ClaudeSDKClient) -> int | None:
    """The SDK does not tell. While it is not reaped, the number is its own."""
    process = getattr(getattr(client, "_transport", None), "_process", None)
    if process is None or process.returncode is not None:
        return None
    return int(process.pid)


# The SDK reads Claude Code's `stream-json` and gives objects. They lack what is new since the last
# result, and so what a resumed turn cost: the messages are taken as the program wrote them. An SDK
# that keeps those elsewhere has its objects written again, so that one translator does for all.


async def _messages(client: ClaudeSDKClient) -> AsyncIterator[dict[str, Any]]:
    receive = getattr(getattr(client, "_query", None), "receive_messages", None)
    if receive is None:
        async for message in client.receive_messages():
            yield plain(message)
    else:
        async for said in receive():
            yield said


_TYPES = {
    "AssistantMessage": "assistant",
    "UserMessage": "user",
    "StreamEvent": "stream_event",
    "ResultMessage": "result",
    "RateLimitEvent": "rate_limit_event",
}
_BLOCKS = {
    "TextBlock": "text",
    "ThinkingBlock": "thinking",
    "ToolUseBlock": "tool_use",
    "ToolResultBlock": "tool_result",
    "ServerToolUseBlock": "server_tool_use",
    "ServerToolResultBlock": "server_tool_result",
}


def plain(message: object) -> dict[str, Any]:
    """By the names of classes: the SDK itself is not needed for this. What is not known keeps
    its class's name, and is logged by the translator."""
    data = getattr(message, "data", None)
    if isinstance(data, dict):
        return {"type": "system", **data}
    name = type(message).__name__
    fields = asdict(message) if is_dataclass(message) and not isinstance(message, type) else {}
    said = {"type": _TYPES.get(name, name), **{key: fields[key] for key in fields}}
    content = getattr(message, "content", None)
    if content is not None:
        blocks = content if isinstance(content, str) else [_block(block) for block in content]
        said["message"] = {"content": blocks, "model": said.pop("model", None)}
        del said["content"]
    return said


def _block(block: object) -> dict[str, Any]:
    fields = asdict(block) if is_dataclass(block) and not isinstance(block, type) else {}
    name = type(block).__name__
    return {"type": _BLOCKS.get(name, name), **fields}
