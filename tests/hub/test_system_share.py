"""What is asked of the system goes on without its client, and counts for its account."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from carrel.hub import requests
from tests.hub.rig import WAIT_S, HubRig


async def test_requests_of_clients_that_have_gone_count(
    rig: HubRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "MAX_SYSTEM_OF_ACCOUNT", 2)
    begun: asyncio.Queue[None] = asyncio.Queue()
    over = asyncio.Event()

    async def waits(*_asked: Any) -> dict[str, object]:
        begun.put_nowait(None)
        await over.wait()
        return {}

    rig.hub.requests.system = waits
    for _ in range(2):
        agent = await rig.agent()
        await agent.send("system_list_spaces", {})
        await asyncio.wait_for(begun.get(), WAIT_S)
        await agent.close()
    third = await rig.agent()
    refused = await third.refused("system_list_spaces", {})
    assert refused["code"] == "rate_limited"
    over.set()
    async with asyncio.timeout(WAIT_S):
        while rig.hub.requests._asking:
            await asyncio.sleep(0.01)
    assert await third.ask("system_list_spaces", {}) == {}
