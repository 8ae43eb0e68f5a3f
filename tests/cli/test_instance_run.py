"""What MCP clients are told of an instance."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest

from carrel.cli.verbs.instance_run import FORMATS, config
from carrel.domain.errors import MessageInvalid

URL = "http://127.0.0.1:4711/mcp"
BEARER = {"Authorization": 'Bearer s3cret"'}


def instance(**more: Any) -> dict[str, Any]:
    told = {"server": "serena", "url": URL, "token": 's3cret"', "transport": "streamable-http"}
    return {**told, **more}


def test_each_format() -> None:
    found = {name: config(name, instance()) for name in FORMATS}
    entry = {"url": URL, "headers": BEARER}
    typed = {"type": "http", **entry}
    assert json.loads(found["claude"]) == {"mcpServers": {"serena": typed}}
    assert json.loads(found["vscode"]) == {"servers": {"serena": typed}}
    assert json.loads(found["cursor"]) == {"mcpServers": {"serena": entry}}
    assert json.loads(found["zed"]) == {"context_servers": {"serena": entry}}
    assert json.loads(found["json"]) == instance()
    codex = {"serena": {"url": URL, "http_headers": BEARER}}
    assert tomllib.loads(found["codex"]) == {"mcp_servers": codex}


@pytest.mark.parametrize("name", FORMATS)
def test_without_a_token(name: str) -> None:
    assert "eaders" not in config(name, instance(token=None)) or name == "json"


def test_server_sent_events() -> None:
    found = json.loads(config("claude", instance(transport="sse")))
    assert found["mcpServers"]["serena"]["type"] == "sse"
    with pytest.raises(MessageInvalid, match="Codex"):
        config("codex", instance(transport="sse"))
