"""Imports of people's own set-ups, one file each in the daemon's own folder, and what is in a
home that could be imported.

The home is read by the program that the person calls, never by the daemon. What is there is data:
no link is followed out of the agent's folder, and nothing is run.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import os
import re
import stat
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from carrel.agents.credentials import write_private
from carrel.domain.imports import (
    LOGINS,
    MOST_BYTES,
    MOST_DEPTH,
    MOST_FILE,
    MOST_FILES,
    MOST_SERVERS,
    OWN_SERVER,
    PARTS,
    SERVER_NAME,
    SETTINGS,
    VARIABLE,
    Imported,
    ImportedServer,
    Login,
)
from carrel.domain.keys import looks_like_key, named_like_key

SUFFIX = ".json"


class Imports:
    """Implements `carrel.domain.imports.ImportStore`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def names(self) -> list[str]:
        return [name for name in LOGINS if (self._folder / (name + SUFFIX)).exists()]

    def given(self, frontend: str) -> Imported | None:
        if frontend not in LOGINS:
            return None
        try:
            data = (self._folder / (frontend + SUFFIX)).read_bytes()
        except FileNotFoundError:
            return None
        return msgspec.json.decode(data, type=Imported)

    def login_for(self, frontend: str) -> tuple[str, Imported] | None:
        for name, users in LOGINS.items():
            if frontend in users and (found := self.given(name)) and found.login:
                return name, found
        return None

    def set(self, frontend: str, imported: Imported) -> None:
        write_private(self._folder / (frontend + SUFFIX), msgspec.json.encode(imported))

    def remove(self, frontend: str) -> bool:
        if frontend not in LOGINS:
            return False
        try:
            (self._folder / (frontend + SUFFIX)).unlink()
        except FileNotFoundError:
            return False
        return True


# What is in a home

HOMES = {"claude-code": ("CLAUDE_CONFIG_DIR", ".claude"), "codex-cli": ("CODEX_HOME", ".codex")}
"""By frontend: the variable that names the agent's folder, and where it is otherwise."""
NEVER: Mapping[str, tuple[str, ...]] = {
    "claude-code": (
        "conversations, histories and projects",
        "the refresh token of the login",
        "permissions, environment variables, plugins and other settings",
    ),
    "codex-cli": (
        "conversations, histories and projects",
        "the refresh token of the login",
        "approvals, providers, profiles and other settings",
    ),
}
RUNS: Mapping[str, tuple[str, ...]] = {
    "claude-code": ("hooks", "statusLine", "apiKeyHelper", "awsAuthRefresh", "otelHeadersHelper"),
    "codex-cli": ("hooks", "notify"),
}
"""Settings that run programs of the home."""
SKIPPED = frozenset({"node_modules", "__pycache__"})
MOST_SETTINGS = 8 << 20
"""Of a file of settings: `.claude.json` has a note on every project in it."""
HARMLESS_HEADERS = frozenset(
    {"accept", "accept-encoding", "accept-language", "content-type", "user-agent", "origin"}
)
"""Whatever else a server is sent may be what it knows its users by."""
_USER = re.compile(r"://(?!\$)[^/\s@]+@")
_ASSIGNED = re.compile(r"([A-Za-z_][\w.-]*)[=:]([^\s&;,'\"?#]+)")
_REFERENCE = re.compile(r"\$\{(\w+)(?::-[^}]*)?\}")


@dataclass
class ImportDraft:
    """What would be imported, and in sentences what is copied and what is not."""

    frontend: str
    folder: Path
    imported: Imported = field(default_factory=Imported)
    copied: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)


def folder_of(frontend: str, env: Mapping[str, str]) -> Path:
    variable, usual = HOMES[frontend]
    said = env.get(variable)
    return Path(said) if said else Path(env.get("HOME") or os.path.expanduser("~"), usual)


def has_login(frontend: str, env: Mapping[str, str]) -> bool:
    """Whether the agent of this home seems to be logged in; reads nothing."""
    folder = folder_of(frontend, env)
    name = "auth.json" if frontend == "codex-cli" else ".credentials.json"
    return os.path.lexists(folder / name)


