"""The tools: for the people whom an agent works with, about spaces, and for editors.

Every public method of these classes is a tool: clients see its name, its docstring, the type of
what is `asked` and the type that it returns. Most of these types are the contract's
(`api/types/hub.py`).
"""

from __future__ import annotations

import time
from typing import Annotated, Any

import anyio
import msgspec
from msgspec import Meta

from carrel.api.types import hub as types
from carrel.api.types.common import Answer, Body, members, shared
from carrel.client.hub_protocol import HubMessage
from carrel.client.problems import ConnectionLost
from carrel.domain.errors import AgreementNeeded, DeadlinePassed, MessageInvalid, UnexportedChanges
from carrel.domain.spaces import SpaceState
from carrel.mcp import questions
from carrel.mcp.hub import ANSWER_S, WORK_S, ToolContext, ToolHub, reporting
from carrel.mcp.questions import LONGEST_S, WAIT_S, UserAnswer, UserQuestion

Timeout = Annotated[float, Meta(ge=0, le=LONGEST_S, description="How long to wait.")]
Earlier = Annotated[str, Meta(description="Of a question whose time was over.")]


class AskUser(Body, frozen=True, kw_only=True):
    question: str = ""
    choices: types.Choices = ()
    timeout_s: Timeout = WAIT_S
    question_id: Annotated[
        str, Meta(description="Of a question whose time was over: go on waiting for it.")
    ] = ""


class RequestReview(Body, frozen=True, kw_only=True):
    summary: Annotated[
        str, Meta(description="What was done, and what the user should look at.")
    ] = ""
    timeout_s: Timeout = 0.0
    question_id: Annotated[str, Meta(description="Of an earlier request: wait for its answer.")] = (
        ""
    )


class ReadMessage(Answer, frozen=True, kw_only=True):
    seq: int
    at: float
    sender: str
    """`agent`, `app`, `ide`, `cli` or `system`."""
    sender_space: str = ""
    text: str
    data: Any = None


class MessagesRead(Answer, frozen=True, kw_only=True):
    """`next` is what `after` is to be for those that follow."""

    messages: tuple[ReadMessage, ...]
    next: int


class PeopleTools:
    def __init__(self, hub: ToolHub) -> None:
        self._hub = hub

    async def log_progress(self, asked: types.LogProgress) -> types.KeptAnswer:
        """Tell how the work goes. Everybody who watches this space sees it; it is kept."""
        return await self._hub.publish("buffer_taskspace_progress", asked)

    async def signal_user(self, asked: types.SignalUser) -> types.KeptAnswer:
        """Get the user's attention: something is done, or cannot go on without them. Does not
        wait; use ask_user for a question."""
        return await self._hub.publish("buffer_taskspace_signal_user", asked)

    async def ask_user(self, asked: AskUser, ctx: ToolContext) -> UserAnswer:
        """Ask the user, and wait for the answer. When the time is over the question still
        stands: call again with its question_id to go on waiting."""
        if bool(asked.question) == bool(asked.question_id):
            raise MessageInvalid(
                "Exactly one of `question` and `question_id` is needed.",
                hint="Give `question` to ask, or `question_id` to wait for an earlier question.",
            )
        question = UserQuestion(asked.question, asked.choices, asked.question_id)
        own = await self._hub.own()
        return await questions.ask(self._hub, ctx, own, question, asked.timeout_s)

    async def request_review(self, asked: RequestReview, ctx: ToolContext) -> UserAnswer:
        """Ask the user to review the work in this space. The request is in the user's inbox until
        they answer it, or land the work. By default this does not wait; with timeout_s it
        does, also later with the question_id."""
        if bool(asked.summary) == bool(asked.question_id):
            raise MessageInvalid(
                "Exactly one of `summary` and `question_id` is needed.",
                hint="Give `summary` to ask, or `question_id` to wait for an earlier request.",
            )
        question = UserQuestion(asked.summary, (), asked.question_id, review=True)
        own = await self._hub.own()
        return await questions.ask(self._hub, ctx, own, question, asked.timeout_s)

    async def present_walkthrough(self, asked: types.Walkthrough) -> types.KeptAnswer:
        """Show the user what was changed and why, step by step."""
        return await self._hub.publish("buffer_walkthrough", asked)

    async def read_messages(self, asked: types.ReadMessages) -> MessagesRead:
        """Read what other agents and people wrote to this space."""
        found: types.MessagesAnswer = await self._hub.look("system_read_messages", asked)
        return MessagesRead(messages=tuple(map(_read, found.messages)), next=found.next)


