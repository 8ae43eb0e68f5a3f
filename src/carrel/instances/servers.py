"""The kinds of servers that are built in, and how a command is made of one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from carrel.domain.errors import MessageInvalid
from carrel.domain.instances import PortBy, Server, Transport

HOST = "127.0.0.1"
_PLACE = re.compile(r"\{([a-z_]+)\}")
PLACES = frozenset({"project", "state", "host", "port", "port_file", "fd"})

UVICORN_LINE = r"Uvicorn running on https?://[^\s:]+:(\d+)"

BUILT_IN = (
    Server(
        "serena",
        (
            *("serena", "start-mcp-server", "--transport", "streamable-http"),
            *("--host", "{host}", "--port", "0", "--project", "{project}"),
            *("--agent-interface", "tools", "--context", "ide"),
            *("--enable-web-dashboard", "false", "--open-web-dashboard", "false"),
        ),
        port_by=PortBy.LOG,
        port_line=UVICORN_LINE,
        env={"SERENA_HOME": "{state}/serena", "SERENA_USAGE_REPORTING": "false"},
        install="pip install serena-agent",
    ),
    Server(
        "everything",
        ("mcp-server-everything", "streamableHttp"),
        port_by=PortBy.PROCESS,
        # It cannot be told an address: it listens on all that there are.
        env={"PORT": "0"},
        install="npm install --global @modelcontextprotocol/server-everything",
    ),
    Server(
        "filesystem",
        ("mcp-server-filesystem", "{project}"),
        transport=Transport.STDIO,
        install="npm install --global @modelcontextprotocol/server-filesystem",
    ),
)


@dataclass(frozen=True)
class Filled:
    """A server's command with everything in its place."""

    argv: tuple[str, ...]
    env: Mapping[str, str]


def check(server: Server) -> None:
    """Raises `MessageInvalid` for what could never be started."""
    if not server.command or not server.command[0]:
        raise MessageInvalid(f"{server.name} has no command.", hint="Say how it is started.")
    words = (*server.command, *server.env.values())
    named = {place for word in words for place in _PLACE.findall(word)}
    if unknown := sorted(named - PLACES):
        raise MessageInvalid(
            f"{server.name} has places that nobody fills: {', '.join(unknown)}.",
            hint=f"There are {', '.join(sorted(PLACES))}.",
        )
    for by, place in _NEEDED.items():
        if server.port_by is by and place not in named:
            raise MessageInvalid(
                f"{server.name} is told its port by {{{place}}}, which is not in its command.",
                hint="Put it there, or learn the port in another way.",
            )
    if server.port_by is PortBy.LOG:
        _check_line(server)


_NEEDED = {PortBy.SOCKET: "fd", PortBy.FILE: "port_file", PortBy.RESERVED: "port"}


def _check_line(server: Server) -> None:
    try:
        groups = re.compile(server.port_line).groups
    except re.error as error:
        raise MessageInvalid(
            f"{server.name} has a pattern that is none: {error}.", hint="Mend `port_line`."
        ) from error
    if groups < 1:
        raise MessageInvalid(
            f"The pattern of {server.name} has no group for the port.", hint="Put it in brackets."
        )


def fill(server: Server, places: Mapping[str, str]) -> Filled:
    """Braces that are no place are left alone: they may be JSON."""

    def put(word: str) -> str:
        return _PLACE.sub(lambda found: places.get(found[1], found[0]), word)

    argv = tuple(put(word) for word in server.command)
    return Filled(argv, {name: put(value) for name, value in server.env.items()})


def port_in(server: Server, text: str) -> int | None:
    """The port that a line of its output tells; the last one counts."""
    told = [found[1] for found in re.finditer(server.port_line, text)]
    if not told or not (told[-1] or "").isdecimal():
        return None
    port = int(told[-1])
    return port if 0 < port < 65536 else None
