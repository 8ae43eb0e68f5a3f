"""One daemon for the programs here, but for those that start their own; what they begin with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import carrel as library
from tests.cli.program import Program
from tests.daemon.rig import Daemon, fresh_daemon


@pytest.fixture(scope="session")
def daemon() -> Iterator[Daemon]:
    with fresh_daemon(listen=None) as found:
        yield found


@pytest.fixture
def client(daemon: Daemon) -> Iterator[library.Client]:
    with library.Client(data=daemon.data, autostart=False) as found:
        yield found


@pytest.fixture
def owner(daemon: Daemon) -> Iterator[httpx.Client]:
    with daemon.local() as found:
        yield found


@pytest.fixture
def carrel(daemon: Daemon, tmp_path: Path) -> Program:
    (tmp_path / "greet").mkdir()
    (tmp_path / "greet" / "greet.py").write_text("print('Hello')\n")
    return Program(daemon.data, tmp_path)


@pytest.fixture
def desk(carrel: Program) -> Iterator[str]:
    name = carrel.good("new", "./greet").strip()
    yield name
    carrel("rm", "--force", name)
