"""Tokens: made once and shown once, kept as hashes, revoked at once."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import secrets
from collections.abc import Sequence
from typing import Any

from carrel.api.types import admin as types
from carrel.api.types.common import moment, moment_or_none
from carrel.domain.access import Caller, Scope, ScopeKind, TokenRecord
from carrel.domain.errors import (
    AuthenticationFailed,
    CarrelError,
    SpaceInvalid,
    StateConflict,
    TokenNotFound,
)
from carrel.domain.ids import new_id
from carrel.domain.spaces import Space
from carrel.domain.store import Store
from carrel.service.access import check_scope_value, is_owner, may_see, require_admin
from carrel.service.journal import Journal

PREFIX = "crl_"
USED_EVERY_S = 60.0
"""When a token was used is written down at most so often."""


class Tokens:
    def __init__(self, store: Store, journal: Journal) -> None:
        self._store = store
        self._journal = journal
        self._known: dict[bytes, TokenRecord] = {}
        self._read = False

    async def create(self, caller: Caller, new: types.NewToken) -> types.TokenWithSecret:
        require_admin(caller)
        if not new.name.isprintable():
            raise SpaceInvalid("A token's name is up to 100 printable characters.")
        kind, _, value = new.scope.partition(":")
        scope = await self.resolved(Scope(ScopeKind(kind), value))
        secret = PREFIX + secrets.token_urlsafe(32)
        now = self._journal.clock()
        token = TokenRecord(
            token_id=new_id("tk"),
            name=new.name,
            scope=scope,
            digest=_digest(secret),
            created_at=now,
            expires_at=None if new.ttl_s is None else now + new.ttl_s,
        )
        await self._write(token)
        return types.TokenWithSecret(**_members(token), secret=secret)

    async def resolved(self, scope: Scope) -> Scope:
        check_scope_value(scope.kind, scope.value)
        if scope.kind is not ScopeKind.SPACE:
            return scope
        found = await self._store.find(scope.value)
        if len(found) != 1:
            raise SpaceInvalid(f"{scope.value[:80]!r} is not one space.", hint="Give its whole id.")
        return Scope(scope.kind, found[0].space_id)

    async def list(self, caller: Caller) -> types.TokenList:
        require_admin(caller)
        return types.TokenList(
            tokens=tuple(types.Token(**_members(one)) for one in await self._valid())
        )

    async def _valid(self) -> Sequence[TokenRecord]:
        return [one for one in (await self._all()).values() if one.revoked_at is None]

    async def _all(self) -> dict[bytes, TokenRecord]:
        """By digest. What was decided while they were read is not undone."""
        if not self._read:
            for token in await self._store.tokens():
                self._known.setdefault(token.digest, token)
            self._read = True
        return self._known

    async def revoke(self, caller: Caller, word: str) -> types.Token:
        """By id or name. From now on it opens nothing."""
        require_admin(caller)
        for token in await self._valid():
            if word in (token.token_id, token.name):
                revoked = dataclasses.replace(token, revoked_at=self._journal.clock())
                await self._write(revoked)
                return types.Token(**_members(revoked))
        raise TokenNotFound(
            f"There is no token {word[:80]!r}.", hint="`carrel token ls` lists them."
        )

    async def reaches(self, caller: str, space_id: str) -> bool:
        """Whether a token still opens anything, and that space if one is named. True of others."""
        token = next((one for one in (await self._all()).values() if one.token_id == caller), None)
        if token is None:
            return True
        space = self._journal.get(space_id) if space_id else None
        return self._opens(token) and (space is None or may_see(Caller(caller, token.scope), space))

    async def check_relabel(self, caller: Caller, before: Space, after: Space) -> None:
        """What a token has, or has had, stays within its label: with the space it had commands,
        servers' own tokens, turns that wait, relatives. Raises `StateConflict`. How tokens are
        called is told to the owner only."""
        for token in (await self._all()).values():
            theirs = Caller(token.token_id, token.scope)
            counts = self._opens(token) or token.used_at is not None
            if counts and may_see(theirs, before) and not may_see(theirs, after):
                named = f"The token {token.name or token.token_id}"
                raise StateConflict(
                    f"{named if is_owner(caller) else 'Somebody'} has {before.name} by the label"
                    f" {token.scope.value}, which therefore stays.",
                    hint=f"Make another space of it: carrel cp {before.name}:. FOLDER;"
                    " carrel new FOLDER",
                    state=str(before.state),
                )

    def _opens(self, token: TokenRecord) -> bool:
        over = token.expires_at is not None and token.expires_at <= self._journal.clock()
        return token.revoked_at is None and not over

    async def caller(self, secret: str) -> Caller:
        """Whose secret it is. `AuthenticationFailed`, with nothing that helps to guess."""
        token = (await self._all()).get(_digest(secret))
        now = self._journal.clock()
        if token is None or not self._opens(token):
            raise AuthenticationFailed(
                "This token is wrong, revoked or expired.", hint="Make one: carrel token create"
            )
        if token.used_at is None or now - token.used_at > USED_EVERY_S:
            with contextlib.suppress(CarrelError):
                # Whoever may come in may so on a full disk.
                await self._write(dataclasses.replace(token, used_at=now))
        return Caller(token.token_id, token.scope)

    async def _write(self, token: TokenRecord) -> None:
        # First, so that nobody who comes meanwhile goes by what it was before, and writes that
        # down after this: a token that was revoked would open everything again.
        known = await self._all()
        is_new = token.digest not in known
        known[token.digest] = token
        try:
            await self._journal.write(token)
        except BaseException:
            if is_new:
                del known[token.digest]
            raise


def _members(token: TokenRecord) -> dict[str, Any]:
    return {
        "id": token.token_id,
        "name": token.name,
        "scope": str(token.scope),
        "created_at": moment(token.created_at),
        "expires_at": moment_or_none(token.expires_at),
        "used_at": moment_or_none(token.used_at),
        "revoked_at": moment_or_none(token.revoked_at),
    }


def _digest(secret: str) -> bytes:
    """A secret of 256 random bits needs no slow hash."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()
