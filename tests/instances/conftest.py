"""A whole service for each test of instances, unless a file has another."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from carrel.app.service import Services
from carrel.domain.access import LOCAL
from tests.folders import remove_folder
from tests.instances.rig import WAIT_S, serving


@pytest.fixture
async def services(data: Path) -> AsyncIterator[Services]:
    async with serving(data) as services:
        yield services


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def _bridging() -> AsyncIterator[Services]:
    data = Path(tempfile.mkdtemp(prefix="carrel-"))
    data.chmod(0o711)
    try:
        async with serving(data, warm_bridge=True) as services:
            yield services
    finally:
        remove_folder(data)


@pytest_asyncio.fixture(loop_scope="module")
async def bridging(_bridging: Services) -> AsyncIterator[Services]:
    """One service for all tests of a file, with the bridge that it keeps loaded: so it is loaded
    once for all of them. No test leaves an instance to the next."""
    yield _bridging
    async with asyncio.timeout(WAIT_S):
        await _bridging.instances.settled()
        for one in await _bridging.instances.list(LOCAL):
            await _bridging.instances.release(LOCAL, one.instance_id)
