"""Runtimes, and a daemon with all agents, for the suites that all of them must pass."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.conformance.desks import equipped
from tests.conformance.runtime_rig import (
    CONTAINERS,
    RUNTIMES,
    Grounds,
    Rig,
    open_grounds,
    open_rig,
    with_systems,
)
from tests.container_engines import end_docker
from tests.daemon.rig import Daemon
from tests.sampling import every


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Containers of docker are entered as podman's are: in a sample every second test has them. A
    rig of theirs costs several times what a sandbox does."""
    of_docker = [one for one in items if _runtime(one) == "docker"]
    tried = set(every(2, of_docker))
    items[:] = [one for one in items if one in tried or _runtime(one) != "docker"]


def _runtime(item: pytest.Item) -> str:
    """That of the fixture of this folder."""
    params = getattr(getattr(item, "callspec", None), "params", {})
    return str(params.get("rig", params.get("fresh", "")))


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """Tests may kill it, and start it again."""
    with equipped(tmp_path_factory.mktemp("agents")) as daemon:
        yield daemon


@pytest.fixture(scope="session", autouse=True)
def _docker_ends() -> Iterator[None]:
    yield
    end_docker()


@pytest.fixture(scope="session")
def grounds() -> Iterator[Grounds]:
    with open_grounds() as found:
        yield found


@pytest.fixture(params=[*RUNTIMES, *with_systems(*CONTAINERS)])
async def rig(request: pytest.FixtureRequest, grounds: Grounds) -> AsyncIterator[Rig]:
    async with grounds.rig(request.param) as opened:
        yield opened


@pytest.fixture(params=[*RUNTIMES, *with_systems(*CONTAINERS)])
async def fresh(request: pytest.FixtureRequest, data: Path) -> AsyncIterator[Rig]:
    """Whose launcher is started by the test."""
    async with open_rig(data, request.param) as opened:
        yield opened
