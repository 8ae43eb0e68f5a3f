"""The person's own git settings, as far as a space may have them.

Kept is what changes how git names, shows and merges things. Left out is what runs programs, leads
to other files or hosts, or belongs to keys: helpers, includes, aliases of shell commands, signing.
"""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path

from carrel.trees.git.config import ConfigItem, parse, quote

SETTINGS, IGNORED = ".gitconfig", ".config/git/ignore"
"""Where git looks in a home."""
GUEST = ("Carrel", "carrel@localhost")
"""Who works in others' spaces."""
_NAME, _MAIL = "user.name", "user.email"
_KEPT = frozenset(
    {
        *(_NAME, _MAIL, "init.defaultbranch"),
        *(f"core.{key}" for key in ("abbrev", "autocrlf", "eol", "quotepath", "whitespace")),
        *(f"pull.{key}" for key in ("ff", "rebase")),
        *(f"push.{key}" for key in ("autosetupremote", "default", "followtags")),
        *(f"fetch.{key}" for key in ("prune", "prunetags")),
        *(f"merge.{key}" for key in ("conflictstyle", "ff")),
        *(f"rebase.{key}" for key in ("autosquash", "autostash", "updaterefs")),
        *(f"diff.{key}" for key in ("algorithm", "colormoved", "mnemonicprefix", "renames")),
        *(f"branch.{key}" for key in ("autosetuprebase", "sort")),
        *(f"status.{key}" for key in ("branch", "short", "showuntrackedfiles")),
        *("commit.verbose", "help.autocorrect", "log.date", "rerere.enabled", "tag.sort"),
    }
)
_KEPT_SECTIONS = ("advice.", "alias.", "color.", "column.")
_MOST_BYTES = 256 * 1024
"""Of a file that a person has written."""


class PersonalGit:
    """Reads the settings of the daemon's user, whose spaces have them. Others' spaces have a name
    of nobody: git writes no commit without one."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env

    def files(self, *, owner: bool) -> Mapping[str, bytes]:
        """What the home of a new space begins with, by path. Blocking, quick."""
        if not owner:
            name, mail = map(str.encode, GUEST)
            return {SETTINGS: _written({_NAME: name, _MAIL: mail})}
        items = self._items()
        found = {item.name: item.value for item in items if _is_kept(item)}
        login = os.fsencode(self._login())
        files = {SETTINGS: _written({_NAME: login, _MAIL: login + b"@localhost", **found})}
        ignored = self._ignored(items)
        return {**files, IGNORED: ignored} if ignored else files

    def identity(self) -> tuple[str, str]:
        """Name and mail, as git would write them into a commit of this person. Blocking, quick."""
        found = {item.name: os.fsdecode(item.value) for item in self._items()}
        login = self._login()
        return found.get(_NAME) or login, found.get(_MAIL) or f"{login}@localhost"

    def ignored(self) -> bytes:
        """What git ignores in all repositories of this person. Blocking, quick."""
        return self._ignored(self._items())

    def _items(self) -> list[ConfigItem]:
        return [item for path in self._paths() for item in _parsed(_read(path))]

    def _paths(self) -> list[Path]:
        """As git reads them: the last one wins."""
        if "GIT_CONFIG_GLOBAL" in self._env:
            return [Path(self._env["GIT_CONFIG_GLOBAL"])]
        return [*(one / "config" for one in self._xdg()), *(one / SETTINGS for one in self._home())]

    def _home(self) -> list[Path]:
        home = Path(self._env.get("HOME", ""))
        return [home] if home.is_absolute() else []

    def _xdg(self) -> list[Path]:
        folder = Path(self._env.get("XDG_CONFIG_HOME", ""))
        if folder.is_absolute():
            return [folder / "git"]
        return [home / ".config" / "git" for home in self._home()]

    def _ignored(self, items: Iterable[ConfigItem]) -> bytes:
        named = [item.value for item in items if item.name == "core.excludesfile"]
        if not named:
            return b"".join(_read(one / "ignore") for one in self._xdg())
        path = os.fsdecode(named[-1])
        if path.startswith("~/"):
            return b"".join(_read(home / path[2:]) for home in self._home())
        return _read(Path(path)) if path.startswith("/") else b""

    def _login(self) -> str:
        try:
            return pwd.getpwuid(os.geteuid()).pw_name
        except KeyError:
            return "user"


@lru_cache(maxsize=4)
def _parsed(text: bytes) -> tuple[ConfigItem, ...]:
    """Once, while the files stay as they are."""
    return tuple(parse(text))


def _is_kept(item: ConfigItem) -> bool:
    if item.name.startswith("alias."):
        return not item.value.lstrip().startswith(b"!")
    return item.name in _KEPT or item.name.startswith(_KEPT_SECTIONS)


def _read(path: Path) -> bytes:
    """Nothing of what is no file, or larger than a person writes."""
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode) or found.st_size > _MOST_BYTES:
            return b""
        return path.read_bytes()
    except (OSError, ValueError):
        return b""


def _written(settings: Mapping[str, bytes]) -> bytes:
    lines = []
    for name, value in settings.items():
        section, _, rest = name.partition(".")
        sub, _, key = rest.rpartition(".")
        quoted = sub.encode(errors="surrogateescape").replace(b"\\", b"\\\\").replace(b'"', b'\\"')
        head = section.encode() + (b' "' + quoted + b'"' if sub else b"")
        lines.append(b"[%s]\n\t%s = %s\n" % (head, key.encode(), quote(value)))
    return b"".join(lines)
