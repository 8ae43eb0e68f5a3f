"""The settings of package managers, as far as the owner's spaces get them: which index, which
proxy, which certificates.

Each file is parsed as its program does, and written anew with the keys of a table. What is not in
the table is not passed: commands, wrappers, helpers for credentials, paths of the home. Passwords
are cut out of URLs. The URL itself stays, or becomes one that nobody answers, so that a private
index refuses instead of being replaced by a public one, where somebody else may have taken the
names of its packages.
"""

from __future__ import annotations

import configparser
import fnmatch
import json
import os
import re
import shutil
import stat
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from carrel.domain.environments import NO_SETTINGS, PackageSettings
from carrel.domain.errors import SpaceInvalid
from carrel.domain.keys import looks_like_key
from carrel.environments.apt_settings import (
    parse_configuration,
    parse_sources,
    write_configuration,
    write_sources,
)
from carrel.environments.login_shell import is_same, stamp_of

MOST_BYTES = 256 * 1024
"""Of a file that a person has written."""
MOST_CERTIFICATE_BYTES = 4 << 20
"""A bundle with all authorities of the world has a quarter of a million bytes."""
MOST_CERTIFICATES = 1000
"""In one folder."""
NOBODY = "https://withheld.invalid/"
"""No host has such a name."""
_TOP = "\0"
"""The name under which what is before the first section of a file is kept."""

Settings = dict[str, Any]
"""Of one file: sections, tables, and values in them."""


class ValueKind(Enum):
    """What a value may be."""

    URLS = "urls"
    """One or several, between blanks; or paths."""
    URL = "url"
    """The first word: what is behind it may be a note."""
    WORDS = "words"
    """Names of hosts, numbers, switches."""
    CERTIFICATES = "certificates"
    """A path. The space is shown what is there."""
    CREDENTIAL = "credential"
    """Passed only to spaces that were asked to have it."""


Patterns = Mapping[tuple[str, ...], ValueKind]
"""By the names of tables and keys."""


@dataclass(frozen=True)
class ManagerFiles:
    """How the settings of one package manager are read and written."""

    name: str
    target: str
    """The file that the space's home gets."""
    places: tuple[str, ...]
    """Files from the root or below the home; the last one wins."""
    parse: Callable[[str], Settings]
    write: Callable[[Settings], str]
    kept: Mapping[str, ValueKind]
    """By the names of tables and keys, divided by blanks; `*` stands for any characters."""
    variables: tuple[str, ...] = ()
    """Those that name another file."""


def _parse_pip(text: str) -> Settings:
    parser = configparser.RawConfigParser()
    parser.read_string(text)
    return {
        section: {key.replace("_", "-").removeprefix("--"): value for key, value in keys.items()}
        for section, keys in parser.items()
        if section != parser.default_section
    }


def _parse_npm(text: str) -> Settings:
    """An indented line is one as any other there, and a key may have no value."""
    parser = configparser.RawConfigParser(
        delimiters=("=",), strict=False, allow_no_value=True, default_section=f"{_TOP}{_TOP}"
    )
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    lines = [line.strip() for line in text.splitlines()]
    parser.read_string("\n".join((f"[{_TOP}]", *lines)))
    return {key: _unquoted(value or "true") for key, value in parser.items(_TOP)}


def _unquoted(value: str) -> str:
    if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
        return value[1:-1]
    return value


def _write_pip(settings: Settings) -> str:
    sections = []
    for section, keys in settings.items():
        lines = [f"{key} = {_plain(value)}" for key, value in keys.items()]
        sections.append("\n".join((f"[{section}]", *lines, "")))
    return "\n".join(sections)


def _write_npm(settings: Settings) -> str:
    return "".join(f"{key}={_plain(value)}\n" for key, value in settings.items())


def _plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _write_toml(settings: Settings, above: tuple[str, ...] = ()) -> str:
    """Values first, then tables, as the format wants it. Text is quoted as in JSON."""
    lines, tables = [], []
    for key, value in settings.items():
        name = ".".join(json.dumps(part) for part in (*above, key))
        if isinstance(value, dict):
            tables.append(f"\n[{name}]\n{_write_toml(value, (*above, key))}")
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            tables += [f"\n[[{name}]]\n{_write_toml(one, (*above, key))}" for one in value]
        else:
            lines.append(f"{json.dumps(key)} = {json.dumps(value)}\n")
    return "".join((*lines, *tables))


