"""Lines of JSON-RPC, as clients of MCP say them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from carrel.mcp.codesmith.session import CAPABILITIES, CLIENT, VERSION

LIMIT_S = 30.0
"""For all answers of one dialogue, on a busy machine."""
LONGEST = 2**22
"""Of an answer."""
INFO = {"name": "test", "version": "1"}
MODERN = MODERN_PROTOCOL_VERSIONS[-1]
INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}

Message = dict[str, Any]
Answers = dict[str, Message]
"""By id, as JSON: ids have types."""


def request(id: Any, method: str, params: Any = None) -> Message:
    given = {} if params is None else {"params": params}
    return {"jsonrpc": "2.0", "id": id, "method": method, **given}


def envelope(version: str = MODERN, **more: Any) -> Message:
    return {"_meta": {VERSION: version, CLIENT: INFO, CAPABILITIES: {}}, **more}


def initialize(id: Any = 0, version: str = "2025-11-25", **more: Any) -> Message:
    params = {"protocolVersion": version, "capabilities": {}, "clientInfo": INFO, **more}
    return request(id, "initialize", params)


def opening(version: str, id: Any = 0) -> Message:
    """As clients of that version begin."""
    if version in MODERN_PROTOCOL_VERSIONS:
        return request(id, "server/discover", envelope(version))
    return initialize(id, version)


def encoded(messages: Iterable[Message | bytes]) -> bytes:
    texts = [one if isinstance(one, bytes) else json.dumps(one).encode() for one in messages]
    return b"".join(text + b"\n" for text in texts)


def by_id(lines: Iterable[str | bytes]) -> Answers:
    found: Answers = {}
    for line in lines:
        message = json.loads(line)
        number = json.dumps(message.get("id"))
        assert "method" not in message and number not in found, message
        found[number] = message
    return found
