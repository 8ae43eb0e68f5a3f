"""What all models share."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from carrel.interfaces.http.texts import WordText

Seconds = Annotated[float, Field(ge=0, le=3_153_600_000, allow_inf_nan=False)]
"""Up to a hundred years."""
Moment = Annotated[str, Field(json_schema_extra={"format": "date-time"})]
Word = Annotated[str, StringConstraints(max_length=255)]
Variable = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=255)]
Environment = Annotated[dict[Variable, WordText], Field(max_length=4096)]
LabelKey = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?$")
]
Labels = Annotated[
    dict[LabelKey, Annotated[str, StringConstraints(max_length=256)]], Field(max_length=64)
]


class Body(BaseModel):
    """What a client sends: nothing that is not known, and no guessing at types."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Answer(BaseModel):
    """What a client gets. Clients are to cope with members that come later."""

    model_config = ConfigDict(extra="allow")


class Problem(Answer):
    """Problem details (RFC 9457). `code` is stable; further members are for programs."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    hint: str = ""
