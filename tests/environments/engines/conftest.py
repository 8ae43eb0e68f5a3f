from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from carrel.environments.engines.catalogue import Engines
from tests.environments.engines.rig import docker_daemon
from tests.folders import remove_folder


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One worker runs them: one daemon, and one store with the layers that they share."""
    for item in items:
        if "environments/engines" in str(item.path):
            item.add_marker(pytest.mark.xdist_group("engines"))


@pytest.fixture(scope="session")
def docker_socket() -> Iterator[Path]:
    with docker_daemon() as socket:
        yield socket


@pytest.fixture(scope="session")
def engine_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="carrel-engines-"))
    yield folder
    remove_folder(folder)


@pytest.fixture(params=["podman", "buildah", "docker"])
def engine(request: pytest.FixtureRequest) -> str:
    """The name of each that works here."""
    return str(request.param)


@pytest.fixture
def engines(engine: str, engine_folder: Path, request: pytest.FixtureRequest) -> Engines:
    socket = request.getfixturevalue("docker_socket") if engine == "docker" else None
    found = Engines(engine_folder, docker=socket, keep_free=64 << 20)
    answer = next(one.probe() for one in found.all if one.name == engine)
    if not answer.available:
        pytest.skip(answer.reason)
    return found
