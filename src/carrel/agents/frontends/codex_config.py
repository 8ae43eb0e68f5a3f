"""Codex's `config.toml`: quiet, with the space's MCP servers, and another endpoint if one is
given."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping
from time import gmtime, strftime

from carrel.agents.terminals import hook
from carrel.agents.turns import permission_of
from carrel.domain.imports import ImportedServer
from carrel.domain.turns import AgentServer, AgentSetup, InteractionMode, Permission, TurnRequest

KEY = "OPENAI_API_KEY"
ENDPOINTS = ("CODEX_BASE_URL", "OPENAI_BASE_URL")
"""Codex reads neither itself; the first that is given is taken."""


BROUGHT = (".codex",)
"""What it reads in a project beside texts: settings with hooks, servers and rules."""

EMPTIED = {"hooks.json": b"{}", ".env": b"", "AGENTS.md": b""}
"""In its home, which all that runs in the space can write: what would run with the next turn, or
say where that sends its key; and what an import that was taken back has left."""

IMPORTED = {"prompts": (), "agents": (), "skills": (".system",)}
"""Folders of its home that an import fills, and what of them is Codex's own."""

NO_GIT = {"GIT_DIR": "/dev/null"}
"""It runs git when a turn begins, and git runs what a project's own `.git/config` says. Its shell
is not given this (`SHELL`), so commands use git as they like."""
SHELL = ["[shell_environment_policy]", f"exclude = {json.dumps(list(NO_GIT))}"]

SECRETIVE = ["[features]", "shell_snapshot = false"]
"""Its snapshots are files with the whole environment in them, the key too."""


def text(request: TurnRequest, setup: AgentSetup, env: Mapping[str, str]) -> bytes:
    """Names variables, never their values: files are kept."""
    endpoint = next((env[name] for name in ENDPOINTS if env.get(name)), "")
    own = setup.imported
    top = [f"{name} = {json.dumps(value)}" for name, value in (own.settings if own else {}).items()]
    top.append("check_for_update_on_startup = false")
    if endpoint:
        top.append('model_provider = "carrel"')
    if request.system_prompt:
        top.append(f"developer_instructions = {quoted(request.system_prompt)}")
    parts = [top, ["[analytics]", "enabled = false"], SECRETIVE, SHELL]
    if level := _trust(request, setup):
        parts.append([f"[projects.{quoted(setup.workspace)}]", f"trust_level = {quoted(level)}"])
    if endpoint:
        parts.append(_provider(endpoint, KEY in env, logged_in=auth(setup) is not None))
    if setup.mcp:
        parts.append(_server(setup))
    taken = {"carrel", *(server.name for server in setup.servers)}
    for name, server in own.servers.items() if own else ():
        if name not in taken:
            parts.append(_imported(name, server))
    free = permission_of(request, setup) is Permission.SANDBOXED
    parts.extend(_over_http(server, free) for server in setup.servers if not server.sse)
    if request.mode is InteractionMode.INTERACTIVE:
        parts.extend(_hook(event, setup) for event in hook.EVENTS)
    return "\n".join(line for part in parts for line in [*part, ""]).encode("utf-8", "replace")


def _trust(request: TurnRequest, setup: AgentSetup) -> str:
    """A project that is trusted says itself which commands are allowed, so where somebody is to
    decide that, it is not. When nothing is said, a terminal begins with a question; where nothing
    confines it, that is right."""
    if {".codex", ".git"} & set(setup.untrusted):
        # When nothing is said, it trusts by itself where everything is allowed.
        return "untrusted"
    free = request.permission in (None, Permission.SANDBOXED)
    attended = request.mode is InteractionMode.INTERACTIVE
    return "trusted" if setup.confined and (free or attended) else ""


def auth(setup: AgentSetup) -> bytes | None:
    """Its own file with a login, where that is to be used. It renews a login that it believes to
    be old; this one cannot be renewed."""
    login = setup.imported.login if setup.imported else None
    if login is None or not login.auth:
        return None
    now = strftime("%Y-%m-%dT%H:%M:%SZ", gmtime())
    return json.dumps({**json.loads(login.auth), "last_refresh": now}).encode()


def _imported(name: str, server: ImportedServer) -> list[str]:
    lines = [f"[mcp_servers.{quoted(name)}]"]
    if not server.url:
        lines += [f"command = {quoted(server.command)}", f"args = {_listed(server.args)}"]
        lines.append(f"env_vars = {_listed(server.variables)}")
        return [*lines, f"env = {_table(server.env)}"] if server.env else lines
    lines.append(f"url = {quoted(server.url)}")
    if server.bearer:
        lines.append(f"bearer_token_env_var = {quoted(server.bearer)}")
    lines.append(f"http_headers = {_table(server.headers)}")
    return [*lines, f"env_http_headers = {_table(server.secret_headers)}"]


def _table(found: Mapping[str, str]) -> str:
    return "{" + ", ".join(f"{quoted(key)} = {quoted(value)}" for key, value in found.items()) + "}"


def _provider(endpoint: str, has_key: bool, *, logged_in: bool) -> list[str]:
    lines = [
        "[model_providers.carrel]",
        'name = "carrel"',
        f"base_url = {quoted(endpoint)}",
        'wire_api = "responses"',
    ]
    if logged_in:
        return [*lines, "requires_openai_auth = true"]
    return [*lines, f"env_key = {quoted(KEY)}"] if has_key else lines


def _server(setup: AgentSetup) -> list[str]:
    command, *args = setup.mcp
    return [
        "[mcp_servers.carrel]",
        f"command = {quoted(command)}",
        f"args = {_listed(args)}",
        f"env_vars = {_listed(setup.mcp_env)}",
        # The space's own tools need no permission.
        'default_tools_approval_mode = "approve"',
    ]


def _over_http(server: AgentServer, free: bool) -> list[str]:
    lines = [f"[mcp_servers.{quoted(server.name)}]", f"url = {quoted(server.url)}"]
    if server.token:
        lines.append(f"bearer_token_env_var = {quoted(server.token)}")
    return [*lines, 'default_tools_approval_mode = "approve"'] if free else lines


def left_out(setup: AgentSetup) -> tuple[str, ...]:
    """In sentences."""
    return tuple(
        f"The MCP server {server.name} is left out: Codex does not speak SSE."
        for server in setup.servers
        if server.sse
    )


def _hook(event: str, setup: AgentSetup) -> list[str]:
    return [
        f"[[hooks.{event}]]",
        f"[[hooks.{event}.hooks]]",
        'type = "command"',
        f"command = {quoted(shlex.join(hook.command(setup)))}",
        f"timeout = {hook.SECONDS}",
    ]


def _listed(items: Iterable[str]) -> str:
    return f"[{', '.join(quoted(item) for item in items)}]"


def quoted(text: str) -> str:
    """TOML's strings are JSON's, but for the one control character that JSON lets be."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
