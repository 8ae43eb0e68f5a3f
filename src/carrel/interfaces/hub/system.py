"""Requests on the hub that are put to Carrel itself: decoded there, answered by the service.

Inside a space they are about its family; from outside, about all that the caller may see.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from carrel.domain.access import LOCAL, Caller
from carrel.domain.agents import TurnRequest
from carrel.domain.errors import Forbidden, MessageInvalid
from carrel.domain.hub import MESSAGE, Replay
from carrel.domain.projects import Project, ProjectKind
from carrel.domain.spaces import Space, SpaceQuery, SpaceRequest
from carrel.hub import types
from carrel.hub.client import Client
from carrel.hub.hub import Hub
from carrel.interfaces.hub.agents import AgentRequests
from carrel.service.family import Child, Family
from carrel.service.inbox import Inbox
from carrel.service.spaces import Spaces, Update
from carrel.service.turns import Turns

LISTED = 1000
PAGE = 1000

Handler = Callable[[Client, Any], Awaitable[object]]


class SystemRequests:
    def __init__(self, hub: Hub, spaces: Spaces, family: Family, inbox: Inbox, turns: Turns):
        self._hub = hub
        self._spaces = spaces
        self._turns = turns
        self._inbox = inbox
        self._family = family
        self._agents = AgentRequests(spaces, turns)
        self._handlers: dict[str, Handler] = {
            "system_space_state": self._state,
            "system_list_spaces": self._list,
            "system_update_space": self._update,
            "system_spawn_space": self._spawn,
            "system_wait_for_space": self._wait,
            "system_message_space": self._message,
            "system_read_messages": self._read,
            "system_delete_space": self._delete,
        }

    async def answer(self, client: Client, space: str, type: str, payload: Any) -> object:
        if isinstance(payload, types.AgentCommand | types.AgentInterrupt):
            return await self._agents.answer(client, space, payload)
        return await self._handlers[type](client, payload)

    async def _find(self, client: Client, word: str) -> Space:
        own = client.identity.space_id
        if own:
            return self._family.member(own, word)
        if not word:
            raise MessageInvalid("Which space?", hint="Name the `space`.")
        return await self._spaces.existing(client.identity.caller, word)

    async def _state(self, client: Client, asked: types.SpaceState) -> object:
        space = await self._find(client, asked.space)
        return {"space": {**_view(space), "children": self._family.children(space.space_id)}}

    async def _list(self, client: Client, _asked: types.ListSpaces) -> object:
        own = client.identity.space_id
        if own:
            found = self._family.members(own)
        else:
            page = await self._spaces.list(client.identity.caller, SpaceQuery(limit=LISTED))
            found = list(page.spaces)
        return {"spaces": [_view(one) for one in found]}

    async def _update(self, client: Client, asked: types.UpdateSpace) -> object:
        space = await self._find(client, asked.space)
        own = client.identity.space_id
        if own and space.space_id != own:
            raise Forbidden("An agent changes its own space only.", hint="Leave `space` out.")
        update = Update(name=asked.name, description=asked.description)
        caller = client.identity.caller
        changed = await self._spaces.update(caller, space.space_id, update)
        return {"space": _view(changed)}

    async def _spawn(self, client: Client, asked: types.SpawnSpace) -> object:
        own = client.identity.space_id
        if own:
            if asked.project:
                raise Forbidden("It starts from your own project.", hint="Leave it out.")
            child = Child(asked.name, asked.description, asked.frontend)
            made = await self._family.spawn(own, child)
        else:
            made = await self._create(client.identity.caller, asked)
        if asked.initial_prompt and made.agent:
            wanted = TurnRequest(made.agent, asked.initial_prompt)
            await self._turns.start(LOCAL, made.space_id, wanted)
        elif asked.initial_prompt:
            payload = {"text": asked.initial_prompt, "data": {"initial_prompt": True}}
            await self._hub.say(client, made.space_id, MESSAGE, payload)
        return {"space": _view(made)}

    async def _create(self, caller: Caller, asked: types.SpawnSpace) -> Space:
        request = SpaceRequest(
            _project(asked.project),
            name=asked.name,
            description=asked.description,
            agent=asked.frontend,
        )
        return await self._spaces.create(caller, request)

    async def _wait(self, client: Client, asked: types.WaitForSpace) -> object:
        space = await self._find(client, asked.space)
        own = client.identity.space_id or space.space_id
        states = frozenset(asked.states)
        found = await self._family.wait(own, space.space_id, states, asked.seconds)
        reached = str(found.state) in states | {"removed"}
        return {"space": _view(found), "reached": reached}

    async def _message(self, client: Client, asked: types.MessageSpace) -> object:
        space = await self._find(client, asked.space)
        payload = {"text": asked.text, "data": asked.data}
        return {"seq": await self._hub.say(client, space.space_id, MESSAGE, payload)}

    async def _read(self, client: Client, asked: types.ReadMessages) -> object:
        own = client.identity.space_id
        if not own:
            raise MessageInvalid("Only a space has messages.", hint="Use `buffer_replay`.")
        found: list[dict[str, Any]] = []
        after, last = asked.after, self._hub.keeper.last(own)
        while after < last and len(found) < asked.limit:
            bodies, after = await self._hub.log.replay(Replay(own, after, PAGE))
            for body in bodies:
                envelope = json.loads(body)
                if envelope["type"] == MESSAGE and len(found) < asked.limit:
                    found.append(envelope)
            if not bodies:
                break
        if len(found) == asked.limit:
            after = found[-1]["seq"]
        return {"messages": found, "next": after}

    async def _delete(self, client: Client, asked: types.DeleteSpace) -> object:
        space = await self._find(client, asked.space)
        own = client.identity.space_id
        agreed = bool(asked.agreed) and await self._inbox.agreed(
            own or space.space_id, asked.agreed, space.space_id
        )
        if own:
            await self._family.delete(own, space.space_id, agreed=agreed)
        else:
            await self._spaces.remove(client.identity.caller, space.space_id, force=agreed)
        return {"removed": space.space_id}


def _project(text: str) -> Project:
    if not text:
        return Project(ProjectKind.EMPTY)
    return Project(ProjectKind.GIT if "://" in text else ProjectKind.FOLDER, text)


def _view(space: Space) -> dict[str, object]:
    return {
        "id": space.space_id,
        "name": space.name,
        "state": str(space.state),
        "description": space.description,
        "parent": space.parent,
        "project": space.project.location,
        "network": str(space.network),
        "created_at": space.created_at,
        "problem": None if space.problem is None else space.problem.message,
    }
