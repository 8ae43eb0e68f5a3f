"""One daemon for all tests here that need one; each makes spaces of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from carrel import AsyncClient, Client
from carrel.client import AsyncSpace, Space
from tests.daemon.forking import forking
from tests.daemon.rig import Daemon, fresh_daemon


@pytest.fixture(autouse=True)
def _no_other_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a person's settings nor a forgotten argument lead a test elsewhere."""
    for name in ("CARREL_URL", "CARREL_TOKEN", "CARREL_NO_START", "CARREL_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CARREL_DATA", "/nonexistent/carrel")


@pytest.fixture(scope="session")
def daemon() -> Iterator[Daemon]:
    with fresh_daemon() as found:
        yield found


@pytest.fixture
def own_daemon() -> Iterator[Daemon]:
    """One that a test may kill; who starts it again forks it."""
    with forking(), fresh_daemon(listen=None) as found:
        yield found


@pytest.fixture
def client(daemon: Daemon) -> Iterator[Client]:
    with Client(data=daemon.data, autostart=False) as found:
        yield found


@pytest.fixture
async def async_client(daemon: Daemon) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(data=daemon.data, autostart=False) as found:
        yield found


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "README.md").write_text("read me\n")
    (folder / "sub").mkdir()
    (folder / "sub" / "data").write_bytes(bytes(range(256)))
    return folder


@pytest.fixture
def space(client: Client, project: Path) -> Iterator[Space]:
    with client.space(project) as found:
        yield found


@pytest.fixture
async def async_space(async_client: AsyncClient, project: Path) -> AsyncIterator[AsyncSpace]:
    async with async_client.space(project) as found:
        yield found