def _read(envelope: dict[str, Any]) -> ReadMessage:
    message = msgspec.convert(envelope, HubMessage)
    return ReadMessage(
        seq=message.seq,
        at=message.ts,
        sender=message.sender.kind,
        sender_space=message.sender.space,
        text=message.payload.get("text") or "",
        data=message.payload.get("data"),
    )


# About spaces: of an agent's family inside one, of all that may be seen outside.

YES, NO = "yes", "no"


class SpawnArguments(types.WantedSpace, frozen=True, kw_only=True):
    question_id: Earlier = ""
    timeout_s: Timeout = WAIT_S


class WaitArguments(Body, frozen=True, kw_only=True):
    space: types.Which
    states: Annotated[
        tuple[Annotated[SpaceState, types.STRING], ...],
        Meta(description="None: until its agent has nothing to do any more."),
    ] = ()
    timeout_s: Annotated[float, Meta(ge=0, le=3600)] = 60.0


class DeleteArguments(Body, frozen=True, kw_only=True):
    space: Annotated[str, Meta(description="One that this asked for; else this one.")] = ""
    question_id: Earlier = ""
    timeout_s: Timeout = WAIT_S


class NamedSpace(Body, frozen=True, kw_only=True):
    space: types.Which


class NamedSpaceChange(types.SpaceChange, frozen=True, kw_only=True):
    space: types.Which


class NamedDeleteArguments(DeleteArguments, frozen=True, kw_only=True):
    space: types.Which


class SpaceTools:
    """The same inside and outside."""

    def __init__(self, hub: ToolHub) -> None:
        self._hub = hub

    async def list_spaces(self, asked: types.Nothing) -> types.SpacesAnswer:
        """List the spaces that you may see: outside a space all of them, inside one it, the one
        whose agent asked for it, and those that it asked for."""
        found: types.SpacesAnswer = await self._hub.look("system_list_spaces", asked)
        return found

    async def spawn_space(self, asked: SpawnArguments, ctx: ToolContext) -> types.HubSpace:
        """Make a space of its own for a part of the work. Answers when it is ready. For an agent
        that your own space does not have, the user is asked first."""
        try:
            return await self._spawn(asked, asked.question_id)
        except AgreementNeeded as error:
            number = str(error.details["question_id"])
        earlier = UserQuestion(earlier=number)
        own = await self._hub.own()
        answer = await questions.ask(self._hub, ctx, own, earlier, asked.timeout_s)
        if not answer.answered:
            hint = f"Nobody has answered yet. Go on with question_id {number}."
            raise AgreementNeeded("The user must agree first.", hint=hint)
        return await self._spawn(asked, number)

    async def _spawn(self, asked: types.WantedSpace, agreed: str) -> types.HubSpace:
        wanted = types.SpawnSpace(**shared(asked, types.SpawnSpace), agreed=agreed)
        made: types.SpaceAnswer = await self._hub.ask("system_spawn_space", wanted, seconds=WORK_S)
        return made.space

    async def wait_for_space(self, asked: WaitArguments, ctx: ToolContext) -> types.WaitAnswer:
        """Wait until the agent of a space has done what it was told, and get its result; or until
        the space is in one of these states, or removed."""
        begun = time.monotonic()
        async with reporting(ctx, f"Waiting for {asked.space}", asked.timeout_s):
            while True:
                left_s = max(0.0, asked.timeout_s - (time.monotonic() - begun))
                wanted = types.WaitForSpace(**shared(asked, types.WaitForSpace), seconds=left_s)
                try:
                    found: types.WaitAnswer = await self._hub.ask(
                        "system_wait_for_space", wanted, seconds=left_s + ANSWER_S
                    )
                except ConnectionLost:
                    continue
                return found

    async def message_space(self, asked: types.MessageSpace) -> types.SentAnswer:
        """Write to the agent of another space; it reads it with read_messages. In a space that was
        made with `wake` this begins a turn of its agent, which wait_for_space waits for."""
        sent: types.SentAnswer = await self._hub.ask("system_message_space", asked)
        return sent

    async def list_changes(self, asked: types.ListChanges) -> types.ChangesAnswer:
        """List the files that a space has changed: inside a space, of one that you made."""
        found: types.ChangesAnswer = await self._hub.look("system_list_changes", asked)
        return found

    async def read_file(self, asked: types.ReadFile) -> types.FileAnswer:
        """Read a file of a space: inside a space, of one that you made."""
        found: types.FileAnswer = await self._hub.look("system_read_file", asked)
        return found

    async def _state(self, space: str) -> types.HubSpaceState:
        wanted = types.SpaceStateRequest(space=space)
        found: types.SpaceStateAnswer = await self._hub.look("system_space_state", wanted)
        return found.space

    async def _update(self, asked: types.SpaceChange) -> types.HubSpace:
        wanted = types.UpdateSpace(**members(asked))
        changed: types.SpaceAnswer = await self._hub.ask("system_update_space", wanted)
        return changed.space

    async def _delete(self, asked: DeleteArguments, ctx: ToolContext) -> types.RemovedAnswer:
        try:
            return await self._remove(asked.space, "")
        except UnexportedChanges as error:
            refusal = error
        target = await self._state(asked.space)
        text = f"May the space {target.id} ({target.name}) be deleted? {refusal.message}"
        question = UserQuestion(text, (YES, NO), asked.question_id)
        where = await self._hub.own() or target.id
        answer = await questions.ask(self._hub, ctx, where, question, asked.timeout_s)
        if not answer.answered:
            hint = f"Nobody has answered yet. Go on with question_id {answer.question_id}."
            raise UnexportedChanges(refusal.message, hint=hint)
        if (answer.answer or "").strip().lower() != YES:
            raise UnexportedChanges(refusal.message, hint="The user did not agree.")
        return await self._remove(target.id, answer.question_id)

    async def _remove(self, space: str, agreed: str) -> types.RemovedAnswer:
        wanted = types.DeleteSpace(space=space, agreed=agreed)
        gone: types.RemovedAnswer = await self._hub.ask(
            "system_delete_space", wanted, seconds=WORK_S
        )
        return gone


