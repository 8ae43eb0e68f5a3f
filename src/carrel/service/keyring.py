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
        found = await asyncio.to_thread(self._frontends.found)
        if caller.scope.kind is ScopeKind.ADMIN:
            return found
        return [dataclasses.replace(one, path="") for one in found]

    async def install(self, caller: Caller, name: str) -> FoundFrontend:
        """Raises `UnsupportedFrontend` and `FrontendNotInstalled`."""
        require_admin(caller)
        await asyncio.to_thread(self._install, name)
        return await asyncio.to_thread(self._frontends.get(name).find)

    async def names(self, caller: Caller) -> Sequence[str]:
        require_admin(caller)
        return await asyncio.to_thread(self._credentials.names)

    async def set(self, caller: Caller, name: str, value: str) -> None:
        require_admin(caller)
        await asyncio.to_thread(self._credentials.set, name, value)

    async def remove(self, caller: Caller, name: str) -> None:
        require_admin(caller)
        await asyncio.to_thread(self._credentials.remove, name)
