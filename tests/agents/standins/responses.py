"""OpenAI's `POST /v1/responses`: requests read, answers written."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tests.agents.standins import openai
from tests.agents.standins.script import (
    CACHED_TOKENS,
    INPUT_TOKENS,
    OUTPUT_TOKENS,
    Call,
    Say,
    Talk,
    Tool,
    is_typed,
)

PATH = "/v1/responses"
UNKNOWN_STATUS = 400
error = openai.error


def read(body: Mapping[str, Any]) -> Talk:
    texts: list[str] = []
    results = 0
    given = body["input"]
    for item in [{"role": "user", "content": given}] if isinstance(given, str) else given:
        if item.get("type", "message").endswith("_output"):
            results += 1
        elif item.get("role") == "user":
            typed = [text for text in openai.text_parts(item["content"]) if is_typed(text)]
            if typed:
                texts.append("\n".join(typed))
                results = 0
    return Talk(body["model"], texts, results, list(_tools(body)), bool(body.get("stream")))


def _tools(body: Mapping[str, Any]) -> Iterator[Tool]:
    for tool in body.get("tools", ()):
        if tool["type"] == "function":
            yield Tool(tool["name"])
        elif tool["type"] == "namespace":
            for inner in tool["tools"]:
                yield Tool(inner["name"], tool["name"])


def whole(talk: Talk, answer: Say | Call, number: int) -> dict[str, Any]:
    return _response(talk, number) | {
        "status": "completed",
        "output": [_item(answer, number)],
        "usage": {
            "input_tokens": INPUT_TOKENS,
            "input_tokens_details": {"cached_tokens": CACHED_TOKENS},
            "output_tokens": OUTPUT_TOKENS,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": INPUT_TOKENS + OUTPUT_TOKENS,
        },
    }


def events(talk: Talk, answer: Say | Call, number: int) -> Iterator[str]:
    yield _event("response.created", response=_response(talk, number))
    item = _item(answer, number)
    empty: dict[str, Any] = {"content": []} if isinstance(answer, Say) else {"arguments": ""}
    begun = item | empty | {"status": "in_progress"}
    yield _event("response.output_item.added", output_index=0, item=begun)
    yield from _deltas(answer, item["id"])
    yield _event("response.output_item.done", output_index=0, item=item)
    yield _event("response.completed", response=whole(talk, answer, number))


def _deltas(answer: Say | Call, item: str) -> Iterator[str]:
    """Two each, so that readers must put them together."""
    place = {"item_id": item, "output_index": 0}
    said = answer.text if isinstance(answer, Say) else json.dumps(answer.arguments)
    half = (len(said) + 1) // 2
    parts = list(filter(None, (said[:half], said[half:])))
    if isinstance(answer, Call):
        for part in parts:
            yield _event("response.function_call_arguments.delta", **place, delta=part)
        yield _event("response.function_call_arguments.done", **place, arguments=said)
        return
    place["content_index"] = 0
    text = {"type": "output_text", "annotations": []}
    yield _event("response.content_part.added", **place, part=text | {"text": ""})
    for part in parts:
        yield _event("response.output_text.delta", **place, delta=part)
    yield _event("response.output_text.done", **place, text=said)
    yield _event("response.content_part.done", **place, part=text | {"text": said})


def _event(kind: str, **fields: object) -> str:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n"


def _response(talk: Talk, number: int) -> dict[str, Any]:
    return {
        "id": f"resp_{number:04}",
        "object": "response",
        "created_at": 0,
        "status": "in_progress",
        "model": talk.model,
        "output": [],
    }


def _item(answer: Say | Call, number: int) -> dict[str, Any]:
    if isinstance(answer, Say):
        return {
            "type": "message",
            "id": f"item_{number:04}",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": answer.text, "annotations": []}],
        }
    namespace, name = _split(answer.tool)
    place = {"namespace": namespace} if namespace else {}
    return {
        "type": "function_call",
        "id": f"item_{number:04}",
        "call_id": f"call_{number:04}",
        "name": name,
        "arguments": json.dumps(answer.arguments),
        "status": "completed",
        **place,
    }


def _split(tool: Tool) -> tuple[str | None, str]:
    """A full name of a tool that was not offered still says its namespace."""
    if tool.namespace is None and tool.name.startswith("mcp__"):
        namespace, _, name = tool.name.rpartition("__")
        return namespace, name
    return tool.namespace, tool.name
