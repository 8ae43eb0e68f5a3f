"""Turns of agents on the command line: what is asked for, and how they are shown."""

from __future__ import annotations

from carrel.cli.call import Call
from carrel.cli.layout import clean
from carrel.cli.output import flush
from carrel.cli.speaking import hub_place
from carrel.cli.spec import CHOICE, PAIRS, SECONDS, TEXT, Option
from carrel.client import turning

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FAILED = 1
OPTIONS = (
    Option("--wait", help="Stay until it has ended; print what the agent said last."),
    Option("--model", kind=TEXT, help="Of the frontend; otherwise its default."),
    Option("--session", kind=TEXT, metavar="NAME", help="Your name for the conversation."),
    Option(
        "--permission",
        kind=CHOICE,
        choices=("ask", "sandboxed", "deny"),
        help="What it may do without asking.",
    ),
    Option("--timeout", kind=SECONDS, metavar="TIME", help="It is ended after so long."),
    Option("--turn-env", kind=PAIRS, metavar="K=V", help="A variable for this turn only."),
)
"""Of every verb that begins a turn."""


def content(call: Call, prompt: str) -> dict[str, Any]:
    """As the API takes it; what was not said is left to the daemon."""
    found: dict[str, Any] = {
        "prompt": _prompt(prompt),
        "frontend": call.text("agent"),
        "model": call.text("model"),
        "session": call.text("session"),
        "permission": call.text("permission"),
        "timeout_s": call.number("timeout"),
        "env": call.pairs("turn_env"),
    }
    return {name: value for name, value in found.items() if value}


def _prompt(text: str) -> str:
    if text == "-":
        import sys

        text = sys.stdin.read()
    if not text.strip():
        from carrel.domain.errors import MessageInvalid

        raise MessageInvalid("There is nothing to say to the agent.", hint="Give a prompt, or -.")
    return text


def send(call: Call, space: str, wanted: dict[str, Any]) -> int:
    """Begins a turn, and with --wait sees it to its end. The exit code is 0 for a success."""
    if not call.flag("wait"):
        turn = turning.begin(call.link, space, wanted)
        if call.json:
            call.show(turn)
        else:
            call.say(turn["id"])
        return 0
    watched = turning.Watched(hub_place(call), space, start=not call.flag("no_start"))
    try:
        turn = turning.begin(call.link, space, wanted)
        watched.follow(turn["id"], lambda event: _heard(call, event))
    finally:
        watched.close()
    return _ended(call, turning.wait(call.link, turn["id"]))


def _heard(call: Call, event: dict[str, Any]) -> None:
    if call.json:
        import json

        call.say(json.dumps(event))
        flush()
        return
    kind, payload = event["type"].removeprefix("agent."), event["payload"]["payload"]
    if kind == "tool_call":
        call.note(clean(f"· {payload.get('name', '')} {_short(payload.get('input'))}"))
    elif kind == "message":
        call.note(clean(str(payload.get("text", ""))))
    elif kind == "permission" and "decision" not in payload:
        call.note(clean(f"? {payload.get('name', '')} asks for permission {payload.get('id')}"))


def _short(value: object) -> str:
    import json

    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 100 else text[:99] + "…"


def _ended(call: Call, turn: dict[str, Any]) -> int:
    result = turn["result"] or {"success": False, "final_output": "", "error": None}
    if call.json:
        call.show(turn)
    elif result["success"]:
        call.say(result["final_output"])
    else:
        error = result["error"] or {"code": "agent_crashed", "message": "Nobody knows why."}
        call.note(clean(f"carrel: {error['message']} ({error['code']})"))
    return 0 if result["success"] else FAILED
