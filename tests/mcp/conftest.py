"""One daemon for the tests here, and one project with the packages that a sandbox needs."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from carrel import AsyncClient
from carrel.client.aio_spaces import AsyncSpace
from tests.daemon.rig import Daemon, fresh_daemon
from tests.folders import remove_folder
from tests.mcp.packing import pack, same_python


@pytest.fixture(autouse=True)
def _no_other_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CARREL_URL", "CARREL_TOKEN", "CARREL_HUB", "CARREL_MCP_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CARREL_DATA", "/nonexistent/carrel")


@pytest.fixture(scope="session")
def daemon() -> Iterator[Daemon]:
    with fresh_daemon() as found:
        yield found


@pytest.fixture
def own_daemon() -> Iterator[Daemon]:
    """One that a test may end."""
    with fresh_daemon(listen=None) as found:
        yield found


@pytest.fixture(scope="session")
def packed() -> Iterator[Path]:
    if not same_python():
        pytest.skip("the packages here are for another Python than the sandbox's")
    folder = Path(tempfile.mkdtemp(prefix="carrel-packed-"))
    try:
        yield pack(folder / "project")
    finally:
        remove_folder(folder)


@pytest.fixture
async def client(daemon: Daemon) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(data=daemon.data, autostart=False) as found:
        yield found


@pytest.fixture
async def desk(client: AsyncClient, packed: Path) -> AsyncIterator[AsyncSpace]:
    """A space in which the driver can run."""
    async with client.space(packed, runtime="bubblewrap") as found:
        yield found


@pytest.fixture
async def plain(client: AsyncClient) -> AsyncIterator[AsyncSpace]:
    """An empty space."""
    async with client.space() as found:
        yield found
