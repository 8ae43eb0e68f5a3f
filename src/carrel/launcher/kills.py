"""Ending one run: all that came of it, and an answer when that is gone."""

from __future__ import annotations

import time

from carrel.launcher.groups import remove_group
from carrel.launcher.loop import Loop
from carrel.launcher.run import Run
from carrel.launcher.runs import Runs
from carrel.launcher.wire import Answer

LOOK_S = 0.004
"""Between two looks at whether the last process is gone: a client waits for it."""
KILL_S = 10.0
"""What SIGKILL does not end in this time waits in the kernel, for a dead disk say."""


class Kill:
    """Others of the sandbox are left alone. The run may have ended before."""

    def __init__(self, loop: Loop, runs: Runs, run: Run, answer: Answer) -> None:
        self._loop = loop
        self._runs = runs
        self._run = run
        self._answer = answer
        self._until = 0.0

    def begin(self) -> None:
        self._until = time.monotonic() + KILL_S
        self._look()

    def _look(self) -> None:
        """Kills again each time: what is killed may have forked meanwhile."""
        self._runs.kill_family(self._run)
        if not self._runs.is_gone(self._run):
            if time.monotonic() < self._until:
                self._loop.after(LOOK_S, self._look)
                return
            left = str(sorted(self._runs.family(self._run)))
            self._answer({"problem": {"step": "kill", "errno": 0, "text": left}}, [])
            return
        if self._run.group is not None:
            remove_group(self._run.group)
        self._answer({}, [])
