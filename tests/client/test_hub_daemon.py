"""Both clients of the hub with a real daemon, through its socket and through WebSockets."""

from __future__ import annotations

import asyncio

import pytest

from carrel import AsyncHub, Client, Hub, errors
from carrel.client import Space
from tests.client.hub_serving import STEP_S
from tests.daemon.rig import Daemon

NOTE = "buffer_custom_note"
SCRIPT = f"""
import json, os, socket
hub = socket.socket(socket.AF_UNIX)
hub.connect(os.environ["CARREL_HUB"])
lines = hub.makefile()
def ask(type, space, payload):
    hub.sendall(json.dumps(dict(type=type, id="1", space=space, payload=payload)).encode() + b"\\n")
    return json.loads(lines.readline())["payload"]["data"]
space = ask("client_register", "", dict(kind="agent"))["space"]
ask("{NOTE}", space, dict(n=1))
"""


async def test_over_websocket(daemon: Daemon, space: Space) -> None:
    url, token = f"http://{daemon.address}", daemon.token("admin")
    async with (
        AsyncHub(url=url, token=token, types=[NOTE], spaces=[space.id]) as far,
        AsyncHub(url=f"unix://{daemon.socket}", types=[NOTE], spaces=[space.id]) as near,
        AsyncHub(data=daemon.data, types=()) as writer,
    ):
        found = await writer.publish_many([(NOTE, {"n": n}) for n in range(500)], space=space.id)
        assert (await far.publish(NOTE, {"n": 500}, space=space.id)).seq == found[-1].seq + 1
        for hub in (far, near):
            async with asyncio.timeout(STEP_S):
                heard = [(await anext(hub)).payload["n"] for _ in range(501)]
            assert heard == list(range(501))
        text = "x" * 900_000
        await far.publish(NOTE, {"text": text}, space=space.id)
        assert (await anext(near)).payload["text"] == text


async def test_a_token_that_is_none(daemon: Daemon) -> None:
    with pytest.raises(errors.AuthenticationFailed):
        async with AsyncHub(url=f"http://{daemon.address}", token="nothing"):
            pass


async def test_a_token_for_another_space(daemon: Daemon, space: Space) -> None:
    token = daemon.token("label:nobody=has")
    with pytest.raises(errors.SpaceNotFound):
        async with AsyncHub(url=f"http://{daemon.address}", token=token, spaces=[space.id]):
            pass


def test_what_happens_to_a_space(daemon: Daemon, client: Client) -> None:
    with Hub(data=daemon.data, types=["space.state"], timeout_s=STEP_S) as hub:
        with client.space() as space:
            pass
        states: list[str] = []
        for message in hub:
            if message.space == space.id:
                assert message.seq and message.sender.kind == "system"
                states.append(message.payload["to"])
                if states[-1] == "removed":
                    break
    assert "ready" in states


def test_inside_a_space(daemon: Daemon, space: Space) -> None:
    """What runs there has no library of ours, and needs none."""
    with Hub(data=daemon.data, spaces=[space.id], types=[NOTE], timeout_s=STEP_S) as hub:
        done = space.run(["python3", "-c", SCRIPT])
        assert done.ok, done.stderr
        message = next(hub)
    assert (message.payload, message.sender.kind) == ({"n": 1}, "agent")
    assert message.sender.space == message.space == space.id
