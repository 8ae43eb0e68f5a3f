"""Toolchains in the home of the daemon's user: what there is, and what of it spaces see.

The login shell says which are in use, and a table says where they usually are and what of each may
be shown. Only names decide: no link in a shown folder is followed, so one that leads out of it
leads nowhere in a sandbox.
"""

from __future__ import annotations

import dataclasses
import glob
import os
import re
import stat
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from carrel.domain.environments import NO_TOOLS, HomeTool, HomeTools
from carrel.domain.errors import SpaceInvalid
from carrel.environments import package_settings
from carrel.environments.login_shell import LoginShell, PersonAccount, is_same, watched
from carrel.environments.tool_secrets import SECRETS, ToolSecrets, outermost, sockets_in


@dataclass(frozen=True)
class ToolPlaces:
    """One row of the table. All paths are below the tool's folder; `*` stands for any name."""

    name: str
    folders: tuple[str, ...]
    """Where it usually is: below the home, or from the root."""
    variable: str = ""
    """The variable of the shell that says where it is instead."""
    markers: tuple[str, ...] = ()
    """One of these is there; none: the folder is enough."""
    shows: tuple[str, ...] = ("",)
    """What sandboxes show; empty: all of it."""
    path: tuple[str, ...] = ()
    """Its entries on PATH where the login shell has none; of several, the newest version first."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables that sandboxes get. A folder that must be writable has none: it is then in the
    space's own home."""
    watch: tuple[str, ...] = ()
    """Files by which a person chooses another version, beside the start files of the shell."""


def _shims(name: str, variable: str) -> ToolPlaces:
    """Those that were made after the model of rbenv."""
    markers, path = (f"bin/{name}", "versions"), ("shims", "bin")
    return ToolPlaces(name, (f".{name}",), variable, markers, path=path, env={variable: ""})


_NODE = "versions/node/*"
_FNM_NODE = "node-versions/*/installation"
_CONDAS = ("miniconda3", "miniforge3", "mambaforge", "anaconda3", ".miniconda3", ".conda")
_BREW_SHOWS = ("bin", "sbin", "lib", "libexec", "opt", "Cellar", "share", "include")
_BREW_CERTIFICATES = ("etc/ca-certificates", "etc/openssl@3")
TABLE: tuple[ToolPlaces, ...] = (
    _shims("pyenv", "PYENV_ROOT"),
    _shims("rbenv", "RBENV_ROOT"),
    _shims("nodenv", "NODENV_ROOT"),
    ToolPlaces(
        "uv",
        (".local/share/uv/python",),
        "UV_PYTHON_INSTALL_DIR",
        env={"UV_PYTHON_INSTALL_DIR": ""},
    ),
    ToolPlaces("uv-tools", (".local/share/uv/tools",), "UV_TOOL_DIR"),
    ToolPlaces(
        "pipx",
        (".local/share/pipx", ".local/pipx"),
        "PIPX_HOME",
        ("venvs",),
        shows=("venvs", "shared", "py"),
    ),
    ToolPlaces("local", (".local/bin",), path=("",)),
    ToolPlaces(
        "nvm",
        (".nvm",),
        "NVM_DIR",
        ("versions",),
        path=(f"{_NODE}/bin",),
        env={"NVM_DIR": ""},
        watch=("alias/default",),
    ),
    ToolPlaces(
        "fnm",
        (".local/share/fnm", ".fnm"),
        "FNM_DIR",
        ("node-versions",),
        shows=("node-versions", "aliases"),
        path=(f"{_FNM_NODE}/bin",),
        env={"FNM_DIR": "."},
        watch=("aliases/default",),
    ),
    ToolPlaces("volta", (".volta",), "VOLTA_HOME", ("bin",), path=("bin",), env={"VOLTA_HOME": ""}),
    ToolPlaces(
        "npm",
        (".npm-global", ".npm-packages"),
        "NPM_CONFIG_PREFIX",
        ("lib/node_modules",),
        shows=("bin", "lib"),
        path=("bin",),
    ),
    ToolPlaces("pnpm", (".local/share/pnpm",), "PNPM_HOME", path=("bin", "")),
    ToolPlaces("bun", (".bun",), "BUN_INSTALL", ("bin",), ("bin", "install/global"), path=("bin",)),
    ToolPlaces("deno", (".deno",), "DENO_INSTALL", ("bin",), ("bin",), path=("bin",)),
    ToolPlaces("rustup", (".rustup",), "RUSTUP_HOME", ("toolchains",), env={"RUSTUP_HOME": ""}),
    ToolPlaces("cargo", (".cargo",), "CARGO_HOME", ("bin",), ("bin",), path=("bin",)),
    ToolPlaces("go", (".local/go", ".go", "sdk/go*"), "GOROOT", ("VERSION",), path=("bin",)),
    ToolPlaces("go-bin", ("go",), "GOPATH", ("bin",), ("bin",), path=("bin",)),
    ToolPlaces(
        "sdkman",
        (".sdkman",),
        "SDKMAN_DIR",
        ("candidates",),
        shows=("candidates",),
        path=("candidates/*/current/bin",),
        env={"JAVA_HOME": "candidates/java/current"},
    ),
    ToolPlaces(
        "homebrew",
        ("/home/linuxbrew/.linuxbrew", ".linuxbrew"),
        "HOMEBREW_PREFIX",
        ("bin/brew",),
        shows=(*_BREW_SHOWS, *_BREW_CERTIFICATES),
        path=("bin", "sbin"),
        env={"HOMEBREW_PREFIX": "."},
    ),
    ToolPlaces(
        "asdf",
        (".asdf",),
        "ASDF_DATA_DIR",
        ("installs", "shims"),
        path=("shims", "bin"),
        env={"ASDF_DATA_DIR": ""},
    ),
    ToolPlaces(
        "mise",
        (".local/share/mise",),
        "MISE_DATA_DIR",
        ("installs",),
        shows=("installs", "shims", "plugins"),
        path=("shims",),
        env={"MISE_DATA_DIR": "."},
    ),
    ToolPlaces("conda", _CONDAS, "", ("conda-meta", "envs")),
)

