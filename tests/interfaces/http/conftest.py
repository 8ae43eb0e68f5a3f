"""One daemon for all tests of the interface; each makes spaces of its own."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.daemon.rig import Daemon, daemon_in, good


@pytest.fixture(scope="session")
def daemon() -> Iterator[Daemon]:
    folder = Path(tempfile.mkdtemp(prefix="carrel-"))
    folder.chmod(0o711)
    with daemon_in(folder) as found:
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
