"""Requests on the hub that are put to Carrel itself: decoded there, answered by the service.

Inside a space they are about its family; from outside, about all that the caller may see. A
token for one space is outside: it may do what it may do over HTTP, and has no family.
"""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from carrel.api.types import hub as types
from carrel.api.types.common import shared
from carrel.api.types.hub import SYSTEM_REQUESTS
from carrel.domain.access import Caller, working_for
from carrel.domain.errors import Forbidden, MessageInvalid, StateConflict
from carrel.domain.hub import MESSAGE, Replay, envelope_in
from carrel.domain.projects import project_named
from carrel.domain.spaces import Space, SpaceQuery, SpaceRequest, SpaceState
from carrel.domain.trees import Change
from carrel.domain.turns import Control, ControlKind, Turn, TurnRequest
from carrel.hub.client import Client
from carrel.hub.hub import HubServer
from carrel.hub.requests import no_receiver
from carrel.service.access import shown_project
from carrel.service.checkpoints import Checkpoints
from carrel.service.family import Child, Family
from carrel.service.helpers import HelperFiles, acting_in
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
    def __init__(
        self,
        hub: HubServer,
        spaces: Spaces,
        family: Family,
        inbox: Inbox,
        turns: Turns,
        helpers: HelperFiles,
        checkpoints: Checkpoints,
    ):
        self._checkpoints = checkpoints
        self._helpers = helpers
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
        children = tuple(self._family.children(space.space_id, seen_from=_inside(client)))
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
                *(asked.name, asked.description, asked.frontend, asked.agreed),
                prompt=asked.initial_prompt,
                wake=asked.wake,
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
            wake=asked.wake,
            # An answer has its deadline, too.
            unwatched=True,
        )
        return await self._spaces.create(caller, request)

    async def system_wait_for_space(
        self, client: Client, asked: types.WaitForSpace
    ) -> types.WaitAnswer:
        space = await self._find(client, asked.space)
        inside = _inside(client)
        own = inside or space.space_id
        if not asked.states and inside and space.parent != inside:
            # What its own parent's agent says is not for it.
            asked = msgspec.structs.replace(asked, states=("stopped", "failed"))
        if not asked.states:
            return await self._wait_for_turn(client, space, asked.seconds)
        states = frozenset(asked.states)
        found = await self._family.wait(own, space.space_id, states, asked.seconds)
        reached = str(found.state) in states | {"removed"}
        return types.WaitAnswer(space=_view(client, found), reached=reached)

    async def _wait_for_turn(
        self, client: Client, space: Space, seconds: float
    ) -> types.WaitAnswer:
        found, turn = await self._family.wait_for_turn(space, seconds)
        reached = turn is not None or found.state in GONE
        told = None if turn is None else _turn(turn)
        return types.WaitAnswer(space=_view(client, found), reached=reached, turn=told)

    async def system_message_space(
        self, client: Client, asked: types.MessageSpace
    ) -> types.SentAnswer:
        space = await self._find(client, asked.space)
        payload = {"text": asked.text, "data": asked.data}
        seq = await self._hub.say(client, space.space_id, MESSAGE, payload)
        own, turn = _inside(client), ""
        if own and own != space.space_id:
            turn = await self._family.wake(own, space, asked.text)
        elif not own and space.wake and space.agent:
            wanted = TurnRequest(space.agent, asked.text, queue=True)
            started = await self._turns.start(client.identity.caller, space.space_id, wanted)
            turn = started.run_id
        return types.SentAnswer(seq=seq, turn=turn)

    async def system_list_changes(
        self, client: Client, asked: types.ListChanges
    ) -> types.ChangesAnswer:
        caller, space = await self._looked_into(client, asked.space)
        found = await self._helpers.changes(caller, space.space_id, asked.limit)
        return types.ChangesAnswer(
            changes=tuple(map(_changed, found.listed)),
            total=found.total,
            commits=len(found.commits),
        )

    async def system_read_file(self, client: Client, asked: types.ReadFile) -> types.FileAnswer:
        caller, space = await self._looked_into(client, asked.space)
        where = (space.space_id, asked.path, asked.start)
        data = await self._helpers.read(caller, *where, asked.size + 1)
        more = asked.start + asked.size if len(data) > asked.size else None
        data = data[: asked.size]
        try:
            return types.FileAnswer(text=data.decode(), next=more)
        except UnicodeDecodeError as error:
            if more is not None and error.start > len(data) - _LONGEST_LETTER:
                # The last letter is cut in two.
                rest = asked.start + error.start
                return types.FileAnswer(text=data[: error.start].decode(), next=rest)
            return types.FileAnswer(base64=base64.b64encode(data).decode(), next=more)

    async def _looked_into(self, client: Client, word: str) -> tuple[Caller, Space]:
        own = _inside(client)
        if own:
            helper = self._helpers.helper(own, word)
            return acting_in(helper), helper
        return client.identity.caller, await self._find(client, word)

    async def system_take_changes(
        self, client: Client, asked: types.TakeChanges
    ) -> types.TakenAnswer:
        own = _inside(client)
        if not own:
            raise MessageInvalid(
                "Only a space takes changes into its tree this way.", hint="Use `carrel cp`."
            )
        paths = asked.paths
        found = await self._helpers.take(own, asked.space, paths, replace=asked.replace)
        return types.TakenAnswer(
            written=tuple(map(_text, found.written)),
            deleted=tuple(map(_text, found.deleted)),
            left=tuple(types.LeftFile(path=_text(one.path), why=one.why) for one in found.left),
        )

    async def system_checkpoint(self, client: Client, asked: types.KeepState) -> types.KeptState:
        own = _inside(client)
        if not own:
            raise MessageInvalid(
                "Only a space keeps its state this way.", hint="Use `carrel checkpoint`."
            )
        taken = await self._checkpoints.take_for_agent(own, asked.message)
        return types.KeptState(**shared(taken, types.KeptState), id=taken.checkpoint_id)

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


_LONGEST_LETTER = 4
"""Bytes, in UTF-8."""
SAID = 100_000
"""Characters of what an agent said at the end."""
GONE = (SpaceState.STOPPED, SpaceState.FAILED, SpaceState.REMOVED)


def _turn(turn: Turn) -> types.HubTurn:
    result = turn.result
    return types.HubTurn(
        id=turn.run_id,
        state=str(turn.state),
        result="" if result is None else result.final_output[:SAID],
        problem=None if result is None or result.error is None else result.error.message,
    )


def _changed(change: Change) -> types.HelperChange:
    return types.HelperChange(
        path=_text(change.path),
        kind=str(change.kind),
        old_path=None if change.old_path is None else _text(change.old_path),
        size=change.size,
    )


def _text(path: str) -> str:
    """A file's name need not be UTF-8, and messages are."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


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
