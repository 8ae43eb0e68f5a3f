"""A tiny MCP server on standard input and output, for agents that start one themselves."""

from __future__ import annotations

import json
import sys
from typing import Any

TOOL = {
    "name": "shout",
    "description": "Says a text in capitals.",
    "inputSchema": {
        "type": "object",
        "properties": {"text": {"type": "string"}},
        "required": ["text"],
    },
}


def result(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    if method == "initialize":
        return {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "shouter", "version": "1"},
        }
    if method == "tools/list":
        return {"tools": [TOOL]}
    if method == "tools/call":
        text = params["arguments"]["text"].upper()
        return {"content": [{"type": "text", "text": text}], "isError": False}
    return {} if method == "ping" else None


def main() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        answer: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
        found = result(message["method"], message.get("params", {}))
        if found is None:
            answer["error"] = {"code": -32601, "message": "method not found"}
        else:
            answer["result"] = found
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
