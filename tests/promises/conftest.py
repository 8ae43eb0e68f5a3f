"""One daemon for the programs here, but for those that start their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import carrel
from tests.daemon.rig import Daemon, fresh_daemon


@pytest.fixture(scope="session")
def daemon() -> Iterator[Daemon]:
    with fresh_daemon(listen=None) as found:
        yield found


@pytest.fixture
def client(daemon: Daemon) -> Iterator[carrel.Client]:
    with carrel.Client(data=daemon.data, autostart=False) as found:
        yield found
