"""One daemon for all tests of the interface; each makes spaces of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.daemon.rig import Daemon, fresh_daemon, good
from tests.idle_time import IdleTimeLoop


def pytest_asyncio_loop_factories(
    item: pytest.Item,
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    if item.get_closest_marker("idle_time") is not None:
        return {"idle time": IdleTimeLoop}
    return {"real time": asyncio.new_event_loop}


@pytest.fixture(scope="session")
def daemon() -> Iterator[Daemon]:
    with fresh_daemon() as found:
        yield found


@pytest.fixture
def client(daemon: Daemon) -> Iterator[httpx.Client]:
    with daemon.local() as found:
        yield found


@pytest.fixture
def space(client: httpx.Client) -> Iterator[dict[str, Any]]:
    made = good(client.post("/v1/spaces", json={}))
    yield made
    client.delete(f"/v1/spaces/{made['id']}", params={"force": "true"})
