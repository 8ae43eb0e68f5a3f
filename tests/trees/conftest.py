"""Tree drivers for the tests of what works on every one of them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

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


@pytest.fixture(scope="session")
def tree_launcher() -> Iterator[Launcher]:
    with open_launcher() as opened:
        yield opened


@pytest.fixture(scope="session", params=DRIVERS)
def driver_place(request: pytest.FixtureRequest) -> Iterator[tuple[str, Path]]:
    """A driver's name, and where its data folders can be."""
    name = request.param
    if os.geteuid() != 0 and name in VOLUMES and volume_variable(name) not in os.environ:
        pytest.skip("only root makes file systems")
    with place_for(name) as folder:
        yield name, folder


@pytest.fixture
def any_rig(driver_place: tuple[str, Path], tree_launcher: Launcher) -> Iterator[Rig]:
    """One after the other, each driver."""
    name, folder = driver_place
    with open_rig(name, folder, tree_launcher) as opened:
        yield opened


@pytest.fixture
def copy_rig(tree_launcher: Launcher) -> Iterator[Rig]:
    """The driver that works everywhere, for what is the same on all."""
    with open_rig("copy", Path(tempfile.gettempdir()), tree_launcher) as opened:
        yield opened
