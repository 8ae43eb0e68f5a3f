"""The end of a command as an exit code of ours."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

TIMED_OUT, OWN_ERROR, NOT_EXECUTABLE, NO_COMMAND = 124, 125, 126, 127
SIGNALED = 128
_KILL = 9
_NEVER_RAN = {"command_not_found": NO_COMMAND, "command_not_executable": NOT_EXECUTABLE}


def exit_code(run: Mapping[str, Any]) -> int:
    """The command's own; 128 and the signal's number; 124 when its time was over; 125 when
    nobody knows; 126 and 127 when it could not be executed or found."""
    ended = run.get("exit")
    if ended is None:
        return _NEVER_RAN.get(run.get("failure_code", ""), OWN_ERROR)
    if ended["reason"] == "timeout":
        return TIMED_OUT
    if ended["code"] is not None:
        return int(ended["code"])
    if ended["signal"] is not None:
        return SIGNALED + int(ended["signal"])
    return SIGNALED + _KILL if ended["reason"] in ("memory", "disk", "stopped") else OWN_ERROR
