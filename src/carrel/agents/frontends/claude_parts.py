"""Parts of Claude Code's events, in our words."""

from __future__ import annotations

from collections.abc import Sequence

from carrel.agents.frontends import lines
from carrel.agents.frontends.lines import Object
from carrel.domain.agents import AgentEventType, Told


def retry(event: Object) -> str:
    number, most = lines.number(event, "attempt"), lines.number(event, "max_retries")
    why = lines.text(event, "error") or "unknown"
    status = lines.number(event, "error_status")
    return f"Try {number} of {most} again: {why}{f' ({status})' if status else ''}"


def rate_limit(event: Object) -> str:
    status = lines.text(event, "rate_limit_info", "status") or "unknown"
    return f"Rate limit: {status}"


def output(content: object) -> str:
    """What a tool gave back: a text, or parts of which some are texts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return "" if content is None else lines.encode(content)
    all = [part if isinstance(part, dict) else {"text": str(part)} for part in content]
    return "\n".join(lines.text(part, "text") or f"({part.get('type')})" for part in all)


def usage(event: Object, resumed: bool) -> Sequence[Told]:
    """The total cost is that of the conversation, so a resumed turn's is summed from its
    models'. Cached tokens are apart from the input here, and part of it in our events."""
    usage = lines.mapping(event, "usage")
    cached = lines.number(usage, "cache_read_input_tokens")
    written = lines.number(usage, "cache_creation_input_tokens")
    payload: dict[str, object] = {
        "input_tokens": lines.number(usage, "input_tokens") + written + cached,
        "output_tokens": lines.number(usage, "output_tokens"),
        "cached_tokens": cached,
    }
    models = lines.mapping(event, "model_usage_since_last_result")
    costs = [lines.amount(models, name, "costUSD") for name in models]
    if "model_usage_since_last_result" in event:
        payload["cost_usd"] = sum(costs)
    elif not resumed and "total_cost_usd" in event:
        payload["cost_usd"] = lines.amount(event, "total_cost_usd")
    return (Told(AgentEventType.USAGE, payload),) if any(payload.values()) else ()
