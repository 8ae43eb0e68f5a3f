"""The kinds of servers: what one must be like, how its command is filled in, and the catalog of
those that are known."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

import msgspec

from carrel.domain.errors import MessageInvalid, ServerNotFound, ServerNotInstalled
from carrel.domain.instances import Found, PortBy, Server, ServerStatus, Transport, Wrap
from carrel.instances.built_in import BUILT_IN
from carrel.instances.programs import ServerLocator

HOST = "127.0.0.1"
_PLACE = re.compile(r"\{([a-z_]+)\}")
PLACES = frozenset({"project", "state", "host", "port", "port_file", "fd"})
_NAME = re.compile(r"[a-z][a-z0-9-]{0,62}")
_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_NEEDED = {PortBy.SOCKET: "fd", PortBy.FILE: "port_file", PortBy.RESERVED: "port"}

UVICORN_LINE = r"Uvicorn running on https?://[^\s:]+:(\d+)"


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
            hint="Use lower-case letters, digits and dashes.",
        )
    for command in (server.command, server.stdio or server.command):
        if not command or not command[0]:
            raise MessageInvalid(
                f"{server.name} has no command.", hint="Set `command` to its program and arguments."
            )
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
            f"{server.name} uses unknown placeholders: {', '.join(unknown)}.",
            hint=f"Use only {', '.join(sorted(PLACES))}.",
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
            f"{server.name} cannot be preloaded.",
            hint='Use `preload` only together with `wrap` = "uvicorn".',
        )
    if not server.wrap:
        return
    if server.port_by is not PortBy.SOCKET:
        raise MessageInvalid(
            f"{server.name} is wrapped, so it must get its port as a socket.",
            hint='Set `port_by` to "socket".',
        )
    if (server.wrap is Wrap.STDIO) is not (server.transport is Transport.STDIO):
        raise MessageInvalid(
            f"{server.name} cannot be wrapped as {server.wrap.value}: it speaks"
            f" {server.transport.value}.",
            hint='Use `wrap` = "stdio" for servers with the transport "stdio", and only for them.',
        )
    if server.wrap is Wrap.UVICORN and server.command[1:2] and _is_option(server.command):
        raise MessageInvalid(
            f"{server.name} is wrapped, so its command must name a script or a module.",
            hint="Name the program that was installed with it, or `python -m MODULE`.",
        )
    if server.takes_token:
        raise MessageInvalid(
            f"{server.name} is wrapped, so Carrel checks the token for it.",
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
                f"The paths in `binds` of {server.name} must be absolute.",
                hint="Begin each path with /.",
            )
    for path in (*server.files, *server.copies, *server.copies.values()):
        pure = PurePosixPath(path)
        if not pure.parts or pure.is_absolute() or ".." in pure.parts or "\0" in path:
            raise MessageInvalid(
                f"{path[:80]!r} is not a path below a folder of {server.name}.",
                hint="Write it without / at its start and without `..`.",
            )
    if not server.path.startswith("/"):
        raise MessageInvalid(
            f"The path of {server.name} must begin with a slash.", hint="For example: /mcp"
        )


def _check_numbers(server: Server) -> None:
    if server.ready_s <= 0 or server.warm < 0:
        raise MessageInvalid(
            f"{server.name} has a wrong `ready_s` or `warm`.",
            hint="Use more than 0 for `ready_s`, and 0 or more for `warm`.",
        )
    if wrong := [name for name in server.preload if not _MODULE.fullmatch(name)]:
        raise MessageInvalid(
            f"{server.name} cannot preload {wrong[0][:80]!r}: it is not a module's name.",
            hint="Give names of Python modules.",
        )


def _check_line(server: Server) -> None:
    try:
        groups = re.compile(server.port_line).groups
    except re.error as error:
        raise MessageInvalid(
            f"`port_line` of {server.name} is not a valid regular expression: {error}.",
            hint="Correct `port_line`.",
        ) from error
    if groups < 1:
        raise MessageInvalid(
            f"`port_line` of {server.name} has no group for the port.",
            hint="Put the part for the port in parentheses.",
        )


def fill(text: str, places: Mapping[str, str]) -> str:
    """Puts values into the places. Braces that are no place are left alone: they may be JSON."""
    return _PLACE.sub(lambda found: places.get(found[1], found[0]), text)


def filled(texts: Mapping[str, str], places: Mapping[str, str]) -> dict[str, str]:
    """Fills the values of an environment, or of `Server.files`."""
    return {name: fill(text, places) for name, text in texts.items()}


def port_in(server: Server, text: str) -> int | None:
    """The port that a line of its output tells; the last one counts."""
    told = [found[1] for found in re.finditer(server.port_line, text)]
    if not told or not (told[-1] or "").isdecimal():
        return None
    port = int(told[-1])
    return port if 0 < port < 65536 else None


# The catalog: built-in kinds, then those of the settings, then those that were added

_MERGED = ("env", "files", "copies")
"""What is said of these is beside what is built in."""
SUFFIX = ".json"
# Before there are threads: msgspec notes on a class how it is read, and another thread that
# asks meanwhile may crash.
_DECODER = msgspec.json.Decoder(Server)


class ServerCatalog:
    """Implements `carrel.domain.instances.Servers`. `said`: by name, the fields of servers that
    the settings name. Raises `MessageInvalid` for one that could never be started."""

    def __init__(
        self, folder: Path, locator: ServerLocator, said: Mapping[str, Mapping[str, object]]
    ) -> None:
        self._folder = folder
        self._locator = locator
        self._built_in = {server.name: server for server in BUILT_IN}
        self._settings = {name: self._merge(name, fields) for name, fields in said.items()}

    def get(self, name: str) -> Server:
        if self._is_added(name):
            return self._load(name)
        server = self._settings.get(name) or self._built_in.get(name)
        if server is None:
            raise _unknown(name, self._names())
        return server

    def checked(self, server: Server) -> Server:
        server = completed(server)
        check(server)
        return server

    def locate(self, server: Server) -> Found:
        return self._locator.locate(server)

    def list(self) -> list[ServerStatus]:
        """By name. What is `broken` is left out."""
        broken = self.broken()
        return [self._status(name) for name in self._names() if name not in broken]

    def broken(self) -> dict[str, str]:
        """Of those that were added, which cannot be used, and why."""
        found = {}
        for name in self._added():
            try:
                self._load(name)
            except ServerNotFound as error:
                found[name] = str(error)
        return found

    def add(self, server: Server) -> None:
        """In the place of one that was there. Whole or not at all."""
        server = self.checked(server)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # No name of a server begins with a dot.
        number, half = tempfile.mkstemp(prefix=".", dir=self._folder)
        try:
            with open(number, "wb") as file:
                file.write(msgspec.json.format(msgspec.json.encode(server)))
                file.flush()
                os.fsync(file.fileno())
            os.rename(half, self._file(server.name))
        except BaseException:
            os.unlink(half)
            raise

    def remove(self, name: str) -> None:
        if not self._is_added(name):
            known = name in self._built_in or name in self._settings
            raise ServerNotFound(
                f"No server {name[:80]!r} was added here.",
                hint="It is built in, or in the settings." if known else _known(self._added()),
            )
        self._file(name).unlink(missing_ok=True)

    def _merge(self, name: str, fields: Mapping[str, object]) -> Server:
        base = self._built_in.get(name, Server(name, ()))
        values = {**msgspec.to_builtins(base), **fields}
        for field in _MERGED:
            values[field] = {**getattr(base, field), **values[field]}
        return self.checked(msgspec.convert(values, Server))

    def _load(self, name: str) -> Server:
        path = self._file(name)
        try:
            server = _DECODER.decode(path.read_bytes())
            check(server)
        except (OSError, msgspec.MsgspecError, MessageInvalid) as error:
            raise ServerNotFound(
                f"The server {name} was added, but {path} cannot be used: {error}",
                hint="Add it again, or remove it.",
            ) from error
        return replace(server, name=name)

    def _status(self, name: str) -> ServerStatus:
        server, source = self.get(name), self._source(name)
        try:
            found = self.locate(server)
        except ServerNotInstalled:
            return ServerStatus(server, installed=False, source=source)
        where = found.argv[len(found.argv) - len(server.command)]
        return ServerStatus(server, installed=True, where=where, source=source)

    def _source(self, name: str) -> str:
        if self._is_added(name):
            return "added"
        return "settings" if name in self._settings else "built in"

    def _names(self) -> Sequence[str]:
        return sorted({*self._built_in, *self._settings, *self._added()})

    def _added(self) -> Sequence[str]:
        try:
            found = sorted(path.stem for path in self._folder.iterdir() if path.suffix == SUFFIX)
        except FileNotFoundError:
            return []
        return [name for name in found if is_name(name)]

    def _is_added(self, name: str) -> bool:
        return is_name(name) and self._file(name).exists()

    def _file(self, name: str) -> Path:
        return self._folder / f"{name}{SUFFIX}"


def _unknown(name: str, names: Sequence[str]) -> ServerNotFound:
    return ServerNotFound(f"There is no server {name[:80]!r}.", hint=_known(names))


def _known(names: Sequence[str]) -> str:
    return f"There are: {', '.join(names)}." if names else "None was added."