def _table(kind: ValueKind, prefixes: Iterable[str], *keys: str) -> dict[str, ValueKind]:
    return {f"{prefix}{key}": kind for prefix in prefixes for key in keys}


_DEB822 = "/etc/apt/sources.list.d/*.sources"
_UV_PREFIXES = ("", "pip ")
_NPM_CREDENTIALS = ("_auth", "_authToken", "_password", "always-auth", "email", "username")
MANAGERS = (
    ManagerFiles(
        "pip",
        ".config/pip/pip.conf",
        ("/etc/pip.conf", ".pip/pip.conf", ".config/pip/pip.conf"),
        _parse_pip,
        _write_pip,
        {
            **_table(
                ValueKind.URLS, ("* ",), "index-url", "extra-index-url", "find-links", "proxy"
            ),
            **_table(ValueKind.WORDS, ("* ",), "trusted-host", "no-index", "timeout", "retries"),
            "* cert": ValueKind.CERTIFICATES,
        },
        ("PIP_CONFIG_FILE",),
    ),
    ManagerFiles(
        "uv",
        ".config/uv/uv.toml",
        ("/etc/uv/uv.toml", ".config/uv/uv.toml"),
        tomllib.loads,
        _write_toml,
        {
            "index url": ValueKind.URLS,
            **_table(ValueKind.WORDS, ("index ",), "name", "default", "explicit", "format"),
            **_table(ValueKind.URLS, _UV_PREFIXES, "index-url", "extra-index-url", "find-links"),
            **_table(ValueKind.WORDS, _UV_PREFIXES, "no-index", "index-strategy"),
            **_table(ValueKind.WORDS, ("",), "allow-insecure-host", "native-tls", "no-proxy"),
            **_table(ValueKind.URLS, ("",), "http-proxy", "https-proxy"),
        },
        ("UV_CONFIG_FILE",),
    ),
    ManagerFiles(
        "npm",
        ".npmrc",
        ("/usr/etc/npmrc", "/usr/local/etc/npmrc", "/etc/npmrc", ".npmrc"),
        _parse_npm,
        _write_npm,
        {
            **_table(ValueKind.URL, ("",), "registry", "@*:registry", "proxy", "https-proxy"),
            **_table(ValueKind.WORDS, ("",), "noproxy", "no-proxy", "strict-ssl"),
            **_table(ValueKind.WORDS, ("",), "fetch-retries", "fetch-timeout", "maxsockets"),
            "cafile": ValueKind.CERTIFICATES,
            **_table(ValueKind.CREDENTIAL, ("", "//*:"), *_NPM_CREDENTIALS),
        },
        ("NPM_CONFIG_USERCONFIG", "npm_config_userconfig"),
    ),
    ManagerFiles(
        "cargo",
        ".cargo/config.toml",
        (".cargo/config", ".cargo/config.toml"),
        tomllib.loads,
        _write_toml,
        {
            **_table(ValueKind.URLS, ("source * ",), "registry"),
            **_table(ValueKind.WORDS, ("source * ",), "replace-with"),
            **_table(ValueKind.URLS, ("registries * ",), "index"),
            **_table(ValueKind.WORDS, ("registries * ",), "protocol"),
            **_table(ValueKind.WORDS, ("registry ",), "default"),
            **_table(ValueKind.WORDS, ("net ",), "retry", "offline", "git-fetch-with-cli"),
            **_table(ValueKind.WORDS, ("http ",), "timeout", "multiplexing", "check-revoke"),
            "http proxy": ValueKind.URLS,
            "http cainfo": ValueKind.CERTIFICATES,
            **_table(ValueKind.CREDENTIAL, ("registry ", "registries * "), "token"),
        },
    ),
    ManagerFiles(
        "cargo",
        ".cargo/credentials.toml",
        (".cargo/credentials", ".cargo/credentials.toml"),
        tomllib.loads,
        _write_toml,
        _table(ValueKind.CREDENTIAL, ("registry ", "registries * "), "token"),
    ),
    # Where they are read from in a sandbox is said in its /etc/apt (`runtimes/etc.py`).
    ManagerFiles(
        "apt",
        ".config/apt/apt.conf",
        ("/etc/apt/apt.conf.d/*", "/etc/apt/apt.conf"),
        parse_configuration,
        write_configuration,
        {
            **_table(ValueKind.URLS, ("acquire::",), "http*::proxy", "http*::proxy::*"),
            **_table(ValueKind.WORDS, ("acquire::",), "retries", "http*::timeout", "languages"),
            **_table(ValueKind.WORDS, ("acquire::https::",), "verify-peer", "verify-host"),
            "acquire::https::cainfo": ValueKind.CERTIFICATES,
        },
        ("APT_CONFIG",),
    ),
    ManagerFiles(
        "apt",
        ".config/apt/sources.list.d/owner.sources",
        ("/etc/apt/sources.list", "/etc/apt/sources.list.d/*.list", _DEB822),
        parse_sources,
        write_sources,
        {
            "* uris": ValueKind.URLS,
            **_table(ValueKind.WORDS, ("* ",), "types", "suites", "components", "architectures"),
            **_table(ValueKind.WORDS, ("* ",), "signed-by", "trusted", "languages", "targets"),
        },
    ),
)
NETRC = ".netrc"
_FOLDERS = tuple(f"etc/apt/{name}" for name in ("apt.conf.d", "sources.list.d", "auth.conf.d"))
_PART = re.compile(r"[\w.-]+\.(?:list|sources|conf)|[\w-]+", re.ASCII)

