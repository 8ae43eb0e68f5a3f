"""What of a shown folder is not shown: settings with passwords and tokens in them (of toolchains
only, and their lock files), sockets and named pipes.

Names decide first. Then files of the kinds that settings have are read, and those with a password
or a token in them are not shown either. What package managers unpack (a library's own files) is the
same for everybody, and is not looked into.

A mount that is read-only refuses neither to connect to a socket nor to write into a pipe: whoever
listens there would do what a sandbox says.

A look holds until one of the folders or files that it read changes.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice

from carrel.domain.keys import keys_in
from carrel.environments.login_shell import is_same, stamp_of

SECRETS = frozenset(
    {
        *(".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker", ".password-store", ".pki"),
        *(".netrc", ".git-credentials", ".npmrc", ".pypirc", ".vault-token", ".pgpass", ".my.cnf"),
        *(".cargo/credentials", ".cargo/credentials.toml", ".gem/credentials", ".m2/settings.xml"),
        *(".gradle/gradle.properties", ".terraform.d", ".mozilla", ".thunderbird"),
        *(".config/gh", ".config/hub", ".config/gcloud", ".config/git", ".config/carrel"),
        *(".config/op", ".config/pip", ".config/containers", ".config/github-copilot"),
        *(".local/share/keyrings", ".local/share/uv/credentials", ".local/share/atuin"),
        *(".claude", ".claude.json", ".codex", ".gemini", ".pi", ".config/opencode"),
        *(".bash_history", ".zsh_history", ".python_history", ".node_repl_history"),
        *(".psql_history", ".mysql_history", ".local/share/fish", ".local/share/opencode"),
    }
)
"""Below a home: keys, agents' credentials, histories."""
_SETTINGS = SECRETS | {
    *("npmrc", ".yarnrc", ".yarnrc.yml", ".condarc", "condarc", "condarc.d", "pip.conf", ".env"),
    *("uv-receipt.toml", "pipx_metadata.json", "credentials.toml", "auth.json", ".modules.yaml"),
    *("bunfig.toml", ".bunfig.toml", "go.env", "gradle.properties", "init.d", ".m2", ".gradle"),
    # The address from which it was cloned may have a token in it, and so may its hooks.
    ".git",
}
_SETTINGS_IN = frozenset(
    {
        *(("conda-meta", "state"), ("conda", "activate.d"), ("conf", "settings.xml")),
        *(("conf", "settings-security.xml"), ("pnpm", "rc"), (".volta", "hooks.json")),
    }
)
"""Settings of tools in which people put passwords and tokens; the second by the folder too."""
_KINDS = frozenset(
    {
        *("", ".json", ".toml", ".yaml", ".yml", ".rc", ".conf", ".cfg", ".ini", ".properties"),
        *(".xml", ".env", ".lock", ".gradle", ".npmrc", ".cnf", ".config", ".pth"),
    }
)
"""Suffixes of files that are read: of settings, of notes that tools keep, and of scripts."""
_PUBLISHED = frozenset(
    {
        *("node_modules", "site-packages", "dist-packages", "gems", "Cellar", "store", "rustlib"),
        *("lib", "lib64", "libexec", "include", "share", "man", "doc", "docs", "legal", "jmods"),
    }
)
"""Folders whose own files are looked at, and of the folders in them only these:"""
_STILL = re.compile(r"lib(?:64)?/(?:node_modules|python\d[\w.]*)|node_modules/npm|.*/site-packages")
_PROGRAMS = frozenset({"bin", "sbin", "shims"})
"""Folders of installed programs. Only a person's own, which are a place of their own, are read."""
_GO_SOURCES = ("src", "test", "pkg", "api", "misc")
"""Of Go itself: some thousand folders."""
_PASSWORD = re.compile(
    rb"""://[^\s/"'@:]*:[^\s/"'@]+@|https?://[^\s/"'@]{8,}@|https?://[^\s"']*/t/[\w-]{6,}/"""
    rb"|_(?:authToken|auth|password)\s*="
)
"""In an address: a password, a token instead of a name, or one as conda has it; and npm's own."""
_COPY = re.compile(r"(?:\.(?:new|old|bak|backup|orig|save|tmp|swp|\d{1,14})|~)+$", re.IGNORECASE)
"""What editors, tools and people put behind the name of a copy."""

