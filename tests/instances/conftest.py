"""A whole service for each test of instances, unless a file has another."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from carrel.app.service import Services
from tests.instances.rig import serving


@pytest.fixture
async def services(data: Path) -> AsyncIterator[Services]:
    async with serving(data) as services:
        yield services
