"""A whole service on a data folder of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from carrel.app.service import Services, open_service
from carrel.config import Settings
from tests.etc import share_etc
from tests.launchers import forked_launchers
from tests.load.clearing import end_everything


@pytest.fixture
async def services(data: Path) -> AsyncIterator[Services]:
    share_etc(data)
    try:
        with forked_launchers():
            async with open_service(Settings(data=data)) as opened:
                yield opened
    finally:
        await asyncio.to_thread(end_everything, data)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "greet"
    folder.mkdir()
    (folder / "greet.py").write_text("print('hello')\n")
    (folder / "notes").mkdir()
    (folder / "notes" / "a.txt").write_text("a\n")
    return folder
