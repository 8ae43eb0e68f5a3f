"""One turn by the Claude Agent SDK, which is loaded here and nowhere else."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from carrel.agents.children import TAIL
from carrel.agents.environing import credentials_of
from carrel.agents.family import Family
from carrel.agents.frontends import requests
from carrel.agents.frontends.agent_sdk_messages import plain
from carrel.agents.frontends.claude_config import FOLDER, KEEP_DAYS, QUIET, servers
from carrel.agents.frontends.claude_stream import ClaudeTranslator
from carrel.agents.frontends.lines import encode
from carrel.agents.listening import Inbox, listening
from carrel.agents.permitting import OWN_TOOLS, Permissions, permission_of
from carrel.domain.agents import Permission, Seat, Stage, TurnRequest, TurnResult

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

    async def __call__(self, request: TurnRequest, seat: Seat, stage: Stage) -> TurnResult:
        from claude_agent_sdk import ClaudeSDKClient

        mode = permission_of(request, seat)
        turn = _Turn(request, stage, Permissions(mode, stage, request.answer_s))
        options = _options(request, seat, mode, self._program)
        options.stderr = turn.hear_error
        if mode is Permission.ASK:
            options.can_use_tool = turn.may_use
        async with _ended(ClaudeSDKClient(options)) as client:
            return await turn.run(client, requests.prompt(request, seat))


class _Turn:
    def __init__(self, request: TurnRequest, stage: Stage, permissions: Permissions) -> None:
        self._stage = stage
        self._permissions = permissions
        self._translator = ClaudeTranslator(requests.asked_key(request))
        self._inbox = Inbox()
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
        return PermissionResultDeny(message="Permission was denied.")

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
        async for message in client.receive_messages():
            said = plain(message)
            for told in self._translator.line(encode(said).encode()):
                self._stage.tell(told)
            if said["type"] == "result":
                more = None if said["is_error"] else self._inbox.next()
                if more is None:
                    return
                await client.query(more)


def _options(
    request: TurnRequest, seat: Seat, mode: Permission, program: str
) -> ClaudeAgentOptions:
    """Texts go by files, and values by the environment: argv is in process lists."""
    from claude_agent_sdk import ClaudeAgentOptions

    own = ["mcp__carrel"] if seat.mcp and mode is Permission.DENY else []
    return ClaudeAgentOptions(
        cli_path=program,
        cwd=seat.workspace,
        env=_environment(request, seat, mode),
        add_dirs=[seat.context] if requests.has_context(seat) else [],
        resume=requests.asked_uuid(request) or None,
        model=request.model or None,
        permission_mode=_MODES[mode],
        allowed_tools=own,
        mcp_servers=servers(seat),
        strict_mcp_config=True,
        system_prompt={"type": "preset", "preset": "claude_code", "snapshot": False},
        extra_args=_system_prompt(request, seat),
        settings=json.dumps({"cleanupPeriodDays": KEEP_DAYS}),
        setting_sources=[],
        include_partial_messages=True,
        max_buffer_size=BUFFER,
    )


def _environment(request: TurnRequest, seat: Seat, mode: Permission) -> dict[str, str]:
    """Of this client only: the SDK adds it to what this process has."""
    return {
        **QUIET,
        **credentials_of(seat),
        **seat.mcp_env,
        **seat.server_env,
        **request.env,
        "CLAUDE_CONFIG_DIR": f"{seat.state}/{FOLDER}",
        "IS_SANDBOX": "1" if mode is Permission.SANDBOXED else "",
    }


def _system_prompt(request: TurnRequest, seat: Seat) -> dict[str, str | None]:
    if not request.system_prompt:
        return {}
    file = Path(seat.state, FOLDER, "system-prompt.md")
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
        family = Family(pid) if pid else None
        if pid and hurried:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        await client.disconnect()
        if family is not None:
            family.kill()


def _pid(client: ClaudeSDKClient) -> int | None:
    """The SDK does not tell. While it is not reaped, the number is its own."""
    process = getattr(getattr(client, "_transport", None), "_process", None)
    if process is None or process.returncode is not None:
        return None
    return int(process.pid)
