"""A whole service, for all tests of a file: requests leave nothing for each other."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from carrel.app.service import Services, open_service
from carrel.config import Settings
from tests.etc import share_etc
from tests.folders import remove_folder
from tests.launchers import forked_launchers
from tests.load.clearing import end_everything


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def services() -> AsyncIterator[Services]:
    data = Path(tempfile.mkdtemp(prefix="carrel-"))
    data.chmod(0o711)
    share_etc(data)
    try:
        with forked_launchers():
            async with open_service(Settings(data=data, request_agent="scripted")) as opened:
                yield opened
    finally:
        await asyncio.to_thread(end_everything, data)
        remove_folder(data)


@pytest.fixture
def place(services: Services) -> Path:
    """The data folder of that service."""
    return services.settings.data
