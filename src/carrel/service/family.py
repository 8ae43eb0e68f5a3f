"""What an agent may do with other spaces: those of its family, and no others.

Its family are its own space, the one whose agent asked for it, and those it asked for itself.
Others do not exist for it, as for a token of one space.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence

from carrel.domain.access import LOCAL
from carrel.domain.errors import Forbidden, StateConflict
from carrel.domain.events import EventQuery, EventType
from carrel.domain.spaces import Space, SpaceRequest, SpaceState
from carrel.service.access import not_found
from carrel.service.feed import Feed
from carrel.service.journal import Journal
from carrel.service.spaces import Spaces

MOST_CHILDREN = 8
"""Live ones that one agent may have: a person would lose the overview of more."""
MOST_DEPTH = 3
"""Of children that ask for children."""


@dataclasses.dataclass(frozen=True)
class Child:
    """A space that an agent asks for. It starts from what its own space started from, within
    the same limits and with the same network."""

    name: str = ""
    description: str = ""
    agent: str = ""


class Family:
    def __init__(self, spaces: Spaces, journal: Journal, feed: Feed) -> None:
        self._spaces = spaces
        self._journal = journal
        self._feed = feed

    def members(self, own: str) -> list[Space]:
        """Its own space first."""
        space = self._journal.current(own)
        others = [one for one in self._journal.all() if _related(space, one)]
        return [space, *sorted(others, key=lambda one: one.created_at)]

    def member(self, own: str, word: str) -> Space:
        """By id or name; empty for its own. `SpaceNotFound` for all that is not family."""
        for one in self.members(own):
            if word in ("", one.space_id, one.name):
                return one
        raise not_found(word)

    async def spawn(self, own: str, child: Child) -> Space:
        """Returns when it is ready. `Forbidden`, `StateConflict`, `NameTaken`."""
        space = self._journal.current(own)
        self._check_room(space)
        request = SpaceRequest(
            project=space.project,
            base_id=space.base_id,
            name=child.name,
            runtime=space.runtime,
            driver=space.driver,
            network=space.network,
            # However much its agent would like another one.
            network_asked=True,
            agent=child.agent,
            tier=space.tier,
            limits=space.limits,
            labels=space.labels,
            retention=space.retention,
            description=child.description,
            parent=own,
        )
        return await self._spaces.create(LOCAL, request)

    def _check_room(self, space: Space) -> None:
        depth, above = 0, space
        while above.parent and (found := self._journal.get(above.parent)) is not None:
            depth, above = depth + 1, found
        if depth >= MOST_DEPTH:
            raise Forbidden(
                "Spaces are not asked for any deeper than this.", hint="Do it in this space."
            )
        live = [one for one in self._journal.all() if one.parent == space.space_id]
        if len(live) >= MOST_CHILDREN:
            raise StateConflict(
                f"This space has {len(live)} others already.", hint="Delete one first."
            )

    async def wait(self, own: str, word: str, states: frozenset[str], seconds: float) -> Space:
        """Until it is in one of the states; `REMOVED` counts always. Gives it as it is then,
        or when the time is over."""
        target = self.member(own, word)
        wanted = states | {str(SpaceState.REMOVED)}
        after = await self._feed.last()
        try:
            async with asyncio.timeout(seconds):
                return await self._until(target, wanted, after)
        except TimeoutError:
            return self._journal.get(target.space_id) or target

    async def _until(self, target: Space, wanted: frozenset[str], after: int) -> Space:
        space = self._journal.get(target.space_id)
        if space is None:
            return dataclasses.replace(target, state=SpaceState.REMOVED)
        if space.state in wanted:
            return space
        query = EventQuery(after, frozenset({target.space_id}), frozenset({_STATE}))
        async for event in self._feed.follow(LOCAL, query):
            if event.data["to"] in wanted:
                break
        gone = dataclasses.replace(target, state=SpaceState.REMOVED)
        return self._journal.get(target.space_id) or gone

    async def delete(self, own: str, word: str, *, agreed: bool) -> None:
        """Its own space, or one that it asked for. `UnexportedChanges` unless a person
        agreed."""
        target = self.member(own, word)
        if target.space_id != own and target.parent != own:
            raise Forbidden("This space is not yours to delete.", hint="Ask the user.")
        await self._spaces.remove(LOCAL, target.space_id, force=agreed)

    def children(self, own: str) -> Sequence[str]:
        return [one.space_id for one in self._journal.all() if one.parent == own]


_STATE = str(EventType.SPACE_STATE)


def _related(own: Space, other: Space) -> bool:
    return other.space_id == own.parent or other.parent == own.space_id
