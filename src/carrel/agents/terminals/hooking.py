"""How agents are told to call the hook, each in its own settings."""

from __future__ import annotations

import sys
from pathlib import Path

from carrel.domain.agents import Seat

FOLDER = "terminal"
"""In the agent's state: the sockets, and what the pane begins with."""

EVENTS = (
    "SessionStart",
    "UserPromptSubmit",
    "PreToolUse",
    "PermissionRequest",
    "PostToolUse",
    "Stop",
)
"""That every agent with hooks knows."""

SECONDS = 5
"""A hook that takes longer is given up by the agent."""


def command(seat: Seat) -> tuple[str, ...]:
    return (*own("hook.py"), f"{seat.state}/{FOLDER}")


def own(program: str) -> tuple[str, ...]:
    """A program of this folder. It takes no package, so its start takes no time."""
    return (sys.executable, "-I", "-S", str(Path(__file__).with_name(program)))
