"""What all types of the contract share."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from typing import Annotated, Any, cast

from msgspec import Meta, Struct, structs

HUNDRED_YEARS_S = 3_153_600_000
MAX_PATH = 4096
"""Longer ones no system call takes."""
MAX_WORD = 131_072
"""The kernel takes no longer argument or variable."""
OS_TEXT = {"carrel": "os_text"}
"""The `extra` of a text that names files or arguments, which may have bytes that are no UTF-8."""
END = r"$(?!\n)"
"""The end of a pattern: in Python `$` alone lets a newline through."""

WORDS: dict[str, str] = {
    f"`str` of length <= {MAX_WORD}": (
        f"An argument or variable has up to {MAX_WORD} bytes; pass more on standard input or in a"
        " file"
    )
}
"""What is wanted, for people, by the pattern or bound as msgspec's messages name it."""


def spelled(pattern: str, words: str, *, max_length: int | None = None) -> Meta:
    """A pattern, and the sentence that tells a person what it wants."""
    pattern = f"^{pattern}{END}"
    WORDS[pattern.replace("\\", "\\\\")] = words
    return Meta(pattern=pattern, max_length=max_length, description=words)


Moment = datetime
"""In JSON: RFC 3339 in UTC, to the millisecond. Written with `moment`."""
Seconds = Annotated[float, Meta(ge=0, le=HUNDRED_YEARS_S)]
Span = Annotated[float, Meta(gt=0, le=HUNDRED_YEARS_S)]
Count = Annotated[int, Meta(ge=1, lt=1 << 62)]
Word = Annotated[str, Meta(max_length=255)]
PathInside = Annotated[str, Meta(max_length=MAX_PATH)]
"""Relative to the project; empty: none."""
PathText = Annotated[str, Meta(min_length=1, max_length=MAX_PATH, extra=OS_TEXT)]
WordText = Annotated[str, Meta(max_length=MAX_WORD, extra=OS_TEXT)]
Variable = Annotated[
    str,
    spelled(
        "[A-Za-z_][A-Za-z0-9_]*",
        "The name of a variable has letters, digits and underscores, and begins with no digit",
        max_length=255,
    ),
]
Environment = Annotated[dict[Variable, WordText], Meta(max_length=4096)]
LabelKey = Annotated[
    str,
    spelled(
        "[A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?",
        "A label has up to 63 letters, digits, dots, dashes, underscores and slashes, and begins"
        " and ends with a letter or digit",
    ),
]
Labels = Annotated[dict[LabelKey, Annotated[str, Meta(max_length=256)]], Meta(max_length=64)]


class Body(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a client sends. A member that is not known is refused, so that nobody believes to have
    said what was not heard."""


class Query(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What stands in an address after `?`."""


class Answer(Struct, frozen=True, kw_only=True):
    """What a client gets. Members with a default were added later: an older daemon has none."""


class ProblemDetails(Answer, frozen=True, kw_only=True):
    """RFC 9457. `code` is stable; further members are for programs."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    hint: str = ""


def members(value: Struct) -> dict[str, Any]:
    """Those of the value itself, by name."""
    return structs.asdict(value)


def _names(kind: type[Any]) -> set[str]:
    if dataclasses.is_dataclass(kind):
        return set(kind.__dataclass_fields__)
    return set(kind.__struct_fields__)


def shared(source: Any, kind: type[Any]) -> dict[str, Any]:
    """The members of `source` that `kind` has by the same name. A plain field needs no line where
    one becomes the other."""
    kinds = (type(source), kind)
    if kinds not in _SHARED:
        _SHARED[kinds] = frozenset(_names(type(source)) & _names(kind))
    return {name: getattr(source, name) for name in _SHARED[kinds]}


_SHARED: dict[tuple[type[Any], type[Any]], frozenset[str]] = {}
"""By both kinds: looking for them takes longer than all else of an answer."""


def moment(at: float) -> Moment:
    """A time as answers have it. It is the text already, which is encoded as it is."""
    text = datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"
    return cast(Moment, text)


def moment_or_none(at: float | None) -> Moment | None:
    return None if at is None else moment(at)
