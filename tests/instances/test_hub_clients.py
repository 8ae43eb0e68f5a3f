"""Instances that end with a connection to the hub, and tell it what becomes of them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from carrel.app.service import Services
from carrel.domain.access import LOCAL, Caller, Scope, ScopeKind
from carrel.domain.errors import MessageInvalid
from carrel.domain.instances import InstanceRequest, InstanceState, Restart
from carrel.domain.limits import Limits
from carrel.domain.server_adapter import NotReady
from carrel.hub.access import Identity
from tests.instances.rig import WAIT_S, call, leftovers, server, start, until
from tests.service.rig import make


class Heard:
    """A client's side of the hub; implements `carrel.hub.client.Sink`."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.came = asyncio.Event()

    def send(self, envelopes: Sequence[bytes]) -> None:
        self.messages += [json.loads(one) for one in envelopes]
        self.came.set()

    def waiting(self) -> int:
        return 0

    async def drained(self) -> None:
        return None

    def close(self, reason: str) -> None:
        return None

    async def states(self, count: int) -> list[str]:
        """Of instances, as they were told."""
        async with asyncio.timeout(WAIT_S):
            while len(found := self._states()) < count:
                self.came.clear()
                await self.came.wait()
        return found

    def _states(self) -> list[str]:
        told = [one for one in self.messages if one["type"] == "instance_state"]
        return [one["payload"]["to"] for one in told]


async def test_it_ends_with_the_connection(data: Path, services: Services, tmp_path: Path) -> None:
    connection = services.hub.connect(Identity(LOCAL), Heard())
    client = connection.client_id
    instance = (await start(services, server("ok"), tmp_path, hub_client=client)).instance
    connection.closed()
    ended = await until(services, instance.instance_id, InstanceState.ENDED)
    assert ended.problem is not None and ended.problem.code == "owner_gone"
    assert leftovers(data, instance.instance_id) == []


async def test_somebody_elses_connection_is_not_told(services: Services, tmp_path: Path) -> None:
    """For a token it is not there, as one that never was."""
    space = await make(services, tmp_path, labels={"team": "blue"})
    services.instances.servers.add(server("ok"))
    blue = Caller("tk_blue", Scope(ScopeKind.LABEL, "team=blue"))
    others = (LOCAL, Caller("tk_red", Scope(ScopeKind.LABEL, "team=red")))
    for one in others:
        client = services.hub.connect(Identity(one), Heard()).client_id
        asked = InstanceRequest("test-ok", space_id=space.space_id, hub_client=client)
        with pytest.raises(MessageInvalid, match="no connection"):
            await services.instances.start(blue, asked)
    own = services.hub.connect(Identity(blue), Heard()).client_id
    assert services.hub.is_connected(own, blue) and services.hub.is_connected(own)


async def test_a_restart_is_told(services: Services, tmp_path: Path) -> None:
    heard = Heard()
    connection = services.hub.connect(Identity(LOCAL), heard)
    more = {"hub_client": connection.client_id, "restart": Restart.ON_FAILURE}
    instance = (await start(services, server("ok"), tmp_path, **more)).instance
    os.kill(instance.pid, signal.SIGKILL)
    assert await heard.states(2) == ["restarting", "ready"]
    told = [one["payload"] for one in heard.messages if one["type"] == "instance_state"]
    assert told[0]["instance_id"] == instance.instance_id
    assert "signal 9" in told[0]["problem"]["message"]
    assert told[1]["url"] == instance.url


async def test_that_it_failed_is_told(services: Services, tmp_path: Path) -> None:
    heard = Heard()
    connection = services.hub.connect(Identity(LOCAL), heard)
    more = {"hub_client": connection.client_id}
    instance = (await start(services, server("ok"), tmp_path, **more)).instance
    os.kill(instance.pid, signal.SIGKILL)
    assert await heard.states(1) == ["failed"]


async def test_a_child_at_the_memory_limit_stops_it_and_is_told(
    data: Path, services: Services, tmp_path: Path
) -> None:
    """The server itself would go on, as if nothing were."""
    heard = Heard()
    connection = services.hub.connect(Identity(LOCAL), heard)
    more = {"hub_client": connection.client_id, "limits": Limits(memory_bytes=200 << 20)}
    handed = await start(services, server("ok"), tmp_path, **more)
    with contextlib.suppress(NotReady):
        # It may be stopped before it answers.
        await call(handed, "eat", bytes=1 << 30, child=True)
    assert await heard.states(1) == ["failed"]
    (told,) = [one["payload"] for one in heard.messages if one["type"] == "instance_state"]
    assert told["problem"]["code"] == "memory_limit" and "200 MiB" in told["problem"]["message"]
    ended = await services.instances.get(LOCAL, handed.instance.instance_id)
    assert ended.state is InstanceState.FAILED
    assert leftovers(data, handed.instance.instance_id) == []
