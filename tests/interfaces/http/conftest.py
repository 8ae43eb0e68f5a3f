"""One daemon for all tests of the interface; each makes spaces of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.daemon.rig import Daemon, fresh_daemon, good


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
