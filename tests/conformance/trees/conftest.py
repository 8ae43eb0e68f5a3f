"""What the files of the suite for tree drivers share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from carrel.domain.trees import Base, Tree
from carrel.launcher.client import Launcher
from tests.conformance.tree_rig import (
    DRIVERS,
    VOLUMES,
    Rig,
    open_launcher,
    open_rig,
    place_for,
    volume_variable,
)
from tests.conformance.tree_views import make_project


@pytest.fixture(scope="session")
def launcher() -> Iterator[Launcher]:
    with open_launcher() as opened:
        yield opened


@pytest.fixture(scope="session", params=DRIVERS)
def place(request: pytest.FixtureRequest) -> Iterator[tuple[str, Path]]:
    """A driver's name, and where its data folders can be."""
    name = request.param
    if os.geteuid() != 0 and name in VOLUMES and volume_variable(name) not in os.environ:
        pytest.skip("only root makes file systems")
    with place_for(name) as folder:
        yield name, folder


@pytest.fixture
def rig(place: tuple[str, Path], launcher: Launcher) -> Iterator[Rig]:
    name, folder = place
    with open_rig(name, folder, launcher) as opened:
        yield opened


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return make_project(tmp_path / "project")


@pytest.fixture
def base(rig: Rig, project: Path) -> Base:
    return rig.base_of(project)


@pytest.fixture
def tree(rig: Rig, base: Base) -> Tree:
    return rig.tree(base)
