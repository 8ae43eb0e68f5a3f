"""What the tools answer: each has a schema that clients see."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel


class Kept(BaseModel):
    """It is in the log of the space, under this number."""

    seq: int


class Space(BaseModel):
    id: str
    name: str
    state: str
    description: str = ""
    parent: str = ""
    """The space whose agent asked for it."""
    project: str = ""
    network: str = ""
    created_at: float | None = None
    problem: str | None = None


class SpaceState(Space):
    children: list[str] = []


class Spaces(BaseModel):
    spaces: list[Space]


class Waited(BaseModel):
    """`reached` is false when the time was over before."""

    space: Space
    reached: bool


class Message(BaseModel):
    seq: int
    at: float
    sender: str
    """`agent`, `app`, `ide`, `cli` or `system`."""
    sender_space: str = ""
    text: str
    data: Any = None


class Messages(BaseModel):
    """`next` is what `after` is to be for those that follow."""

    messages: list[Message]
    next: int


class Answer(BaseModel):
    """`answered` is false when the time was over before; the question still stands then."""

    question_id: str
    answered: bool
    answer: str | None = None
    hint: str = ""


class Removed(BaseModel):
    removed: str


class Answered(BaseModel):
    """What the editor answered, as it is."""

    data: Any = None


class Problem(BaseModel):
    """Why a tool did not do what it was asked for."""

    code: str
    message: str
    hint: str = ""


def message_of(envelope: Mapping[str, Any]) -> Message:
    sender, payload = envelope.get("sender") or {}, envelope.get("payload") or {}
    return Message(
        seq=envelope["seq"],
        at=envelope.get("ts") or 0.0,
        sender=sender.get("kind") or "",
        sender_space=sender.get("space") or "",
        text=payload.get("text") or "",
        data=payload.get("data"),
    )
