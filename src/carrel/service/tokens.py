"""Tokens: made once and shown once, kept as hashes, revoked at once."""

from __future__ import annotations

import dataclasses
import hashlib
import secrets
from collections.abc import Sequence

from carrel.domain.access import Caller, Scope, ScopeKind, Token
from carrel.domain.errors import AuthenticationFailed, SpaceInvalid, TokenNotFound
from carrel.domain.ids import new_id
from carrel.domain.storing import Store
from carrel.service.access import check_scope_value, require_admin
from carrel.service.journal import Journal

PREFIX = "crl_"
MAX_NAME = 100
USED_EVERY_S = 60.0
"""When a token was used is written down at most so often."""


class Tokens:
    def __init__(self, store: Store, journal: Journal) -> None:
        self._store = store
        self._journal = journal
        self._known: dict[bytes, Token] | None = None

    async def create(
        self, caller: Caller, name: str, scope: Scope, ttl_s: float | None = None
    ) -> tuple[Token, str]:
        """The token and its secret, which nobody can ask for again."""
        require_admin(caller)
        if len(name) > MAX_NAME or not name.isprintable():
            raise SpaceInvalid("A token's name is up to 100 printable characters.")
        if ttl_s is not None and not 0 < ttl_s < 1e10:
            raise SpaceInvalid("A token lives for more than 0 seconds.", hint="Leave it out.")
        scope = await self._resolved(scope)
        secret = PREFIX + secrets.token_urlsafe(32)
        now = self._journal.clock()
        token = Token(
            token_id=new_id("tk"),
            name=name,
            scope=scope,
            digest=_digest(secret),
            created_at=now,
            expires_at=None if ttl_s is None else now + ttl_s,
        )
        await self._write(token)
        return token, secret

    async def _resolved(self, scope: Scope) -> Scope:
        check_scope_value(scope.kind, scope.value)
        if scope.kind is not ScopeKind.SPACE:
            return scope
        found = await self._store.find(scope.value)
        if len(found) != 1:
            raise SpaceInvalid(f"{scope.value[:80]!r} is not one space.", hint="Give its whole id.")
        return Scope(scope.kind, found[0].space_id)

    async def list(self, caller: Caller) -> Sequence[Token]:
        require_admin(caller)
        return [token for token in await self._store.tokens() if token.revoked_at is None]

    async def revoke(self, caller: Caller, word: str) -> Token:
        """By id or name. From now on it opens nothing."""
        require_admin(caller)
        for token in await self.list(caller):
            if word in (token.token_id, token.name):
                revoked = dataclasses.replace(token, revoked_at=self._journal.clock())
                await self._write(revoked)
                return revoked
        raise TokenNotFound(f"There is no token {word[:80]!r}.", hint="`carrel token ls`")

    async def caller(self, secret: str) -> Caller:
        """Whose secret it is. `AuthenticationFailed`, with nothing that helps to guess."""
        if self._known is None:
            self._known = {token.digest: token for token in await self._store.tokens()}
        token = self._known.get(_digest(secret))
        now = self._journal.clock()
        if (
            token is None
            or token.revoked_at is not None
            or (token.expires_at is not None and token.expires_at <= now)
        ):
            raise AuthenticationFailed(
                "This token opens nothing here.", hint="Make one: carrel token create"
            )
        if token.used_at is None or now - token.used_at > USED_EVERY_S:
            await self._write(dataclasses.replace(token, used_at=now))
        return Caller(token.token_id, token.scope)

    async def _write(self, token: Token) -> None:
        await self._journal.write(token)
        if self._known is not None:
            self._known[token.digest] = token


def _digest(secret: str) -> bytes:
    """A secret of 256 random bits needs no slow hash."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()