def draft(frontend: str, env: Mapping[str, str], *, with_keys: bool = False) -> ImportDraft | None:
    """None when the agent has no folder in this home."""
    folder = folder_of(frontend, env)
    if not folder.is_dir():
        return None
    made = ImportDraft(frontend, Path(os.path.realpath(folder)))
    _files(made, with_keys)
    (_claude if frontend == "claude-code" else _codex)(made, env, with_keys)
    made.left += [*NEVER[frontend]]
    return made


def _files(made: ImportDraft, with_keys: bool) -> None:
    files: dict[str, bytes] = {}
    size = 0
    for path in sorted(_walk(made)):
        data = _read(made, path, MOST_FILE, path.partition("/")[0])
        if data is None:
            continue
        if size + len(data) > MOST_BYTES or len(files) >= MOST_FILES:
            made.left.append(f"{path}: there is too much ({MOST_BYTES >> 20} MiB at most)")
        elif not with_keys and looks_like_key("", data.decode("utf-8", "replace")):
            made.left.append(f"{path}: there is something like a key in it (--with-keys)")
        else:
            files[path], size = data, size + len(data)
    made.imported = replace(made.imported, files=files)
    for part in PARTS[made.frontend]:
        found = [path for path in files if path == part or path.startswith(f"{part}/")]
        if found == [part]:
            made.copied.append(f"{part} ({len(files[part])} bytes)")
        elif found:
            made.copied.append(f"{part}: {', '.join(_short(found, part))}")


def _short(paths: Sequence[str], part: str) -> list[str]:
    """The names below a part, as people know them."""
    return list(dict.fromkeys(path.removeprefix(f"{part}/").split("/")[0] for path in paths))


def _walk(made: ImportDraft) -> Iterator[str]:
    """Paths of files. A link within a part is followed as far as a file, not to a folder."""
    waiting = [(part, 0) for part in PARTS[made.frontend]]
    seen = 0
    while waiting and seen < 20 * MOST_FILES:
        path, depth = waiting.pop()
        seen += 1
        try:
            mode = os.lstat(made.folder / path).st_mode
            if stat.S_ISDIR(mode) and depth < MOST_DEPTH:
                names = sorted(os.listdir(made.folder / path))
                waiting += [(f"{path}/{name}", depth + 1) for name in names if _is_plain(name)]
            elif stat.S_ISREG(mode) or stat.S_ISLNK(mode):
                yield path
        except FileNotFoundError:
            continue
        except OSError as error:
            made.left.append(f"{path}: {error.strerror}")


def _is_plain(name: str) -> bool:
    return not name.startswith(".") and name not in SKIPPED and name.isprintable()


