"""Anthropic's `POST /v1/messages`: requests read, answers written."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tests.agents.standins.script import (
    CACHED_TOKENS,
    INPUT_TOKENS,
    OUTPUT_TOKENS,
    UNKNOWN_MODEL,
    Call,
    Say,
    Talk,
    Tool,
    is_typed,
)

PATH = "/v1/messages"

_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}


def read(body: Mapping[str, Any]) -> Talk:
    texts: list[str] = []
    results = 0
    for message in body["messages"]:
        if message["role"] != "user":
            continue
        content = message["content"]
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        results += sum(part["type"] == "tool_result" for part in parts)
        typed = [
            part["text"] for part in parts if part["type"] == "text" and is_typed(part["text"])
        ]
        if typed:
            texts.append("\n".join(typed))
            results = 0
    tools = [Tool(tool["name"]) for tool in body.get("tools", ())]
    return Talk(body["model"], texts, results, tools, bool(body.get("stream")))


def error(status: int, model: str | None = None) -> dict[str, Any]:
    message = f"model: {model}" if model == UNKNOWN_MODEL else f"stand-in failed with {status}"
    kind = _KINDS.get(status, "api_error")
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"}


UNKNOWN_STATUS = 404


def whole(talk: Talk, answer: Say | Call, number: int) -> dict[str, Any]:
    return _message(talk, number) | {
        "content": [_block(answer, number)],
        "stop_reason": _reason(answer),
        "usage": _usage(OUTPUT_TOKENS),
    }


def events(talk: Talk, answer: Say | Call, number: int) -> Iterator[str]:
    message = _message(talk, number) | {"usage": _usage(1)}
    yield _event("message_start", message=message)
    empty: dict[str, Any] = {"text": ""} if isinstance(answer, Say) else {"input": {}}
    yield _event("content_block_start", index=0, content_block=_block(answer, number) | empty)
    for delta in _deltas(answer):
        yield _event("content_block_delta", index=0, delta=delta)
    yield _event("content_block_stop", index=0)
    reason = {"stop_reason": _reason(answer), "stop_sequence": None}
    yield _event("message_delta", delta=reason, usage={"output_tokens": OUTPUT_TOKENS})
    yield _event("message_stop")


def _event(kind: str, **fields: object) -> str:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n"


def _message(talk: Talk, number: int) -> dict[str, Any]:
    return {
        "id": f"msg_{number:04}",
        "type": "message",
        "role": "assistant",
        "model": talk.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }


def _usage(output: int) -> dict[str, Any]:
    return {
        "input_tokens": INPUT_TOKENS - CACHED_TOKENS,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": CACHED_TOKENS,
        "output_tokens": output,
    }


def _block(answer: Say | Call, number: int) -> dict[str, Any]:
    if isinstance(answer, Say):
        return {"type": "text", "text": answer.text}
    arguments = dict(answer.arguments)
    return {
        "type": "tool_use",
        "id": f"toolu_{number:04}",
        "name": answer.tool.name,
        "input": arguments,
    }


def _deltas(answer: Say | Call) -> Iterator[dict[str, Any]]:
    """Two each, so that readers must put them together."""
    said = answer.text if isinstance(answer, Say) else json.dumps(answer.arguments)
    half = (len(said) + 1) // 2
    for part in filter(None, (said[:half], said[half:])):
        if isinstance(answer, Say):
            yield {"type": "text_delta", "text": part}
        else:
            yield {"type": "input_json_delta", "partial_json": part}


def _reason(answer: Say | Call) -> str:
    return "end_turn" if isinstance(answer, Say) else "tool_use"
