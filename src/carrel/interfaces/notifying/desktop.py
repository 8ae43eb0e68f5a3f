"""A notification on the desktop of the daemon's user, where there is one."""

from __future__ import annotations

import asyncio
import html
import os
import shutil
from collections.abc import Mapping

from carrel.interfaces.notifying.notifier import Notice, NotTold

PROGRAM = "notify-send"
WAIT_S = 10.0
"""It hands the words over and ends; a session that hangs is not waited for."""
MAX_TEXT = 500
_URGENCY = {"low": "low", "medium": "normal", "high": "normal", "urgent": "critical"}
_SESSION = ("DBUS_SESSION_BUS_ADDRESS", "DISPLAY", "WAYLAND_DISPLAY")


class Desktop:
    """Implements `Way`."""

    def __init__(self, program: str) -> None:
        self._program = program

    async def tell(self, notice: Notice) -> None:
        asks = "asks" if notice["kind"] == "question" else "says"
        words = [
            *(self._program, "--app-name=Carrel", f"--urgency={_URGENCY[notice['priority']]}"),
            *("--", f"{notice['space']} {asks}", html.escape(notice["text"][:MAX_TEXT])),
        ]
        try:
            process = await asyncio.create_subprocess_exec(
                *words,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
            )
        except OSError as error:
            raise NotTold(f"{self._program}: {error.strerror}", for_good=True) from None
        try:
            async with asyncio.timeout(WAIT_S):
                code = await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
            raise NotTold(f"{self._program} does not end", for_good=True) from None
        if code:
            raise NotTold(f"{self._program} ended with {code}", for_good=True)


def find_desktop(env: Mapping[str, str]) -> Desktop | None:
    """None where there is no session to show it in, or no program for it."""
    program = shutil.which(PROGRAM, path=env.get("PATH", os.defpath))
    if program is None or not any(env.get(name) for name in _SESSION):
        return None
    return Desktop(program)
