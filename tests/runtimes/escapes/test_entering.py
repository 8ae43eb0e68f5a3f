"""What runs in a sandbox cannot get at the processes that are just entering it."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

from carrel.domain.runtimes import Output, Sandbox
from tests.conformance.runtime_rig import Rig, finish
from tests.runtimes.escapes import watcher
from tests.runtimes.escapes.world import PYTHON

COMMANDS = 40


def test_the_sandbox_refuses_who_enters_to_who_is_there(
    sandbox: tuple[Rig, Sandbox, asyncio.Runner],
) -> None:
    rig, started, runner = sandbox
    program = Path(watcher.__file__).read_text()
    watch = rig.begin(started, PYTHON, "-I", "-c", program, output=Output.PIPES, stdin=True)
    run = runner.run(watch)
    assert isinstance(run.stdout, int) and isinstance(run.stdin, int)
    try:
        assert os.read(run.stdout, 16) == b"ready\n"
        for _ in range(COMMANDS):
            assert runner.run(rig.run(started, "true")).exit.code == 0
    finally:
        os.write(run.stdin, b"enough")
    found = json.loads(os.read(run.stdout, 65536))
    runner.run(finish(run))
    assert found["got"] == {}
    assert found["seen"] > 0, "nobody was seen entering, so nothing was tried"