_PASSED = ("JAVA_HOME", "GOROOT", "NVM_BIN", "GRADLE_HOME", "MAVEN_HOME")
"""Variables of the shell that sandboxes get where they name something that is shown."""
ASKED = (*dict.fromkeys((*(row.variable for row in TABLE if row.variable), *_PASSED)),)

_SYSTEM_PROGRAMS = frozenset({"/usr/local/bin", "/usr/bin", "/bin"})
_SEEN_ANYWAY = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store")
"""What every sandbox shows."""

_SYSTEM = frozenset(
    {"/", "/home", "/root", "/var", "/tmp", "/var/tmp", "/var/lib", "/boot", "/mnt", "/media"}
)
_SYSTEM_BELOW = ("/etc", "/dev", "/proc", "/sys", "/run", "/var/run", "/workspace", "/agent")
"""Where sandboxes have something of their own, or nobody is to look."""


_NARROWER = "Show only the folder that the space needs."


class HomeToolchains:
    """Implements `carrel.domain.collaborators.Toolchains`. What was found holds until a start file
    of the shell changes, or anything of the tools that was looked at."""

    def __init__(
        self,
        data: Path,
        account: PersonAccount | None,
        shell: LoginShell | None = None,
        *,
        shows: bool = True,
    ) -> None:
        """Without an account there are no tools, and without a shell it is not asked. Without
        `shows` they are only searched."""
        self._shows = shows
        self._data = os.path.realpath(data)
        self.home = None if account is None else account.home
        self._shell = shell
        self._lock = threading.Lock()
        self._known = NO_TOOLS
        self._watched: dict[str, list[int]] = {}
        self._search = ""
        self._secrets = ToolSecrets()
        self._sockets = ToolSecrets(sockets_in)

    def find(self) -> HomeTools:
        if self.home is None:
            return NO_TOOLS
        with self._lock:
            old = self._shell is not None and self._shell.is_old()
            same = bool(self._watched) and is_same(self._watched) and self._secrets.is_same()
            if old or not same:
                self._look(self.home)
        return self._known if self._shows else NO_TOOLS

    def _look(self, home: Path) -> None:
        said = self.said()
        paths = [] if self._shell is None else self._shell.files()
        for row in TABLE:
            for folder in _places(row, home, said):
                paths += [folder, *(f"{folder}/{part}" for part in _watched_parts(row))]
        # Before the look: what changes meanwhile is seen by the next.
        self._watched = watched(paths)
        look = _Look(home, said, lambda path: not self.refusal(path), self._secrets)
        self._known, self._search = look.tools(), look.search()

    def narrowed(
        self, tools: HomeTools, shown: Collection[str], *, just_found: bool = False
    ) -> HomeTools:
        with self._lock:
            looks = {place: self._sockets.hidden(place) for place in shown}
            for place in {real for tool in tools.tools for real in tool.shown.values()}:
                found = self._secrets.hidden(place, look_again=not just_found)
                looks[place] = looks.get(place, frozenset()) | found
        hidden = {
            one
            for place, found in looks.items()
            for one in found
            # What is shown by its own name is hidden only for what is in it.
            if one == place or one not in looks
        }
        return dataclasses.replace(tools, hidden=outermost(hidden))

    def search(self) -> str:
        """Where else programs may be, as PATH says it; as it was when somebody last looked."""
        if self._search or self._shell is None:
            return self._search
        return self._shell.known().get("PATH", "")

    def said(self) -> Mapping[str, str]:
        """The variables of the login shell."""
        return {} if self._shell is None else self._shell.variables()

    def check(self, path: str) -> Mapping[str, str]:
        if not os.path.isabs(path) or "\0" in path:
            raise SpaceInvalid(
                f"{path[:200]!r} is no absolute path.", hint="Write the path from the root."
            )
        own = os.path.normpath(path)
        try:
            mode = os.stat(own).st_mode
        except OSError as error:
            raise SpaceInvalid(
                f"{own} cannot be shown: {error.strerror}.", hint="Check the path."
            ) from None
        if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
            raise SpaceInvalid(
                f"{own} is neither a folder nor a file.", hint="Show a folder or a file."
            )
        # Shown at its own path, and where its links lead: what is in it may name either.
        real = os.path.realpath(own)
        for one in (own, real):
            if why := self.refusal(one):
                raise SpaceInvalid(why, hint=_NARROWER)
        with self._lock:
            hidden = self._sockets.hidden(real)
        if real in hidden:
            raise SpaceInvalid(f"{own} has too many sockets and pipes in it.", hint=_NARROWER)
        return {own: real, real: real}

    def refusal(self, path: str) -> str:
        """Why a path is not shown, as a sentence; empty: it may be."""
        if path in _SYSTEM or any(_below(path, one) for one in _SYSTEM_BELOW):
            return f"{path} is a folder of the system, which a space has of its own or not at all."
        if _nested(path, self._data):
            return f"{path} is in Carrel's data folder, or contains it."
        homes = {str(self.home), os.path.realpath(self.home)} if self.home else set()
        if os.path.dirname(path) == "/home" or any(_below(home, path) for home in homes):
            return f"{path} is a whole home, with all keys that are in it."
        parts = path.split("/")
        named = any(part in SECRETS for part in parts)
        if named or any(_nested(path, f"{home}/{one}") for home in homes for one in SECRETS):
            return f"{path} is or contains a place for keys, credentials or histories."
        return ""


