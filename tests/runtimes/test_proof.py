"""How often isolation is proven: once for each kind of sandbox, and whenever somebody asks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from carrel.app import open_app
from carrel.config import Settings
from carrel.domain.runtimes import Proof
from carrel.runtimes.proof import Prover
from tests.etc import share_etc
from tests.launchers import forked_launchers


@pytest.fixture
def proofs(monkeypatch: pytest.MonkeyPatch) -> list[Proof]:
    """All that are made from now on."""
    made: list[Proof] = []
    real = Prover.prove

    async def prove(self: Prover, *words: Any) -> Proof:
        made.append(await real(self, *words))
        return made[-1]

    monkeypatch.setattr(Prover, "prove", prove)
    return made


@pytest.mark.parametrize("name", ["bubblewrap", "landlock"])
async def test_a_trial_proves_once(name: str, data: Path, proofs: list[Proof]) -> None:
    share_etc(data)
    with forked_launchers(tried=False):
        async with open_app(Settings(data=data)) as app:
            runtime = await app.runtime(name)
            found = await runtime.probe()
            assert found.available, found.reason
            assert len(proofs) == 1 and proofs[0].holds
            assert str(len(proofs[0].attempts)) in found.reason
            await runtime.probe()
            assert len(proofs) == 2
            assert app.launcher.shutdown() == 0
