"""Where a repository is, a path or a URL, checked before git sees it; and how git may reach it.

The URL of a caller who is not the owner of this machine is a request that the daemon makes from
where it stands. So the name is looked up once, none of its addresses may be this machine's or a
private network's, and git is held to just these addresses: it follows no redirect and asks no
proxy.
"""

from __future__ import annotations

import hashlib
import ipaddress
import os
import re
import socket
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

from carrel.domain.errors import (
    GitFailed,
    ProjectInvalid,
    ProjectNotAFolder,
    ProjectNotFound,
    ProjectUnreadable,
)
from carrel.domain.projects import ClonePolicy, GitReach
from carrel.trees.git import config
from carrel.trees.git.process import redact
from carrel.trees.git.repository import (
    OutsideAccess,
    RepositoryReader,
    endless_file,
    is_git_folder,
    is_within,
    lenders,
)
from carrel.trees.git.version import git_version

_SCHEMES = frozenset({"git", "http", "https", "ssh", "git+ssh", "ssh+git"})
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_SSH_SHORT = re.compile(r"(?:[^/:@]+@)?(?:\[[^\]/]+\]|[^/:]+):(?!:).+")


@dataclass(frozen=True)
class Remote:
    """`address` is for git, and may hold credentials; `origin` is for a tree's
    configuration, and never does. `folders` are set for a repository on this machine: all
    that may be read to serve it; `common` is the one of them with its branches, `checkout` the one
    with the index of its checkout."""

    address: str
    origin: str
    key: str
    folders: tuple[Path, ...] = ()
    common: Path | None = None
    checkout: Path | None = None


@dataclass(frozen=True)
class RemoteTrust:
    """Who asks: what a repository may name outside of its folder, and whether remotes are
    asked with what the daemon's user has."""

    reach: GitReach
    data: Path
    own: bool = True


def locate(location: str, trust: RemoteTrust) -> Remote:
    """Raises `ProjectInvalid`, `ProjectNotFound`, `ProjectNotAFolder` or
    `ProjectUnreadable`."""
    if not location or location.startswith("-") or _CONTROL.search(location):
        raise ProjectInvalid(
            f"{redact(location[:200])!r} is neither a path nor a URL of a repository."
        )
    if found := _SCHEME.match(location):
        scheme = found[1].lower()
        if scheme == "file":
            return _local(_file_path(location), trust)
        if scheme not in _SCHEMES:
            raise ProjectInvalid(
                f"Repositories are not fetched by {scheme!r}.",
                hint="Use https, ssh, git, or a path.",
            )
        return _distant(location, _without_credentials(location), trust)
    if _SSH_SHORT.fullmatch(location) and not os.path.lexists(location):
        return _distant(location, location, trust)
    if "::" in location and not os.path.lexists(location):
        raise ProjectInvalid("Remote helpers (`name::address`) are not used.")
    return _local(Path(os.path.abspath(location)), trust)


def _distant(address: str, origin: str, trust: RemoteTrust) -> Remote:
    # The credentials count: who does not have them gets no share of what they opened.
    return Remote(address, origin, _key("url", address, trust))


def _key(kind: str, text: str, trust: RemoteTrust) -> str:
    """Nor do others share with the owner, whose keys and agreement opened more."""
    whose = "" if trust.own else "others' "
    return hashlib.sha256(os.fsencode(f"{whose}{kind}:{text}")).hexdigest()


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


def _local(path: Path, trust: RemoteTrust) -> Remote:
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
    real = os.path.realpath(os.fsencode(path))
    if not trust.own and real != os.fsencode(path):
        # A link that came after it was looked at where this caller may read.
        raise ProjectNotFound(f"There is no {path}.", hint="Check the path.")
    if is_within(real, os.path.realpath(os.fsencode(trust.data))):
        raise ProjectInvalid(f"{path} is in Carrel's own data folder.", hint="Check the path.")
    outside = OutsideAccess(real, trust.reach, trust.data)
    try:
        with RepositoryReader(real) as files:
            found = _git_folder(files, outside)
            if found is None:
                _refuse_outside(path, outside)
                raise ProjectInvalid(f"{path} is not a git repository.", hint=_hint(path))
            read = _read_by_git(files, *found, outside)
    except OSError as error:
        raise ProjectUnreadable(f"{path} cannot be read: {error.strerror}.") from error
    _refuse_outside(path, outside)
    outside.remember()
    folders = tuple(Path(os.fsdecode(folder)) for folder in dict.fromkeys((real, *read)))
    shown = os.fsdecode(real) if not trust.own else str(path)
    common = os.fsdecode(found[1])
    git_folders = (Path(common), Path(os.fsdecode(found[0])))
    return Remote(shown, str(path), _key("path", common, trust), folders, *git_folders)


def _git_folder(files: RepositoryReader, outside: OutsideAccess) -> tuple[bytes, bytes] | None:
    """The git folder of a checkout, of a linked worktree, or a bare repository itself; and
    the one whose objects it shares."""
    top = files.project
    found = outside.reach(files, os.path.join(top, b".git"))
    if found is None and not outside.left_out and is_git_folder(files, top, top):
        return top, top
    return found


