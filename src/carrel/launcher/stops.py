"""Ending a sandbox: ask, bounded wait, kill everything, and answer when all is gone."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

from carrel.launcher.groups import group_members, kill_group
from carrel.launcher.holders import Holder, Holders
from carrel.launcher.loop import Loop
from carrel.launcher.recorder import Recorder
from carrel.launcher.runs import Runs
from carrel.launcher.wire import Answer
from carrel.linux import processes

LOOK_S = 0.01
"""Between two looks at whether the last process is gone: the kernel tells of no such event
for a process group."""
KILL_S = 10.0
"""What SIGKILL does not end in this time waits in the kernel, for a dead disk say."""


class Stops:
    """Those of one sandbox that are asked for at the same time are one, and are answered
    together: whoever is answered may start it again, which none of them may end then."""

    def __init__(self, loop: Loop, holders: Holders, runs: Runs, recorder: Recorder) -> None:
        self._loop = loop
        self._holders = holders
        self._runs = runs
        self._recorder = recorder
        self._under_way: dict[str, _Stop] = {}

    def begin(self, request: dict[str, Any], answer: Answer) -> None:
        """`request`: sandbox_id, grace, groups (cgroup folders). What an earlier launcher left
        in the sandbox was taken up before."""
        sandbox_id: str = request["sandbox_id"]
        stop = self._under_way.get(sandbox_id)
        if stop is not None and stop.is_current():
            stop.join(request["grace"], answer)
            return
        stop = _Stop(self._loop, self._holders, self._runs, self._recorder, self._over)
        self._under_way[sandbox_id] = stop
        stop.begin(request, answer)

    def _over(self, stop: _Stop) -> None:
        if self._under_way.get(stop.sandbox_id) is stop:
            del self._under_way[stop.sandbox_id]


class _Stop:
    def __init__(
        self,
        loop: Loop,
        holders: Holders,
        runs: Runs,
        recorder: Recorder,
        over: Callable[[_Stop], None],
    ) -> None:
        self._loop = loop
        self._holders = holders
        self._runs = runs
        self._recorder = recorder
        self._over = over
        self._answers: list[Answer] = []

    def begin(self, request: dict[str, Any], answer: Answer) -> None:
        self._answers.append(answer)
        self._groups: list[str] = request["groups"]
        self.sandbox_id: str = request["sandbox_id"]
        self._holder: Holder | None = self._holders.get(self.sandbox_id)
        if self._holder is not None:
            self._holder.stopping = True
            self._holder.drop_spare()
        self._mark()
        pids = self._members()
        for pid in pids:
            processes.send_signal(pid, signal.SIGTERM)
            # One that is stopped would not see the other signal.
            processes.send_signal(pid, signal.SIGCONT)
        self._asked_until = time.monotonic() + (request["grace"] if pids else 0.0)
        self._killed_until = self._asked_until + KILL_S
        self._look()

    def is_current(self) -> bool:
        """False when the sandbox was set up anew meanwhile, for somebody who did not wait."""
        return self._holders.get(self.sandbox_id) in (None, self._holder)

    def join(self, grace: float, answer: Answer) -> None:
        """The shortest patience counts."""
        self._answers.append(answer)
        self._mark()
        self._asked_until = min(self._asked_until, time.monotonic() + grace)

    def _end(self, reply: dict[str, Any]) -> None:
        self._over(self)
        for answer in self._answers:
            answer(reply, [])

    def _mark(self) -> None:
        for run in self._runs.of(self.sandbox_id):
            run.reason = run.reason or "stopped"

    def _members(self) -> list[int]:
        """Every process of the sandbox, but not those that hold it."""
        found: set[int] = set()
        for group in self._groups:
            found.update(group_members(group))
            for name in _subgroups(group):
                found.update(group_members(name))
        for run in self._runs.of(self.sandbox_id):
            if run.pid:
                found.update(run.members())
        for keeper in self._runs.keepers_of(self.sandbox_id):
            found.update(processes.descendants(keeper))
        if self._holder is not None and self._holder.init:
            found.update(self._holder.others())
            found.difference_update(self._holder.holding())
        return [pid for pid in found if processes.start_time(pid) is not None]

    def _look(self) -> None:
        now = time.monotonic()
        if not self.is_current():
            # What it was to end has gone, and what is there now is not for it to end.
            self._end({"gone": True})
            return
        if now < self._asked_until and self._members():
            self._loop.after(LOOK_S, self._look)
            return
        self._kill()
        if self._left():
            if now > self._killed_until:
                left = sorted(self._left())
                self._end({"problem": {"step": "stop", "errno": 0, "text": str(left)}})
                return
            self._loop.after(LOOK_S, self._look)
            return
        self._recorder.stop(self.sandbox_id)
        self._end({"gone": True})

    def _kill(self) -> None:
        if self._holder is not None and self._holders.get(self.sandbox_id) is self._holder:
            self._holders.end(self._holder)
        if not any([kill_group(group) for group in self._groups]):
            processes.kill_all(self._members())
        for keeper in self._runs.keepers_of(self.sandbox_id):
            # It ends by itself when nothing is left below it, unless somebody stopped it.
            processes.send_signal(keeper, signal.SIGCONT)

    def _left(self) -> set[int]:
        left = set(self._members())
        if self._holder is not None and self._holders.get(self.sandbox_id) is self._holder:
            left.add(self._holder.init)
        left.update(run.pid for run in self._runs.of(self.sandbox_id))
        left.update(self._runs.keepers_of(self.sandbox_id))
        return left


def _subgroups(group: str) -> list[str]:
    try:
        return [entry.path for entry in os.scandir(group) if entry.is_dir()]
    except OSError:
        return []
