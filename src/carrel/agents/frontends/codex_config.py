"""Codex's `config.toml`: quiet, with the space's MCP servers, and another endpoint if one is
given."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping

from carrel.agents.permitting import permission_of
from carrel.agents.terminals import hooking
from carrel.domain.agents import InteractionMode, Permission, Seat, SeatServer, TurnRequest

KEY = "OPENAI_API_KEY"
ENDPOINTS = ("CODEX_BASE_URL", "OPENAI_BASE_URL")
"""Codex reads neither itself; the first that is given is taken."""


SECRETIVE = ["[features]", "shell_snapshot = false"]
"""Its snapshots are files with the whole environment in them, the key too."""


def text(request: TurnRequest, seat: Seat, env: Mapping[str, str]) -> bytes:
    """Names variables, never their values: files are kept."""
    endpoint = next((env[name] for name in ENDPOINTS if env.get(name)), "")
    top = ["check_for_update_on_startup = false"]
    if endpoint:
        top.append('model_provider = "carrel"')
    if request.system_prompt:
        top.append(f"developer_instructions = {quoted(request.system_prompt)}")
    parts = [top, ["[analytics]", "enabled = false"], SECRETIVE]
    if level := _trust(request, seat):
        parts.append([f"[projects.{quoted(seat.workspace)}]", f"trust_level = {quoted(level)}"])
    if endpoint:
        parts.append(_provider(endpoint, KEY in env))
    if seat.mcp:
        parts.append(_server(seat))
    free = permission_of(request, seat) is Permission.SANDBOXED
    parts.extend(_over_http(server, free) for server in seat.servers if not server.sse)
    if request.mode is InteractionMode.INTERACTIVE:
        parts.extend(_hook(event, seat) for event in hooking.EVENTS)
    return "\n".join(line for part in parts for line in [*part, ""]).encode("utf-8", "replace")


def _trust(request: TurnRequest, seat: Seat) -> str:
    """A project that is trusted says itself which commands are allowed, so where somebody is to
    decide that, it is not. When nothing is said, a terminal begins with a question; where nothing
    confines it, that is right."""
    free = request.permission in (None, Permission.SANDBOXED)
    attended = request.mode is InteractionMode.INTERACTIVE
    return "trusted" if seat.confined and (free or attended) else ""


def _provider(endpoint: str, has_key: bool) -> list[str]:
    lines = [
        "[model_providers.carrel]",
        'name = "carrel"',
        f"base_url = {quoted(endpoint)}",
        'wire_api = "responses"',
    ]
    return [*lines, f"env_key = {quoted(KEY)}"] if has_key else lines


def _server(seat: Seat) -> list[str]:
    command, *args = seat.mcp
    return [
        "[mcp_servers.carrel]",
        f"command = {quoted(command)}",
        f"args = {_listed(args)}",
        f"env_vars = {_listed(seat.mcp_env)}",
        # The space's own tools need no permission.
        'default_tools_approval_mode = "approve"',
    ]


def _over_http(server: SeatServer, free: bool) -> list[str]:
    lines = [f"[mcp_servers.{quoted(server.name)}]", f"url = {quoted(server.url)}"]
    if server.token:
        lines.append(f"bearer_token_env_var = {quoted(server.token)}")
    return [*lines, 'default_tools_approval_mode = "approve"'] if free else lines


def left_out(seat: Seat) -> tuple[str, ...]:
    """In sentences."""
    return tuple(
        f"The MCP server {server.name} is left out: Codex does not speak SSE."
        for server in seat.servers
        if server.sse
    )


def _hook(event: str, seat: Seat) -> list[str]:
    return [
        f"[[hooks.{event}]]",
        f"[[hooks.{event}.hooks]]",
        'type = "command"',
        f"command = {quoted(shlex.join(hooking.command(seat)))}",
        f"timeout = {hooking.SECONDS}",
    ]


def _listed(items: Iterable[str]) -> str:
    return f"[{', '.join(quoted(item) for item in items)}]"


def quoted(text: str) -> str:
    """TOML's strings are JSON's, but for the one control character that JSON lets be."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
