"""Where a repository is: a path or a URL, checked before git sees it."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

from carrel.domain.errors import (
    ProjectInvalid,
    ProjectNotAFolder,
    ProjectNotFound,
    ProjectUnreadable,
)
from carrel.trees.git.environment import redact
from carrel.trees.git.layout import common_folder, is_git_folder, pointed_folder

_SCHEMES = frozenset({"git", "http", "https", "ssh", "git+ssh", "ssh+git"})
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_SSH_SHORT = re.compile(r"(?:[^/:@]+@)?(?:\[[^\]/]+\]|[^/:]+):(?!:).+")


@dataclass(frozen=True)
class Remote:
    """`address` is for git, and may hold credentials; `origin` is for a tree's
    configuration, and never does. `path` is set for a repository on this machine."""

    address: str
    origin: str
    key: str
    path: Path | None = None


def locate(location: str) -> Remote:
    """Raises `ProjectInvalid`, `ProjectNotFound`, `ProjectNotAFolder` or
    `ProjectUnreadable`."""
    if not location or location.startswith("-") or _CONTROL.search(location):
        raise ProjectInvalid(
            f"{redact(location[:200])!r} is neither a path nor a URL of a repository."
        )
    if found := _URL.match(location):
        scheme = found[1].lower()
        if scheme == "file":
            return _local(_file_path(location))
        if scheme not in _SCHEMES:
            raise ProjectInvalid(
                f"Repositories are not fetched by {scheme!r}.",
                hint="Use https, ssh, git, or a path.",
            )
        return _distant(location, _without_credentials(location))
    if _SSH_SHORT.fullmatch(location) and not os.path.lexists(location):
        return _distant(location, location)
    if "::" in location and not os.path.lexists(location):
        raise ProjectInvalid("Remote helpers (`name::address`) are not used.")
    return _local(Path(os.path.abspath(location)))


def _distant(address: str, origin: str) -> Remote:
    # The credentials count: who does not have them gets no share of what they opened.
    return Remote(address, origin, _key("url", address))


def _key(kind: str, text: str) -> str:
    return hashlib.sha256(os.fsencode(f"{kind}:{text}")).hexdigest()


def _file_path(location: str) -> Path:
    parts = urlsplit(location)
    if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
        raise ProjectInvalid(f"{redact(location)!r} names no folder of this machine.")
    return Path(unquote(parts.path, errors="surrogateescape"))


def _without_credentials(url: str) -> str:
    """A user name is kept for ssh, where it is no secret; for https it may be a token."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise ProjectInvalid(f"{redact(url)!r} is not a URL.") from error
    who, at, host = parts.netloc.rpartition("@")
    if at and "ssh" in parts.scheme.lower():
        user = who.partition(":")[0]
        host = f"{user}@{host}" if user else host
    return urlunsplit(parts._replace(netloc=host))


def _local(path: Path) -> Remote:
    try:
        path.stat()
        readable = path.is_dir() and os.access(path, os.R_OK | os.X_OK)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ProjectNotFound(f"There is no {path}.", hint="Check the path.") from error
    except OSError as error:
        raise ProjectUnreadable(f"{path} cannot be read: {error.strerror}.") from error
    if not path.is_dir():
        raise ProjectNotAFolder(f"{path} is not a folder.", hint="Give the repository's folder.")
    if not readable:
        raise ProjectUnreadable(f"{path} cannot be read: Permission denied.")
    git = _git_folder(os.fsencode(path))
    if git is None:
        raise ProjectInvalid(f"{path} is not a git repository.", hint=_hint(path))
    shared = os.path.realpath(common_folder(git))
    return Remote(str(path), str(path), _key("path", os.fsdecode(shared)), path)


def _git_folder(path: bytes) -> bytes | None:
    """The git folder of a checkout, of a linked worktree, or a bare repository itself."""
    entry = os.path.join(path, b".git")
    candidates = (entry, pointed_folder(entry), path)
    return next((found for found in candidates if found and is_git_folder(found)), None)


def _hint(path: Path) -> str:
    for parent in path.parents:
        if _git_folder(os.fsencode(parent)):
            return f"It is inside one: the repository is {parent}."
    return "Use it as a folder instead, or run `git init` in it."
