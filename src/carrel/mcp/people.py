"""Tools of an agent in a space, for the people and the agents that it works with."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from carrel.domain.errors import MessageInvalid
from carrel.mcp import asking
from carrel.mcp.asking import LONGEST_S, WAIT_S, Question
from carrel.mcp.desk import Desk, ToolContext
from carrel.mcp.results import Answer, Kept, Messages, message_of

Category = Literal["info", "warn", "error", "milestone", "question"]
Priority = Literal["low", "medium", "high", "urgent"]
Seconds = Annotated[float, Field(ge=0, le=LONGEST_S, description="How long to wait.")]


class PeopleTools:
    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def log_progress(
        self,
        message: Annotated[str, Field(description="What was done, or is being done.")],
        category: Category = "info",
        percent: Annotated[float | None, Field(ge=0, le=100)] = None,
    ) -> Kept:
        """Tell how the work goes. Everybody who watches this space sees it; it is kept."""
        payload: dict[str, Any] = {"message": message, "category": category}
        if percent is not None:
            payload["percent"] = percent
        return Kept(seq=await self._desk.publish("buffer_taskspace_progress", payload))

    async def signal_user(
        self,
        message: Annotated[str, Field(description="What the user should know.")],
        priority: Priority = "medium",
        suggested_actions: Annotated[
            tuple[str, ...], Field(max_length=20, description="What the user might do.")
        ] = (),
    ) -> Kept:
        """Get the user's attention: something is done, or cannot go on without them. Does not
        wait; use ask_user for a question."""
        payload = {
            "message": message,
            "priority": priority,
            "suggested_actions": suggested_actions,
        }
        return Kept(seq=await self._desk.publish("buffer_taskspace_signal_user", payload))

    async def ask_user(
        self,
        ctx: ToolContext,
        question: str = "",
        choices: Annotated[
            tuple[str, ...], Field(max_length=50, description="Answers to choose from.")
        ] = (),
        timeout_s: Seconds = WAIT_S,
        question_id: Annotated[
            str, Field(description="Of a question whose time was over: go on waiting for it.")
        ] = "",
    ) -> Answer:
        """Ask the user, and wait for the answer. When the time is over the question still
        stands: call again with its question_id to go on waiting."""
        if bool(question) == bool(question_id):
            raise MessageInvalid(
                "Either a question is asked, or an earlier one is waited for.",
                hint="Give `question`, or `question_id`.",
            )
        asked = Question(question, choices, question_id)
        return await asking.ask(self._desk, ctx, await self._desk.own(), asked, timeout_s)

    async def present_walkthrough(
        self, content: Annotated[str, Field(description="Markdown.")]
    ) -> Kept:
        """Show the user what was changed and why, step by step."""
        return Kept(seq=await self._desk.publish("buffer_walkthrough", {"content": content}))

    async def read_messages(
        self,
        after: Annotated[int, Field(ge=0, description="Only later ones; `next` of before.")] = 0,
        limit: Annotated[int, Field(ge=1, le=1000)] = 100,
    ) -> Messages:
        """Read what other agents and people wrote to this space."""
        wanted = {"after": after, "limit": limit}
        found = await self._desk.look("system_read_messages", wanted)
        return Messages(messages=[message_of(one) for one in found["messages"]], next=found["next"])
