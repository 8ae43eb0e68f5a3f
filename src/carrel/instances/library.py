"""The kinds of servers that are known: built in, then what the settings say, then what was
added here."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from carrel.domain.errors import MessageInvalid, ServerNotFound, ServerNotInstalled
from carrel.domain.instances import Found, Server, ServerStatus
from carrel.instances.built_in import BUILT_IN
from carrel.instances.locating import Locator
from carrel.instances.servers import check, completed, is_name

_MERGED = ("env", "files", "copies")
"""What is said of these is beside what is built in."""
SUFFIX = ".json"
# Before there are threads: msgspec notes on a class how it is read, and another thread that
# asks meanwhile may crash.
_DECODER = msgspec.json.Decoder(Server)


class Library:
    """Implements `carrel.domain.instances.Servers`. `said`: by name, the fields of servers that
    the settings name. Raises `MessageInvalid` for one that could never be started."""

    def __init__(
        self, folder: Path, locator: Locator, said: Mapping[str, Mapping[str, object]]
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