def _watched_parts(row: ToolPlaces) -> Iterator[str]:
    """What changes when a version comes or goes, or another is chosen."""
    yield from row.watch
    for part in (*row.shows, *row.path):
        if part:
            yield part.partition("/*")[0]


class _Look:
    """One look at a home."""

    def __init__(
        self,
        home: Path,
        said: Mapping[str, str],
        allowed: Callable[[str], bool],
        secrets: ToolSecrets,
    ) -> None:
        self._said = said
        self._allowed = allowed
        self._secrets = secrets
        self._hidden: set[str] = set()
        self._found: list[tuple[ToolPlaces, str, HomeTool]] = []
        taken: set[str] = set()
        for row in TABLE:
            for folder in _folders(row, home, said):
                shown = self._shows(row, folder)
                fresh = {target: real for target, real in shown.items() if target not in taken}
                if fresh:
                    taken |= fresh.keys()
                    env = {**_variables(row, folder, shown), **self._passed(fresh)}
                    partly = any(map(secrets.is_partly, fresh.values()))
                    tool = HomeTool(row.name, fresh, env, partly)
                    self._found.append((row, folder, tool))

    def _shows(self, row: ToolPlaces, folder: str) -> dict[str, str]:
        """The folder may be a link, for who has put it on another disk; what is in it may not."""
        shown: dict[str, str] = {}
        for part in row.shows:
            place = os.path.join(folder, part).rstrip("/")
            real = os.path.join(os.path.realpath(folder), part).rstrip("/")
            if os.path.realpath(place) != real or not os.path.exists(place):
                continue
            hidden = self._secrets.hidden(real)
            if real not in hidden and all(map(self._allowed, (place, real))):
                shown |= {place: real, real: real}
                self._hidden |= hidden
        return {
            target: source
            for target, source in shown.items()
            if not any(_below(target, one) for one in _SEEN_ANYWAY)
        }

    def _passed(self, shown: Mapping[str, str]) -> dict[str, str]:
        """What the shell itself says of something that is shown."""
        said = {name: self._said.get(name, "") for name in _PASSED}
        return {name: value for name, value in said.items() if value and _inside(value, shown)}

    def tools(self) -> HomeTools:
        real = {one for _, _, tool in self._found for one in tool.shown.values()}
        seen = (*real, "/nix/store")
        first, last = self._of_the_shell(seen)
        known = {os.path.realpath(entry) for entry in (*first, *last)}
        for row, folder, tool in self._found:
            if not any(_below(one, inside) for one in known for inside in tool.shown.values()):
                last += [entry for entry in _entries(row, folder) if _inside(entry, tool.shown)]
        tools = tuple(tool for _, _, tool in self._found)
        path_last = tuple(dict.fromkeys(last))
        return HomeTools(tools, tuple(first), path_last, outermost(self._hidden))

    def _of_the_shell(self, seen: Iterable[str]) -> tuple[list[str], list[str]]:
        """Its entries on PATH that sandboxes see: those before the system's programs, the rest."""
        first: list[str] = []
        last: list[str] = []
        now = first
        targets = [target for _, _, tool in self._found for target in tool.shown]
        for entry in dict.fromkeys(self._said.get("PATH", "").split(":")):
            if entry in _SYSTEM_PROGRAMS:
                now = last
            real = os.path.realpath(entry) if os.path.isabs(entry) else ""
            if real and _inside(real, seen):
                # A folder that is made anew for each shell leads to the one that stays.
                now.append(os.path.normpath(entry) if _inside(entry, targets) else real)
        return list(dict.fromkeys(first)), list(dict.fromkeys(last))

    def search(self) -> str:
        """The PATH of the shell, and all versions of all tools behind it."""
        entries = [self._said.get("PATH", "")]
        entries += [entry for row, folder, _ in self._found for entry in _entries(row, folder)]
        return ":".join(entry for entry in entries if entry)


