"""A question to the user: said, waited for, and waited for again.

The question and its answer are in the log of the space. Who waits has the log replayed from
the question on, so an answer is found whenever it came: while the connection was lost, while
the daemon was restarted, or before somebody asked for it again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import anyio

from carrel.api.types.common import Answer
from carrel.client.aio_hub import AsyncHub
from carrel.client.hub_protocol import HubMessage
from carrel.domain.errors import DaemonUnavailable, MessageInvalid
from carrel.domain.hub import ANSWER, QUESTION
from carrel.mcp.hub import ANSWER_S, ToolContext, ToolHub, reporting

TYPES = (QUESTION, ANSWER)
ALL = ("*",)
WAIT_S = 300.0
"""Unless it is said: many people answer within minutes, and many clients wait no longer."""
LONGEST_S = 86_400.0
"""The log keeps a question for a day."""
AGAIN = "Nobody has answered yet. Call again with this question_id to go on waiting."


@dataclass(frozen=True)
class UserQuestion:
    text: str = ""
    choices: Sequence[str] = ()
    earlier: str = ""
    """The id of one that was asked before. A text says which one it must have been."""
    review: bool = False
    """Somebody is to look at the work."""

    def was(self, message: HubMessage) -> bool:
        """Whether that is the earlier one."""
        same = self.text in ("", message.payload.get("question"))
        return message.type == QUESTION and message.id == self.earlier and same


class UserAnswer(Answer, frozen=True, kw_only=True):
    """`answered` is false when the time was over before; the question still stands then."""

    question_id: str
    answered: bool
    answer: str | None = None
    hint: str = ""


async def ask(
    tools: ToolHub, context: ToolContext, space: str, question: UserQuestion, seconds: float
) -> UserAnswer:
    """In the log of this space. Raises `MessageInvalid` when there is no such question."""
    async with (
        tools.listening(TYPES, space) as hub,
        reporting(context, "Waiting for the user's answer", seconds),
    ):
        number = await _begin(tools, hub, space, question)
        with anyio.move_on_after(seconds):
            heard = await _next(hub, lambda one: one.type == ANSWER and one.reply_to == number)
            text = str(heard.payload["answer"])
            return UserAnswer(question_id=number, answered=True, answer=text)
        return UserAnswer(question_id=number, answered=False, hint=AGAIN)


async def _begin(tools: ToolHub, hub: AsyncHub, space: str, question: UserQuestion) -> str:
    """The question's id; its answer is among what comes next."""
    with anyio.move_on_after(ANSWER_S):
        if question.earlier:
            await hub.replay(space, seq=await _find(tools, space, question))
            return question.earlier
        payload: dict[str, object] = {
            "question": question.text,
            "choices": list(question.choices),
        }
        if question.review:
            payload["review"] = True
        seq = (await hub.publish(QUESTION, payload, space=space)).seq
        await hub.replay(space, seq=seq - 1)
        return (await _next(hub, lambda one: one.seq == seq)).id
    raise DaemonUnavailable(
        f"The hub did not answer within {ANSWER_S:g} seconds.", hint="Ask again."
    )


async def _find(tools: ToolHub, space: str, question: UserQuestion) -> int:
    """The number of the earlier question, which is looked for in the whole log. What is said just
    now is not heard here: it would be taken for the end of the log."""
    async with tools.listening(ALL) as log:
        last = (await log.replay(space, seq=0)).last.get(space, 0)
        if last:
            found = await _next(log, lambda one: question.was(one) or one.seq >= last)
            if question.was(found):
                return found.seq
    raise MessageInvalid(
        f"There is no question {question.earlier[:80]!r} here.",
        hint="Take the question_id of an answer of ask_user, or ask anew.",
    )


async def _next(hub: AsyncHub, wanted: Callable[[HubMessage], bool]) -> HubMessage:
    async for message in hub:
        if wanted(message):
            return message
    raise DaemonUnavailable("The connection to the hub has ended.", hint="Ask again.")
