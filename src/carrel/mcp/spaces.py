"""Tools about spaces: of an agent's family inside one, of all that may be seen outside."""

from __future__ import annotations

import time
from typing import Annotated, Any

from pydantic import Field

from carrel.client.hub_problems import ConnectionLost
from carrel.domain import spaces as domain
from carrel.domain.errors import UnexportedChanges
from carrel.mcp import asking
from carrel.mcp.asking import LONGEST_S, WAIT_S, Question
from carrel.mcp.desk import ANSWER_S, WORK_S, Desk, ToolContext, reporting
from carrel.mcp.results import Kept, Removed, Space, Spaces, SpaceState, Waited

YES, NO = "yes", "no"
ENDED = (domain.SpaceState.STOPPED, domain.SpaceState.FAILED)
Which = Annotated[str, Field(description="Its id or name.")]
Prompt = Annotated[str, Field(description="The first message to its agent.")]
Earlier = Annotated[str, Field(description="Of a question whose time was over.")]
Seconds = Annotated[float, Field(ge=0, le=LONGEST_S, description="How long to wait.")]


class SpaceTools:
    """The same inside and outside."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def list_spaces(self) -> Spaces:
        """List the spaces that you may see: outside a space all of them, inside one it, the one
        whose agent asked for it, and those that it asked for."""
        return Spaces.model_validate(await self._desk.look("system_list_spaces", {}))

    async def spawn_space(
        self,
        name: str = "",
        description: str = "",
        initial_prompt: Prompt = "",
        frontend: Annotated[str, Field(description="Which agent is to work in it.")] = "",
        project: Annotated[
            str, Field(description="Folder or git URL. Inside a space it is that space's.")
        ] = "",
    ) -> Space:
        """Make a space of its own for a part of the work. Answers when it is ready."""
        wanted = {
            "name": name,
            "description": description,
            "initial_prompt": initial_prompt,
            "frontend": frontend,
            "project": project,
        }
        found = await self._desk.ask("system_spawn_space", wanted, seconds=WORK_S)
        return Space.model_validate(found["space"])

    async def wait_for_space(
        self,
        ctx: ToolContext,
        space: Which,
        states: Annotated[tuple[domain.SpaceState, ...], Field(min_length=1)] = ENDED,
        timeout_s: Annotated[float, Field(ge=0, le=3600)] = 60.0,
    ) -> Waited:
        """Wait until a space is in one of these states, or removed."""
        begun = time.monotonic()
        async with reporting(ctx, f"Waiting for {space}", timeout_s):
            while True:
                left_s = max(0.0, timeout_s - (time.monotonic() - begun))
                wanted = {"space": space, "states": [*map(str, states)], "seconds": left_s}
                try:
                    found = await self._desk.ask(
                        "system_wait_for_space", wanted, seconds=left_s + ANSWER_S
                    )
                except ConnectionLost:
                    continue
                return Waited.model_validate(found)

    async def message_space(self, space: Which, text: str, data: Any = None) -> Kept:
        """Write to the agent of another space; it reads it with read_messages."""
        wanted = {"space": space, "text": text, "data": data}
        return Kept.model_validate(await self._desk.ask("system_message_space", wanted))

    async def _state(self, space: str) -> SpaceState:
        found = await self._desk.look("system_space_state", {"space": space})
        return SpaceState.model_validate(found["space"])

    async def _update(self, space: str, name: str | None, description: str | None) -> Space:
        wanted = {"space": space, "name": name, "description": description}
        found = await self._desk.ask("system_update_space", wanted)
        return Space.model_validate(found["space"])

    async def _delete(
        self, ctx: ToolContext, space: str, question_id: str, timeout_s: float
    ) -> Removed:
        try:
            return await self._remove(space, "")
        except UnexportedChanges as error:
            refusal = error
        target = await self._state(space)
        text = f"May the space {target.id} ({target.name}) be deleted? {refusal.message}"
        question = Question(text, (YES, NO), question_id)
        where = await self._desk.own() or target.id
        answer = await asking.ask(self._desk, ctx, where, question, timeout_s)
        if not answer.answered:
            hint = f"Nobody has answered yet. Go on with question_id {answer.question_id}."
            raise UnexportedChanges(refusal.message, hint=hint)
        if (answer.answer or "").strip().lower() != YES:
            raise UnexportedChanges(refusal.message, hint="The user did not agree.")
        return await self._remove(target.id, answer.question_id)

    async def _remove(self, space: str, agreed: str) -> Removed:
        wanted = {"space": space, "agreed": agreed}
        found = await self._desk.ask("system_delete_space", wanted, seconds=WORK_S)
        return Removed.model_validate(found)


class FamilyTools(SpaceTools):
    """Inside a space: who speaks is known, and what is meant is its own unless it is said."""

    async def space_state(self) -> SpaceState:
        """How this space is: its name, state, parent and children."""
        return await self._state("")

    async def update_space(self, name: str | None = None, description: str | None = None) -> Space:
        """Give this space a name or a description that tells people what is done in it."""
        return await self._update("", name, description)

    async def delete_space(
        self,
        ctx: ToolContext,
        space: Annotated[str, Field(description="One that this asked for; else this one.")] = "",
        question_id: Earlier = "",
        timeout_s: Seconds = WAIT_S,
    ) -> Removed:
        """Delete a space that is not needed any more. When it has changes that nobody took out,
        the user is asked first. Deleting this space ends everything in it, this server too."""
        return await self._delete(ctx, space, question_id, timeout_s)


class ManagingTools(SpaceTools):
    """Outside: each call says which space is meant."""

    async def space_state(self, space: Which) -> SpaceState:
        """How a space is: its name, state, parent and children."""
        return await self._state(space)

    async def update_space(
        self, space: Which, name: str | None = None, description: str | None = None
    ) -> Space:
        """Give a space a name or a description."""
        return await self._update(space, name, description)

    async def delete_space(
        self,
        ctx: ToolContext,
        space: Which,
        question_id: Earlier = "",
        timeout_s: Seconds = WAIT_S,
    ) -> Removed:
        """Delete a space. When it has changes that nobody took out, who watches that space is
        asked first."""
        return await self._delete(ctx, space, question_id, timeout_s)
