"""Adapters for ACP: JSON-RPC by the line, both directions in one file. `in` is what goes into
the agent, `out` what comes out of it."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.agents.recording.commands import MCP_SERVER, SHOUT, UNKNOWN_ID
from tests.agents.recording.desks import Place, place
from tests.agents.recording.programs import CLAUDE_ACP, CODEX_ACP
from tests.agents.recording.running import Conversation, running, wait_until

WRITE = "WRITE made.txt some text"
ESCALATED = "USE exec_command " + json.dumps(
    {
        "cmd": "printf %s 'some text' > made.txt",
        "sandbox_permissions": "require_escalated",
        "justification": "May I write made.txt?",
    }
)
SHOUTER = {"name": "shouter", "command": sys.executable, "args": [str(MCP_SERVER)], "env": []}


@dataclass
class Peer:
    """The client's side of one connection."""

    program: Conversation
    choice: str = "allow_once"
    """Which kind of option is chosen when a permission is asked for."""
    kept: list[str] = field(default_factory=list)
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def call(self, method: str, **params: object) -> dict[str, Any]:
        return self.answer(self.ask(method, **params))

    def ask(self, method: str, **params: object) -> int:
        number = next(self.numbers)
        self.put({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        return number

    def put(self, message: Mapping[str, object]) -> None:
        line = json.dumps(message)
        self._keep("in", line)
        self.program.send(line)

    def answer(self, number: int) -> dict[str, Any]:
        for line in self.program.rest():
            self._keep("out", line)
            message: dict[str, Any] = json.loads(line)
            if "method" in message and "id" in message:
                self._choose(message)
            elif message.get("id") == number:
                return message
        raise EOFError(self.program.complaints())

    def _choose(self, request: Mapping[str, Any]) -> None:
        options = request["params"]["options"]
        chosen = next(one["optionId"] for one in options if one["kind"] == self.choice)
        outcome = {"outcome": "selected", "optionId": chosen}
        self.put({"jsonrpc": "2.0", "id": request["id"], "result": {"outcome": outcome}})

    def _keep(self, direction: str, line: str) -> None:
        self.kept.append(json.dumps({"dir": direction, "line": line}, ensure_ascii=False))

    def start(self) -> None:
        files = {"readTextFile": False, "writeTextFile": False}
        capabilities = {"fs": files, "terminal": False}
        self.call("initialize", protocolVersion=1, clientCapabilities=capabilities)

    def prompt(self, session: str, text: str) -> dict[str, Any]:
        return self.answer(self.ask_prompt(session, text))

    def ask_prompt(self, session: str, text: str) -> int:
        return self.ask(
            "session/prompt", sessionId=session, prompt=[{"type": "text", "text": text}]
        )


@dataclass(frozen=True)
class Adapter:
    name: str
    program: Path
    all_mode: str
    """The mode in which it asks for no permission."""
    ask_mode: str
    ask_prompt: str
    """What it asks a permission for, in the other mode."""

    def record(self, case: str) -> None:
        with place(self.name, case) as where:
            kept, beside = _conversation(CASES[case], self, where)
            where.keep(kept, beside)


Steps = Callable[[Peer, Adapter, Place], None]


def _conversation(
    steps: Steps, adapter: Adapter, where: Place
) -> tuple[Sequence[str], dict[str, object]]:
    argv = [str(adapter.program)]
    with running(argv, where.desk.project, where.desk.environment()) as program:
        peer = Peer(program)
        peer.start()
        steps(peer, adapter, where)
        program.finish()
        beside: dict[str, object] = {"argv": argv, "exit": program.exit}
    return peer.kept, beside


def _new(peer: Peer, where: Place, *servers: object) -> str:
    folder = str(where.desk.project)
    answer = peer.call("session/new", cwd=folder, mcpServers=list(servers))
    return str(answer["result"]["sessionId"])


def _text(peer: Peer, adapter: Adapter, where: Place) -> None:
    peer.prompt(_new(peer, where), "hello")


def _write(peer: Peer, adapter: Adapter, where: Place) -> None:
    session = _new(peer, where)
    peer.call("session/set_mode", sessionId=session, modeId=adapter.all_mode)
    peer.prompt(session, WRITE)


def _permission(peer: Peer, adapter: Adapter, where: Place) -> None:
    session = _new(peer, where)
    peer.call("session/set_mode", sessionId=session, modeId=adapter.ask_mode)
    peer.prompt(session, adapter.ask_prompt)


def _denied(peer: Peer, adapter: Adapter, where: Place) -> None:
    peer.choice = "reject_once"
    _permission(peer, adapter, where)


def _resume(peer: Peer, adapter: Adapter, where: Place) -> None:
    made: list[str] = []

    def first(before: Peer, _adapter: Adapter, _where: Place) -> None:
        made.append(_new(before, where))
        before.prompt(made[0], "first")

    _conversation(first, adapter, where)
    folder = str(where.desk.project)
    peer.call("session/load", sessionId=made[0], cwd=folder, mcpServers=[])
    peer.prompt(made[0], "second")


def _unknown_session(peer: Peer, adapter: Adapter, where: Place) -> None:
    folder = str(where.desk.project)
    peer.call("session/load", sessionId=UNKNOWN_ID, cwd=folder, mcpServers=[])


def _api_error(peer: Peer, adapter: Adapter, where: Place) -> None:
    peer.prompt(_new(peer, where), "FAIL 500")


def _interrupted(peer: Peer, adapter: Adapter, where: Place) -> None:
    session = _new(peer, where)
    number = peer.ask_prompt(session, "SLEEP 60")
    wait_until(lambda: bool(where.standin.requests))
    cancel = {"method": "session/cancel", "params": {"sessionId": session}}
    peer.put({"jsonrpc": "2.0", **cancel})
    peer.answer(number)


def _mcp(peer: Peer, adapter: Adapter, where: Place) -> None:
    session = _new(peer, where, SHOUTER)
    peer.call("session/set_mode", sessionId=session, modeId=adapter.all_mode)
    peer.prompt(session, SHOUT)


CASES: dict[str, Steps] = {
    "text": _text,
    "write": _write,
    "permission": _permission,
    "denied": _denied,
    "resume": _resume,
    "unknown_session": _unknown_session,
    "api_error": _api_error,
    "interrupted": _interrupted,
    "mcp": _mcp,
}

ADAPTERS = (
    Adapter("claude-acp", CLAUDE_ACP, "bypassPermissions", "default", WRITE),
    Adapter("codex-acp", CODEX_ACP, "agent-full-access", "read-only", ESCALATED),
)
