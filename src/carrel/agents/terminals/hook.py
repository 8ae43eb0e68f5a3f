"""The program that agents run at their hooks: it passes on to the supervisor what it was told.

It prints nothing and never fails: what a hook prints, or how it ends, changes what the agent does.
Standard library only: it is run as `python -I -S hook.py FOLDER`.
"""

from __future__ import annotations

import json
import os
import socket
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from carrel.domain.turns import AgentSetup

FOLDER = "terminal"
"""In the agent's state: the sockets, and what the pane begins with."""
SOCKET = "told.sock"
EVENTS = (
    "SessionStart",
    "UserPromptSubmit",
    "PreToolUse",
    "PermissionRequest",
    "PostToolUse",
    "Stop",
)
"""Hooks that every agent with hooks has."""
SECONDS = 5
"""The agent gives up a hook that takes longer."""
WAIT_S = 2.0
"""For a supervisor that has much to read."""
MAX_TEXT = 16_384
"""Characters of one value: events are kept."""
FIELDS = (
    "hook_event_name",
    "session_id",
    "source",
    "reason",
    "prompt",
    "message",
    "notification_type",
    "last_assistant_message",
    "tool_name",
    "tool_use_id",
    "tool_input",
    "tool_response",
    "error",
)


def command(setup: AgentSetup) -> tuple[str, ...]:
    """The command for an agent's settings that runs this program."""
    return (*own("hook.py"), f"{setup.state}/{FOLDER}")


def own(program: str) -> tuple[str, ...]:
    """The command of a program in this folder. It imports no package, so it starts at once."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), program)
    return (sys.executable, "-I", "-S", path)


def short(value: object) -> object:
    if isinstance(value, str):
        return value[:MAX_TEXT]
    text = json.dumps(value)
    return value if len(text) <= MAX_TEXT else {"cut": text[:MAX_TEXT]}


def send(folder: str, said: bytes) -> None:
    """Uses a descriptor of the folder: its path may be too long for a socket."""
    here = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as to:
            to.settimeout(WAIT_S)
            to.sendto(said, f"/proc/self/fd/{here}/{SOCKET}")
    finally:
        os.close(here)


def main(folder: str) -> None:
    told = json.loads(sys.stdin.buffer.read())
    wanted = {name: short(told[name]) for name in FIELDS if name in told}
    send(folder, json.dumps(wanted).encode())


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except Exception:
        sys.exit(0)
