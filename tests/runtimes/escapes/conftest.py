"""One sandbox, and one world around it, for all attempts of a test process."""

from __future__ import annotations

import asyncio
import secrets
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from carrel.domain.runtimes import Sandbox
from tests.conformance.runtime_rig import Rig, open_rig
from tests.folders import remove_folder
from tests.runtimes.escapes.world import PYTHON, World, open_world

RunInSandbox = Callable[[str], str]


@pytest.fixture(scope="session")
def marker() -> str:
    return secrets.token_hex(12)


@pytest.fixture(scope="session")
def sandbox(marker: str) -> Iterator[tuple[Rig, Sandbox, asyncio.Runner]]:
    """A bubblewrap sandbox whose launcher was started with secrets in its environment."""
    data = Path(tempfile.mkdtemp(prefix="carrel-escapes-"))
    data.chmod(0o711)
    with pytest.MonkeyPatch.context() as patch, asyncio.Runner() as runner:
        patch.setenv("CARREL_MARKER", marker)
        opened = open_rig(data, "bubblewrap")
        try:
            rig = runner.run(opened.__aenter__())
            try:
                yield rig, runner.run(rig.start()), runner
            finally:
                runner.run(opened.__aexit__(None, None, None))
        finally:
            remove_folder(data)


@pytest.fixture(scope="session")
def run_in_sandbox(sandbox: tuple[Rig, Sandbox, asyncio.Runner]) -> RunInSandbox:
    """Runs a program of Python as a normal command and answers what it printed."""
    rig, started, runner = sandbox

    def run(program: str) -> str:
        done = runner.run(rig.run(started, PYTHON, "-I", "-c", program))
        assert done.exit.code == 0, f"{done.exit}\n{done.err}"
        return done.out

    return run


@pytest.fixture(scope="session")
def world(sandbox: tuple[Rig, Sandbox, asyncio.Runner], marker: str) -> Iterator[World]:
    rig, started, _runner = sandbox
    with open_world(rig.data, started.spec.owner, marker) as opened:
        yield opened
