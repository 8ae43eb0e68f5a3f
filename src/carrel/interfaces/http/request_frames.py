"""Frames of clients of requests."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, ValidationError

from carrel.domain.errors import CarrelError, MessageInvalid
from carrel.interfaces.http.models.common import Body
from carrel.interfaces.http.models.requests import AnswerBody, GenerateBody
from carrel.interfaces.http.validation import invalid
from carrel.interfaces.http.views import View

RequestWord = Annotated[str, StringConstraints(min_length=1, max_length=128)]
ACCEPT, READ = "accept", "read"
"""Steps at which something is refused before it is a request, or before it is known which."""
_PASSING = frozenset(
    {"capacity", "store_busy", "insufficient_disk", "launcher_unavailable", "sandbox_unavailable"}
)
"""What may be otherwise in a moment."""


class GenerateFrame(GenerateBody):
    type: Literal["generate"]


class ResumeFrame(Body):
    type: Literal["resume"]
    request_id: RequestWord
    after: Annotated[int, Field(ge=0, lt=1 << 62)] = 0


class CancelFrame(Body):
    type: Literal["cancel"]
    request_id: RequestWord


class AnswerFrame(AnswerBody):
    type: Literal["answer"]
    request_id: RequestWord


class DoneFrame(Body):
    type: Literal["done"]
    request_id: RequestWord


ClientFrame = GenerateFrame | ResumeFrame | CancelFrame | AnswerFrame | DoneFrame
_KINDS: dict[str, type[ClientFrame]] = {
    "generate": GenerateFrame,
    "resume": ResumeFrame,
    "cancel": CancelFrame,
    "answer": AnswerFrame,
    "done": DoneFrame,
}


def content_of(text: str | None) -> dict[str, Any]:
    """Raises `MessageInvalid`."""
    if text is None:
        raise MessageInvalid("A frame is text.", hint="Send JSON in text frames.", field="frame")
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        raise MessageInvalid(
            "A frame is no JSON.", hint='Send {"type": "generate", …}.', field="frame"
        ) from None
    if not isinstance(content, dict):
        raise MessageInvalid(
            "A frame is an object.", hint='Send {"type": "generate", …}.', field="frame"
        )
    return content


def frame_of(content: dict[str, Any]) -> ClientFrame:
    """Raises `MessageInvalid`."""
    named = content.get("type")
    kind = _KINDS.get(named) if isinstance(named, str) else None
    if kind is None:
        raise MessageInvalid(
            "type: It is none that is known here.",
            hint=f"Use one of {', '.join(_KINDS)}.",
            field="type",
        )
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        raise invalid(error.errors(include_url=False)) from None


def refusal(error: CarrelError, content: dict[str, Any]) -> View:
    """What is told of a frame that nothing became of. `to` is its type: only what an error to
    `generate` or `resume` is about has ended with it."""
    named, word = content.get("type"), content.get("request_id")
    to = named if isinstance(named, str) and named in _KINDS else ""
    frame: View = {"type": "error"}
    if isinstance(word, str) and 0 < len(word) <= 128:
        frame["request_id"] = word
    frame |= {
        "to": to,
        "code": error.code,
        "message": error.message,
        "hint": error.hint,
        "step": ACCEPT if to == "generate" else to or READ,
        "retriable": error.code in _PASSING,
    }
    return {**frame, **{name: one for name, one in error.details.items() if name not in frame}}
