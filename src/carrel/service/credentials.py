"""Which variables may go together with a key that is kept here.

Whoever says where an agent sends its key, or what is loaded into its process, has the key. A
caller with less than the owner's rights may therefore say only what is known to be harmless: agents
and what they are made of read hundreds of variables, and nobody can name all that are not. The
owner may say anything, but the key goes nowhere else than to the endpoints that were named for it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from carrel.api.types.common import moment
from carrel.domain.access import LOCAL, Caller, ScopeKind
from carrel.domain.agents import CredentialStore, FoundFrontend, Frontend, FrontendKind, Frontends
from carrel.domain.errors import (
    CredentialNotFound,
    Forbidden,
    KeyMissing,
    LoginExpired,
    MessageInvalid,
    TooLarge,
    UnsupportedFrontend,
    VariableRefused,
)
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
    ImportStore,
    Login,
    login_key,
    server_keys,
)
from carrel.domain.keys import VARIABLES, is_address, looks_like_key, names_service
from carrel.domain.turns import Provider
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
        if is_address(name):
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


def endpoint_hosts(credentials: CredentialStore, imports: ImportStore) -> frozenset[str]:
    """To which the owner sends keys, beside the providers' own. Blocking."""
    named = [one for name in credentials.names() for one in credentials.endpoints(name)]
    for source in imports.names():
        imported = imports.given(source)
        named += imported.endpoints if imported is not None else ()
    return frozenset(found[1] for one in named if (found := _parsed(one)) is not None)


# What the agent of one turn is given


@dataclass(frozen=True)
class GivenKeys:
    """`names` are of all that is secret in it, for the record of the turn."""

    credentials: Mapping[str, str] = field(default_factory=dict)
    imported: Imported | None = None
    names: tuple[str, ...] = ()


class AgentKeys:
    """Decides which stored keys and imports an agent gets. Blocking, quick. A stored key comes
    before an imported login, and a caller's own before both. Imports are the owner's: neither a
    token nor a space that one made is given any."""

    def __init__(
        self,
        credentials: CredentialStore,
        imports: ImportStore,
        clock: Callable[[], float],
        has_login: Callable[[str], bool],
    ) -> None:
        """`has_login` says whether there is a login in the home of the daemon's user."""
        self._credentials = credentials
        self._imports = imports
        self._clock = clock
        self._has_login = has_login

    def given(self, frontend: Frontend, env: Mapping[str, str], *, owner: bool) -> GivenKeys:
        """Raises `VariableRefused` and `LoginExpired`."""
        own = self._imports.given(frontend.name) if owner else None
        names = (server_keys(frontend.name),) if own and own.keys else ()
        without = None if own is None else dataclasses.replace(own, login=None)
        stored = self._credentials.given(frontend.credentials)
        if brings_key(env, frontend.credentials):
            return GivenKeys({}, without, names)
        if stored:
            endpoints = {name: self._credentials.endpoints(name) for name in stored}
            check(env, endpoints, owner=owner)
            return GivenKeys(stored, without, (*stored, *names))
        found = self._imports.login_for(frontend.name) if owner else None
        if found is None:
            return GivenKeys({}, without, names)
        credentials = self._logged_in(found, env)
        return GivenKeys(credentials, own, (login_key(found[0]), *names))

    def _logged_in(self, found: tuple[str, Imported], env: Mapping[str, str]) -> Mapping[str, str]:
        source, imported = found
        login = imported.login
        assert login is not None
        try:
            check(env, {login.credential: imported.endpoints}, owner=True)
        except VariableRefused as error:
            raise VariableRefused(
                f"{error.details['variable']} would send the imported login of {source} to an "
                "address that is not allowed for it.",
                hint=f"Allow the address: carrel agents import {source} --endpoint URL. "
                f"Or give a key of your own with it ({_variable(login.credential)}).",
                variable=error.details["variable"],
            ) from None
        if login.expires_at is not None and login.expires_at <= self._clock():
            raise LoginExpired(
                f"The imported login of {source} has expired.",
                hint=f"Use {source} once outside of Carrel, then: carrel agents import {source}",
                frontend=source,
            )
        return {} if login.auth else {login.credential: login.value}

    def check_some(
        self, frontend: Frontend, env: Mapping[str, str], given: GivenKeys, *, owner: bool
    ) -> None:
        """An agent with nothing to log in with would fail late, with advice that is of no use
        here. Raises `KeyMissing`."""
        known = frontend.provider is not Provider.ANY and frontend.kind is not FrontendKind.ACP
        has_login = bool(given.imported and given.imported.login)
        if not known or not frontend.credentials or given.credentials or has_login:
            return
        if names_service(env) or any(looks_like_key(*one) for one in env.items()):
            return
        raise self.missing(frontend, owner=owner)

    def missing(self, frontend: Frontend, *, owner: bool) -> KeyMissing:
        name = frontend.credentials[0]
        hint = f"Store one: carrel auth set {name}"
        sources = (one for one, users in LOGINS.items() if frontend.name in users)
        if owner and (source := next(filter(self._has_login, sources), "")):
            hint += f". Or use the login of your own {source}: carrel agents import {source}"
        return KeyMissing(f"{frontend.name} has no key.", hint=hint, credential=name)

    def would_get(self, frontend: Frontend, *, owner: bool) -> frozenset[str]:
        """The names of all that is secret and that this agent would be given."""
        stored = self._credentials.given(frontend.credentials)
        names = set(stored)
        if owner:
            own = self._imports.given(frontend.name)
            if own is not None and own.keys:
                names.add(server_keys(frontend.name))
            if not stored and (found := self._imports.login_for(frontend.name)):
                names.add(login_key(found[0]))
        return frozenset(names)


