"""Frames to many who hear the same."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

from starlette.websockets import WebSocketState

from carrel.interfaces.http.hub_socket import AT_ONCE, FrameConnection
from carrel.interfaces.http.lifetime import Shutdown

CLIENTS, FRAMES = 40, 200


class Quick:
    """A socket that takes everything at once, as that of a client that reads does."""

    sent = 0

    async def send_text(self, _text: str) -> None:
        Quick.sent += 1


class Gone:
    """One whose client has left."""

    scope: Mapping[str, Any] = {"state": {}}
    application_state = WebSocketState.DISCONNECTED

    async def receive(self) -> dict[str, str]:
        return {"type": "websocket.disconnect"}


async def test_others_have_their_turn_while_many_are_written_to() -> None:
    busy = FrameConnection.busy
    connections = [FrameConnection(cast(Any, Quick())) for _ in range(CLIENTS)]
    writing = [asyncio.create_task(one.write()) for one in connections]
    await asyncio.sleep(0)
    for one in connections:
        one.send([b"x"] * FRAMES)
    seen = [Quick.sent]
    while Quick.sent < CLIENTS * FRAMES:
        await asyncio.sleep(0)
        seen.append(Quick.sent)
    assert max(after - before for before, after in pairwise(seen)) < 2 * AT_ONCE
    assert FrameConnection.busy == busy
    for task in writing:
        task.cancel()
    await asyncio.gather(*writing, return_exceptions=True)


async def test_who_has_gone_has_nothing_to_write() -> None:
    """Also when something was said to it between its last word and its end."""
    busy = FrameConnection.busy
    one = FrameConnection(cast(Any, Gone()))
    said: Any = SimpleNamespace(
        received=lambda _: None,
        when_settled=lambda _: None,
        closed=lambda: one.send([b"x"]),
        is_behind=False,
    )
    await one.attend(said, Shutdown())
    assert FrameConnection.busy == busy and one.waiting() == 0
