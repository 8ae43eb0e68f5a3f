"""Which variables may go together with a key that is kept here.

Whoever says where an agent sends its key, or what is loaded into its process, has the key. A
caller with less than the owner's rights may therefore say only what is known to be harmless: agents
and what they are made of read hundreds of variables, and nobody can name all that are not. The
owner may say anything, but the key goes nowhere else than to the endpoints that were named for it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from urllib.parse import urlsplit

from carrel.domain.access import Caller, ScopeKind
from carrel.domain.agents import CredentialStore, FoundFrontend, Frontends
from carrel.domain.errors import MessageInvalid, VariableRefused
from carrel.domain.keys import VARIABLES
from carrel.service.access import require_admin

HARMLESS = frozenset(
    [
        "CI",
        "COLORTERM",
        "COLUMNS",
        "FORCE_COLOR",
        "LANG",
        "LANGUAGE",
        "LINES",
        "NO_COLOR",
        "TERM",
        "TZ",
    ]
)
_LOCALE = re.compile(r"LC_[A-Z]+")
_PLAIN = re.compile(r"[A-Za-z0-9_.@:+, -]*")
_ZONE = re.compile(r"[A-Za-z0-9_+-]+(?:/[A-Za-z0-9_+-]+)*|")
"""Values of these that name no file of the sandbox."""

_ADDRESSES = re.compile(
    r"(?:ANTHROPIC|CLAUDE|OPENAI|CODEX|GEMINI|GOOGLE|VERTEX|AZURE|AWS|BEDROCK|OPENROUTER|MISTRAL"
    r"|GROQ|XAI|DEEPSEEK|OLLAMA|LITELLM|OPENCODE|GOOSE|PI|LLM)_?(?:\w*_)?"
    r"(?:BASE_?UR[IL]|API_?BASE|API_?URL|API_?HOST|ENDPOINT|ENDPOINT_URL\w*|URL|HOST)",
    re.IGNORECASE,
)
"""Variables that say where a model is."""

_ENDPOINT = re.compile(
    r"(https?)://([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?((?:/[A-Za-z0-9._~-]*)*)"
)
"""Nothing that two readers of addresses could understand in two ways."""
MOST_ENDPOINTS = 32
Endpoint = tuple[str, str, int, tuple[str, ...]]


def brings_key(env: Mapping[str, str], credentials: Iterable[str]) -> bool:
    """A caller's own key is used instead of those that are kept here; and then the variables are
    the caller's own affair."""
    return any(name in env for one in credentials for name in VARIABLES.get(one, (one,)))


def check(env: Mapping[str, str], endpoints: Mapping[str, Sequence[str]], *, owner: bool) -> None:
    """`endpoints` are those of the keys that are given, by the keys' names. Raises
    `VariableRefused`."""
    for name, value in env.items():
        if _ADDRESSES.fullmatch(name):
            _check_address(name, value, endpoints)
        elif not owner and not _is_harmless(name, value):
            raise VariableRefused(
                f"This caller may not set {name[:80]} for an agent that gets a stored key "
                f"({', '.join(endpoints)}).",
                hint="Leave it out, put it into a file of the tree, or give a key of your own "
                f"with it ({_variable(next(iter(endpoints)))}).",
                variable=name[:80],
            )


def _is_harmless(name: str, value: str) -> bool:
    if name == "TZ":
        return _ZONE.fullmatch(value) is not None
    known = name in HARMLESS or _LOCALE.fullmatch(name) is not None
    return known and _PLAIN.fullmatch(value) is not None


def _check_address(name: str, value: str, endpoints: Mapping[str, Sequence[str]]) -> None:
    """Every key that is given must be meant for it: which one goes there is the agent's affair."""
    if not value:
        return
    asked = _parsed(value)
    for key, named in endpoints.items():
        if asked is None or not any(_holds(_parsed(one), asked) for one in named):
            raise VariableRefused(
                f"{name[:80]} would send the key {key!r} to an address that is not allowed for it.",
                hint=f"The owner can allow the address: carrel auth set {key} --endpoint URL. "
                f"Or give a key of your own with it ({_variable(key)}).",
                variable=name[:80],
            )