def _places(row: ToolPlaces, home: Path, said: Mapping[str, str]) -> list[str]:
    """Where it may be."""
    named = said.get(row.variable, "")
    places = [named] if os.path.isabs(named) else []
    places += [os.path.join(home, folder) for folder in row.folders]
    return list(dict.fromkeys(map(os.path.normpath, places)))


def _folders(row: ToolPlaces, home: Path, said: Mapping[str, str]) -> Iterator[str]:
    """Where it is."""
    for place in _places(row, home, said):
        for folder in _matching(*os.path.split(place)):
            marked = any(os.path.exists(f"{folder}/{one}") for one in row.markers)
            if os.path.isdir(folder) and (marked or not row.markers):
                yield folder


def _matching(folder: str, pattern: str) -> list[str]:
    """What is there by that name, the newest version first."""
    if "*" not in pattern:
        return [os.path.join(folder, pattern)]
    found = glob.glob(os.path.join(glob.escape(folder), pattern))
    return sorted(found, key=_version, reverse=True)


def _version(path: str) -> tuple[list[int], str]:
    return [int(number) for number in re.findall(r"\d{1,9}", path)], path


def _entries(row: ToolPlaces, folder: str) -> list[str]:
    found = [one.rstrip("/") for part in row.path for one in _matching(folder, part)]
    return [one for one in found if os.path.isdir(one)]


def _variables(row: ToolPlaces, folder: str, shown: Iterable[str]) -> dict[str, str]:
    """`.` is the folder itself where only parts of it are shown."""
    values = {
        name: os.path.join(folder, part).rstrip("/")
        for name, part in row.env.items()
        if part != "."
    }
    values = {name: value for name, value in values.items() if _inside(value, shown)}
    values |= {name: folder for name, part in row.env.items() if part == "."}
    return {name: value for name, value in values.items() if os.path.exists(value)}


def _inside(path: str, folders: Iterable[str]) -> bool:
    return any(_below(path, folder) for folder in folders)


def _nested(one: str, other: str) -> bool:
    return _below(one, other) or _below(other, one)


def _below(path: str, folder: str) -> bool:
    """Also the folder itself."""
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")


def home_toolchains(data: Path, env: Mapping[str, str], *, shows: bool) -> HomeToolchains:
    """Of the user of this process. The shell's answer is kept in that user's own cache, as it is
    the same for every data folder."""
    account = PersonAccount.own(env)
    if account is None:
        return HomeToolchains(data, None)
    cache = Path(env.get("XDG_CACHE_HOME", ""))
    folder = cache if cache.is_absolute() else account.home / ".cache"
    asked = dict.fromkeys((*ASKED, *package_settings.ASKED))
    shell = LoginShell(account, asked, folder / "carrel" / "login-shell.json")
    return HomeToolchains(data, account, shell, shows=shows)


def tools_of_the_caller() -> HomeTools:
    """By the table alone: nothing is run."""
    return HomeToolchains(Path("/nonexistent"), PersonAccount.own(os.environ)).find()
