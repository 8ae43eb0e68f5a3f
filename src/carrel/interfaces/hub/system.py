"""Requests on the hub that are put to Carrel itself: decoded there, answered by the service.

Inside a space they are about its family; from outside, about all that the caller may see. A
token for one space is outside: it may do what it may do over HTTP, and has no family.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from carrel.api.types import hub as types
from carrel.api.types.common import shared
from carrel.api.types.hub import SYSTEM_REQUESTS
from carrel.domain.access import Caller, working_for
from carrel.domain.errors import Forbidden, MessageInvalid, StateConflict
from carrel.domain.hub import MESSAGE, Replay, envelope_in
from carrel.domain.projects import project_named
from carrel.domain.spaces import Space, SpaceQuery, SpaceRequest
from carrel.domain.turns import Control, ControlKind, TurnRequest
from carrel.hub.client import Client
from carrel.hub.hub import HubServer, no_receiver
from carrel.service.access import shown_project
from carrel.service.family import Child, Family
from carrel.service.inbox import Inbox
from carrel.service.shared import CallerSlots
from carrel.service.spaces import SpaceChanges, Spaces
from carrel.service.turns import Turns

LISTED = 1000
PAGE = 1000
LOOKS = 8
"""Through logs at the same time: each has a megabyte of one in memory."""

Handler = Callable[[Client, Any], Awaitable[object]]


class SystemRequests:
    def __init__(self, hub: HubServer, spaces: Spaces, family: Family, inbox: Inbox, turns: Turns):
        self._hub = hub
        self._spaces = spaces
        self._turns = turns
        self._inbox = inbox
        self._family = family
        self._agents = AgentRequests(spaces, turns)
        self._looks = CallerSlots(LOOKS)
        self._handlers: dict[str, Handler] = {name: getattr(self, name) for name in SYSTEM_REQUESTS}

    async def answer(self, client: Client, space: str, type: str, payload: Any) -> object:
        """In a task of its own. For whom it is is known from here on, also to the threads."""
        working_for.set(self._account(client))
        if isinstance(payload, types.AgentCommand | types.AgentInterrupt):
            return await self._agents.answer(client, space, payload)
        return await self._handlers[type](client, payload)

    async def _find(self, client: Client, word: str) -> Space:
        own = _inside(client)
        if own:
            return self._family.member(own, word)
        word = word or client.identity.space_id
        if not word:
            raise MessageInvalid("The request names no space.", hint="Name the `space`.")
        return await self._spaces.existing(client.identity.caller, word)

    async def system_space_state(
        self, client: Client, asked: types.SpaceStateRequest
    ) -> types.SpaceStateAnswer:
        space = await self._find(client, asked.space)
        children = tuple(self._family.children(space.space_id))
        found = types.HubSpaceState(**_members(client, space), children=children)
        return types.SpaceStateAnswer(space=found)

    async def system_list_spaces(self, client: Client, _asked: types.Nothing) -> types.SpacesAnswer:
        own = _inside(client)
        if own:
            found = self._family.members(own)
        else:
            page = await self._spaces.list(client.identity.caller, SpaceQuery(limit=LISTED))
            found = list(page.spaces)
        return types.SpacesAnswer(spaces=tuple(_view(client, one) for one in found))

    async def system_update_space(
        self, client: Client, asked: types.UpdateSpace
    ) -> types.SpaceAnswer:
        space = await self._find(client, asked.space)
        own = _inside(client)
        if own and space.space_id != own:
            raise Forbidden("An agent may change only its own space.", hint="Leave `space` out.")
        update = SpaceChanges(name=asked.name, description=asked.description)
        caller = client.identity.caller
        changed = await self._spaces.update(caller, space.space_id, update)
        return types.SpaceAnswer(space=_view(client, changed))

    async def system_spawn_space(
        self, client: Client, asked: types.SpawnSpace
    ) -> types.SpaceAnswer:
        own, caller = _inside(client), client.identity.caller
        if own:
            if asked.project:
                raise Forbidden(
                    "An agent's new space always starts from the agent's own project.",
                    hint="Leave `project` out.",
                )
            child = Child(
                asked.name, asked.description, asked.frontend, asked.agreed, asked.initial_prompt
            )
            made = await self._family.spawn(own, child)
        else:
            made = await self._create(caller, asked)
        if asked.initial_prompt and made.agent and not own:
            wanted = TurnRequest(made.agent, asked.initial_prompt)
            await self._turns.start(caller, made.space_id, wanted)
        elif asked.initial_prompt and not made.agent:
            payload = {"text": asked.initial_prompt, "data": {"initial_prompt": True}}
            await self._hub.say(client, made.space_id, MESSAGE, payload)
        return types.SpaceAnswer(space=_view(client, made))

    async def _create(self, caller: Caller, asked: types.SpawnSpace) -> Space:
        request = SpaceRequest(
            project_named(asked.project),
            name=asked.name,
            description=asked.description,
            agent=asked.frontend,
        )
        return await self._spaces.create(caller, request)

    async def system_wait_for_space(
        self, client: Client, asked: types.WaitForSpace
    ) -> types.WaitAnswer:
        space = await self._find(client, asked.space)
        own = _inside(client) or space.space_id
        states = frozenset(asked.states)
        found = await self._family.wait(own, space.space_id, states, asked.seconds)
        reached = str(found.state) in states | {"removed"}
        return types.WaitAnswer(space=_view(client, found), reached=reached)

    async def system_message_space(
        self, client: Client, asked: types.MessageSpace
    ) -> types.KeptAnswer:
        space = await self._find(client, asked.space)
        payload = {"text": asked.text, "data": asked.data}
        seq = await self._hub.say(client, space.space_id, MESSAGE, payload)
        return types.KeptAnswer(seq=seq)

    async def system_read_messages(
        self, client: Client, asked: types.ReadMessages
    ) -> types.MessagesAnswer:
        own = client.identity.space_id
        if not own:
            raise MessageInvalid(
                "Only a client inside a space can read messages this way.",
                hint="Use `buffer_replay`.",
            )
        async with self._looks.of(self._account(client)):
            return await self._messages(own, asked)

    async def _messages(self, own: str, asked: types.ReadMessages) -> types.MessagesAnswer:
        found: list[dict[str, Any]] = []
        after, last = asked.after, self._hub.keeper.last(own)
        while after < last and len(found) < asked.limit:
            bodies, after = await self._hub.log.replay(Replay(own, after, PAGE))
            for body in bodies:
                envelope = envelope_in(body)
                if envelope and envelope["type"] == MESSAGE and len(found) < asked.limit:
                    found.append(envelope)
            if not bodies:
                break
        if len(found) == asked.limit:
            after = found[-1]["seq"]
        return types.MessagesAnswer(messages=tuple(found), next=after)

    def _account(self, client: Client) -> str:
        """Whose share of our time it takes. `SpaceNotFound`."""
        own = _inside(client)
        return self._family.member(own, "").counts_for if own else client.identity.caller.account

    async def system_delete_space(
        self, client: Client, asked: types.DeleteSpace
    ) -> types.RemovedAnswer:
        space = await self._find(client, asked.space)
        own = _inside(client)
        agreed = False
        if asked.agreed:
            async with self._looks.of(self._account(client)):
                where = own or space.space_id
                agreed = await self._inbox.agreed(where, asked.agreed, space)
        if own:
            await self._family.delete(own, space.space_id, agreed=agreed)
        else:
            await self._spaces.remove(client.identity.caller, space.space_id, force=agreed)
        return types.RemovedAnswer(removed=space.space_id)


def _inside(client: Client) -> str:
    """The space that it speaks from, through that space's own socket."""
    return client.identity.space_id if client.identity.inside else ""


