"""Turns of agents on the command line: what is asked for, and how they are shown."""

from __future__ import annotations

from carrel.cli import giving
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
STARTING = (
    Option("--model", kind=TEXT, help="Of the frontend; otherwise its default."),
    Option("--session", kind=TEXT, metavar="NAME", help="Your name for the conversation."),
    Option(
        "--permission",
        kind=CHOICE,
        choices=("ask", "sandboxed", "deny"),
        help="What it may do without asking.",
    ),
    Option("--turn-env", kind=PAIRS, metavar="K=V", help="A variable for this turn only."),
    *giving.OPTIONS,
)
"""Of every verb that starts an agent."""
OPTIONS = (
    Option("--wait", help="Stay until it has ended; print what the agent said last."),
    *STARTING,
    Option("--timeout", kind=SECONDS, metavar="TIME", help="It is ended after so long."),
    Option(
        "--answer",
        kind=SECONDS,
        metavar="TIME",
        help="What it asks permission for is denied after so long; otherwise 5 minutes.",
    ),
)
"""Of every verb that begins a turn."""
CONTINUING = (
    Option("--continue", help="Go on with the last conversation of this space."),
    Option("--resume", kind=TEXT, metavar="KEY", help="Go on with this conversation."),
)


def content(call: Call, prompt: str) -> dict[str, Any]:
    """As the API takes it; what was not said is left to the daemon."""
    found: dict[str, Any] = {
        "prompt": prompt,
        "frontend": call.text("agent"),
        "model": call.text("model"),
        "session": call.text("session"),
        "permission": call.text("permission"),
        "timeout_s": call.number("timeout"),
        "answer_s": call.number("answer"),
        "env": call.pairs("turn_env"),
        "system_prompt": giving.system_prompt(call),
    }
    return {name: value for name, value in found.items() if value}


def continuation(call: Call, space: str) -> dict[str, str] | None:
    """What is to be gone on with, if that was said."""
    if not (call.flag("continue") or call.text("resume")):
        return None
    found = turning.last_continuation(call.link, space)
    if found is None:
        from carrel.domain.errors import ContinuationNotFound

        raise ContinuationNotFound(
            "There is no conversation in this space yet.", hint="Leave out --continue."
        )
    key = call.text("resume")
    return {**found, "key": key} if key else found


def prompt_of(text: str) -> str:
    if text == "-":
        import sys

        text = sys.stdin.read()
    if not text.strip():
        from carrel.domain.errors import MessageInvalid

        raise MessageInvalid("There is nothing to say to the agent.", hint="Give a prompt, or -.")
    return text


def queue(call: Call, space: str, text: str) -> int:
    """To the agent that works there now."""
    from carrel.client.requests import asking, space_path, telling
    from carrel.client.wire import segment

    working = call.link.json(asking(space_path(space)))["working"]
    if not working:
        from carrel.domain.errors import StateConflict

        raise StateConflict("No agent works there now.", hint="Leave out --queue.")
    turn = call.link.json(telling("POST", f"/v1/turns/{segment(working)}/input", {"text": text}))
    call.show(turn) if call.json else call.say(turn["id"])
    return 0


def send(call: Call, space: str, wanted: dict[str, Any]) -> int:
    """Begins a turn, and with --wait sees it to its end. The exit code is 0 for a success."""
    if attached := giving.give(call, space):
        wanted = {**wanted, "attachments": attached}
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
        watched.follow(turn["id"], lambda event: _heard(call, space, event))
    finally:
        watched.close()
    return _ended(call, turning.wait(call.link, turn["id"]))


def _heard(call: Call, space: str, event: dict[str, Any]) -> None:
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
        call.note(clean(f"? {payload.get('name', '')} {_short(payload.get('input'))}"))
        call.note(clean(f"  {_permit(call.text('space') or space, str(payload.get('id')))}"))


def _permit(space: str, permission: str) -> str:
    """How it is answered; from another terminal, for this one waits."""
    import shlex

    command = shlex.join(("carrel", "permit", space, permission))
    return f"It asks for permission: {command} [--deny]"


def compact(value: object) -> str:
    import json

    return value if isinstance(value, str) else json.dumps(value)


def _short(value: object) -> str:
    text = compact(value)
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
