"""What waits for a person."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from carrel.interfaces.http.models.common import Answer, Body, Moment, Word


class AnswerBody(Body):
    answer: Annotated[str, Field(min_length=1, max_length=100_000)]
    space: Word | None = None
    """Needed only when two spaces asked under the same id."""


class Answered(Answer):
    seq: int
    """Of the answer, in the log of the space."""


class Seen(Answer):
    seen: int
    """How many words to the user there were."""


class ItemView(Answer):
    id: str
    space: str
    seq: int
    at: Moment
    kind: Literal["question", "signal"]
    text: str
    choices: list[str]
    priority: str
    """Of a signal: `low`, `medium`, `high`, `urgent`."""


class InboxList(Answer):
    items: list[ItemView]
