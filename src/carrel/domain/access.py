"""Who calls, and what that one may see."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


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


ADMIN = Scope(ScopeKind.ADMIN)


@dataclass(frozen=True)
class Caller:
    """`name` keeps the idempotency keys of callers apart: `local`, or a token's id."""

    name: str
    scope: Scope


LOCAL = Caller("local", ADMIN)


@dataclass(frozen=True)
class Token:
    """What is kept of a token: never the secret itself, only its hash."""

    token_id: str
    name: str
    scope: Scope
    digest: bytes
    created_at: float
    expires_at: float | None = None
    revoked_at: float | None = None
    used_at: float | None = None