def _variable(key: str) -> str:
    return VARIABLES.get(key, (key,))[0]


def check_endpoints(endpoints: Sequence[str]) -> None:
    """Raises `MessageInvalid`."""
    for one in endpoints:
        if _parsed(one) is None:
            raise MessageInvalid(
                f"{one[:80]!r} cannot be an endpoint.",
                hint="Use http:// or https://, a host, and a path if need be: no user, no query.",
            )
    if len(endpoints) > MOST_ENDPOINTS:
        raise MessageInvalid(
            f"A key has at most {MOST_ENDPOINTS} endpoints.", hint="Name fewer of them."
        )


def _parsed(text: str) -> Endpoint | None:
    if len(text) > 2000 or not (found := _ENDPOINT.fullmatch(text)):
        return None
    scheme, host, port, path = found.groups()
    parts = tuple(part for part in path.split("/") if part)
    number = int(port) if port else (443 if scheme == "https" else 80)
    if {".", ".."} & set(parts) or number > 65535 or urlsplit(text).hostname is None:
        return None
    return scheme, host.lower(), number, parts


def _holds(named: Endpoint | None, asked: Endpoint) -> bool:
    """The same place, or below it."""
    return named is not None and named[:3] == asked[:3] and asked[3][: len(named[3])] == named[3]


# The keys that agents are given, and which agents there are.


class Keyring:
    def __init__(
        self,
        credentials: CredentialStore,
        frontends: Frontends,
        install: Callable[[str], object],
    ) -> None:
        """`install` puts a frontend's programs into Carrel's own folder; blocking."""
        self._credentials = credentials
        self._frontends = frontends
        self._install = install

    async def found(self, caller: Caller) -> Sequence[FoundFrontend]:
        """Every frontend as it is on this machine; where, only administrators are told."""
        found = await asyncio.to_thread(self._found)
        if caller.scope.kind is ScopeKind.ADMIN:
            return found
        return [dataclasses.replace(one, path="") for one in found]

    async def install(self, caller: Caller, name: str) -> FoundFrontend:
        """Raises `UnsupportedFrontend` and `FrontendNotInstalled`."""
        require_admin(caller)
        await asyncio.to_thread(self._install, name)
        return self._with_keys(await asyncio.to_thread(self._frontends.get(name).find))

    def _found(self) -> Sequence[FoundFrontend]:
        return [self._with_keys(one) for one in self._frontends.found()]

    def _with_keys(self, found: FoundFrontend) -> FoundFrontend:
        """An agent in a space has the keys that are kept here; a login of the user's own is
        out of its sight, so it does not count."""
        try:
            named = self._frontends.get(found.name).credentials
        except Exception:
            return found
        known: bool | None = found.logged_in
        if known is None and named:
            known = not set(named).isdisjoint(self._credentials.names())
        return dataclasses.replace(found, logged_in=known, credentials=tuple(named))

    async def names(self, caller: Caller) -> Sequence[str]:
        require_admin(caller)
        return await asyncio.to_thread(self._credentials.names)

    async def endpoints(self, caller: Caller) -> Mapping[str, Sequence[str]]:
        """Of every key, where it may go besides its provider."""
        names = await self.names(caller)
        found = await asyncio.to_thread(lambda: list(map(self._credentials.endpoints, names)))
        return dict(zip(names, found, strict=True))

    async def set(
        self,
        caller: Caller,
        name: str,
        value: str | None,
        endpoints: Sequence[str] | None = None,
    ) -> None:
        """None: as it is. Raises `MessageInvalid` and `CredentialNotFound`."""
        require_admin(caller)
        check_endpoints(endpoints or ())
        await asyncio.to_thread(self._credentials.set, name, value, endpoints)

    async def remove(self, caller: Caller, name: str) -> None:
        require_admin(caller)
        await asyncio.to_thread(self._credentials.remove, name)
