"""The tool `generate`: what it takes, and what it gives."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from carrel.domain.errors import MessageInvalid

SERVER = "codesmith"
NAME = "generate"
INSTRUCTIONS = (
    "Has something made by a coding agent that works alone, in a workspace of its own or in a"
    " folder that you name. What comes back is what truly changed on the disk."
)
DESCRIPTION = (
    "Have code written by an agent of its own. Without workspace_path it works in a new, empty"
    " workspace, and the text of the files comes back; with it, in that folder, and nowhere else."
)
TEXT_BYTES = 64 * 1024
"""Of one file that comes back as text: much more is nothing to read in an answer."""
TEXTS_BYTES = 256 * 1024
"""Of all of them."""
MOST_FILES = 1000
"""In one answer; `total_files` counts all."""

_TEXT = {"type": "string"}
_TEXTS = {"type": "array", "items": _TEXT}
_MAYBE_TEXT = {"type": ["string", "null"]}
_MAYBE_WHOLE = {"type": ["integer", "null"]}


def _arguments() -> dict[str, Any]:
    def text(about: str) -> dict[str, Any]:
        return {"type": "string", "description": about}

    def notes(about: str) -> dict[str, Any]:
        return {"type": ["string", "object"], "description": about}

    return {
        "instructions": text("What is to be made. The agent knows nothing else."),
        "workspace_path": text("A folder of this machine, absolute; it must be there."),
        "architecture": notes("How it is to be built."),
        "research_context": notes("What is known: a text, or texts by name."),
        "frontend": text("Which agent; otherwise as Carrel is set up."),
        "model": text("Of that agent; otherwise its own choice."),
        "check": text("A command for `sh` that runs there afterwards."),
    }


ARGUMENTS = _arguments()
_FILE = {
    "type": "object",
    "properties": {
        "path": _TEXT,
        "change": {"type": "string", "enum": ["added", "modified", "deleted"]},
        "lines": _MAYBE_WHOLE,
        "bytes": {"type": "integer"},
        "language": _TEXT,
        "type": _TEXT,
        "executable": {"type": "boolean"},
        "text": _TEXT,
    },
    "required": ["path", "change", "lines", "bytes", "language", "type", "executable"],
}
_CHECK = {
    "type": ["object", "null"],
    "properties": {
        "passed": {"type": "boolean"},
        "code": _MAYBE_WHOLE,
        "reason": _TEXT,
        "output": _TEXT,
        "seconds": {"type": "number"},
    },
}
_RESULT = {
    "files": {"type": "array", "items": _FILE},
    "total_files": {"type": "integer"},
    "complete": {"type": "boolean"},
    "needs_research": {**_TEXTS, "description": "What the agent would have to know."},
    "summary": _TEXT,
    "workspace_path": _MAYBE_TEXT,
    "check": _CHECK,
    "request_id": _TEXT,
    "notes": _TEXTS,
}
TOOL: dict[str, Any] = {
    "name": NAME,
    "description": DESCRIPTION,
    "inputSchema": {
        "type": "object",
        "properties": ARGUMENTS,
        "required": ["instructions"],
        "additionalProperties": False,
    },
    "outputSchema": {"type": "object", "properties": _RESULT, "required": list(_RESULT)},
    "annotations": {"readOnlyHint": False, "destructiveHint": True, "openWorldHint": True},
}


def options_of(arguments: dict[str, Any]) -> dict[str, Any]:
    """As a request takes them; `MessageInvalid`. What is null was not given."""
    given = {name: value for name, value in arguments.items() if value is not None}
    for name, value in given.items():
        _check(name, value)
    if not given.get("instructions", "").strip():
        raise _wrong("There are no instructions.", "Say what is to be made.")
    if not (given.get("workspace_path") or "/").startswith("/"):
        raise _wrong("workspace_path is not absolute.", "Begin it with a slash.")
    if "research_context" in given:
        given["context"] = given.pop("research_context")
    return {name: value for name, value in given.items() if value}


def _check(name: str, value: object) -> None:
    if name not in ARGUMENTS:
        raise _wrong(f"{NAME} has no argument {name[:80]!r}.", "Look at its schema.")
    kinds = ARGUMENTS[name]["type"]
    if isinstance(value, str) or (isinstance(value, dict) and "object" in kinds):
        return
    wanted = "a text" if kinds == "string" else "a text or an object"
    raise _wrong(f"{name} is not {wanted}.", "Look at the schema of the tool.")


def _wrong(message: str, hint: str) -> MessageInvalid:
    # Whoever only begins does without.
    from carrel.domain.errors import MessageInvalid

    return MessageInvalid(message, hint=hint)
