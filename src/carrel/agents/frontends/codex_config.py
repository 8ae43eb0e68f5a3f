"""Codex's `config.toml`: quiet, with the space's MCP server, and another endpoint if one is
given."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from carrel.domain.agents import Seat, TurnRequest

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
    if seat.confined:
        parts.append(_trust(seat))
    if endpoint:
        parts.append(_provider(endpoint, KEY in env))
    if seat.mcp:
        parts.append(_server(seat))
    return "\n".join(line for part in parts for line in [*part, ""]).encode("utf-8", "replace")


def _trust(seat: Seat) -> list[str]:
    """Else a terminal begins with a question; where nothing confines it, that is right."""
    return [f"[projects.{quoted(seat.workspace)}]", 'trust_level = "trusted"']


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
    ]


def _listed(items: Iterable[str]) -> str:
    return f"[{', '.join(quoted(item) for item in items)}]"


def quoted(text: str) -> str:
    """TOML's strings are JSON's, but for the one control character that JSON lets be."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
