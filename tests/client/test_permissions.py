"""Permissions that agents ask for, by the Python clients."""

from __future__ import annotations

import asyncio
import time

import pytest

from carrel import AsyncClient, Client
from carrel.client.models import Asked
from carrel.domain.errors import StateConflict

WAIT_S = 30.0
POLL_S = 0.02
ASKED = Asked("call-1-1", "write", {"path": "a.txt", "text": "hi"})


def test_a_client_decides(client: Client) -> None:
    with client.space(None, agent="scripted") as space:
        turn = space.send("write a.txt hi", permission="ask", wait=False)
        until = time.monotonic() + WAIT_S
        while not (turn := space.wait_for(turn, timeout_s=0)).permissions:
            assert time.monotonic() < until
            time.sleep(POLL_S)
        assert turn.permissions == (ASKED,)
        with pytest.raises(StateConflict):
            space.decide(turn, "another", allow=True)
        space.decide(turn, ASKED.id, allow=True)
        turn = space.wait_for(turn, timeout_s=WAIT_S)
        assert turn.result is not None and turn.result.success and turn.permissions == ()
        assert space.files.read("a.txt").strip() == b"hi"


async def test_an_asynchronous_client_decides(async_client: AsyncClient) -> None:
    async with async_client.space(None, agent="scripted") as space:
        turn = await space.send("write a.txt hi", permission="ask", wait=False)
        async with asyncio.timeout(WAIT_S):
            while not (turn := await space.wait_for(turn, timeout_s=0)).permissions:
                await asyncio.sleep(POLL_S)
        assert turn.permissions == (ASKED,)
        await space.decide(turn, ASKED.id, allow=False)
        turn = await space.wait_for(turn, timeout_s=WAIT_S)
        assert turn.ended and turn.permissions == ()


def test_nobody_decides_in_time(client: Client) -> None:
    with client.space(None, agent="scripted") as space:
        turn = space.send("write a.txt hi", permission="ask", answer_s=0.1)
        assert turn.ended and not any(file.name == "a.txt" for file in space.files.list("."))
