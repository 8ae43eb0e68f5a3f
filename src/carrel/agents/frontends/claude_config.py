"""Claude Code's settings and environment: quiet, unattended, with the space's MCP servers."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from carrel.agents.requests import OAUTH, OAUTH_PREFIX
from carrel.agents.terminals import hook
from carrel.domain.imports import ImportedServer
from carrel.domain.turns import AgentServer, AgentSetup, Permission, TurnRequest

FOLDER = "claude"
"""In the agent's state: its settings and conversations."""

BROUGHT = (".claude", ".mcp.json")
"""What it reads in a project beside texts: settings with hooks, commands, skills; and servers."""

KEEPS = {
    FOLDER: ("projects", "history.jsonl", "file-history", "todos", "tasks", "plans", "paste-cache")
}
"""What it needs to go on with a conversation. Beside that it reads settings there by several names
(`.claude.json`, `.config.json`, `remote-settings.json`), each with addresses or hooks."""

QUIET = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "DISABLE_TELEMETRY": "1",
}

TERMINAL = f"{FOLDER}/terminal.json"
"""Settings of a terminal alone: a turn tells what it does without hooks."""

MORE_EVENTS = ("PostToolUseFailure", "StopFailure", "Notification")
"""Hooks that others do not have."""

KEEP_DAYS = 3650
"""It deletes conversations after a month by itself; continuations are the caller's."""

KEY = "ANTHROPIC_API_KEY"
TOKEN = "ANTHROPIC_AUTH_TOKEN"
HIDDEN_KEY = "CARREL_ANTHROPIC_API_KEY"
"""In a terminal. It would ask whether it may use a key that it finds under the usual name, and
note a part of the key with the answer."""


def environment(request: TurnRequest, setup: AgentSetup, permission: Permission) -> dict[str, str]:
    return {
        **QUIET,
        **(setup.imported.keys if setup.imported else {}),
        **_credential(request, setup),
        **setup.mcp_env,
        **setup.server_env,
        **request.env,
        "CLAUDE_CONFIG_DIR": f"{setup.state}/{FOLDER}",
        **({"IS_SANDBOX": "1"} if permission is Permission.SANDBOXED else {}),
    }


def _credential(request: TurnRequest, setup: AgentSetup) -> dict[str, str]:
    """One only: it would send two, and a turn's own is meant to be used."""
    given = setup.credentials.get("anthropic", "")
    if not given or any(name in request.env for name in (KEY, TOKEN, OAUTH)):
        return {}
    return {OAUTH if given.startswith(OAUTH_PREFIX) else KEY: given}


def files(request: TurnRequest, setup: AgentSetup) -> dict[str, bytes]:
    own = setup.imported
    settings = {
        **(own.settings if own else {}),
        "cleanupPeriodDays": KEEP_DAYS,
        "skipDangerousModePermissionPrompt": True,
    }
    files = {f"{FOLDER}/{path}": data for path, data in own.files.items()} if own else {}
    files[f"{FOLDER}/settings.json"] = json.dumps(settings).encode()
    if request.system_prompt:
        files[f"{FOLDER}/system-prompt.md"] = request.system_prompt.encode("utf-8", "replace")
    if found := servers(setup):
        files[f"{FOLDER}/mcp.json"] = json.dumps({"mcpServers": found}).encode()
    return files


def servers(setup: AgentSetup) -> dict[str, Any]:
    """By name. Values stay in the environment: files are kept."""
    own = setup.imported.servers if setup.imported else {}
    found: dict[str, Any] = {name: _imported(server) for name, server in own.items()}
    found |= {server.name: _over_http(server) for server in setup.servers}
    if setup.mcp:
        command, *args = setup.mcp
        env = {name: f"${{{name}}}" for name in setup.mcp_env}
        found["carrel"] = {"type": "stdio", "command": command, "args": args, "env": env}
    return found


def _over_http(server: AgentServer) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer ${{{server.token}}}"} if server.token else {}
    return {"type": "sse" if server.sse else "http", "url": server.url, "headers": headers}


def _imported(server: ImportedServer) -> dict[str, Any]:
    """A variable that nobody has set is empty: it would refuse all servers else."""
    given = {name: f"${{{name}:-}}" for name in server.variables}
    if not server.url:
        env = {**server.env, **given}
        return {"type": "stdio", "command": server.command, "args": list(server.args), "env": env}
    secret = {name: f"${{{variable}:-}}" for name, variable in server.secret_headers.items()}
    headers = {**server.headers, **secret}
    return {"type": "sse" if server.sse else "http", "url": server.url, "headers": headers}


def unattended_files(permission: Permission, setup: AgentSetup) -> dict[str, bytes]:
    """A project that is trusted says itself what is allowed: where somebody is to decide that,
    it is not, whatever an earlier terminal has noted."""
    if permission is Permission.SANDBOXED:
        return {}
    noted = {"projects": {setup.workspace: {"hasTrustDialogAccepted": False}}}
    return {f"{FOLDER}/.claude.json": json.dumps(noted).encode()}


def terminal_environment(env: Mapping[str, str]) -> dict[str, str]:
    return {HIDDEN_KEY if name == KEY else name: value for name, value in env.items()}


def terminal_files(setup: AgentSetup, env: Mapping[str, str], watched: bool) -> dict[str, bytes]:
    """`watched`: a supervisor hears its hooks."""
    called = {
        "type": "command",
        "command": shlex.join(hook.command(setup)),
        "timeout": hook.SECONDS,
    }
    events = (*hook.EVENTS, *MORE_EVENTS) if watched else ()
    settings: dict[str, object] = {"hooks": {event: [{"hooks": [called]}] for event in events}}
    if HIDDEN_KEY in env:
        settings["apiKeyHelper"] = f"printenv {HIDDEN_KEY}"
    return {
        TERMINAL: json.dumps(settings).encode(),
        f"{FOLDER}/.claude.json": onboarded(setup),
    }


def onboarded(setup: AgentSetup) -> bytes:
    """What it notes of a user who has answered all its questions."""
    # Where nothing confines it, whether a folder is trusted is a person's decision.
    trusted = {"hasTrustDialogAccepted": setup.confined, "hasCompletedProjectOnboarding": True}
    return json.dumps(
        {
            "hasCompletedOnboarding": True,
            "bypassPermissionsModeAccepted": True,
            "projects": {setup.workspace: trusted},
        }
    ).encode()
