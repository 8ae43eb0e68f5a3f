"""An ACP agent that misbehaves as it is told: by its first argument."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

HOW = sys.argv[1]


def send(message: dict[str, Any]) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def update(update: dict[str, Any]) -> None:
    params = {"sessionId": "odd", "update": update}
    send({"method": "session/update", "params": params})


def prompt() -> dict[str, Any] | None:
    if HOW == "dies":
        print("out of paper", file=sys.stderr, flush=True)
        raise SystemExit(7)
    if HOW == "hangs":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        update({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "x"}})
        return None
    if HOW == "strange":
        update({"sessionUpdate": "from_the_future", "more": 1})
        update({"sessionUpdate": 5})
        print("not even JSON", flush=True)
        update({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "x"}})
    if HOW == "tells":
        beside = Path(__file__).with_name("beside.txt").read_text()
        told = f"{beside} {len(os.environ['MY_API_KEY'])} {os.environ['MOOD']}"
        update({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": told}})
    return {"stopReason": "refusal" if HOW == "refuses" else "end_turn"}


def answer(method: str) -> dict[str, Any] | None:
    match method:
        case "initialize":
            capabilities = {"loadSession": HOW == "other"}
            return {"protocolVersion": 1, "agentCapabilities": capabilities}
        case "session/new":
            return {"sessionId": "odd"}
        case "session/prompt":
            return prompt()
    return None


for line in sys.stdin:
    message = json.loads(line)
    result = answer(message.get("method", ""))
    if result is not None:
        send({"id": message["id"], "result": result})

if HOW == "hangs":
    signal.pause()