MOST_FOLDERS = 5000
"""Of one place, and as many files of each kind in them. A home with many versions of everything has
a tenth of that."""
MOST_ENTRIES = 200_000
"""Of a place where only sockets and pipes are looked for: half a second."""
MOST_IN_FOLDER = 16
MOST_HIDDEN = 200
"""Of one place."""
MOST_LOCKS = 32
"""Of one place, those of a tool itself before those of each environment in it."""
MOST_IN_LOCK = 64
"""Bytes: nothing, or the number of a process."""
MOST_READ = 128 * 1024
"""From the beginning of a file, and as much from its end."""
FRESH_NS = 20_000_000
"""The clock of a file system has some milliseconds: what has just changed may do so again, and look
the same."""


@dataclass
class _Look:
    hidden: set[str] = field(default_factory=set)
    stamps: dict[str, list[int]] = field(default_factory=dict)
    too_much: bool = False


class ToolSecrets:
    """Not for several threads at once."""

    def __init__(self, look: Callable[[str], _Look] | None = None) -> None:
        self._look = look or _look
        self._looks: dict[str, _Look] = {}

    def hidden(self, place: str, *, look_again: bool = True) -> frozenset[str]:
        """What is not shown of a file or folder, which is no link. Without `look_again` it is as
        somebody saw it last: hundreds of files are looked at otherwise."""
        look = self._looks.get(place)
        if look is None or (look_again and not is_same(look.stamps)):
            look = self._looks[place] = self._look(place)
        return frozenset(look.hidden)

    def is_partly(self, place: str) -> bool:
        """Whether there was too much in it, and the deeper part is hidden."""
        return place in self._looks and self._looks[place].too_much

    def is_same(self) -> bool:
        """Whether all places are as they were when they were last asked for."""
        return all(is_same(look.stamps) for look in self._looks.values())


def outermost(paths: Iterable[str]) -> tuple[str, ...]:
    """Without those that are below others of them."""
    found: list[str] = []
    for path in sorted(paths, key=lambda one: one.split("/")):
        if not found or not path.startswith(f"{found[-1]}/"):
            found.append(path)
    return tuple(found)


def _look(place: str) -> _Look:
    look = _Look()
    if not os.path.isdir(place):
        _look_at_file(look, os.path.dirname(place), os.path.basename(place))
        return look
    waiting = deque([(place, True)])
    locks: list[str] = []
    folders = 0
    while waiting:
        folder, deep = waiting.popleft()
        folders += 1
        if folders > MOST_FOLDERS or len(look.stamps) > 2 * MOST_FOLDERS:
            look.hidden.add(folder)
            look.too_much = True
            continue
        look.stamps[folder] = _stamp(folder)
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            above = os.path.basename(folder)
            for entry in entries:
                if _is_named(above, entry):
                    # What a link leads to is in no sandbox, or a file of the same place.
                    look.hidden.add(os.path.realpath(entry.path))
                elif entry.is_dir(follow_symlinks=False):
                    if deep or _STILL.fullmatch(f"{above}/{entry.name}"):
                        waiting.append((entry.path, deep and not _is_published(entry)))
                elif _is_door(entry):
                    look.hidden.add(entry.path)
                elif above in _PROGRAMS and folder != place:
                    continue
                elif entry.is_file(follow_symlinks=False):
                    _look_at_file(look, folder, entry.name)
                    locks += [entry.path] if _is_lock(entry) else []
    _bound(look, place)
    look.hidden |= {*locks[:MOST_LOCKS]}
    return look


