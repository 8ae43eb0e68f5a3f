"""A space's commands see its tree, whatever confines them and however it is made."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from carrel.app.service import Services, open_service
from carrel.config import parse_settings
from carrel.domain.access import LOCAL
from tests.service.rig import make, run


@pytest.fixture
async def services(data: Path) -> AsyncIterator[Services]:
    async with open_service(parse_settings({"data": data})) as services:
        yield services


@pytest.mark.parametrize("runtime", ["bubblewrap", "landlock", "process"])
async def test_with_the_driver_that_is_best_here(
    services: Services, tmp_path: Path, runtime: str
) -> None:
    """The first command starts the launcher, which has mounts of its own as root; the second
    space is mounted after that."""
    (tmp_path / "who.txt").write_text("of the project")
    for number in (1, 2):
        space = await make(services, tmp_path, runtime=runtime)
        _, said = await run(services, space, f"cat who.txt; echo {number} > made; cat made")
        assert said == f"of the project{number}\n"
        await services.spaces.remove(LOCAL, space.space_id, force=True)
    assert not (tmp_path / "made").exists()