_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")
_WITHOUT_PROXY = ("NO_PROXY", "no_proxy")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
"""No proxy reaches what a space serves itself."""
VARIABLES: Mapping[str, ValueKind] = {
    **_table(ValueKind.URLS, ("",), *_PROXIES),
    **_table(ValueKind.WORDS, ("",), *_WITHOUT_PROXY),
    **_table(ValueKind.CERTIFICATES, ("SSL_CERT_",), "FILE", "DIR"),
    **_table(ValueKind.CERTIFICATES, ("",), "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT"),
    **_table(ValueKind.CERTIFICATES, ("",), "NODE_EXTRA_CA_CERTS", "GIT_SSL_CAINFO"),
    **_table(ValueKind.CERTIFICATES, ("",), "CARGO_HTTP_CAINFO", "npm_config_cafile"),
    **_table(ValueKind.URLS, ("PIP_", "UV_"), "INDEX_URL", "EXTRA_INDEX_URL", "FIND_LINKS"),
    **_table(ValueKind.WORDS, ("PIP_", "UV_"), "NO_INDEX"),
    **_table(ValueKind.URLS, ("",), "PIP_PROXY", "UV_INDEX", "UV_DEFAULT_INDEX"),
    **_table(ValueKind.WORDS, ("PIP_",), "TRUSTED_HOST", "DEFAULT_TIMEOUT", "RETRIES"),
    **_table(ValueKind.WORDS, ("UV_",), "INSECURE_HOST", "NATIVE_TLS", "HTTP_TIMEOUT"),
    **_table(ValueKind.URL, ("npm_config_", "NPM_CONFIG_"), "registry", "REGISTRY"),
    **_table(ValueKind.URLS, ("CARGO_",), "HTTP_PROXY"),
    **_table(ValueKind.WORDS, ("CARGO_",), "HTTP_TIMEOUT", "NET_RETRY", "NET_OFFLINE"),
    **_table(ValueKind.CREDENTIAL, ("",), "CARGO_REGISTRY_TOKEN", "NPM_TOKEN", "NODE_AUTH_TOKEN"),
}
_MORE_VARIABLES: Patterns = {
    ("CARGO_REGISTRIES_*_INDEX",): ValueKind.URLS,
    ("CARGO_REGISTRIES_*_TOKEN",): ValueKind.CREDENTIAL,
    ("UV_INDEX_*_USERNAME",): ValueKind.CREDENTIAL,
    ("UV_INDEX_*_PASSWORD",): ValueKind.CREDENTIAL,
}
"""By a pattern: a shell can be asked only for names, so these are the daemon's own."""
ASKED = (*VARIABLES, *(name for one in MANAGERS for name in one.variables), "CARGO_HOME")
"""What the login shell is asked for."""