def _read_by_git(
    files: RepositoryReader, target: bytes, common: bytes, outside: OutsideAccess
) -> list[bytes]:
    """All that git will read to serve a repository, as far as it may."""

    def admit(named: bytes) -> bytes | None:
        return outside.admit_objects(files, named)

    for folder in (target, common):
        if found := endless_file(folder):
            raise ProjectInvalid(
                f"Git cannot read {os.fsdecode(found)[:200]!r}: it is no file, or too large.",
                hint="Mend the repository, or name a folder instead.",
            )
    lent, _ = lenders(files, os.path.join(common, b"objects"), admit)
    included = []
    for path in (os.path.join(common, b"config"), os.path.join(target, b"config.worktree")):
        items = config.parse(files.read(path) or b"")
        if len(items) > config.MAX_ITEMS:
            raise ProjectInvalid(
                f"{os.fsdecode(path)[:200]!r} has more settings than can be looked at.",
                hint="Shorten it: git would obey what it includes.",
            )
        for item in items:
            if item.name.startswith(("include.", "includeif.")) and item.name.endswith(".path"):
                named = os.path.join(os.path.dirname(path), os.path.expanduser(item.value))
                included.append(admit(named) if files.leads_out(named) else None)
    return [target, common, *lent, *(file for file in included if file is not None)]


def _refuse_outside(path: Path, outside: OutsideAccess) -> None:
    if not outside.left_out:
        return
    named = os.fsdecode(os.path.normpath(outside.left_out[0]))
    hint = "An administrator can allow it: `carrel new --follow-git`."
    raise ProjectInvalid(f"{path} needs {named[:200]!r}, which is outside of it.", hint=hint)


def _hint(path: Path) -> str:
    for parent in path.parents:
        if os.path.lexists(parent / ".git"):
            return f"It is inside one: the repository is {parent}."
    return "Use it as a folder instead, or run `git init` in it."


# The way to a remote, for who is not the owner

_URL = re.compile(
    r"(?P<scheme>https?)://(?:[^\s/?#@\\]*@)?"
    r"(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::(?P<port>[0-9]{1,5}))?(?:/[^\s\\]*)?",
    re.ASCII,
)
"""Strict, so that git cannot read another host in it than we do."""
_PORTS = {"http": 80, "https": 443}
_PINS_SINCE = (2, 37)
"""Older ones do not know `http.curloptResolve`, and would look the name up again."""
_OPTIONS = (
    "http.followRedirects=false",  # nor the alternates that a server names
    "http.proxy=",
    "http.emptyAuth=false",  # else a Kerberos ticket of the daemon's user is offered
    "http.cookieFile=",
    "credential.helper=",
    "transfer.bundleURI=false",
)
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


def route_to(url: str, policy: ClonePolicy) -> list[str]:
    """Options that stand between `git` and its command. Raises `ProjectInvalid` for a URL
    that is not to be asked, `GitFailed` for a name that has no address."""
    found = _URL.fullmatch(url)
    if found is None:
        raise ProjectInvalid(
            "This token can clone only over http and https.",
            hint="Use such a URL, or ask an administrator.",
        )
    host = found["host"].strip("[]").rstrip(".").lower()
    port = int(found["port"] or _PORTS[found["scheme"].lower()])
    words = [word for option in _OPTIONS for word in ("-c", option)]
    if host in {allowed.rstrip(".").lower() for allowed in policy.hosts}:
        return words
    addresses = _addresses(host, port)
    if any(not _is_public(address) for address in addresses):
        raise ProjectInvalid(
            f"This token may not clone from {host!r}: it is on this machine or a private network.",
            hint="An administrator can add the host to `clone_hosts`.",
        )
    if git_version() < _PINS_SINCE:
        raise ProjectInvalid(
            "This machine's git is too old to clone for a token.", hint="Install git 2.37 or later."
        )
    shown = ",".join(f"[{one}]" if one.version == 6 else str(one) for one in addresses)
    # By the name as git will write it, which it looks up in this table first.
    pins = {found["host"].strip("[]"), host}
    return [
        *words,
        *(w for pin in pins for w in ("-c", f"http.curloptResolve={pin}:{port}:{shown}")),
    ]


Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def _addresses(host: str, port: int) -> list[Address]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise GitFailed(
            f"There is no host {host!r}.", hint="Check the address and the network."
        ) from error
    texts = dict.fromkeys(str(place[0]).partition("%")[0] for *_, place in found)
    return [ipaddress.ip_address(text) for text in texts]


def _is_public(address: Address) -> bool:
    """Also of addresses that another one is packed in; and it is not our own."""
    if isinstance(address, ipaddress.IPv6Address):
        packed = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
        if address in _NAT64:
            packed.append(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
        if any(inner is not None and not _is_public(inner) for inner in packed):
            return False
        if address.is_site_local:
            return False
    return address.is_global and not address.is_multicast and not _is_own(address)


def _is_own(address: Address) -> bool:
    """Whether packets to it would stay here: then they start at the same address."""
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((str(address), 9))  # sends nothing
        except OSError:
            return False
        return bool(probe.getsockname()[0] == str(address))