def _view(client: Client, space: Space) -> types.HubSpace:
    return types.HubSpace(**_members(client, space))


def _members(client: Client, space: Space) -> dict[str, Any]:
    return {
        **shared(space, types.HubSpace),
        "id": space.space_id,
        "project": shown_project(client.identity.caller, space).location,
        "problem": None if space.problem is None else space.problem.message,
    }


# Requests to the agents that Carrel drives, which are no clients of the hub


class AgentRequests:
    def __init__(self, spaces: Spaces, turns: Turns) -> None:
        self._spaces = spaces
        self._turns = turns

    async def answer(
        self, client: Client, word: str, asked: types.AgentCommand | types.AgentInterrupt
    ) -> object:
        caller = client.identity.caller
        space = await self._spaces.existing(caller, word)
        working = self._turns.working(space.space_id)
        if not working and not space.agent:
            raise no_receiver("agent", space.space_id)
        if isinstance(asked, types.AgentInterrupt):
            await self._turns.interrupt(caller, self._running(working))
        elif working or asked.inject == "terminal":
            said = Control(ControlKind.INPUT, text=asked.command)
            await self._turns.control(caller, self._running(working), said)
        else:
            turn = await self._turns.start(caller, word, TurnRequest("", asked.command))
            working = turn.run_id
        return {"turn": working}

    @staticmethod
    def _running(working: str) -> str:
        if not working:
            raise StateConflict("No agent works there now.", hint="`carrel attach` starts one.")
        return working