def _read(made: ImportDraft, path: str, most: int, part: str = "") -> bytes | None:
    """None, and why, when it is no file of that folder. What is in a part that is copied may be
    somebody else's: by a second name it would bring the login or a conversation along."""
    real, top = Path(os.path.realpath(made.folder / path)), made.folder / part
    if not real.is_relative_to(top):
        made.left.append(f"{path}: it is a link that leads out of {top}")
        return None
    if part and not all(map(_is_plain, real.relative_to(top).parts)):
        made.left.append(f"{path}: it is a link to something hidden")
        return None
    try:
        descriptor = os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or (part and found.st_nlink > 1):
            os.close(descriptor)
            why = "it has another name too" if stat.S_ISREG(found.st_mode) else "it is no file"
            made.left.append(f"{path}: {why}")
            return None
        with os.fdopen(descriptor, "rb") as file:
            data = file.read(most + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        made.left.append(f"{path}: {error.strerror}")
        return None
    if len(data) > most:
        made.left.append(f"{path}: it is larger than {most >> 10} KiB")
        return None
    return data


def _object(made: ImportDraft, path: str) -> dict[str, Any]:
    """A file of JSON or TOML; empty, and why, when it is neither."""
    data = _read(made, path, MOST_SETTINGS)
    if data is None:
        return {}
    try:
        text = data.decode()
        found = tomllib.loads(text) if path.endswith(".toml") else json.loads(text)
    except (ValueError, RecursionError):
        made.left.append(f"{path}: it cannot be read")
        return {}
    return found if isinstance(found, dict) else {}


def _claude(made: ImportDraft, env: Mapping[str, str], with_keys: bool) -> None:
    own = _object(made, "settings.json")
    # It is beside the folder, unless a variable names that.
    beside = ImportDraft(
        made.frontend, made.folder if env.get("CLAUDE_CONFIG_DIR") else _above(env)
    )
    noted = _object(beside, ".claude.json")
    made.left += beside.left
    _take_settings(made, own)
    _take_servers(made, noted.get("mcpServers"), with_keys)
    said = _object(made, ".credentials.json").get("claudeAiOauth")
    token = said.get("accessToken") if isinstance(said, dict) else None
    key = noted.get("primaryApiKey")
    if isinstance(said, dict) and isinstance(token, str) and token:
        until = said.get("expiresAt")
        expires = until / 1000 if isinstance(until, int | float) and until > 0 else None
        _take_login(made, Login("anthropic", token, expires_at=expires))
    elif isinstance(key, str) and key:
        _take_login(made, Login("anthropic", key))


def _above(env: Mapping[str, str]) -> Path:
    return Path(os.path.realpath(env.get("HOME") or os.path.expanduser("~")))


def _codex(made: ImportDraft, _env: Mapping[str, str], with_keys: bool) -> None:
    own = _object(made, "config.toml")
    _take_settings(made, own)
    _take_servers(made, own.get("mcp_servers"), with_keys)
    auth = _object(made, "auth.json")
    key, tokens = auth.get("OPENAI_API_KEY"), auth.get("tokens")
    if isinstance(tokens, dict) and isinstance(access := tokens.get("access_token"), str):
        kept = {**tokens, "refresh_token": ""}
        file = {"auth_mode": "chatgpt", "OPENAI_API_KEY": None, "tokens": kept}
        expires = _expiry(access)
        _take_login(made, Login("openai", access, json.dumps(file), expires))
    elif isinstance(key, str) and key:
        _take_login(made, Login("openai", key))


def _expiry(token: str) -> float | None:
    """Of a JSON web token."""
    try:
        middle = token.split(".")[1]
        said = json.loads(base64.urlsafe_b64decode(middle + "=" * (-len(middle) % 4)))
        return float(said["exp"])
    except (IndexError, KeyError, TypeError, ValueError, binascii.Error, RecursionError):
        return None


def _take_login(made: ImportDraft, login: Login) -> None:
    until = ""
    if login.expires_at is not None:
        with contextlib.suppress(OverflowError, OSError, ValueError):
            until = f", until {datetime.fromtimestamp(login.expires_at):%Y-%m-%d %H:%M}"
    made.imported = replace(made.imported, login=login)
    made.copied.append(f"the login{until}, without its refresh token")


def _take_settings(made: ImportDraft, own: Mapping[str, Any]) -> None:
    known = {name: own[name] for name in SETTINGS[made.frontend] if name in own}
    taken = {
        name: value
        for name, value in known.items()
        if isinstance(value, bool) or (isinstance(value, str) and len(value) <= 200)
    }
    made.imported = replace(made.imported, settings=taken)
    if taken:
        made.copied.append(f"settings: {', '.join(f'{key}={taken[key]}' for key in taken)}")
    made.left += [
        f"{name}: it runs programs of your home" for name in RUNS[made.frontend] if name in own
    ]


# MCP servers


def _take_servers(made: ImportDraft, found: object, with_keys: bool) -> None:
    servers: dict[str, ImportedServer] = {}
    keys: dict[str, str] = {}
    for name, said in found.items() if isinstance(found, dict) else ():
        if why := _unfit(str(name), said, len(servers)):
            made.left.append(f"MCP server {str(name)[:64]}: {why}")
            continue
        servers[name], values = _server(name, said)
        keys.update({key: value for key, value in values.items() if key not in keys})
        without = [key for key in values if values[key]]
        if without and not with_keys:
            made.left.append(
                f"MCP server {name}: the values of {', '.join(without)} (--with-keys, or --env)"
            )
    given = {key: value for key, value in keys.items() if value and with_keys}
    made.imported = replace(made.imported, servers=servers, keys=given)
    if servers:
        made.copied.append(f"MCP servers: {', '.join(servers)}")
    if given:
        made.copied.append(f"keys of MCP servers: {', '.join(given)}")


def _unfit(name: str, said: object, number: int) -> str:
    if not SERVER_NAME.fullmatch(name) or name == OWN_SERVER or number >= MOST_SERVERS:
        return "it cannot have this name, or there are too many"
    if not isinstance(said, dict) or said.get("enabled") is False or said.get("disabled"):
        return "it is switched off, or not understood"
    args, url = said.get("args", []), said.get("url", "")
    if not isinstance(args, list) or not isinstance(url, str):
        return "it is not understood"
    if where := _key_in([str(said.get("command", "")), *map(str, args)]) or _key_in([url]):
        return f"there is something like a key in its command or address ({where})"
    return "" if url or isinstance(said.get("command"), str) else "it has no command and no address"


def _server(name: str, said: Mapping[str, Any]) -> tuple[ImportedServer, dict[str, str]]:
    """With the values that look like keys, by variable; empty where only a variable is named."""
    env, headers = _texts(said.get("env")), _texts(said.get("headers") or said.get("http_headers"))
    values = {
        one: env.pop(one)
        for one in list(env)
        if looks_like_key(one, env[one]) or _key_in([env[one]])
    }
    values = {one: _plain(one, value) for one, value in values.items() if VARIABLE.fullmatch(one)}
    values |= {one: "" for one in said.get("env_vars") or () if isinstance(one, str)}
    secret: dict[str, str] = {}
    for header in [one for one in headers if _is_secret(one, headers[one])]:
        variable = re.sub(r"\W", "_", f"CARREL_MCP_{name}_{header}".upper())
        secret[header], values[variable] = variable, headers.pop(header)
    token = said.get("bearer_token_env_var")
    if isinstance(token, str) and VARIABLE.fullmatch(token):
        values[token] = ""
    server = ImportedServer(
        command=str(said.get("command", "")),
        args=tuple(map(str, said.get("args", ()))),
        env=env,
        variables=tuple(one for one in values if one not in (*secret.values(), token)),
        url=str(said.get("url", "")),
        sse=said.get("type") == "sse",
        headers=headers,
        secret_headers=secret,
        bearer=token if isinstance(token, str) and token in values else "",
    )
    return server, values


def _plain(name: str, value: str) -> str:
    """A value that only names a variable of the same name is none."""
    found = _REFERENCE.fullmatch(value)
    return "" if found and found.group(1) == name else value


def _is_secret(header: str, value: str) -> bool:
    return header.lower() not in HARMLESS_HEADERS or bool(_key_in([value]))


def _key_in(texts: Sequence[str]) -> str:
    """The name of something like a key in the words of a command, an address or a value: that of
    an option, of an assignment, of a part of a query; empty where there is none."""
    words = [word.strip("\"'") for text in texts for word in text.split()]
    for word, following in pairwise([*words, ""]):
        if looks_like_key("", word) or _USER.search(word):
            return "a password"
        if word.startswith("-") and named_like_key(word) and _is_value(following):
            return word
        for name, value in _ASSIGNED.findall(word):
            if named_like_key(name) and _is_value(value):
                return str(name)
        if word.lower() == "authorization:" or (word.endswith(":") and named_like_key(word)):
            return word
    return ""


def _is_value(text: str) -> bool:
    """Neither a number, a path, another option, nor the name of a variable."""
    return bool(text) and not text.isdigit() and not text.startswith(("-", "/", "~", "./", "$"))


def _texts(found: object) -> dict[str, str]:
    return {str(key): str(found[key]) for key in found} if isinstance(found, dict) else {}
