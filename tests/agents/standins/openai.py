"""What both APIs of OpenAI share: texts of a message, and errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.agents.standins.script import UNKNOWN_MODEL

_KINDS = {
    400: ("invalid_request_error", None),
    401: ("invalid_request_error", "invalid_api_key"),
    429: ("requests", "rate_limit_exceeded"),
}


def text_parts(content: str | Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if isinstance(content, str):
        yield content
        return
    for part in content:
        if part["type"] in ("text", "input_text"):
            yield part["text"]


def error(status: int, model: str | None = None) -> dict[str, Any]:
    if model == UNKNOWN_MODEL:
        message = f"The model `{model}` does not exist or you do not have access to it."
        kind, code, param = "invalid_request_error", "model_not_found", "model"
        return {"error": {"message": message, "type": kind, "param": param, "code": code}}
    found, why = _KINDS.get(status, ("server_error", "server_error"))
    message = f"stand-in failed with {status}"
    return {"error": {"message": message, "type": found, "param": None, "code": why}}
