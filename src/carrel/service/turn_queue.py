"""Turns that wait until the agent of their space is free.

A turn in the queue is a record like any other, so it survives the daemon. Its variables would have
to be written down with it, and may be keys: it has none of its own. It goes on with the
conversation before it, as what is said to an agent that works does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from carrel.domain.access import Caller
from carrel.domain.agents import Frontend
from carrel.domain.errors import MessageInvalid, StateConflict
from carrel.domain.spaces import Space
from carrel.domain.turns import (
    InteractionMode,
    Permission,
    Turn,
    TurnRequest,
    TurnState,
)
from carrel.service.access import is_owner

MOST_QUEUED = 16
"""Of one space: nobody knows what the first of more has done when the last begins."""
WAITING_CHARACTERS = 10_000_000
"""Of what the waiting turns of one account's spaces say, which is in memory until they begin."""


@dataclass
class QueuedTurn:
    turn: Turn
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it runs, and when it never will."""


class TurnQueue:
    """In the order in which they came, by space."""

    def __init__(self, account: Callable[[str], str]) -> None:
        """`account` says whose a space is."""
        self._account = account
        self._waiting: dict[str, list[QueuedTurn]] = {}

    def of(self, space_id: str) -> Sequence[QueuedTurn]:
        return self._waiting.get(space_id, ())

    def spaces(self) -> list[str]:
        return list(self._waiting)

    def find(self, run_id: str) -> QueuedTurn | None:
        found = (one for some in self._waiting.values() for one in some)
        return next((one for one in found if one.turn.run_id == run_id), None)

    def check(self, space_id: str, request: TurnRequest) -> None:
        """Raises `StateConflict` and `MessageInvalid`."""
        if request.env or request.trust or request.mode is InteractionMode.INTERACTIVE:
            raise MessageInvalid(
                "A turn that waits takes no variables, no --trust and no terminal.",
                hint="Set variables for the space (carrel new --env), and agree with: carrel trust",
            )
        if len(self.of(space_id)) >= MOST_QUEUED:
            raise StateConflict(
                f"{MOST_QUEUED} turns wait in {space_id} already.",
                hint=f"Let them begin, or remove them: carrel interrupt {space_id} --queued",
            )
        account = self._account(space_id)
        theirs = (some for one, some in self._waiting.items() if self._account(one) == account)
        said = sum(_length(one.turn) for some in theirs for one in some)
        if said and said + _length(request) > WAITING_CHARACTERS:
            raise StateConflict(
                f"Turns with {said} characters wait in your spaces already.",
                hint="Let them begin, or put what is long into files of the space.",
            )

    def add(self, turn: Turn) -> None:
        self._waiting.setdefault(turn.space_id, []).append(QueuedTurn(turn))

    def take(self, run_id: str) -> QueuedTurn | None:
        """Takes it out of the queue."""
        found = self.find(run_id)
        if found is not None:
            space_id = found.turn.space_id
            self._waiting[space_id].remove(found)
            if not self._waiting[space_id]:
                del self._waiting[space_id]
        return found

    def drop(self, space_id: str) -> None:
        """The space is gone, and their records with it."""
        for one in self._waiting.pop(space_id, ()):
            one.begun.set()


def _length(one: Turn | TurnRequest) -> int:
    return len(one.prompt) + len(one.system_prompt)


def drafted(
    caller: Caller, space_id: str, frontend: Frontend, request: TurnRequest, at: float
) -> Turn:
    """The record of a turn that waits."""
    return Turn(
        run_id=request.run_id,
        space_id=space_id,
        session_id=request.session_id,
        frontend=frontend.name,
        provider=str(frontend.provider),
        prompt=request.prompt,
        state=TurnState.QUEUED,
        created_at=at,
        model=request.model,
        asked=request.continuation,
        permission=request.permission or Permission.DENY,
        system_prompt=request.system_prompt,
        timeout_s=request.timeout_s,
        answer_s=request.answer_s,
        attachments=request.attachments,
        owner=is_owner(caller),
        caller=caller.name,
    )


def follow(
    request: TurnRequest, provider: str, space: Space, earlier: Sequence[Turn]
) -> TurnRequest:
    """Goes on with the newest conversation of the space, if it is of this provider; `earlier` are
    its turns, newest first."""
    if request.continuation is not None:
        return request
    found = next(filter(None, map(space.continuation_of, earlier)), space.goes_on_with)
    fits = found is not None and found.provider == provider
    return replace(request, continuation=found) if fits else request
