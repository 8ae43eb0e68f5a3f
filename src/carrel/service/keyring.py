"""The keys that agents are given, and which agents there are."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Sequence

from carrel.domain.access import Caller, ScopeKind
from carrel.domain.agents import CredentialStore, FoundFrontend, Frontends
from carrel.service.access import require_admin


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

    async def set(self, caller: Caller, name: str, value: str) -> None:
        require_admin(caller)
        await asyncio.to_thread(self._credentials.set, name, value)

    async def remove(self, caller: Caller, name: str) -> None:
        require_admin(caller)
        await asyncio.to_thread(self._credentials.remove, name)
