"""What a hook told, in our own words. Pure: the same gives the same."""

from __future__ import annotations

from dataclasses import dataclass

from carrel.agents.frontends.lines import Object, encode, mapping, text, tool_call, tool_result
from carrel.domain.agents import Activity, AgentEventType, Told

_ACTIVITY = {
    "SessionStart": Activity.IDLE,
    "UserPromptSubmit": Activity.WORKING,
    "PreToolUse": Activity.WORKING,
    "PostToolUse": Activity.WORKING,
    "PostToolUseFailure": Activity.WORKING,
    "PermissionRequest": Activity.WAITING,
    "Stop": Activity.INPUT,
    "StopFailure": Activity.INPUT,
}
_NOTIFIED = {
    "permission_prompt": Activity.WAITING,
    "idle_prompt": Activity.INPUT,
    "elicitation_dialog": Activity.INPUT,
}
_ASKS = ("AskUserQuestion", "ExitPlanMode", "ask_user")
"""Tools that wait for a person."""


@dataclass(frozen=True)
class Heard:
    """`activity` is None when nothing is known of it; `begun` says that there is something
    to go on with; `what` is what it waits for, or said."""

    events: tuple[Told, ...] = ()
    activity: Activity | None = None
    key: str = ""
    begun: bool = False
    what: str = ""


def heard(told: Object) -> Heard:
    name, key = text(told, "hook_event_name"), text(told, "session_id")
    activity = _ACTIVITY.get(name)
    if name == "Notification":
        activity = _NOTIFIED.get(text(told, "notification_type"))
    tool = text(told, "tool_name")
    if name in ("PreToolUse", "PermissionRequest") and tool.endswith(_ASKS):
        activity = Activity.INPUT
    said = text(told, "last_assistant_message") or text(told, "message") or tool
    begun = name not in ("", "SessionStart", "SessionEnd")
    return Heard(_events(name, told, key), activity, key, begun, said)


def _events(name: str, told: Object, key: str) -> tuple[Told, ...]:
    id, tool = text(told, "tool_use_id"), text(told, "tool_name")
    match name:
        case "UserPromptSubmit":
            return (_said(text(told, "prompt"), "user", key),)
        case "Stop" if text(told, "last_assistant_message"):
            return (_said(text(told, "last_assistant_message"), "assistant", key),)
        case "PreToolUse":
            return (tool_call(id, tool, mapping(told, "tool_input"), key),)
        case "PostToolUse":
            return (tool_result(id, _shown(told.get("tool_response")), False, key),)
        case "PostToolUseFailure":
            return (tool_result(id, _shown(told.get("error")), True, key),)
        case _:
            return ()


def _said(said: str, role: str, key: str) -> Told:
    return Told(AgentEventType.MESSAGE, {"text": said, "role": role}, key)


def _shown(value: object) -> str:
    return value if isinstance(value, str) else encode(value)
