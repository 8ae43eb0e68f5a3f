"""The program of a server: where it is, how it is started whatever PATH says, and what a sandbox
must show for it to run."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from carrel.domain.errors import ServerNotInstalled
from carrel.domain.instances import Found, Server, Wrap

SHOWN = ("/usr", "/bin", "/lib", "/lib32", "/lib64", "/libx32", "/sbin")
"""What every sandbox shows."""
OWN = "carrel"
MODULES, PACKAGE = "node_modules", "package.json"
SHIMS, VERSIONS = "shims", "versions"


class ServerLocator:
    """Looks where it is told, then beside our own interpreter; `carrel` is always that."""

    def __init__(self, search: str | None = None, own: Path | None = None) -> None:
        self._search = os.environ.get("PATH", os.defpath) if search is None else search
        self._own = str(own or Path(sys.executable).parent)

    def locate(self, server: Server) -> Found:
        """Raises `ServerNotInstalled`. What begins with a place is found where it is filled."""
        found = self._found(server)
        if server.wrap is Wrap.UVICORN and not found.python:
            raise ServerNotInstalled(
                f"`wrap` of the server {server.name} works only for a Python program, and "
                f"`{server.command[0]}` is not one.",
                hint="Leave out `wrap`, or name its script.",
                server=server.name,
            )
        return found

    def _found(self, server: Server) -> Found:
        if server.command[0].startswith("{"):
            return Found(server.command, _outermost(server.binds))
        path = self._look(server.command[0])
        if path is None:
            raise _not_installed(server, f"there is no `{server.command[0]}` here")
        words = server.command[1:]
        try:
            by = interpreter(path, self._search)
        except NoInterpreter as error:
            raise _not_installed(server, f"`{path}` needs `{error}`, which is not here") from error
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


def _not_installed(server: Server, why: str) -> ServerNotInstalled:
    hint = f"Run: {server.install}" if server.install else "Write its absolute path."
    return ServerNotInstalled(
        f"The server {server.name} is not installed: {why}.", hint=hint, server=server.name
    )


# Scripts: what the first line says, and the interpreter that it means

FIRST_BYTES = 4096
_PYTHON = re.compile(r"(python|pypy)[\d.]*t?")
_LONG = "'''exec'"
"""How installers begin the second line when the path is too long, or has spaces, for the
first."""


@dataclass(frozen=True)
class Interpreter:
    path: Path
    options: tuple[str, ...] = ()

    @property
    def is_python(self) -> bool:
        return is_python(self.path)


class NoInterpreter(Exception):
    """The script names one that is not there."""


def is_python(path: Path) -> bool:
    return _PYTHON.fullmatch(path.name) is not None


def interpreter(script: Path, search: str) -> Interpreter | None:
    """None: it is no script. Raises `NoInterpreter`, and OSError when it cannot be read."""
    with script.open("rb") as file:
        head = file.read(FIRST_BYTES)
    if not head.startswith(b"#!"):
        return None
    first, _, rest = head[2:].decode("utf-8", "surrogateescape").partition("\n")
    if rest.startswith(_LONG):
        # '''exec' '/a long/python' "$0" "$@"
        return _there(shlex.split(rest.partition("\n")[0])[1], (), search)
    words = first.split(None, 1)
    if not words:
        raise NoInterpreter(str(script))
    # The kernel gives all that follows as one word; only `env -S` splits it.
    if os.path.basename(words[0]) != "env":
        return _there(words[0], tuple(words[1:]), search)
    said = shlex.split(words[1].removeprefix("-S")) if len(words) > 1 else []
    while said and "=" in said[0]:
        said.pop(0)
    if not said:
        raise NoInterpreter(str(script))
    return _there(said[0], tuple(said[1:]), search)


def _there(name: str, options: tuple[str, ...], search: str) -> Interpreter:
    found = shutil.which(name, path=search)
    if found is None:
        raise NoInterpreter(name)
    path = Path(os.path.abspath(found))
    # Those of Python are about its environment, of which a sandbox has its own.
    return Interpreter(path, () if is_python(path) else options)


# What a sandbox must show for a Python interpreter to start: its environment, and what that was
# made from

CONFIG = "pyvenv.cfg"
BIN = "bin"
LINKS = 40
"""As many as the kernel follows."""


def shown_with(python: Path) -> Iterator[Path]:
    """Folders and files; some may be below others."""
    for hop in _hops(python):
        yield from _around(hop)
    config = python.parent.parent / CONFIG
    home = _home(config)
    if home is None:
        return
    yield from _editable(config.parent)
    # The name that it has there is the one that the environment's own leads to.
    for name in (os.path.basename(os.path.realpath(python)), "python3"):
        for hop in _hops(home / name):
            yield from _around(hop)


def _around(python: Path) -> Iterator[Path]:
    """The whole of it only where that is an interpreter's: `~/.local` has a `bin` too."""
    prefix = python.parent.parent
    if python.parent.name == BIN and (
        (prefix / CONFIG).is_file() or any(prefix.glob("lib/python*/os.py"))
    ):
        yield prefix
    elif python.exists():
        yield python


def _hops(path: Path) -> list[Path]:
    """It, what it links to, and so on: each must be there for the next to be found."""
    found = [path]
    while path.is_symlink() and len(found) < LINKS:
        path = Path(os.path.normpath(path.parent / os.readlink(path)))
        found.append(path)
    real = Path(os.path.realpath(path))
    return found if real == path else [*found, real]


def _home(config: Path) -> Path | None:
    """Where the interpreter is from which an environment was made."""
    try:
        lines = config.read_text("utf-8", "replace").splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, value = line.partition("=")
        if name.strip().lower() == "home" and value.strip().startswith("/"):
            return Path(value.strip())
    return None


def _editable(prefix: Path) -> Iterator[Path]:
    """Packages that are used where they are written."""
    for file in sorted(prefix.glob("lib/python*/site-packages/*.pth")):
        try:
            lines = file.read_text("utf-8", "replace").splitlines()
        except OSError:
            continue
        yield from (Path(line) for line in lines if line.startswith("/") and os.path.isdir(line))
