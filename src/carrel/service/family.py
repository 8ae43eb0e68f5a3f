"""What an agent may do with other spaces: those of its family, and no others.

Its family are its own space, the one whose agent asked for it, and those it asked for itself.
Others do not exist for it, as for a token of one space.

A space gives its children nothing that it does not have itself: no other agent, and so no other
key, and none at all while its own agent does not work; no other network, labels, folders or
permissions; and its limits are those of all of them together. What would be more, a person is asked
for.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections import deque
from collections.abc import Iterator, Sequence

from carrel.domain.access import LOCAL, Caller, Scope, ScopeKind
from carrel.domain.agents import Frontend, Frontends
from carrel.domain.errors import Forbidden, NameTaken, StateConflict
from carrel.domain.events import EventQuery, EventType
from carrel.domain.imports import LOGINS, login_key, server_keys
from carrel.domain.races import RACE
from carrel.domain.spaces import Space, SpaceRequest, SpaceState
from carrel.domain.turns import Permission, Turn, TurnRequest
from carrel.lifecycle.table import LIVE
from carrel.service.access import check_untouched, has_agent, not_found
from carrel.service.feed import Feed
from carrel.service.inbox import Inbox
from carrel.service.journal import Journal
from carrel.service.open_spaces import limits_of
from carrel.service.space_requests import environment_of
from carrel.service.spaces import Spaces
from carrel.service.turns import Turns

MOST_CHILDREN = 8
"""Live ones that one agent may have: a person would lose the overview of more."""
MOST_DEPTH = 3
"""Of children that ask for children."""
MOST_WAKES, WAKES_S = 60, 3600.0
"""Turns of one space that messages from others begin, within that time."""


@dataclasses.dataclass(frozen=True)
class Child:
    """A space that an agent asks for. It starts from what its own space started from, within
    the same limits and with the same network."""

    name: str = ""
    description: str = ""
    agent: str = ""
    agreed: str = ""
    """The id of the question by which a person agreed to an agent that its own space has not."""
    prompt: str = ""
    """Of the first turn of its agent, if it has one."""
    wake: bool = False
    """Messages to it begin further ones."""


class Family:
    def __init__(
        self,
        spaces: Spaces,
        journal: Journal,
        feed: Feed,
        turns: Turns,
        inbox: Inbox,
        frontends: Frontends,
    ) -> None:
        self._spaces = spaces
        self._journal = journal
        self._feed = feed
        self._turns = turns
        self._inbox = inbox
        self._frontends = frontends
        self._making: dict[str, int] = {}
        """How many each space is asking for now."""
        self._woken: dict[str, deque[float]] = {}
        """When messages from other spaces began turns."""

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
        """Returns when it is ready, and its agent works if it has a prompt. `Forbidden`,
        `StateConflict`, `NameTaken`, `AgreementNeeded` while a person has not agreed to its agent,
        and what starting a turn raises."""
        space = self._journal.current(own)
        check_untouched(space)
        parent = self._journal.get(space.parent)
        # Those that it asked for itself are told apart by the store.
        if child.name in (space.name, parent.name if parent else space.name):
            raise NameTaken(
                f"Another space of this family is named {child.name!r}.",
                hint="Choose another name.",
                name=child.name,
            )
        with self._room(space):
            key, owner = await self._agreed(space, child)
            made = await self._spaces.create(LOCAL, self._request(space, child), key=key)
        parent = self._journal.get(own)
        if space.transient and (parent is None or parent.state not in LIVE):
            # It ended meanwhile, and what it asked for goes with it.
            await self._spaces.remove(LOCAL, made.space_id, force=True)
            raise StateConflict("The space that asked for it has ended.")
        if child.prompt and made.agent:
            await self._begin(own, made, child.prompt, owner=owner)
        return made

    async def _agreed(self, space: Space, child: Child) -> tuple[str, bool]:
        """An idempotency key of the agreement, if there had to be one: a person who agreed to
        a space agreed to one, and to no other when that is gone. And whether its first turn is the
        owner's: who agreed is, and else only who has the turn that runs in the space."""
        if not child.agent:
            return "", False
        frontend = self._frontends.get(child.agent)
        owner = self._turns.is_owners(space.space_id)
        if has_agent(space, child.agent) and await self._has_key(space, frontend, owner=owner):
            return "", owner
        key = f"agreed:{child.agreed}"
        made = await self._spaces.made_with(LOCAL, key) if child.agreed else None
        if made is not None and (made.parent, made.agent) == (space.space_id, child.agent):
            # Asked again, while what came of it is there.
            return key, not space.guest
        names = await asyncio.to_thread(self._turns.would_get, frontend, owner=not space.guest)
        permission = await self._permission(space.space_id)
        text = _question(space, frontend, permission, names)
        await self._inbox.require(space.space_id, text, child.agreed)
        await self._inbox.spend(space.space_id, child.agreed)
        return key, not space.guest

    async def _has_key(self, space: Space, frontend: Frontend, *, owner: bool) -> bool:
        """Whether all that the agent would be given is in the space now. While its own does not
        work, or works with a key that its caller brought, there is none in it, and any command
        there could have one told what to do with it."""
        if not frontend.credentials:
            return True
        wanted = await asyncio.to_thread(self._turns.would_get, frontend, owner=owner)
        return self._turns.has_keys(space.space_id, wanted)

    async def _begin(self, own: str, made: Space, prompt: str, *, owner: bool) -> None:
        """The first turn of a child's agent, which may do no more than its parent's. One that has
        had its first is another call's, or this one's that is repeated: a person who agreed to an
        agent agreed to one prompt."""
        if await self._turns.permission(made.space_id) is not None:
            return
        permission = await self._permission(own)
        wanted = TurnRequest(made.agent, prompt, permission=permission)
        await self._turns.start(_caller(made, owner=owner), made.space_id, wanted)

    async def wake(self, own: str, target: Space, text: str) -> str:
        """Begins a turn of the target's agent with a message from this space, if its maker said so
        and all that it would be given is in this space now; as soon as the agent has nothing else
        to do. The turn, or nothing: the message is kept in any case."""
        if not target.wake or not target.agent:
            return ""
        sender = self._journal.current(own)
        frontend, owner = self._frontends.get(target.agent), self._turns.is_owners(own)
        if not await self._has_key(sender, frontend, owner=owner) or not self._may_wake(target):
            return ""
        newest = await self._turns.newest(target.space_id)
        theirs = None if newest is None else newest.permission
        request = TurnRequest(
            target.agent,
            f"Message from the space {sender.name} ({own}):\n\n{text}",
            permission=_stricter(await self._permission(own), theirs),
            model=newest.model if newest is not None else "",
            system_prompt=newest.system_prompt if newest is not None else "",
            queue=True,
        )
        turn = await self._turns.start(_caller(target, owner=owner), target.space_id, request)
        return turn.run_id

    def _may_wake(self, target: Space) -> bool:
        """Two agents that wake one another would go on for ever."""
        now = self._journal.clock()
        before = now - WAKES_S
        self._woken = {one: times for one, times in self._woken.items() if times[-1] >= before}
        woken = self._woken.setdefault(target.space_id, deque())
        while woken and woken[0] < before:
            woken.popleft()
        if len(woken) >= MOST_WAKES:
            return False
        woken.append(now)
        return True

    async def _permission(self, own: str) -> Permission | None:
        """Of its newest turn, or of the nearest above it that had one."""
        above = self._journal.get(own)
        while above is not None:
            found = await self._turns.permission(above.space_id)
            if found is not None:
                # All of it is as far as what confines the child allows it.
                return None if found is Permission.SANDBOXED else found
            above = self._journal.get(above.parent)
        return None

    @staticmethod
    def _request(space: Space, child: Child) -> SpaceRequest:
        return SpaceRequest(
            project=space.project,
            base_id=space.base_id,
            name=child.name,
            runtime=space.runtime,
            driver=space.driver,
            network=space.network,
            # However much its agent would like another one.
            network_asked=True,
            agent=child.agent,
            wake=child.wake,
            tier=space.tier,
            # Also the disk limit that it was given by default: the family has it together.
            limits=limits_of(space),
            # It is no racer, and only Carrel gives labels of Carrel's own.
            labels={key: value for key, value in space.labels.items() if key != RACE},
            retention=space.retention,
            description=child.description,
            parent=space.space_id,
            family=space.family or space.space_id,
            transient=space.transient,
            guest=space.guest,
            # The names that its agent gives tell it nothing of other spaces.
            realm=space.space_id,
            account=space.account,
            environment=environment_of(space),
        )

    @contextlib.contextmanager
    def _room(self, space: Space) -> Iterator[None]:
        """For one more, also while others are being made. `Forbidden`, `StateConflict`."""
        making = self._making.get(space.space_id, 0)
        self._check_room(space, making)
        self._making[space.space_id] = making + 1
        try:
            yield
        finally:
            self._making[space.space_id] -= 1
            if not self._making[space.space_id]:
                del self._making[space.space_id]

    def _check_room(self, space: Space, making: int) -> None:
        depth, above = 0, space
        while above.parent and (found := self._journal.get(above.parent)) is not None:
            depth, above = depth + 1, found
        if depth >= MOST_DEPTH:
            raise Forbidden(
                "Spaces cannot be nested any deeper.", hint="Do the work in this space."
            )
        made = sum(
            one.parent == space.space_id and one.state is not SpaceState.CREATING
            for one in self._journal.all()
        )
        if made + making >= MOST_CHILDREN:
            raise StateConflict(
                f"This space has made {made + making} others already, the most that it may.",
                hint="Delete one first.",
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

    async def wait_for_turn(self, target: Space, seconds: float) -> tuple[Space, Turn | None]:
        """Until its agent has nothing to do any more, or there is none to wait for: it is stopped,
        failed or removed. Gives the space, and its newest turn if that has ended."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while (found := await self._rested(target)) is None:
                    pass
                gone = dataclasses.replace(target, state=SpaceState.REMOVED)
                return found[0] or gone, found[1]
        return self._journal.get(target.space_id) or target, None

    async def _rested(self, target: Space) -> tuple[Space | None, Turn | None] | None:
        """None: something has changed."""
        space_id = target.space_id
        after = await self._feed.last()
        if pending := self._turns.pending(space_id):
            await self._turns.wait(LOCAL, pending)
        newest = await self._turns.newest(space_id)
        space = self._journal.get(space_id)
        if self._turns.pending(space_id):
            return None
        if space is None or space.state in _AT_REST or (newest is not None and newest.ended):
            return space, newest
        query = EventQuery(after, frozenset({space_id}), frozenset({_STATE}))
        async for _event in self._feed.follow(_reader(target), query):
            break
        return None

    async def _until(self, target: Space, wanted: frozenset[str], after: int) -> Space:
        space = self._journal.get(target.space_id)
        if space is None:
            return dataclasses.replace(target, state=SpaceState.REMOVED)
        if space.state in wanted:
            return space
        query = EventQuery(after, frozenset({target.space_id}), frozenset({_STATE}))
        async for event in self._feed.follow(_reader(target), query):
            if event.data["to"] in wanted:
                break
        gone = dataclasses.replace(target, state=SpaceState.REMOVED)
        return self._journal.get(target.space_id) or gone

    async def delete(self, own: str, word: str, *, agreed: bool) -> None:
        """Its own space, or one that it asked for. `UnexportedChanges` unless a person
        agreed."""
        target = self.member(own, word)
        if target.space_id != own and target.parent != own:
            raise Forbidden("This space may not delete that one.", hint="Ask the user.")
        await self._spaces.remove(LOCAL, target.space_id, force=agreed)

    def children(self, space_id: str, *, seen_from: str = "") -> Sequence[str]:
        """For an agent in a space, those of its own family."""
        known = self.members(seen_from) if seen_from else self._journal.all()
        return [one.space_id for one in known if one.parent == space_id]


_STATE = str(EventType.SPACE_STATE)
_AT_REST = frozenset({SpaceState.STOPPED, SpaceState.FAILED, SpaceState.REMOVED})


def _caller(space: Space, *, owner: bool) -> Caller:
    """Imports are given to the owner's turns, and code in the space may be anybody's."""
    return LOCAL if owner else Caller(LOCAL.name, Scope(ScopeKind.SPACE, space.space_id))


def _reader(space: Space) -> Caller:
    """Of its log, in the share of whose it is: hundreds may wait for it."""
    return Caller(space.counts_for, Scope(ScopeKind.SPACE, space.space_id))


def _stricter(*found: Permission | None) -> Permission | None:
    return next((one for one in (Permission.DENY, Permission.ASK) if one in found), None)


_MAY = {
    Permission.ASK: "It asks you before it does anything.",
    Permission.DENY: "It may do nothing for which it would have to ask.",
    None: "It does what it likes in its sandbox, without asking.",
}


def _question(
    space: Space, frontend: Frontend, permission: Permission | None, names: frozenset[str]
) -> str:
    """What exactly would be done, in Carrel's own words, and no word in it that code in the space
    could choose: neither its name nor its description."""
    has = f"It has {space.agent} itself" if space.agent else "It has no agent itself"
    if space.agent == frontend.name:
        has += ", which does not work now, or not with that key"
    given = _given(frontend, names)
    return (
        f"Code in this space asks for one more space of the same project, with the agent"
        f" {frontend.name}. That agent is given {given} and the network {space.network}."
        f" {_MAY.get(permission, _MAY[None])} {has}. May it have one?"
    )


def _given(frontend: Frontend, names: frozenset[str]) -> str:
    """`names` as a turn's record has them."""
    logins = {login_key(one): f"the imported login of {one}" for one in LOGINS}
    keys = {server_keys(one): f"the imported keys of MCP servers of {one}" for one in LOGINS}
    found = [text for name, text in logins.items() if name in names]
    if not found and frontend.credentials:
        found = [f"the key {', '.join(frontend.credentials)}"]
    found += [text for name, text in keys.items() if name in names]
    return " and ".join(found) or "no key"


def _related(own: Space, other: Space) -> bool:
    return other.space_id == own.parent or other.parent == own.space_id
