"""What a stand-in for a model answers, decided by the last thing the user said.

Each line of the last user text may be an instruction; tools are called one after the other, a
tool result each, and then comes text:

    WRITE <path> <text>   the client's own tool writes that file
    RUN <command>         the client's shell runs it
    USE <tool> <json>     that tool, for example one of an MCP server
    SLEEP <seconds>       waits before what comes next
    HANG                  no answer until the server closes
    FAIL <status>         that HTTP error, each time

Everything else is text: `reply N: <the text>`, N being the user texts in the whole history, which
proves that a resumed conversation is the old one.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

UNKNOWN_MODEL = "no-such-model"
"""A model that no stand-in has."""

INPUT_TOKENS = 100
CACHED_TOKENS = 40
"""Part of the input tokens."""
OUTPUT_TOKENS = 20
"""The usage of every answer."""

_LINE = re.compile(r"^(WRITE|RUN|USE|SLEEP|HANG|FAIL)\b[ \t]*(.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Tool:
    """A tool that the client offers; some live in a namespace."""

    name: str
    namespace: str | None = None

    @property
    def full_name(self) -> str:
        return f"{self.namespace}__{self.name}" if self.namespace else self.name


@dataclass(frozen=True)
class Talk:
    """What a request says, whatever API it came by."""

    model: str
    texts: Sequence[str]
    """What the user wrote, oldest first, without what the client added."""
    results: int
    """Tool results since the last text."""
    tools: Sequence[Tool]
    stream: bool = True


@dataclass(frozen=True)
class Say:
    text: str
    delay: float = 0.0


@dataclass(frozen=True)
class Call:
    tool: Tool
    arguments: Mapping[str, object]
    delay: float = 0.0


@dataclass(frozen=True)
class Fail:
    status: int
    delay: float = 0.0


@dataclass(frozen=True)
class Hang:
    """Never an answer."""


Answer = Say | Call | Fail | Hang


def is_typed(text: str) -> bool:
    """Whether a person may have written it: what clients add by themselves begins with a tag,
    or says that a request was interrupted."""
    start = text.lstrip()
    return bool(start) and not start.startswith(("<", "[Request interrupted", "# AGENTS.md"))


def decide(talk: Talk) -> Answer:
    """Walks through the instructions of the last text, leaving out those that have a result."""
    text = talk.texts[-1] if talk.texts else ""
    done, delay = talk.results, 0.0
    for verb, rest in _LINE.findall(text):
        if verb == "SLEEP":
            delay += float(rest)
        elif verb == "HANG":
            return Hang()
        elif verb == "FAIL":
            return Fail(int(rest), delay)
        elif done:
            done, delay = done - 1, 0.0
        else:
            tool, arguments = _tool_call(verb, rest, talk.tools)
            return Call(tool, arguments, delay)
    return Say(f"reply {len(talk.texts)}: {text.strip()}", delay)


def _tool_call(verb: str, rest: str, tools: Sequence[Tool]) -> tuple[Tool, Mapping[str, object]]:
    if verb == "USE":
        name, _, arguments = rest.partition(" ")
        return _named(name, tools), json.loads(arguments or "{}")
    if verb == "RUN":
        return _shell(rest, tools)
    path, _, content = rest.partition(" ")
    by_name = {tool.name: tool for tool in tools}
    if "Write" in by_name:
        return by_name["Write"], {"file_path": path, "content": content}
    if "write" in by_name:
        return by_name["write"], {"path": path, "content": content}
    return _shell(f"printf %s {shlex.quote(content)} > {shlex.quote(path)}", tools)


def _shell(command: str, tools: Sequence[Tool]) -> tuple[Tool, Mapping[str, object]]:
    arguments: dict[str, Mapping[str, object]] = {
        "Bash": {"command": command, "description": "Run the command"},
        "bash": {"command": command},
        "exec_command": {"cmd": command},
        "shell_command": {"command": command},
        "shell": {"command": ["sh", "-c", command]},
    }
    for tool in tools:
        if tool.name in arguments:
            return tool, arguments[tool.name]
    return Tool("Bash"), arguments["Bash"]


def _named(name: str, tools: Sequence[Tool]) -> Tool:
    """Clients put the server's name before the tool's, `mcp__server__tool` or a namespace; a
    test need not know how. Some keep tools back until they are searched for, yet take a call of
    the full name."""
    for tool in tools:
        if name in (tool.name, tool.full_name) or tool.full_name.endswith(f"__{name}"):
            return tool
    return Tool(name)
