"""Claude Code and Codex: a turn is a command with the prompt in it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.agents.recording.desks import Place, place
from tests.agents.recording.programs import CLAUDE, CLAUDE_MODEL, CODEX
from tests.agents.recording.running import running, wait_until
from tests.agents.standins import UNKNOWN_MODEL

BEFORE = "before"
"""Stands for the id of a turn that is run first, and not recorded."""
UNKNOWN_ID = "00000000-0000-4000-8000-0000000000ff"
MCP_SERVER = Path(__file__).resolve().parents[1] / "mcp_server.py"
SHOUT = 'USE mcp__shouter__shout {"text":"hello"}'


@dataclass(frozen=True)
class Case:
    """One turn to record."""

    prompt: str
    flags: Sequence[str] = ()
    resume: str = ""
    """An id, or `BEFORE`."""
    interrupted: bool = False


@dataclass(frozen=True)
class Command:
    """A program, its cases, and how it is asked."""

    name: str
    cases: Mapping[str, Case]
    argv: Callable[[Case, str], list[str]]
    """For a case, and the id of the conversation to go on with, if any."""
    key: str
    """Where the first line of a turn has the conversation's id."""

    def record(self, name: str) -> None:
        case = self.cases[name]
        with place(self.name, name) as where:
            resume = case.resume
            if resume == BEFORE:
                said, _ = _turn(where, self.argv(Case("first"), ""), interrupted=False)
                resume = json.loads(said[0])[self.key]
            argv = self.argv(case, resume)
            said, beside = _turn(where, argv, interrupted=case.interrupted)
            where.keep(said, beside)


def _claude(case: Case, resume: str) -> list[str]:
    form = ["--output-format", "stream-json", "--verbose", "--include-partial-messages"]
    going_on = ["--resume", resume] if resume else []
    model = [] if "--model" in case.flags else ["--model", CLAUDE_MODEL]
    return [str(CLAUDE), "-p", case.prompt, *form, *model, *going_on, *case.flags]


def _codex(case: Case, resume: str) -> list[str]:
    going_on = ["resume", resume] if resume else []
    base = [str(CODEX), "exec", "--json", "--skip-git-repo-check"]
    return [*base, *case.flags, *going_on, case.prompt]


def _turn(
    where: Place, argv: list[str], *, interrupted: bool
) -> tuple[list[str], dict[str, object]]:
    desk = where.desk
    with running(argv, desk.project, desk.environment()) as program:
        assert program.process.stdin is not None
        program.process.stdin.close()
        if interrupted:
            wait_until(lambda: bool(where.standin.requests))
            program.interrupt()
        said = list(program.rest())
        program.finish()
        beside: dict[str, object] = {
            "argv": argv,
            "exit": program.exit,
            "stderr": program.complaints(),
        }
    return said, beside


_CLAUDE_ALL = ("--permission-mode", "bypassPermissions")
_CLAUDE_MCP = json.dumps(
    {"mcpServers": {"shouter": {"command": sys.executable, "args": [str(MCP_SERVER)]}}}
)
CLAUDE_CASES = {
    "text": Case("hello"),
    "write": Case("WRITE made.txt some text", _CLAUDE_ALL),
    "run": Case("RUN echo out; echo err >&2; exit 3", _CLAUDE_ALL),
    "resume": Case("second", resume=BEFORE),
    "unknown_session": Case("hello", resume=UNKNOWN_ID),
    "unknown_model": Case("hello", ("--model", UNKNOWN_MODEL)),
    "denied": Case("WRITE made.txt some text", ("--permission-mode", "dontAsk")),
    "api_error": Case("FAIL 529"),
    "interrupted": Case("SLEEP 60", interrupted=True),
    "mcp": Case(SHOUT, (*_CLAUDE_ALL, "--mcp-config", _CLAUDE_MCP, "--strict-mcp-config")),
}

_CODEX_ALL = ("--dangerously-bypass-approvals-and-sandbox",)
_CODEX_MCP = f"mcp_servers.shouter={{command='{sys.executable}',args=['{MCP_SERVER}']}}"
CODEX_CASES = {
    "text": Case("hello"),
    "write": Case("WRITE made.txt some text", _CODEX_ALL),
    "run": Case("RUN echo out; echo err >&2; exit 3", _CODEX_ALL),
    "resume": Case("second", resume=BEFORE),
    "unknown_session": Case("hello", resume=UNKNOWN_ID),
    # No error: a new conversation.
    "malformed_session": Case("hello", resume="nonsense"),
    "unknown_model": Case("hello", ("-m", UNKNOWN_MODEL)),
    # Nothing of a command that its sandbox refused is told.
    "denied": Case("WRITE made.txt some text", ("-s", "read-only")),
    "denied_mcp": Case(SHOUT, ("-c", _CODEX_MCP)),
    "api_error": Case("FAIL 500"),
    "interrupted": Case("SLEEP 60", interrupted=True),
    "mcp": Case(SHOUT, (*_CODEX_ALL, "-c", _CODEX_MCP)),
}

COMMANDS = (
    Command("claude-code", CLAUDE_CASES, _claude, "session_id"),
    Command("codex-cli", CODEX_CASES, _codex, "thread_id"),
)