_URL = re.compile(r"((?:[\w-]+=)?(?:[A-Za-z][A-Za-z0-9+.-]*:)?//)?([^/?#]*)([^?#]*)(.*)", re.DOTALL)
_HOST = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.~-]*)(?::\d*)?")
_TOKEN = re.compile(r"/(?:t/[\w-]{6,}|[0-9a-f]{40,})(?:/|$)")
"""In a path: as conda and its index for pip have it, and one of packagecloud."""
_WORDS = re.compile(r"[\w.:*/, \[\]+=~-]*", re.ASCII)
_LINE = re.compile(r"[^\x00-\x1f\x7f]*")


class PackageManagers:
    """Implements `carrel.domain.collaborators.Packages`. What was found holds until a file or a
    variable changes."""

    def __init__(
        self,
        home: Path | None,
        env: Mapping[str, str],
        said: Callable[[], Mapping[str, str]],
        check: Callable[[str], Mapping[str, str]],
        seen: Callable[[], Iterable[str]],
        system: Path = Path("/"),
    ) -> None:
        """`said` is what the login shell says, `check` what may be shown of a path, as
        `HomeToolchains` have them. `seen` are the paths that every sandbox shows. `system` has the
        /etc with the settings that all users of the machine have."""
        self._home = home
        self._env = env
        self._said = said
        self._check = check
        self._seen = seen
        self._system = system
        self._known: dict[bool, tuple[PackageSettings, dict[str, str], dict[str, list[int]]]] = {}

    def settings(self, *, credentials: bool = False) -> PackageSettings:
        if self._home is None:
            return NO_SETTINGS
        env = {**self._env, **self._said()}
        if credentials in self._known:
            known, before, stamps = self._known[credentials]
            if before == env and is_same(stamps):
                return known
        found_at = partial(_places, self._home, self._system, env)
        places = [[*found_at(manager)] for manager in MANAGERS]
        netrcs = [*_netrcs(self._home, self._system)]
        # Before the look: what changes meanwhile is seen by the next.
        whole = [place for _, place in netrcs]
        looked = [*chain(*places), *whole, *(self._system / name for name in _FOLDERS)]
        stamps = {str(path): stamp_of(str(path)) for path in looked}
        passing = _Passing(self._home, self._check, tuple(self._seen()), credentials)
        for manager, own in zip(MANAGERS, places, strict=True):
            passing.take(manager, own)
        for target, place in netrcs:
            passing.take_netrc(target, place)
        passing.take_variables(env)
        withheld = tuple(dict.fromkeys(passing.withheld))
        found = PackageSettings(passing.files, passing.env, passing.shown, withheld, credentials)
        self._known[credentials] = found, env, {**stamps, **passing.stamps}
        return found


def _places(
    home: Path, system: Path, env: Mapping[str, str], manager: ManagerFiles
) -> Iterator[Path]:
    if manager.name == "npm" and (node := shutil.which("node", path=env.get("PATH", ""))):
        yield Path(node).parent.parent / "etc" / "npmrc"
    cargo = env.get("CARGO_HOME", "")
    for place in manager.places:
        if place.startswith(".cargo/") and os.path.isabs(cargo):
            yield Path(cargo) / place.removeprefix(".cargo/")
        if place.startswith("/"):
            yield from _matches(system, place)
        else:
            yield home / place
    for name in manager.variables:
        if os.path.isabs(env.get(name, "")):
            yield Path(env[name])


def _netrcs(home: Path, system: Path) -> Iterator[tuple[str, Path]]:
    """Files that are credentials as a whole, and where each goes."""
    yield NETRC, home / NETRC
    for pattern in ("/etc/apt/auth.conf", "/etc/apt/auth.conf.d/*.conf"):
        for place in _matches(system, pattern):
            yield ".config/apt/auth.conf", place


