"""The Claude Agent SDK's messages, written again as the program wrote them.

The SDK reads Claude Code's `stream-json` and gives objects; one translator for both is enough.
"""

from __future__ import annotations

from dataclasses import asdict, is_dataclass
from typing import Any

_TYPES = {
    "AssistantMessage": "assistant",
    "UserMessage": "user",
    "StreamEvent": "stream_event",
    "ResultMessage": "result",
    "RateLimitEvent": "rate_limit_event",
}
_BLOCKS = {
    "TextBlock": "text",
    "ThinkingBlock": "thinking",
    "ToolUseBlock": "tool_use",
    "ToolResultBlock": "tool_result",
    "ServerToolUseBlock": "server_tool_use",
    "ServerToolResultBlock": "server_tool_result",
}


def plain(message: object) -> dict[str, Any]:
    """By the names of classes: the SDK itself is not needed for this. What is not known keeps
    its class's name, and is logged by the translator."""
    data = getattr(message, "data", None)
    if isinstance(data, dict):
        return {"type": "system", **data}
    name = type(message).__name__
    fields = asdict(message) if is_dataclass(message) and not isinstance(message, type) else {}
    said = {"type": _TYPES.get(name, name), **{key: fields[key] for key in fields}}
    content = getattr(message, "content", None)
    if content is not None:
        blocks = content if isinstance(content, str) else [_block(block) for block in content]
        said["message"] = {"content": blocks, "model": said.pop("model", None)}
        del said["content"]
    return said


def _block(block: object) -> dict[str, Any]:
    fields = asdict(block) if is_dataclass(block) and not isinstance(block, type) else {}
    name = type(block).__name__
    return {"type": _BLOCKS.get(name, name), **fields}
