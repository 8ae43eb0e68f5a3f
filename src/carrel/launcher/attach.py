"""Taking up a run: one of ours, one that has ended, or one that an earlier launcher started.

As root a sandbox outlives its launcher. What that one wrote down of a run leads to the process
and to its pipes, so that the next one records on, signals and stops it as its own.
"""

from __future__ import annotations

import contextlib
import os
import time
from functools import partial
from typing import Any

from carrel.launcher.messages import Answer, AttachRequest, ReaderHolds, RunFile
from carrel.launcher.recorder import Recorder
from carrel.launcher.run import EXIT_FILE, RUN_FILE, LaunchedRun, LaunchState, tell
from carrel.launcher.runs import LaunchedRuns
from carrel.launcher.sandboxes import LiveSandboxes
from carrel.launcher.wire import close_all, read_record
from carrel.linux import files, processes

OPEN_S = 1.0
"""To find a pipe and open it: whoever keeps us from that longer is not recorded on."""


class Attacher:
    def __init__(self, runs: LaunchedRuns, sandboxes: LiveSandboxes, recorder: Recorder) -> None:
        self._runs = runs
        self._sandboxes = sandboxes
        self._recorder = recorder

    def attach(self, request: AttachRequest, descriptors: list[int], answer: Answer) -> None:
        """Descriptors: the exit pipe, and from a client whose launcher died what it still has,
        `given` saying whether that is the `terminal` or the `input`."""
        known = self._runs.get(request["run_id"])
        if known is not None and known.is_starting:
            # Its client died while it was being started.
            known.settled.append(lambda: self.attach(request, descriptors, answer))
            return
        on_exit, *held = descriptors
        holds = request.get("holds")
        run = known or self._take_up(request["folder"], request["given"], held, holds)
        close_all(held)
        if run is None:
            _answer_ended(request["folder"], on_exit, answer)
            return
        if run.exit is None:
            run.watchers.append(on_exit)
        else:
            tell(on_exit, run.exit)
            os.close(on_exit)
        answer(*run.gives())

    def find(self, folder: str) -> LaunchedRun | None:
        """One that lives is taken up; of one that has ended something may be left running."""
        run = self._take_up(folder, "", [])
        if run is not None:
            return run
        record = read_record(os.path.join(folder, RUN_FILE))
        if record is None or not record.keys() >= RunFile.__required_keys__:
            return None
        run = _load(record)
        if not self._keep(run, record):
            run.keeper = 0
        ended: Any = read_record(os.path.join(folder, EXIT_FILE)) or {}
        run.exit = ended
        run.move(LaunchState.ENDED)
        return run

    def take_up_all(self, runs: str) -> None:
        """Every live run below the folder: their sandbox is to be stopped."""
        try:
            names = os.listdir(runs)
        except OSError:
            return
        for name in names:
            if self._runs.get(name) is None:
                self._take_up(os.path.join(runs, name), "", [])

    def _take_up(
        self, folder: str, given: str, held: list[int], holds: ReaderHolds | None = None
    ) -> LaunchedRun | None:
        """None when it is known how it ended. One that ended without a launcher is lost."""
        record = read_record(os.path.join(folder, RUN_FILE))
        if record is None or not record.keys() >= RunFile.__required_keys__:
            return None
        ended = os.path.exists(os.path.join(folder, EXIT_FILE))
        if ended and not record["keeper"]:
            return None
        run = _load(record)
        kept = self._keep(run, record)
        if ended:
            return None
        alive = processes.is_alive(run.pid, record["started"])
        if held and given == "input":
            run.input = held.pop()
        if held and given == "terminal":
            run.terminal = held.pop()
        terminal = None if run.terminal is None else os.dup(run.terminal)
        found = self._find_pipes(run, alive or kept)
        run.recorded = self._recorder.take_up(run.spec, found, terminal, holds)
        with contextlib.suppress(ProcessLookupError):
            if alive:
                self._adopt(run)
                return run
        self._runs.lose(run)
        return run

    def _keep(self, run: LaunchedRun, record: RunFile) -> bool:
        """Whether its keeper lives, which is then ours."""
        started = record.get("keeper_started")
        if not run.keeper or started is None or not processes.is_alive(run.keeper, started):
            return False
        with contextlib.suppress(ProcessLookupError):
            self._runs.adopt_keeper(run.keeper, run.sandbox_id)
        return True

    def _adopt(self, run: LaunchedRun) -> None:
        self._runs.adopt(run)
        if run.timeout is not None:
            passed = time.time() - run.started_at
            self._runs.expire_after(run, max(0.0, run.timeout - passed))

    def take_up_noted(self) -> None:
        """Streams that were recorded after the end of their command."""
        for run_id, folder in self._recorder.noted():
            record = read_record(os.path.join(folder, RUN_FILE))
            if record is None or not record.keys() >= RunFile.__required_keys__:
                self._recorder.forget(run_id)
                continue
            run = _load(record)
            found = self._find_pipes(run, self._keep(run, record))
            recorded = self._recorder.take_up(run.spec, found, None, [])
            self._recorder.leave(recorded)
            if recorded.ended:
                self._recorder.forget(run_id)

    def _find_pipes(self, run: LaunchedRun, traced: bool) -> list[int | None]:
        """Only in processes of the run's own sandbox, by its group or what is below one that
        lives: after a reboot the number of a pipe may be anybody's."""
        if self._recorder.behind(run.run_id) is not None:
            return []
        own = run.members() if traced or run.group is not None else []
        pids = [*own, *self._sandboxes.others(run.sandbox_id)]
        within = self._recorder.workers.within
        return [
            within(run.account, OPEN_S, partial(files.open_pipe, inode, pids), _close)
            for inode in run.pipes
        ]


def _close(pipe: int | None) -> None:
    if pipe is not None:
        os.close(pipe)


def _load(record: RunFile) -> LaunchedRun:
    run = LaunchedRun(record, LaunchState.RUNNING)
    run.pid, run.keeper, run.started_at = record["pid"], record["keeper"], record["started_at"]
    return run


def _answer_ended(folder: str, on_exit: int, answer: Answer) -> None:
    """From its files."""
    record = read_record(os.path.join(folder, RUN_FILE))
    ended = read_record(os.path.join(folder, EXIT_FILE))
    if ended is not None:
        tell(on_exit, ended)
    os.close(on_exit)
    if record is None or ended is None:
        answer({"problem": {"step": "attach", "text": "no such run"}}, [])
        return
    answer({"pid": record["pid"], "started_at": record["started_at"], "terminal": False}, [])
