"""The daemon's side of the launcher."""

from __future__ import annotations

import asyncio
from pathlib import Path

from carrel.launcher.client import Launcher

ASK_S = 60.0
"""Two hundred questions take well under a second."""


async def test_many_questions_at_once_fill_the_socket(data: Path) -> None:
    """More than it holds: those who wait for room must all get their turn."""
    launcher = Launcher(data)
    try:
        async with asyncio.timeout(ASK_S):
            replies = await asyncio.gather(
                *(launcher.ask("hello", {"padding": "x" * 50_000}, []) for _ in range(200))
            )
        assert len({reply["pid"] for reply, _ in replies}) == 1
    finally:
        await asyncio.to_thread(launcher.shutdown, True)
