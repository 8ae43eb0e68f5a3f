"""Folders in which daemons come and go."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon.rig import Daemon


@pytest.fixture
def stopped(data: Path) -> Iterator[Daemon]:
    """A daemon that was not started yet."""
    daemon = Daemon(data / "data", forked=False)
    try:
        yield daemon
    finally:
        daemon.close()


@pytest.fixture
def started(stopped: Daemon) -> Daemon:
    return stopped.start()


@pytest.fixture
def refusing(stopped: Daemon) -> Daemon:
    """Not started yet; for tests of what it says when it cannot start."""
    stopped.forked = True
    return stopped


@pytest.fixture
def daemon(stopped: Daemon) -> Daemon:
    """For tests that speak with it more than of it."""
    stopped.forked = True
    return stopped.start()
