"""Where the programs of frontends are, and what a sandbox must show for them to run."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from carrel.domain.errors import FrontendNotInstalled

VERSION_SECONDS = 15.0
"""A program says its version within one; a machine with many agents is slow."""

MODULES = "node_modules"
NODE = "node"

SHOWN = ("/usr", "/bin", "/lib", "/lib64", "/sbin")
"""What every sandbox shows."""

_VERSION = re.compile(r"\d+\.\d+[^\s()]*")


@dataclass(frozen=True)
class Program:
    """One that is there. `argv` starts it whatever PATH says: a script is given to its
    interpreter."""

    name: str
    path: Path
    argv: tuple[str, ...]

    def binds(self) -> tuple[str, ...]:
        """Host paths that a sandbox must show besides what it always does."""
        wanted = dict.fromkeys(_shown_with(Path(part)) for part in self.argv)
        return tuple(path for path in wanted if not _below(path, SHOWN))


class Locator:
    """Looks in Carrel's own folder first, where `install` puts things, then on PATH."""

    def __init__(self, own: Path, search: str | None = None) -> None:
        self._own = own
        self._search = search
        self._versions: dict[tuple[str, int], str] = {}

    def find(self, frontend: str, name: str) -> Program | None:
        """None also when it is a script whose interpreter is missing."""
        path = self._look(frontend, name)
        if path is None:
            return None
        if not _is_node_script(path):
            return Program(name, path, (str(path),))
        node = self._look(frontend, NODE)
        return None if node is None else Program(name, path, (str(node), str(path)))

    def require(self, frontend: str, name: str) -> Program:
        """Raises `FrontendNotInstalled`."""
        found = self.find(frontend, name)
        if found is None:
            raise FrontendNotInstalled(
                f"{frontend} is not installed: there is no `{name}` here.",
                hint=f"Run: {install_command(frontend)}",
                frontend=frontend,
            )
        return found

    def version(self, program: Program) -> str:
        """Asked of the program once for each state of its file. Empty when it does not say."""
        try:
            key = (str(program.path), program.path.stat().st_mtime_ns)
        except OSError:
            return ""
        if key not in self._versions:
            self._versions[key] = _ask_version(program)
        return self._versions[key]

    def _look(self, frontend: str, name: str) -> Path | None:
        own = str(self._own / frontend / MODULES / ".bin")
        found = shutil.which(name, path=own) or shutil.which(name, path=self._search)
        return None if found is None else Path(os.path.realpath(found))


def install_command(frontend: str) -> str:
    return f"carrel agents install {frontend}"


def _is_node_script(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            first = file.readline(256)
    except OSError:
        return False
    return first.startswith(b"#!") and NODE.encode() in first


def _shown_with(path: Path) -> str:
    """The outermost folder of packages that it is in: they find one another there. Else the
    file alone."""
    for parent in reversed(path.parents):
        if parent.name == MODULES:
            return str(parent)
    return str(path)


def _below(path: str, folders: tuple[str, ...]) -> bool:
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)


def _ask_version(program: Program) -> str:
    """With a home of its own, for some make folders there even then."""
    with tempfile.TemporaryDirectory(prefix="carrel-version-") as home:
        env = {"PATH": os.environ.get("PATH", os.defpath), "HOME": home, "CODEX_HOME": home}
        said = _output([*program.argv, "--version"], env)
    found = _VERSION.search(said)
    return found.group() if found else ""


def _output(argv: list[str], env: dict[str, str]) -> str:
    """What it writes, or nothing when it fails or takes too long; nothing of it stays."""
    try:
        process = subprocess.Popen(
            argv,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError:
        return ""
    with process:
        try:
            said, _ = process.communicate(timeout=VERSION_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return ""
    return said.decode("utf-8", "replace") if process.returncode == 0 else ""