def _matches(system: Path, pattern: str) -> Iterator[Path]:
    """One file, there or not; or all that apt would read in a folder, in its order: nothing that
    is left of an older version."""
    if "*" not in pattern:
        yield system / pattern.lstrip("/")
        return
    folder, _, ending = pattern.lstrip("/").rpartition("/")
    found = (system / folder).glob(ending)
    yield from sorted(one for one in found if _PART.fullmatch(one.name))


@dataclass
class _Passing:
    """What one space gets, as far as it is known."""

    home: Path
    check: Callable[[str], Mapping[str, str]]
    seen: tuple[str, ...]
    credentials: bool
    files: dict[str, str] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    shown: dict[str, str] = field(default_factory=dict)
    withheld: list[str] = field(default_factory=list)
    stamps: dict[str, list[int]] = field(default_factory=dict)
    """Of the certificates, as they were before they were looked at."""

    def take(self, manager: ManagerFiles, places: Iterable[Path]) -> None:
        merged: Settings = {}
        for place in places:
            try:
                if text := _read(place):
                    _merge(merged, manager.parse(text))
            except (ValueError, RecursionError, configparser.Error):
                self.withheld.append(f"{place}, which cannot be read")
        patterns = {tuple(key.split(" ")): kind for key, kind in manager.kept.items()}
        kept = self._kept(manager.name, merged, patterns, ())
        if kept:
            self.files[manager.target] = manager.write(kept)

    def take_netrc(self, target: str, place: Path) -> None:
        name = target if place == self.home / target else str(place)
        try:
            text = _read(place)
        except ValueError:
            self.withheld.append(f"{name}, which cannot be read")
            return
        if text and self.credentials:
            self.files[target] = self.files.get(target, "") + text
        elif text:
            self.withheld.append(name)

    def take_variables(self, env: Mapping[str, str]) -> None:
        for name, value in env.items():
            kind = VARIABLES.get(name) or _matching((name,), _MORE_VARIABLES)
            if kind is not None and value:
                passed = self._value(name, value, kind)
                if passed is not None:
                    self.env[name] = passed
        if not self.env.keys().isdisjoint(_PROXIES):
            for name in [one for one in _WITHOUT_PROXY if one in self.env] or _WITHOUT_PROXY:
                hosts = [one for one in self.env.get(name, "").split(",") if one]
                self.env[name] = ",".join(dict.fromkeys((*hosts, *_LOOPBACK)))

    def _kept(
        self,
        who: str,
        settings: Settings,
        patterns: Patterns,
        above: tuple[str, ...],
    ) -> Settings:
        kept: Settings = {}
        for key, value in settings.items():
            path = (*above, key)
            found: object = None
            if not self.credentials and not _is_plain_key(key):
                self.withheld.append(f"a part of {who}'s settings that has a password in its name")
            elif isinstance(value, dict):
                found = self._kept(who, value, patterns, path) or None
            elif isinstance(value, list) and any(isinstance(one, dict) for one in value):
                tables = [one for one in value if isinstance(one, dict)]
                found = [self._kept(who, one, patterns, path) for one in tables]
            elif (kind := _matching(path, patterns)) and all(map(_LINE.fullmatch, path)):
                found = self._value(f"{who} {'.'.join(path)}", value, kind)
            if found is not None:
                kept[key] = found
        return kept

    def _value(self, name: str, value: Any, kind: ValueKind) -> Any:
        """As the space gets it; None: not at all."""
        if isinstance(value, list):
            found = [self._value(name, one, kind) for one in value]
            return [one for one in found if one is not None]
        if kind is ValueKind.CREDENTIAL:
            if not self.credentials:
                self.withheld.append(name)
            return value if self.credentials and _LINE.fullmatch(str(value)) else None
        if isinstance(value, bool | int | float):
            return value
        if not isinstance(value, str):
            return None
        if kind in (ValueKind.URL, ValueKind.URLS):
            return self._urls(name, value, kind)
        if kind is ValueKind.CERTIFICATES:
            return self._certificates(name, value)
        words = " ".join(value.split())
        return words if _WORDS.fullmatch(words) else None

    def _urls(self, name: str, value: str, kind: ValueKind) -> str | None:
        words = value.split()
        if kind is ValueKind.URL:
            words = words[:1]
        if self.credentials:
            return " ".join(words) if _LINE.fullmatch(" ".join(words)) else None
        # Of several, each has a slash; what has none is a note.
        words = [one for number, one in enumerate(words) if not number or "/" in one]
        cut = [(one, without_password(one)) for one in words]
        if any(one != bare for one, bare in cut):
            self.withheld.append(f"the password in {name}")
        if "proxy" in name.lower():
            return " ".join(bare for _, bare in cut if bare) or None
        if not all(bare for _, bare in cut):
            self.withheld.append(f"an address in {name}, in place of which there is {NOBODY}")
        return " ".join(bare or NOBODY for _, bare in cut) or None

    def _certificates(self, name: str, value: str) -> str | None:
        """A folder of them may be several, divided by colons."""
        places = []
        for one in value.split(":"):
            path = os.path.normpath(one.replace("~", str(self.home), 1) if one[:2] == "~/" else one)
            self.stamps[path] = stamp_of(path)
            try:
                if not _inside(path, self.seen):
                    self.stamps |= {file: stamp_of(file) for file in _files_in(path)}
                    _check_certificates(path)
                    self.shown |= self.check(path)
                places.append(path)
            except (OSError, SpaceInvalid, ValueError):
                self.withheld.append(f"{name}, since {path} cannot be shown")
        return ":".join(places) or None


