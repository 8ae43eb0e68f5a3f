"""Who may say and see what on the hub: decided here and nowhere else.

What spaces a caller may see at all is the service's to say (`VisibleSpaces`); here it is what a
kind of client may do with them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from carrel.domain.access import LOCAL, Caller, ScopeKind
from carrel.domain.errors import Forbidden, SpaceNotFound
from carrel.domain.hub import OWNED, ClientKind
from carrel.hub.types import Type


def consumer_name(kept: str) -> str:
    """As its owner calls it."""
    return kept.rpartition(OWNED)[2]


class VisibleSpaces(Protocol):
    """What the hub knows of spaces. Answers at once."""

    def exists(self, space_id: str) -> bool:
        """It is there, and not removed."""
        ...

    def visible(self, caller: Caller, space_id: str) -> bool:
        """For this caller it exists, or did."""
        ...

    def may_agree(self, caller: Caller, space_id: str) -> bool:
        """Whether it may answer what Carrel itself asks a person there."""
        ...

    def account(self, space_id: str) -> str:
        """Whose share it takes."""
        ...


@dataclass(frozen=True)
class Identity:
    """Who is at the other end, as the transport knows it: nothing in it was claimed.
    `inside` is what speaks through a space's own socket, and `account` whose space that is."""

    caller: Caller
    inside: bool = False
    account: str = ""

    @property
    def counts_for(self) -> str:
        return self.account or self.caller.account

    def consumer(self, name: str) -> str:
        """Under what a durable consumer of this name is kept: the same name of somebody else
        is another consumer. Those of this machine's user have none but their own."""
        return name if self.caller == LOCAL else f"{self.caller.name}{OWNED}{name}"

    @property
    def space_id(self) -> str:
        """The one space that it is bound to, if it is."""
        scope = self.caller.scope
        return scope.value if scope.kind is ScopeKind.SPACE else ""


def admit_kind(identity: Identity, kind: ClientKind) -> None:
    """Raises `Forbidden`."""
    if identity.inside and kind is not ClientKind.AGENT:
        raise Forbidden("A client inside a space must be an agent.", hint="Register as `agent`.")
    if kind is ClientKind.AGENT and not identity.space_id:
        raise Forbidden(
            "An agent can connect only to its own space.",
            hint="Use the space's own socket, or a token for that space.",
        )


def may_see(spaces: VisibleSpaces, identity: Identity, space_id: str) -> bool:
    return spaces.visible(identity.caller, space_id)


def is_admin(identity: Identity) -> bool:
    return identity.caller.scope.kind is ScopeKind.ADMIN


def check_seen(spaces: VisibleSpaces, identity: Identity, space_ids: Iterable[str]) -> None:
    for space_id in space_ids:
        if not may_see(spaces, identity, space_id):
            raise not_found(space_id)


def check_speaks(
    spaces: VisibleSpaces, identity: Identity, kind: ClientKind, type: Type, space_id: str
) -> None:
    """Whether it may say this of that space. Connections are checked by the caller."""
    if not may_see(spaces, identity, space_id) or not spaces.exists(space_id):
        raise not_found(space_id)
    if type.people and kind is ClientKind.AGENT:
        raise Forbidden("Only a person or an application may send this.", hint="Ask the user.")


def not_found(space_id: str) -> SpaceNotFound:
    return SpaceNotFound(f"There is no space {space_id[:80]!r}.", hint="`carrel ls` lists them.")
