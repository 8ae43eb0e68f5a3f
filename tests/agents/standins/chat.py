"""OpenAI's `POST /v1/chat/completions`: requests read, answers written."""

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

PATH = "/v1/chat/completions"
UNKNOWN_STATUS = 404
error = openai.error


def read(body: Mapping[str, Any]) -> Talk:
    texts: list[str] = []
    results = 0
    for message in body["messages"]:
        if message["role"] == "tool":
            results += 1
        elif message["role"] == "user":
            typed = [text for text in openai.text_parts(message["content"]) if is_typed(text)]
            if typed:
                texts.append("\n".join(typed))
                results = 0
    tools = [Tool(tool["function"]["name"]) for tool in body.get("tools") or ()]
    return Talk(body["model"], texts, results, tools, bool(body.get("stream")))


def whole(talk: Talk, answer: Say | Call, number: int) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": None}
    if isinstance(answer, Say):
        message["content"] = answer.text
    else:
        message["tool_calls"] = [_call(answer, number, json.dumps(answer.arguments))]
    choice = {"index": 0, "message": message, "finish_reason": _reason(answer)}
    kind = {"object": "chat.completion"}
    return _base(talk, number) | kind | {"choices": [choice], "usage": _usage()}


def events(talk: Talk, answer: Say | Call, number: int) -> Iterator[str]:
    base = _base(talk, number)
    for delta in _deltas(answer, number):
        yield _chunk(base | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
    last = {"index": 0, "delta": {}, "finish_reason": _reason(answer)}
    yield _chunk(base | {"choices": [last]})
    yield _chunk(base | {"choices": [], "usage": _usage()})
    yield "data: [DONE]\n\n"


def _deltas(answer: Say | Call, number: int) -> Iterator[dict[str, Any]]:
    """Two each, so that readers must put them together."""
    said = answer.text if isinstance(answer, Say) else json.dumps(answer.arguments)
    half = (len(said) + 1) // 2
    if isinstance(answer, Say):
        yield {"role": "assistant", "content": said[:half]}
        yield {"content": said[half:]}
        return
    yield {"role": "assistant", "tool_calls": [{"index": 0} | _call(answer, number, said[:half])]}
    yield {"tool_calls": [{"index": 0, "function": {"arguments": said[half:]}}]}


def _chunk(fields: Mapping[str, Any]) -> str:
    return f"data: {json.dumps(fields)}\n\n"


def _base(talk: Talk, number: int) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{number:04}",
        "object": "chat.completion.chunk",
        "created": 0,
        "model": talk.model,
    }


def _call(answer: Call, number: int, arguments: str) -> dict[str, Any]:
    function = {"name": answer.tool.name, "arguments": arguments}
    return {"id": f"call_{number:04}", "type": "function", "function": function}


def _usage() -> dict[str, Any]:
    return {
        "prompt_tokens": INPUT_TOKENS,
        "prompt_tokens_details": {"cached_tokens": CACHED_TOKENS},
        "completion_tokens": OUTPUT_TOKENS,
        "total_tokens": INPUT_TOKENS + OUTPUT_TOKENS,
    }


def _reason(answer: Say | Call) -> str:
    return "stop" if isinstance(answer, Say) else "tool_calls"