def _matching(path: tuple[str, ...], patterns: Patterns) -> ValueKind | None:
    for pattern, kind in patterns.items():
        if len(pattern) == len(path) and all(map(fnmatch.fnmatchcase, path, pattern)):
            return kind
    return None


def without_password(url: str) -> str:
    """Nothing for what is neither a URL nor a path, such as one with a slash in its password: no
    part of that is sure to be harmless. Users of ssh have names there, and no passwords."""
    found = _URL.fullmatch(url)
    if found is None or not _LINE.fullmatch(url) or "${" in url:
        return ""
    scheme, authority, path, _ = found.groups(default="")
    user, _, host = authority.rpartition("@")
    if not _HOST.fullmatch(host) or host.endswith(":"):
        return ""
    if scheme and not authority and "file:" not in scheme:
        return ""
    if authority and any("@" in part[1:] for part in path.split("/")):
        return ""
    if user and "ssh:" in scheme and ":" not in user:
        host = authority
    bare = f"{scheme}{host}{path}"
    return "" if looks_like_key("", bare) or (authority and _TOKEN.search(path)) else bare


def _is_plain_key(key: str) -> bool:
    """The names of cargo's tables may be URLs."""
    return not looks_like_key("", key) and ("//" not in key or without_password(key) == key)


def _files_in(folder: str) -> list[str]:
    try:
        names = os.listdir(folder) if os.path.isabs(folder) else []
    except OSError:
        return []
    return [os.path.join(folder, name) for name in names[:MOST_CERTIFICATES]]


def _check_certificates(path: str) -> None:
    """Raises ValueError for anything but certificates: a key is often in the same file."""
    if not os.path.isabs(path):
        raise ValueError(path)
    if not stat.S_ISDIR(os.stat(path).st_mode):
        _check_certificate(path)
        return
    names = os.listdir(path)
    if len(names) > MOST_CERTIFICATES:
        raise ValueError(path)
    for name in names:
        _check_certificate(os.path.join(path, name))


def _check_certificate(path: str) -> None:
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode) or found.st_size > MOST_CERTIFICATE_BYTES:
        raise ValueError(path)
    content = Path(path).read_bytes()
    if b"-----BEGIN " not in content or b"PRIVATE KEY" in content:
        raise ValueError(path)


def _inside(path: str, folders: Iterable[str]) -> bool:
    return any(path == one or path.startswith(f"{one}/") for one in folders)


def _merge(into: Settings, more: Settings) -> None:
    for key, value in more.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = value


def _read(path: Path) -> str:
    """Nothing of what is no file, or larger than a person writes. Raises ValueError for what is
    no text."""
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode) or found.st_size > MOST_BYTES:
            return ""
        return path.read_text("utf-8-sig")
    except OSError:
        return ""
