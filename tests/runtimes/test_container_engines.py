"""Engines that are missing, old, broken or hanging: what is said, and that nothing is left."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from carrel.domain.errors import ContainerUnavailable
from carrel.domain.trees import Owner
from carrel.runtimes import container_engines
from carrel.runtimes.container_engines import (
    ContainerEngine,
    ContainerRequest,
    DockerContainers,
    PodmanContainers,
)

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root's daemon uses containers")


@pytest.fixture(params=["podman", "docker"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> ContainerEngine:
    if request.param == "podman":
        return PodmanContainers(tmp_path, tmp_path / "podman")
    return DockerContainers(tmp_path)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where alone programs are looked for."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def write(programs: Path, engine: ContainerEngine, script: str) -> None:
    path = programs / engine.name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def request(tmp_path: Path) -> ContainerRequest:
    return ContainerRequest("sp_22222222222a", Owner(1, 1), tmp_path, tmp_path, True, 1 << 20)


def test_one_that_is_missing(engine: ContainerEngine, programs: Path, tmp_path: Path) -> None:
    found = engine.probe()
    assert not found.available and "not installed" in found.reason
    assert "apt-get install" in found.remedy
    with pytest.raises(ContainerUnavailable, match="cannot be started"):
        engine.start(request(tmp_path))


def test_one_that_is_too_old(engine: ContainerEngine, programs: Path) -> None:
    write(programs, engine, "echo version 1.13.1")
    found = engine.probe()
    assert not found.available and "1.13 is too old" in found.reason, found


def test_one_that_hangs(
    engine: ContainerEngine, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it had started itself goes with it."""
    monkeypatch.setattr(container_engines, "ANSWER_S", 0.2)
    write(programs, engine, f"/bin/sleep 600 & echo $! > {programs}/pid; wait")
    found = engine.probe()
    assert not found.available and "hangs" in found.reason, found
    sleeping = int((programs / "pid").read_text())
    with pytest.raises(ProcessLookupError):
        while True:
            os.kill(sleeping, 0)


def test_one_that_fails_says_why(engine: ContainerEngine, programs: Path, tmp_path: Path) -> None:
    write(programs, engine, "echo 'Error: no room' >&2; exit 125")
    assert engine.probe().reason == f"{engine.name} failed: Error: no room."
    with pytest.raises(ContainerUnavailable, match="no room"):
        engine.start(request(tmp_path))


def test_one_that_dies_while_it_starts_one(
    engine: ContainerEngine, programs: Path, tmp_path: Path
) -> None:
    """What it may have made is removed."""
    said = f'echo "$*" >> {tmp_path}/said'
    write(programs, engine, f'{said}; case "$*" in *"run "*) kill -9 $$;; esac')
    with pytest.raises(ContainerUnavailable):
        engine.start(request(tmp_path))
    assert "rm --force sp_22222222222a" in (tmp_path / "said").read_text()


def test_one_in_a_virtual_machine(engine: ContainerEngine, programs: Path, tmp_path: Path) -> None:
    """Its numbers are of other processes here."""
    script = f'case "$*" in *inspect*) echo {os.getpid()};; *) echo {"ab" * 32};; esac'
    write(programs, engine, script)
    with pytest.raises(ContainerUnavailable, match="not processes of this machine"):
        engine.start(request(tmp_path))


def test_a_folder_with_a_colon(tmp_path: Path) -> None:
    engine = PodmanContainers(tmp_path, tmp_path / "podman")
    odd = ContainerRequest("sp_22222222222a", Owner(1, 1), tmp_path, tmp_path / "a:b", True, 1)
    with pytest.raises(ContainerUnavailable, match="colon"):
        engine.start(odd)
