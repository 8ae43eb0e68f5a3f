"""One daemon for all tests of the program; each makes spaces of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.program import Program
from tests.daemon.rig import Daemon, fresh_daemon


@pytest.fixture(scope="session")
def daemon() -> Iterator[Daemon]:
    with fresh_daemon() as found:
        yield found


@pytest.fixture
def own_daemon() -> Iterator[Daemon]:
    """One that a test may end."""
    with fresh_daemon(listen=None) as found:
        yield found


@pytest.fixture
def carrel(daemon: Daemon, tmp_path: Path) -> Program:
    return Program(daemon.data, tmp_path)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "README.md").write_text("read me\n")
    return folder


@pytest.fixture
def space(carrel: Program, project: Path) -> Iterator[str]:
    """Its name."""
    name = carrel.good("new", str(project)).strip()
    yield name
    carrel("rm", "--force", name)


@pytest.fixture
def tidy(carrel: Program) -> Iterator[None]:
    """What a test has made goes with it: the daemon is that of other tests too."""
    before = {one["id"] for one in carrel.json("ls")["spaces"]}
    yield
    made = [one["id"] for one in carrel.json("ls")["spaces"] if one["id"] not in before]
    if made:
        carrel("rm", "--force", *made)
