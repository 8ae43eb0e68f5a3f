"""A question to the user: said, waited for, and waited for again.

The question and its answer are in the log of the space. Who waits has the log replayed from
the question on, so an answer is found whenever it came: while the connection was lost, while
the daemon was restarted, or before somebody asked for it again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import anyio

from carrel.client.hub_aio import AsyncHub
from carrel.client.hub_messages import HubMessage
from carrel.domain.errors import DaemonUnavailable, MessageInvalid
from carrel.domain.hub import ANSWER, QUESTION
from carrel.mcp.desk import ANSWER_S, Desk, ToolContext, reporting
from carrel.mcp.results import Answer

TYPES = (QUESTION, ANSWER)
ALL = ("*",)
WAIT_S = 300.0
"""Unless it is said: many people answer within minutes, and many clients wait no longer."""
LONGEST_S = 86_400.0
"""The log keeps a question for a day."""
AGAIN = "Nobody has answered yet. Call again with this question_id to go on waiting."


@dataclass(frozen=True)
class Question:
    text: str = ""
    choices: Sequence[str] = ()
    earlier: str = ""
    """The id of one that was asked before. A text says which one it must have been."""

    def was(self, message: HubMessage) -> bool:
        """Whether that is the earlier one."""
        same = self.text in ("", message.payload.get("question"))
        return message.type == QUESTION and message.id == self.earlier and same


async def ask(
    desk: Desk, context: ToolContext, space: str, question: Question, seconds: float
) -> Answer:
    """In the log of this space. Raises `MessageInvalid` when there is no such question."""
    async with (
        # An earlier question is looked for in the whole log: where it ends is then heard.
        desk.listening(space, ALL if question.earlier else TYPES) as hub,
        reporting(context, "Waiting for the user's answer", seconds),
    ):
        number = await _begin(hub, space, question)
        with anyio.move_on_after(seconds):
            heard = await _next(hub, lambda one: one.type == ANSWER and one.reply_to == number)
            text = str(heard.payload["answer"])
            return Answer(question_id=number, answered=True, answer=text)
        return Answer(question_id=number, answered=False, hint=AGAIN)


async def _begin(hub: AsyncHub, space: str, question: Question) -> str:
    """The question's id; what comes next is what came after it."""
    if question.earlier:
        await _find(hub, space, question)
        return question.earlier
    with anyio.move_on_after(ANSWER_S):
        payload = {"question": question.text, "choices": list(question.choices)}
        seq = (await hub.publish(QUESTION, payload, space=space)).seq
        await hub.replay(space, seq=seq - 1)
        return (await _next(hub, lambda one: one.seq == seq)).id
    raise DaemonUnavailable(
        f"The hub did not take the question within {ANSWER_S:g} seconds.", hint="Ask again."
    )


async def _find(hub: AsyncHub, space: str, question: Question) -> None:
    last = (await hub.replay(space, seq=0)).last.get(space, 0)
    if last:
        found = await _next(hub, lambda one: question.was(one) or one.seq >= last)
        if question.was(found):
            return
    raise MessageInvalid(
        f"There is no question {question.earlier[:80]!r} here.",
        hint="Take the question_id of an answer of ask_user, or ask anew.",
    )


async def _next(hub: AsyncHub, wanted: Callable[[HubMessage], bool]) -> HubMessage:
    async for message in hub:
        if wanted(message):
            return message
    raise DaemonUnavailable("The connection to the hub has ended.", hint="Ask again.")
