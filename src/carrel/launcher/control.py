"""Ends sandboxes and single runs, and pauses sandboxes.

To end a sandbox takes a question, a bounded wait, and a kill of everything; the answer is given
when all is gone.

A sandbox is paused for a moment while its files are counted. Where it has a control group, the
kernel freezes that. Elsewhere its processes are stopped by a signal, each after its parent, and
continued in the other order: so no shell sees a child that is stopped. No command starts in it
meanwhile: it would move files while the others stand still. What is paused goes on after a while by
itself, for the client that asked may have died. A note in a file has the next launcher see to that
when this one has died.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from typing import Any

from carrel.launcher.loop import Loop
from carrel.launcher.messages import (
    Answer,
    PauseRequest,
    Reply,
    SandboxRequest,
    StopRequest,
    failure,
)
from carrel.launcher.recorder import Recorder
from carrel.launcher.run import LaunchedRun
from carrel.launcher.runs import LaunchedRuns
from carrel.launcher.sandboxes import LiveSandbox, LiveSandboxes
from carrel.launcher.wire import read_record, remove_record, write_record
from carrel.linux import processes
from carrel.linux.processes import freeze_group, group_members, is_frozen, kill_group, remove_group

LOOK_S = 0.01
"""Between two looks at whether the last process is gone: the kernel tells of no such event
for a process group."""
KILL_S = 10.0
"""What SIGKILL does not end in this time waits in the kernel, for a dead disk say."""


class Stops:
    """Those of one sandbox that are asked for at the same time are one, and are answered
    together: whoever is answered may start it again, which none of them may end then."""

    def __init__(
        self, loop: Loop, sandboxes: LiveSandboxes, runs: LaunchedRuns, recorder: Recorder
    ) -> None:
        self._loop = loop
        self._sandboxes = sandboxes
        self._runs = runs
        self._recorder = recorder
        self._under_way: dict[str, _Stop] = {}

    def begin(self, request: StopRequest, answer: Answer) -> None:
        """What an earlier launcher
        left in the sandbox was taken up before."""
        sandbox_id = request["sandbox_id"]
        stop = self._under_way.get(sandbox_id)
        if stop is not None and stop.is_current():
            stop.join(request["grace"], answer)
            return
        stop = _Stop(self._loop, self._sandboxes, self._runs, self._recorder, self._over)
        self._under_way[sandbox_id] = stop
        stop.begin(request, answer)

    def members(self, request: SandboxRequest, _fds: list[int], answer: Answer) -> None:
        sandbox_id = request["sandbox_id"]
        sandbox = self._sandboxes.get(sandbox_id)
        pids = members_of(self._runs, sandbox, sandbox_id, request["groups"])
        standby = sandbox.standby if sandbox is not None else None
        # It runs nobody's code yet: for it alone, nobody needs to look after the sandbox.
        waiting = [pid for pid in pids if standby is not None and standby.is_process(pid)]
        members = [pid for pid in pids if pid not in waiting]
        holding = sorted(holding_in(sandbox))
        network = sandbox.pod_network if sandbox is not None else ""
        answer({"pids": members, "holding": holding, "waiting": waiting, "network": network}, [])

    def _over(self, stop: _Stop) -> None:
        if self._under_way.get(stop.sandbox_id) is stop:
            del self._under_way[stop.sandbox_id]


class _Stop:
    def __init__(
        self,
        loop: Loop,
        sandboxes: LiveSandboxes,
        runs: LaunchedRuns,
        recorder: Recorder,
        over: Callable[[_Stop], None],
    ) -> None:
        self._loop = loop
        self._sandboxes = sandboxes
        self._runs = runs
        self._recorder = recorder
        self._over = over
        self._answers: list[Answer] = []

    def begin(self, request: StopRequest, answer: Answer) -> None:
        self._answers.append(answer)
        self._groups = request["groups"]
        self._reason: str = request.get("reason", "stopped")
        self.sandbox_id = request["sandbox_id"]
        self._sandbox: LiveSandbox | None = self._sandboxes.get(self.sandbox_id)
        if self._sandbox is not None:
            self._sandbox.stopping = True
            self._sandbox.drop_standby()
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
        return self._sandboxes.get(self.sandbox_id) in (None, self._sandbox)

    def join(self, grace: float, answer: Answer) -> None:
        """The shortest patience counts."""
        self._answers.append(answer)
        self._mark()
        self._asked_until = min(self._asked_until, time.monotonic() + grace)

    def _end(self, reply: Reply) -> None:
        self._over(self)
        for answer in self._answers:
            answer(reply, [])

    def _mark(self) -> None:
        for run in self._runs.of(self.sandbox_id):
            run.reason = run.reason or self._reason

    def _members(self) -> list[int]:
        return members_of(self._runs, self._sandbox, self.sandbox_id, self._groups)

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
                self._end({"problem": failure("stop", str(left))})
                return
            self._loop.after(LOOK_S, self._look)
            return
        if self._recorder.stop(self.sandbox_id) or now > self._killed_until:
            self._end({"gone": True})
        else:
            self._loop.after(LOOK_S, self._look)

    def _kill(self) -> None:
        if self._sandbox is not None and self._sandboxes.get(self.sandbox_id) is self._sandbox:
            self._sandboxes.end(self._sandbox)
        if not any([kill_group(group) for group in self._groups]):
            processes.kill_all(self._members())
        for keeper in self._runs.keepers_of(self.sandbox_id):
            # It ends by itself when nothing is left below it, unless somebody stopped it.
            processes.send_signal(keeper, signal.SIGCONT)

    def _left(self) -> set[int]:
        left = set(self._members())
        if self._sandbox is not None and self._sandboxes.get(self.sandbox_id) is self._sandbox:
            left.add(self._sandbox.init)
        left.update(run.pid for run in self._runs.of(self.sandbox_id))
        left.update(self._runs.keepers_of(self.sandbox_id))
        return left


def members_of(
    runs: LaunchedRuns, sandbox: LiveSandbox | None, sandbox_id: str, groups: list[str]
) -> list[int]:
    """Every process of the sandbox, but not those that hold it."""
    found = seen_of(runs, sandbox, sandbox_id, groups)
    return [pid for pid in found if processes.start_time(pid) is not None]


def seen_of(
    runs: LaunchedRuns, sandbox: LiveSandbox | None, sandbox_id: str, groups: list[str]
) -> set[int]:
    """As `members_of`, also those that have ended since they were found."""
    found: set[int] = set()
    for group in groups:
        found.update(group_members(group))
        for name in _subgroups(group):
            found.update(group_members(name))
    for run in runs.of(sandbox_id):
        if run.pid:
            found.update(run.members())
    for keeper in runs.keepers_of(sandbox_id):
        found.update(processes.descendants(keeper))
    if sandbox is not None and sandbox.init:
        found.update(sandbox.others())
        found.difference_update(sandbox.holding())
    return found


def holding_in(sandbox: LiveSandbox | None) -> set[int]:
    """The processes in the sandbox that hold it: code in there can take them over, too. The first
    of a container is beyond its reach, and in a pod it has another network than the commands."""
    if sandbox is not None and sandbox.contained and sandbox.pod:
        return set()
    return sandbox.holding() - {sandbox.monitor} if sandbox is not None and sandbox.init else set()


def _subgroups(group: str) -> list[str]:
    try:
        with os.scandir(group) as entries:
            return [entry.path for entry in entries if entry.is_dir()]
    except OSError:
        return []


# Ending one run

RUN_LOOK_S = 0.004
"""Between two looks at whether the last process is gone: a client waits for it."""


def kill_run(loop: Loop, runs: LaunchedRuns, run: LaunchedRun, answer: Answer) -> None:
    """Others of the sandbox are left alone. The run may have ended before. Answers when all of it
    is gone."""
    until = time.monotonic() + KILL_S

    def look() -> None:
        """Kills again each time: what is killed may have forked meanwhile."""
        runs.kill_family(run)
        if not runs.is_gone(run):
            if time.monotonic() < until:
                loop.after(RUN_LOOK_S, look)
            else:
                left = str(sorted(runs.family(run)))
                answer({"problem": failure("kill", left)}, [])
            return
        if run.group is not None:
            remove_group(run.group)
        answer({}, [])

    look()


# Pausing a sandbox

PAUSE_LOOK_S = 0.002
"""Between two looks at whether all stand still: the sandbox waits for it."""
CALM_LOOKS = 3
"""In which nobody ran: one that forks and ends all the time is easily overlooked."""
SETTLE_S = 2.0
"""Who is told to stop does so when it next gets a processor. One that has not by then starts
others faster than they are found, or has itself continued …"""
LEAST_LOOKS = 50
LONGEST_S = 3 * SETTLE_S
"""… unless it was us who did not get one, and so looked less often than this. For so long we go on:
many processes, too, make looking slow."""


class Pauses:
    def __init__(
        self, loop: Loop, sandboxes: LiveSandboxes, runs: LaunchedRuns, folder: str
    ) -> None:
        self._loop = loop
        self._sandboxes = sandboxes
        self._runs = runs
        self._folder = folder
        self._under_way: dict[str, _Pause] = {}
        self._waiting: dict[str, list[Callable[[], None]]] = {}
        self._late: dict[str, str] = {}
        """The commands among what waits, and the sandbox of each."""
        os.makedirs(folder, mode=0o700, exist_ok=True)
        for name in os.listdir(folder):
            path = os.path.join(folder, name)
            _go_on(read_record(path) or {})
            remove_record(path)

    def begin(self, request: PauseRequest, _fds: list[int], answer: Answer) -> None:
        """After `seconds` it goes on in any case. Answered when it stands `still`; with False when
        it does not get so."""
        sandbox_id = request["sandbox_id"]
        groups = request["groups"]

        def members() -> list[int]:
            sandbox = self._sandboxes.get(sandbox_id)
            found = holding_in(sandbox) | seen_of(self._runs, sandbox, sandbox_id, groups)
            return sorted(found, key=lambda pid: (processes.start_time(pid) or 0, pid))

        self.end(sandbox_id)
        path = os.path.join(self._folder, f"{sandbox_id}.json")
        pause = _Pause(self._loop, path, groups, members)
        self._under_way[sandbox_id] = pause
        self._loop.after(request["seconds"], lambda: self._expire(sandbox_id, pause))
        pause.begin(answer)

    def end(self, sandbox_id: str) -> bool:
        """It goes on, if it was paused. Whether it had stood still until now."""
        pause = self._under_way.pop(sandbox_id, None)
        still = True if pause is None else pause.end()
        self._late = {run: where for run, where in self._late.items() if where != sandbox_id}
        for go_on in self._waiting.pop(sandbox_id, ()):
            go_on()
        return still

    def hold_up(self, request: dict[str, Any], go_on: Callable[[], None]) -> bool:
        """Whether it has to wait: a command that is to start where all stands still, and what is
        asked of a command that waits. `go_on` is called then, in the order of asking."""
        run_id = request.get("run_id", "")
        starts = request.get("op") == "run"
        sandbox_id = request.get("sandbox_id", "") if starts else self._late.get(run_id, "")
        if sandbox_id not in self._under_way:
            return False
        self._late[run_id] = sandbox_id
        self._waiting.setdefault(sandbox_id, []).append(go_on)
        return True

    def _expire(self, sandbox_id: str, pause: _Pause) -> None:
        if self._under_way.get(sandbox_id) is pause:
            self.end(sandbox_id)

    def close(self) -> None:
        self._waiting.clear()
        for sandbox_id in list(self._under_way):
            self.end(sandbox_id)


class _Pause:
    def __init__(
        self, loop: Loop, path: str, groups: list[str], members: Callable[[], list[int]]
    ) -> None:
        self._loop = loop
        self._path = path
        self._groups = groups
        self._members = members
        self._frozen: list[str] = []
        self._stopped: dict[int, int | None] = {}
        """Processes that we have stopped, and when each began."""
        self._turns: dict[int, int | None] = {}
        """How often each had been given a processor when all stood still."""
        self._others: set[int] = set()
        """Processes of other users, which a command without a sandbox can start."""
        self._seen: list[int] = []
        self._calm = 0
        self._looks = 0
        self._over = False

    def begin(self, answer: Answer) -> None:
        self._write_down()
        self._frozen = [group for group in self._groups if freeze_group(group, True)]
        self._look(answer, time.monotonic())

    def _look(self, answer: Answer, began: float) -> None:
        if self._over:
            # It goes on already, and is not to be stopped again.
            answer({"still": True}, [])
            return
        still = all(map(is_frozen, self._frozen)) if self._frozen else self._stop_all()
        self._looks += 1
        patience = SETTLE_S if self._looks > LEAST_LOOKS else LONGEST_S
        if not still and time.monotonic() < began + patience:
            self._loop.after(PAUSE_LOOK_S, lambda: self._look(answer, began))
            return
        # What the kernel has not frozen by then waits in it, for a slow disk say.
        answer({"still": still or bool(self._frozen)}, [])

    def _stop_all(self) -> bool:
        """Whether none has run, come or gone for some looks: some fork, and end, while they are
        looked for."""
        before, self._seen = self._seen, [pid for pid in self._members() if pid not in self._others]
        pids = self._seen
        running = set(filter(processes.is_running, pids))
        new = [
            pid
            for pid in pids
            if pid not in self._stopped
            and not processes.is_stopped(pid)
            and processes.parent(pid) not in running
        ]
        if new:
            self._stopped |= {pid: processes.start_time(pid) for pid in new}
            self._write_down()
        for pid in new:
            try:
                processes.send_signal(pid, signal.SIGSTOP)
            except PermissionError:
                self._others.add(pid)
        self._calm = 0 if running or pids != before else self._calm + 1
        if self._calm < CALM_LOOKS:
            return False
        self._turns = {pid: processes.turns(pid) for pid in pids if processes.is_stopped(pid)}
        return True

    def _write_down(self) -> None:
        # A full disk must not keep anybody from being measured.
        with contextlib.suppress(OSError):
            write_record(self._path, {"groups": self._groups, "pids": [*self._stopped.items()]})

    def end(self) -> bool:
        """A signal of its own, from a timer say, can have a process continued."""
        self._over = True
        still = all(processes.turns(pid) == turns for pid, turns in self._turns.items())
        _go_on({"groups": self._frozen, "pids": [*self._stopped.items()]})
        remove_record(self._path)
        return still


def _go_on(note: dict[str, Any]) -> None:
    for group in note.get("groups", ()):
        freeze_group(group, False)
    for pid, started in reversed(note.get("pids", ())):
        if started is not None and processes.is_alive(pid, started):
            with contextlib.suppress(PermissionError):
                processes.send_signal(pid, signal.SIGCONT)
