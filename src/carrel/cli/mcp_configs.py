"""The configuration with which an MCP client reaches an instance, as each client writes it."""

from __future__ import annotations

import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FILES = {
    "claude": ".mcp.json",
    "codex": ".codex/config.toml",
    "vscode": ".vscode/mcp.json",
    "cursor": ".cursor/mcp.json",
    "zed": "settings.json",
}
"""Where it belongs."""
FORMATS = (*FILES, "json")


def config(format: str, instance: dict[str, Any]) -> str:
    """Raises `MessageInvalid` for a client that does not speak as the server does."""
    if format == "json":
        return json.dumps(instance, indent=2)
    if format == "codex":
        return _codex(instance)
    entry: dict[str, Any] = {"url": instance["url"]}
    if headers := _headers(instance):
        entry["headers"] = headers
    if format in ("claude", "vscode"):
        entry = {"type": "sse" if instance["transport"] == "sse" else "http", **entry}
    member = {"vscode": "servers", "zed": "context_servers"}.get(format, "mcpServers")
    return json.dumps({member: {instance["server"]: entry}}, indent=2)


def _codex(instance: dict[str, Any]) -> str:
    if instance["transport"] == "sse":
        from carrel.domain.errors import MessageInvalid

        raise MessageInvalid(
            "Codex does not speak SSE.", hint="Use `carrel instance connect` as its command."
        )
    # Strings of JSON are strings of TOML as well.
    lines = [f"[mcp_servers.{instance['server']}]", f"url = {json.dumps(instance['url'])}"]
    for name, value in _headers(instance).items():
        lines.append(f"http_headers = {{ {json.dumps(name)} = {json.dumps(value)} }}")
    return "\n".join(lines)


def _headers(instance: dict[str, Any]) -> dict[str, str]:
    token = instance.get("token")
    return {"Authorization": f"Bearer {token}"} if token else {}