def sockets_in(place: str) -> _Look:
    """All else of what somebody shows by name is meant to be seen. It may be large: what is deeper
    than so many folders is not looked at."""
    look = _Look()
    waiting = deque([place])
    seen = 0
    while waiting and len(look.stamps) < MOST_FOLDERS and seen < MOST_ENTRIES:
        folder = waiting.popleft()
        look.stamps[folder] = _stamp(folder)
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in islice(entries, MOST_ENTRIES):
                seen += 1
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                elif _is_door(entry):
                    look.hidden.add(entry.path)
    _bound(look, place)
    return look


def _is_door(entry: os.DirEntry[str]) -> bool:
    """Whether it leads to a process; also of one that has just gone, and may come back."""
    if entry.is_file(follow_symlinks=False) or entry.is_symlink():
        return False
    try:
        mode = entry.stat(follow_symlinks=False).st_mode
    except OSError:
        return True
    return stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode)


def _is_lock(entry: os.DirEntry[str]) -> bool:
    """Of a tool that locks it, and not what a package manager calls so. To lock a file that one may
    read needs no more: a sandbox could let the tool on the host wait."""
    with contextlib.suppress(OSError):
        return entry.name.endswith(".lock") and entry.stat().st_size <= MOST_IN_LOCK
    return False


def _bound(look: _Look, place: str) -> None:
    """Each costs every start of a sandbox: a folder with many is hidden as a whole."""
    look.hidden = {path for path in look.hidden if path.startswith(f"{place}/")}
    folders = Counter(map(os.path.dirname, look.hidden))
    most = 0 if len(look.hidden) > MOST_HIDDEN else MOST_IN_FOLDER
    for folder, number in folders.items():
        if number > most:
            look.hidden = {one for one in look.hidden if not one.startswith(f"{folder}/")}
            look.hidden.add(folder)
    if len(look.hidden) > MOST_HIDDEN:
        look.hidden, look.too_much = {place}, True


def _is_named(above: str, entry: os.DirEntry[str]) -> bool:
    if entry.name == "pkgs":
        # What conda has downloaded, each with the address that it is from.
        return os.path.exists(os.path.join(os.path.dirname(entry.path), "conda-meta"))
    name = _COPY.sub("", entry.name)
    return name in _SETTINGS or (above, name) in _SETTINGS_IN


def _is_published(entry: os.DirEntry[str]) -> bool:
    if entry.name in _GO_SOURCES:
        return os.path.exists(os.path.join(os.path.dirname(entry.path), "VERSION"))
    return entry.name in _PUBLISHED or entry.name.startswith("python3.")


def _look_at_file(look: _Look, folder: str, name: str) -> None:
    if os.path.splitext(_COPY.sub("", name))[1].lower() in _KINDS:
        path = os.path.join(folder, name)
        if not (folder.endswith("/conda-meta") and name.endswith(".json")):
            # Those are hundreds, and each is written once.
            look.stamps[path] = _stamp(path)
        if _tells(path):
            look.hidden.add(path)


def _tells(path: str) -> bool:
    """Whether there is a password or a token in it; also of one that cannot be read now."""
    try:
        with open(path, "rb") as file:
            data = file.read(MOST_READ)
            if data[:4] == b"\x7fELF":
                return False
            if len(data) == MOST_READ:
                file.seek(max(MOST_READ, os.fstat(file.fileno()).st_size - MOST_READ))
                data += file.read(MOST_READ)
    except OSError:
        return True
    if _PASSWORD.search(data):
        return True
    # A name in a program may look like a key; keys have digits.
    found = keys_in(data.decode("latin-1"))
    return any(one.startswith("-----") or re.search(r"\d", one) for one in found)


def _stamp(path: str) -> list[int]:
    """None that holds for what has just changed."""
    with contextlib.suppress(OSError):
        if time.time_ns() - os.stat(path).st_mtime_ns < FRESH_NS:
            return [0]
    return stamp_of(path)
