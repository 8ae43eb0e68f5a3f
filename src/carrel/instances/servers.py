"""What a kind of server must be like, and how a command is made of one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from carrel.domain.errors import MessageInvalid
from carrel.domain.instances import PortBy, Server, Transport, Wrap

HOST = "127.0.0.1"
_PLACE = re.compile(r"\{([a-z_]+)\}")
PLACES = frozenset({"project", "state", "host", "port", "port_file", "fd"})
_NAME = re.compile(r"[a-z][a-z0-9-]{0,62}")
_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_NEEDED = {PortBy.SOCKET: "fd", PortBy.FILE: "port_file", PortBy.RESERVED: "port"}

UVICORN_LINE = r"Uvicorn running on https?://[^\s:]+:(\d+)"


@dataclass(frozen=True)
class Filled:
    """A server's command with everything in its place."""

    argv: tuple[str, ...]
    env: Mapping[str, str]


def completed(server: Server) -> Server:
    """What follows from the rest need not be said: streams are offered by the bridge, what is
    wrapped takes a socket, and a place for a port says how that is told."""
    if server.transport is Transport.STDIO and server.wrap is Wrap.NONE:
        server = replace(server, wrap=Wrap.STDIO)
    if server.wrap:
        return replace(server, port_by=PortBy.SOCKET)
    if server.port_by is not PortBy.PROCESS:
        return server
    named = _places(server.command, server.env)
    by = (way for way, place in _NEEDED.items() if place in named)
    return replace(server, port_by=next(by, PortBy.PROCESS))


def is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


def check(server: Server) -> None:
    """Raises `MessageInvalid` for what could never be started."""
    if not is_name(server.name):
        raise MessageInvalid(
            f"{server.name[:80]!r} cannot be a server's name.",
            hint="Lower-case letters, digits, dashes.",
        )
    for command in (server.command, server.stdio or server.command):
        if not command or not command[0]:
            raise MessageInvalid(f"{server.name} has no command.", hint="Say how it is started.")
    _check_places(server)
    _check_wrap(server)
    _check_paths(server)
    _check_numbers(server)
    if server.port_by is PortBy.LOG:
        _check_line(server)


def _check_places(server: Server) -> None:
    named = _places(server.command, server.env)
    if unknown := sorted((named | _places(server.stdio, {})) - PLACES):
        raise MessageInvalid(
            f"{server.name} has places that nobody fills: {', '.join(unknown)}.",
            hint=f"There are {', '.join(sorted(PLACES))}.",
        )
    place = "" if server.wrap else _NEEDED.get(server.port_by, "")
    if place and place not in named:
        raise MessageInvalid(
            f"{server.name} is told its port by {{{place}}}, which is not in its command.",
            hint="Put it there, or learn the port in another way.",
        )


def _places(words: tuple[str, ...], env: Mapping[str, str]) -> set[str]:
    return {place for word in (*words, *env.values()) for place in _PLACE.findall(word)}


def _check_wrap(server: Server) -> None:
    if server.preload and server.wrap is not Wrap.UVICORN:
        raise MessageInvalid(
            f"{server.name} cannot be loaded before it is asked for.",
            hint='`preload` is for what is wrapped as "uvicorn".',
        )
    if not server.wrap:
        return
    if server.port_by is not PortBy.SOCKET:
        raise MessageInvalid(
            f"{server.name} is wrapped, so it is given a socket.", hint='`port_by` is "socket".'
        )
    if (server.wrap is Wrap.STDIO) is not (server.transport is Transport.STDIO):
        raise MessageInvalid(
            f"{server.name} cannot be wrapped as {server.wrap.value}: it speaks"
            f" {server.transport.value}.",
            hint='"stdio" is for what speaks on its standard streams, and only that.',
        )
    if server.wrap is Wrap.UVICORN and server.command[1:2] and _is_option(server.command):
        raise MessageInvalid(
            f"{server.name} is wrapped, so its command names a script or a module.",
            hint="Name the program that was installed with it, or `python -m MODULE`.",
        )
    if server.takes_token:
        raise MessageInvalid(
            f"{server.name} is wrapped, so its token is checked before it.",
            hint="Leave out `takes_token`.",
        )


def _is_option(command: tuple[str, ...]) -> bool:
    """`python -c …`; a module is as good as a script."""
    first = command[1]
    python = "python" in PurePosixPath(command[0]).name
    return python and first.startswith("-") and first != "-m"


def _check_paths(server: Server) -> None:
    for path in server.binds:
        if not PurePosixPath(path).is_absolute():
            raise MessageInvalid(
                f"What {server.name} must see is said by absolute paths.", hint="Write / first."
            )
    for path in (*server.files, *server.copies, *server.copies.values()):
        pure = PurePosixPath(path)
        if not pure.parts or pure.is_absolute() or ".." in pure.parts or "\0" in path:
            raise MessageInvalid(
                f"{path[:80]!r} is no path below a folder of {server.name}.",
                hint="Write it without / at its start and without `..`.",
            )
    if not server.path.startswith("/"):
        raise MessageInvalid(
            f"The path of {server.name} begins with a slash.", hint="For example: /mcp"
        )


def _check_numbers(server: Server) -> None:
    if server.ready_s <= 0 or server.warm < 0:
        raise MessageInvalid(
            f"{server.name} has a time or a number that cannot be.",
            hint="`ready_s` is more than 0, `warm` not less.",
        )
    if wrong := [name for name in server.preload if not _MODULE.fullmatch(name)]:
        raise MessageInvalid(
            f"{server.name} cannot load {wrong[0][:80]!r}.", hint="Name modules of Python."
        )


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
    argv = tuple(_put(word, places) for word in server.command)
    return Filled(argv, {name: _put(value, places) for name, value in server.env.items()})


def fill_files(server: Server, places: Mapping[str, str]) -> dict[str, str]:
    """The texts of `Server.files`, by their paths."""
    return {path: _put(text, places) for path, text in server.files.items()}


def _put(word: str, places: Mapping[str, str]) -> str:
    return _PLACE.sub(lambda found: places.get(found[1], found[0]), word)


def port_in(server: Server, text: str) -> int | None:
    """The port that a line of its output tells; the last one counts."""
    told = [found[1] for found in re.finditer(server.port_line, text)]
    if not told or not (told[-1] or "").isdecimal():
        return None
    port = int(told[-1])
    return port if 0 < port < 65536 else None