# The keys that agents are given, and which agents there are.


def check_import(name: str, imported: Imported) -> None:
    """Raises `UnsupportedFrontend`, `MessageInvalid` and `TooLarge`."""
    if name not in LOGINS:
        raise UnsupportedFrontend(
            f"Nothing can be imported for {name[:80]!r}.",
            hint=f"Carrel imports the set-up of: {', '.join(LOGINS)}.",
        )
    sizes = [len(data) for data in imported.files.values()]
    large = len(sizes) > MOST_FILES or sum(sizes) > MOST_BYTES or max(sizes, default=0) > MOST_FILE
    if large or len(imported.servers) > MOST_SERVERS:
        raise TooLarge("There is too much to import.", hint="Import fewer files or servers.")
    wrong = [path for path in imported.files if not _is_part(name, path)]
    wrong += [one for one in imported.settings if one not in SETTINGS[name]]
    wrong += [one for one in imported.servers if not SERVER_NAME.fullmatch(one)]
    named = [variable for one in imported.servers.values() for variable in one.named()]
    wrong += [one for one in (*named, *imported.keys) if not VARIABLE.fullmatch(one)]
    wrong += [one for one in imported.keys if one not in named]
    wrong += [OWN_SERVER] if OWN_SERVER in imported.servers else []
    login = imported.login
    if login and (login.credential not in VARIABLES or not _is_object(login.auth or "{}")):
        wrong.append("login")
    if wrong:
        raise MessageInvalid(
            f"{str(wrong[0])[:80]!r} cannot be imported.", hint="Use: carrel agents import"
        )


def _not_imported(name: str) -> CredentialNotFound:
    return CredentialNotFound(
        f"No login of {name[:80]} was imported.", hint="`carrel agents` lists what was."
    )


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _is_part(name: str, path: str) -> bool:
    first, *below = path.split("/")
    plain = all(part and part not in (".", "..") for part in below) and path.isprintable()
    return plain and first in PARTS[name] and len(below) <= MOST_DEPTH and len(path) <= 1024


