"""Servers that bind a port of the host themselves: found where they are after each start, and
nothing of what was kept for them is left."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import signal
import socket
import stat
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from carrel.app.service import Services
from carrel.domain.access import LOCAL
from carrel.domain.errors import InstanceFailed
from carrel.domain.instances import Handed, Instance, InstanceState, PortBy, Restart
from carrel.domain.runtimes import Network
from tests.instances.rig import WAIT_S, call, server, serving, start

OPEN = {"network": Network.OPEN, "restart": Restart.ON_FAILURE}
RESERVED = server("ok", "--port", "{port}", port_by=PortBy.RESERVED)


@pytest.fixture
async def services(data: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Services]:
    monkeypatch.setattr("carrel.service.instances.restart.FIRST_S", 0.01)
    async with serving(data) as services:
        yield services


def kept() -> Counter[int]:
    """The ports of sockets of this process that are connected to nobody."""
    found: Counter[int] = Counter()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.stat(f"/proc/self/fd/{name}").st_mode):
                with socket.socket(fileno=os.dup(int(name))) as one:
                    found.update(_port(one))
    return found


def _port(one: socket.socket) -> list[int]:
    if one.family != socket.AF_INET:
        return []
    try:
        one.getpeername()
    except OSError:
        return [one.getsockname()[1]]
    return []


async def crashed(services: Services, before: Instance) -> Instance:
    """As it is when it is back."""
    os.kill(before.pid, signal.SIGKILL)
    async with asyncio.timeout(WAIT_S):
        while True:
            found = await services.instances.get(LOCAL, before.instance_id)
            if found.state is InstanceState.READY and found.restarts > before.restarts:
                return found
            await asyncio.sleep(0.01)


async def test_its_record_tells_where_it_is_now(services: Services, tmp_path: Path) -> None:
    handed = await start(services, server("ok"), tmp_path, **OPEN)
    instance = handed.instance
    for _ in range(3):
        instance = await crashed(services, instance)
        await call(Handed(instance, handed.token), "echo", text="back")


async def test_a_port_that_was_kept_for_it_stays_its_own(
    services: Services, tmp_path: Path
) -> None:
    before = kept()
    handed = await start(services, RESERVED, tmp_path, **OPEN)
    instance = handed.instance
    for _ in range(3):
        instance = await crashed(services, instance)
        assert instance.port == handed.instance.port
        await call(handed, "echo", text="back")
        assert kept() - before == Counter([instance.port])
    await services.instances.release(LOCAL, instance.instance_id)
    assert kept() - before == Counter()


async def test_nothing_is_kept_for_starts_that_failed(
    services: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = kept()
    exits = server("exits", "--port", "{port}", port_by=PortBy.RESERVED)
    with pytest.raises(InstanceFailed, match="with code 3"):
        await start(services, exits, tmp_path, **OPEN)
    # One whose folder cannot be filled is not even begun.
    monkeypatch.setattr("carrel.instances.inside.furnish.MOST_ENTRIES", 0)
    filled = dataclasses.replace(RESERVED, copies={"notes": "notes"})
    with pytest.raises(InstanceFailed, match="cannot be filled"):
        await start(services, filled, tmp_path, **OPEN)
    assert kept() - before == Counter()
