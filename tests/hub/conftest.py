"""A hub on each of its transports."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.hub.rig import TRANSPORTS, HubRig, open_rig


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def rig(tmp_path: Path, transport: str) -> AsyncIterator[HubRig]:
    async with open_rig(tmp_path, transport) as opened:
        yield opened
