"""Who calls, and what that one may see."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

T = TypeVar("T")


class ScopeKind(StrEnum):
    ADMIN = "admin"
    """Everything, tokens and clean-up included."""
    LABEL = "label"
    """The spaces with one label, and making such."""
    SPACE = "space"
    """One space."""


@dataclass(frozen=True)
class Scope:
    """`value` is `key=value` for a label, an id for a space."""

    kind: ScopeKind
    value: str = ""

    def __str__(self) -> str:
        """As tokens and the API name it: `admin`, `label:team=blue`, `space:sp_…`."""
        return f"{self.kind}:{self.value}" if self.value else str(self.kind)


ADMIN = Scope(ScopeKind.ADMIN)


@dataclass(frozen=True)
class Caller:
    """`name` keeps the idempotency keys of callers apart: `local`, or a token's id."""

    name: str
    scope: Scope

    @property
    def account(self) -> str:
        """Whose share of the machine it takes: tokens of one label have one, and so have the
        spaces that were made with them."""
        return self.scope.value if self.scope.kind is ScopeKind.LABEL else self.name


LOCAL = Caller("local", ADMIN)

working_for: ContextVar[str] = ContextVar("working_for", default=LOCAL.name)
"""The account for which a task works, and what comes of it: whose share it takes."""


def begin_for(account: str, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """A task in the share of this account, whoever's call it is begun in."""
    context = copy_context()
    context.run(working_for.set, account)
    return asyncio.create_task(work, context=context)


@dataclass(frozen=True)
class TokenRecord:
    """What is kept of a token: never the secret itself, only its hash."""

    token_id: str
    name: str
    scope: Scope
    digest: bytes
    created_at: float
    expires_at: float | None = None
    revoked_at: float | None = None
    used_at: float | None = None
