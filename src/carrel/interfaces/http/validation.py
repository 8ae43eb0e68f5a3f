"""What is wrong with a message, in words that name the field."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from carrel.domain.errors import MessageInvalid

SHOWN = 10
"""Faults in one answer; whoever has more mends these first."""
SHAPE = "as-"
"""What stands in a place only to tell the forms apart in which a field may come begins so."""


def invalid(faults: Iterable[Mapping[str, Any]], where: str = "") -> MessageInvalid:
    """From pydantic's faults. What was sent is not repeated: it may be a secret, or long."""
    found = []
    for fault in list(faults)[:SHOWN]:
        parts = [where, *(str(part) for part in fault["loc"])]
        named = (part for part in parts if part and not part.startswith(SHAPE))
        field = ".".join(named)[:200]
        found.append({"field": field, "message": str(fault["msg"])[:300]})
    first = found[0] if found else {"field": "body", "message": "It cannot be understood"}
    return MessageInvalid(
        f"{first['field']}: {first['message']}.",
        hint="The paths and their fields are described at /v1/openapi.json.",
        field=first["field"],
        errors=found,
    )
