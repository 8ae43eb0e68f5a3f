"""A request of a client, from asking to its result, in one of the ways in which one can ask."""

from __future__ import annotations

import random

from carrel.client import AsyncClient
from carrel.domain.errors import RequestCancelled

CANCELLED = 0.2
"""So often a client does not want it any more."""


async def request(client: AsyncClient, name: str, chance: random.Random) -> str:
    """Gives the space that was its workspace, and is to go by itself. AssertionError for a
    result that is not its own."""
    if chance.random() < CANCELLED:
        return await _given_up(client, name)
    path, text = f"{name}.txt", f"made for {name}"
    asked = f"write {path} {text}\nsay done"
    stream = await client.requests.generate(
        asked, request_id=name, frontend="scripted", owner=name.rpartition("-")[0], check="ls"
    )
    async with stream:
        result = await stream.result()
    found = [(file.path, file.change, file.text) for file in result.files]
    assert found == [(path, "added", f"{text}\n")], result
    assert result.complete and result.check is not None, result
    assert result.check.output == f"{path}\n", result.check
    return result.space_id


async def _given_up(client: AsyncClient, name: str) -> str:
    """Somewhere on its way."""
    stream = await client.requests.generate("sleep 60", request_id=name, frontend="scripted")
    async with stream:
        async for frame in stream:
            if frame.type == "accepted":
                await stream.cancel()
        try:
            await stream.result()
        except RequestCancelled:
            return (await client.requests.get(name)).space_id
    raise AssertionError(f"{name} has a result")
