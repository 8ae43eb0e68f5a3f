"""Reads the JSON lines that agents write, and makes events. Nothing here raises, whatever a line
is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from carrel.domain.nesting import is_too_deep
from carrel.domain.turns import AgentEventType, LogKind, Told

MAX_RAW = 4096
"""Characters of a line that nobody understood: enough to see what it was."""

MAX_OUTPUT = 65_536
"""Characters of what a tool gave back: events are kept, and a tool can print a disk."""

Object = Mapping[str, object]

_NOTHING: Object = {}


def decode(line: bytes) -> Object | None:
    """The JSON object in a line; None when there is none, or one that nobody could pass on."""
    import msgspec

    if is_too_deep(line):
        return None

    try:
        value = msgspec.json.decode(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def encode(value: object) -> str:
    """As JSON, for people; what cannot be written as JSON, as Python shows it."""
    import msgspec

    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError, RecursionError):
        return repr(value)


def bounded(text: str, limit: int) -> str:
    """The beginning, with a word on how much there was."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]}… ({len(text)} characters in all)"


def text(value: Object, *path: str) -> str:
    """The string at that place, else an empty one."""
    *parents, name = path
    found = mapping(value, *parents).get(name)
    return found if isinstance(found, str) else ""


def number(value: Object, *path: str) -> int:
    """The whole number at that place, else 0."""
    *parents, name = path
    found = mapping(value, *parents).get(name)
    return found if isinstance(found, int) and not isinstance(found, bool) else 0


def amount(value: Object, *path: str) -> float:
    """The finite number at that place, else 0.0."""
    *parents, name = path
    found = mapping(value, *parents).get(name)
    if isinstance(found, bool) or not isinstance(found, int | float):
        return 0.0
    try:
        return float(found) if math.isfinite(found) else 0.0
    except OverflowError:
        return 0.0


def flag(value: Object, name: str) -> bool:
    return value.get(name) is True


def mapping(value: Object, *path: str) -> Object:
    """The object at that place, else an empty one."""
    found: object = value
    for name in path:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else _NOTHING


def objects(value: Object, *path: str) -> Sequence[Object]:
    """The objects of the list at that place; what else is in it is left out."""
    *parents, name = path
    found = mapping(value, *parents).get(name)
    if not isinstance(found, list):
        return ()
    return [item for item in found if isinstance(item, Mapping)]


def raw(line: bytes, key: str = "") -> Told:
    """The event for a line that has no meaning here: the line as it was."""
    shown = line[: MAX_RAW * 4].decode("utf-8", "replace")
    if len(shown) > MAX_RAW:
        shown = f"{shown[:MAX_RAW]}… ({len(line)} bytes in all)"
    return Told(AgentEventType.LOG, {"raw": shown}, key)


def log(said: str, key: str = "") -> Told:
    return Told(AgentEventType.LOG, {"text": bounded(said, MAX_RAW)}, key)


def thought(said: str, key: str = "") -> Told:
    return _log(LogKind.THINKING, said, key)


def retry(said: str, status: int = 0, key: str = "") -> Told:
    """`status` is the API's, 0 when it is not known."""
    return _log(LogKind.RETRY, said, key, **({"status": status} if status else {}))


def problem(said: str, key: str = "") -> Told:
    return _log(LogKind.ERROR, said, key)


def _log(kind: LogKind, said: str, key: str, **more: object) -> Told:
    text = bounded(said, MAX_RAW)
    return Told(AgentEventType.LOG, {"text": text, "kind": kind.value, **more}, key)


def message(said: str, key: str = "") -> Told:
    return Told(AgentEventType.MESSAGE, {"text": said, "role": "assistant"}, key)


def delta(said: str, key: str = "") -> Told:
    return Told(AgentEventType.MESSAGE_DELTA, {"text": said}, key)


def tool_call(id: str, name: str, given: object, key: str = "") -> Told:
    return Told(AgentEventType.TOOL_CALL, {"id": id, "name": name, "input": given}, key)


def tool_result(id: str, output: str, is_error: bool, key: str = "") -> Told:
    shown = bounded(output, MAX_OUTPUT)
    return Told(AgentEventType.TOOL_RESULT, {"id": id, "output": shown, "is_error": is_error}, key)