class FamilyTools(SpaceTools):
    """Inside a space: who speaks is known, and what is meant is its own unless it is said."""

    async def take_changes(self, asked: types.TakeChanges) -> types.TakenAnswer:
        """Take over files that a space which you made has changed: they are written, or deleted, in
        your own space. What both have changed is left, and told."""
        taken: types.TakenAnswer = await self._hub.ask("system_take_changes", asked, seconds=WORK_S)
        return taken

    async def checkpoint(self, asked: types.KeepState) -> types.KeptState:
        """Keep all files of this space as they are now, before something risky or when a step is
        done: the user can put them back. One is kept by itself after each of your turns."""
        kept: types.KeptState = await self._hub.ask("system_checkpoint", asked, seconds=WORK_S)
        return kept

    async def space_state(self, asked: types.Nothing) -> types.HubSpaceState:
        """How this space is: its name, state, parent and children."""
        return await self._state("")

    async def update_space(self, asked: types.SpaceChange) -> types.HubSpace:
        """Give this space a name or a description that tells people what is done in it."""
        return await self._update(asked)

    async def delete_space(self, asked: DeleteArguments, ctx: ToolContext) -> types.RemovedAnswer:
        """Delete a space that is not needed any more. When it has changes that nobody took out,
        the user is asked first. Deleting this space ends everything in it, this server too."""
        return await self._delete(asked, ctx)


class ManagingTools(SpaceTools):
    """Outside: each call says which space is meant."""

    async def space_state(self, asked: NamedSpace) -> types.HubSpaceState:
        """How a space is: its name, state, parent and children."""
        return await self._state(asked.space)

    async def update_space(self, asked: NamedSpaceChange) -> types.HubSpace:
        """Give a space a name or a description."""
        return await self._update(asked)

    async def delete_space(
        self, asked: NamedDeleteArguments, ctx: ToolContext
    ) -> types.RemovedAnswer:
        """Delete a space. When it has changes that nobody took out, who watches that space is
        asked first."""
        return await self._delete(asked, ctx)


# Answered by an editor, when one is connected to the space.

EDITOR_S = 30.0
"""For an editor to answer; some ask their user first."""


class EditorAnswer(Answer, frozen=True, kw_only=True):
    """What the editor answered, as it is."""

    data: Any = None


class EditorTools:
    """`NoReceiver` when no editor is connected."""

    def __init__(self, hub: ToolHub) -> None:
        self._hub = hub

    async def get_selection(self, asked: types.Nothing) -> EditorAnswer:
        """What the user has selected in the editor that is connected to this space."""
        return await self._ask("ide_get_selection", asked)

    async def ide_operation(self, asked: types.IdeOperation) -> EditorAnswer:
        """Have the editor that is connected to this space do something."""
        return await self._ask("ide_operation", asked)

    async def _ask(self, type: str, asked: Body) -> EditorAnswer:
        hub = await self._hub.hub()
        with anyio.move_on_after(ANSWER_S):
            data = await hub.request(type, members(asked), space=hub.space, deadline_s=EDITOR_S)
            return EditorAnswer(data=data)
        raise DeadlinePassed("The editor did not answer.", hint="Ask again, or do without.")
