"""Daemons and launchers that are killed again and again are forked, not loaded anew."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.daemon.forking import forking
from tests.launchers import forked_launchers


@pytest.fixture(autouse=True)
def _forked_daemons() -> Iterator[None]:
    with forking(), forked_launchers():
        yield
