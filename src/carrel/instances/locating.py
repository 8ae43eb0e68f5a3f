"""Where the program of a server is, how it is started whatever PATH says, and what a sandbox
must show for it to run."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from carrel.domain.errors import ServerNotInstalled
from carrel.domain.instances import Found, Server, Wrap
from carrel.instances.pythons import shown_with
from carrel.instances.scripts import Interpreter, NoInterpreter, interpreter, is_python

SHOWN = ("/usr", "/bin", "/lib", "/lib32", "/lib64", "/libx32", "/sbin")
"""What every sandbox shows."""
OWN = "carrel"
MODULES, PACKAGE = "node_modules", "package.json"
SHIMS, VERSIONS = "shims", "versions"


class Locator:
    """Looks where it is told, then beside our own interpreter; `carrel` is always that."""

    def __init__(self, search: str | None = None, own: Path | None = None) -> None:
        self._search = os.environ.get("PATH", os.defpath) if search is None else search
        self._own = str(own or Path(sys.executable).parent)

    def locate(self, server: Server) -> Found:
        """Raises `ServerNotInstalled`. What begins with a place is found where it is filled."""
        found = self._found(server)
        if server.wrap is Wrap.UVICORN and not found.python:
            raise ServerNotInstalled(
                f"The server {server.name} is wrapped as a Python program, which"
                f" `{server.command[0]}` is not.",
                hint="Leave out `wrap`, or name its script.",
                server=server.name,
            )
        return found

    def _found(self, server: Server) -> Found:
        if server.command[0].startswith("{"):
            return Found(server.command, _outermost(server.binds))
        path = self._look(server.command[0])
        if path is None:
            raise _missing(server, f"there is no `{server.command[0]}` here")
        words = server.command[1:]
        try:
            by = interpreter(path, self._search)
        except NoInterpreter as error:
            raise _missing(server, f"`{path}` needs `{error}`, which is not here") from error
        except OSError:
            by = None  # It may be run though not read.
        if by is None:
            return _binary(path, words, server.binds)
        return _script(path, by, words, server.binds)

    def _look(self, name: str) -> Path | None:
        if "/" in name and not os.path.isabs(name):
            return None
        places = (self._own, self._search) if name == OWN else (self._search, self._own)
        found = shutil.which(name, path=os.pathsep.join(places))
        if found is None:
            return None
        path = Path(os.path.abspath(found))
        return _behind_shim(path) if path.parent.name == SHIMS else path


def _binary(path: Path, words: tuple[str, ...], binds: tuple[str, ...]) -> Found:
    """An interpreter that was named itself has its script as the first word."""
    python = is_python(path)
    needed = list(shown_with(path)) if python else [path, Path(os.path.realpath(path))]
    script = words[0] if words and os.path.isabs(words[0]) and os.path.isfile(words[0]) else ""
    if script:
        needed += _shown_with_script(Path(script), python=python)
    return Found(
        (str(path), *words),
        _outermost([*map(str, needed), *binds]),
        python=str(path) if python else "",
        path=str(path.parent),
        script="" if python else script,
    )


def _script(path: Path, by: Interpreter, words: tuple[str, ...], binds: tuple[str, ...]) -> Found:
    """Under its real name: packages look for one another around that."""
    real = Path(os.path.realpath(path))
    if by.is_python:
        needed = list(shown_with(by.path))
    else:
        needed = [by.path, Path(os.path.realpath(by.path))]
    needed += _shown_with_script(real, python=by.is_python)
    return Found(
        (str(by.path), *by.options, str(real), *words),
        _outermost([*map(str, needed), *binds]),
        python=str(by.path) if by.is_python else "",
        # What was installed with it is beside its interpreter, or beside its link.
        path=str(by.path.parent if by.is_python else path.parent),
        script="" if by.is_python else str(real),
    )


def _shown_with_script(script: Path, *, python: bool) -> Iterator[Path]:
    """The outermost folder of packages that it is in, or its own package. Else it alone."""
    yield script
    if python:
        return
    for parent in reversed(script.parents):
        if parent.name == MODULES:
            yield parent
            return
    for parent in script.parents:
        if (parent / PACKAGE).is_file():
            yield parent
            return


def _behind_shim(shim: Path) -> Path | None:
    """What pyenv's stand-in of that name leads to; it decides by files that no sandbox has."""
    root = shim.parent.parent
    if not (root / VERSIONS).is_dir():
        return shim
    try:
        said = (root / "version").read_text("utf-8", "replace").split()
    except OSError:
        said = []
    there = sorted((one.name for one in (root / VERSIONS).iterdir()), reverse=True)
    for version in (*said, *there):
        path = root / VERSIONS / version / "bin" / shim.name
        if os.access(path, os.X_OK):
            return path
    return None


def _outermost(paths: Iterable[str]) -> tuple[str, ...]:
    """Without those that are shown by another, or always."""
    found = list(dict.fromkeys(paths))
    return tuple(
        path
        for path in found
        if not _below(path, SHOWN) and not _below(path, [one for one in found if one != path])
    )


def _below(path: str, folders: Iterable[str]) -> bool:
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)


def _missing(server: Server, why: str) -> ServerNotInstalled:
    hint = f"Run: {server.install}" if server.install else "Write its absolute path."
    return ServerNotInstalled(
        f"The server {server.name} is not installed: {why}.", hint=hint, server=server.name
    )
