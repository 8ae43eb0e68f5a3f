"""The socket of the agent's shell, without a daemon."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from typing import Any

from carrel.interfaces.dev_shell import MOST_OPEN, DevShellListener


async def test_a_space_has_so_many_connections_and_no_more() -> None:
    shells: Any = None  # Nobody asks for a command.
    listener = DevShellListener(shells)

    def come(space_id: str) -> str:
        """What it is told at once."""
        theirs, ours = socket.socketpair()
        for one in (theirs, ours):
            one.setblocking(False)
        listener.enter(space_id, ours)
        stack.enter_context(theirs)
        try:
            return str(json.loads(theirs.recv(1000))["message"])
        except BlockingIOError:
            return ""

    for _ in range(2):
        with contextlib.ExitStack() as stack:
            assert [come("one") for _ in range(MOST_OPEN)] == [""] * MOST_OPEN
            assert "Too many" in come("one")
            assert come("two") == ""
        # Those who hang up make room.
        async with asyncio.timeout(60):
            await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()})