class Keyring:
    def __init__(
        self,
        credentials: CredentialStore,
        frontends: Frontends,
        install: Callable[[str], object],
        imports: ImportStore,
        clock: Callable[[], float],
    ) -> None:
        """`install` puts a frontend's programs into Carrel's own folder; blocking."""
        self._credentials = credentials
        self._frontends = frontends
        self._install = install
        self._imports = imports
        self._clock = clock

    async def found(self, caller: Caller) -> Sequence[FoundFrontend]:
        """Every frontend as it is on this machine; where, only administrators are told."""
        found = await asyncio.to_thread(self._found)
        if caller.scope.kind is ScopeKind.ADMIN:
            return found
        return [dataclasses.replace(one, path="") for one in found]

    async def look(self, caller: Caller, path: str) -> Sequence[FoundFrontend]:
        """With what the owner has on PATH. A token is no person's shell."""
        if caller != LOCAL:
            raise Forbidden(
                "Only the daemon's own user may say where agents are.", hint="Use its socket."
            )
        await asyncio.to_thread(self._frontends.look, path)
        return await self.found(caller)

    async def install(self, caller: Caller, name: str) -> FoundFrontend:
        """Raises `UnsupportedFrontend` and `FrontendNotInstalled`."""
        require_admin(caller)
        await asyncio.to_thread(self._install, name)
        return await self._one(name)

    async def _one(self, name: str) -> FoundFrontend:
        find = self._frontends.get(name).find
        return await asyncio.to_thread(lambda: self._with_keys(find()))

    def _found(self) -> Sequence[FoundFrontend]:
        return [self._with_keys(one) for one in self._frontends.found()]

    def _with_keys(self, found: FoundFrontend) -> FoundFrontend:
        """An agent in a space has the keys that are kept here; a login of the user's own is
        out of its sight, so it does not count until it was imported."""
        try:
            frontend = self._frontends.get(found.name)
            named = frontend.credentials
        except Exception:
            return found
        known: bool | None = found.logged_in
        if known is None and named:
            known = not set(named).isdisjoint(self._credentials.names())
            known = known or self._imports.login_for(found.name) is not None
        own = self._imports.given(found.name)
        return dataclasses.replace(
            found,
            logged_in=known,
            credentials=tuple(named),
            imported=str(moment(own.at)) if own else "",
            needs_network=frontend.needs_network and bool(named),
        )

    async def take(
        self,
        caller: Caller,
        name: str,
        imported: Imported,
        endpoints: Sequence[str] | None = None,
    ) -> FoundFrontend:
        """Keeps the owner's own set-up of an agent, instead of the one before. Endpoints: None for
        those of the one before. Raises `UnsupportedFrontend`, `MessageInvalid`, `TooLarge`."""
        require_admin(caller)
        check_import(name, imported)
        check_endpoints(endpoints or ())
        before = await asyncio.to_thread(self._imports.given, name)
        if endpoints is None:
            endpoints = before.endpoints if before else ()
        kept = dataclasses.replace(imported, endpoints=tuple(endpoints), at=self._clock())
        await asyncio.to_thread(self._imports.set, name, kept)
        return await self._one(name)

    async def renew(self, caller: Caller, name: str, login: Login | None) -> FoundFrontend:
        """Another login for what was imported. Raises `CredentialNotFound` when none was."""
        require_admin(caller)
        before = await asyncio.to_thread(self._imports.given, name)
        if before is None or before.login is None:
            raise _not_imported(name)
        renewed = dataclasses.replace(before, login=login)
        return await self.take(caller, name, renewed)

    async def forget(self, caller: Caller, name: str) -> FoundFrontend:
        """Raises `UnsupportedFrontend` and `CredentialNotFound`."""
        require_admin(caller)
        check_import(name, Imported())
        if not await asyncio.to_thread(self._imports.remove, name):
            raise _not_imported(name)
        return await self._one(name)

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
