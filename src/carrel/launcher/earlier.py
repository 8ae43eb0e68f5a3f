"""Taking up a run: one of ours, one that has ended, or one that an earlier launcher started.

As root a sandbox outlives its launcher. What that one wrote down of a run leads to the process
and to its pipes, so that the next one records on, signals and stops it as its own.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any

from carrel.launcher.exits import tell
from carrel.launcher.holders import Holders
from carrel.launcher.recorder import Recorder
from carrel.launcher.records import read_record
from carrel.launcher.run import EXIT_FILE, RUN_FILE, Run
from carrel.launcher.runs import Runs
from carrel.launcher.wire import Answer, close_all
from carrel.linux import pipes, processes

_NEEDED = {"run_id", "sandbox_id", "folder", "pid", "keeper", "started", "linger", "record"}


class Earlier:
    def __init__(self, runs: Runs, holders: Holders, recorder: Recorder) -> None:
        self._runs = runs
        self._holders = holders
        self._recorder = recorder

    def attach(self, request: dict[str, Any], descriptors: list[int], answer: Answer) -> None:
        """Descriptors: the exit pipe, and from a client whose launcher died what it still has,
        `given` saying whether that is the `terminal` or the `input`."""
        known = self._runs.get(request["run_id"])
        if known is not None and not known.launched:
            # Its client died while it was being started.
            known.settled.append(lambda: self.attach(request, descriptors, answer))
            return
        on_exit, *held = descriptors
        run = known or self._take_up(request["folder"], request["given"], held)
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

    def find(self, folder: str) -> Run | None:
        """One that lives is taken up; of one that has ended something may be left running."""
        run = self._take_up(folder, "", [])
        if run is not None:
            return run
        record = read_record(os.path.join(folder, RUN_FILE))
        if record is None or not record.keys() >= _NEEDED:
            return None
        run = _load(record)
        if not self._keep(run, record):
            run.keeper = 0
        run.exit = read_record(os.path.join(folder, EXIT_FILE)) or {}
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

    def _take_up(self, folder: str, given: str, held: list[int]) -> Run | None:
        """None when it is known how it ended. One that ended without a launcher is lost."""
        record = read_record(os.path.join(folder, RUN_FILE))
        if record is None or not record.keys() >= _NEEDED:
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
        run.recorded = self._recorder.take_up(run.subject, found, terminal)
        with contextlib.suppress(ProcessLookupError):
            if alive:
                self._adopt(run)
                return run
        self._runs.lose(run)
        return run

    def _keep(self, run: Run, record: dict[str, Any]) -> bool:
        """Whether its keeper lives, which is then ours."""
        if not run.keeper or not processes.is_alive(run.keeper, record["keeper_started"]):
            return False
        with contextlib.suppress(ProcessLookupError):
            self._runs.adopt_keeper(run.keeper, run.sandbox_id)
        return True

    def _adopt(self, run: Run) -> None:
        self._runs.adopt(run)
        if run.timeout is not None:
            passed = time.time() - run.started_at
            self._runs.expire_after(run, max(0.0, run.timeout - passed))

    def take_up_noted(self) -> None:
        """Streams that were recorded after the end of their command."""
        for run_id, folder in self._recorder.noted():
            record = read_record(os.path.join(folder, RUN_FILE))
            if record is None or not record.keys() >= _NEEDED:
                self._recorder.forget(run_id)
                continue
            run = _load(record)
            found = self._find_pipes(run, self._keep(run, record))
            recorded = self._recorder.take_up(run.subject, found, None)
            self._recorder.leave(recorded)
            if recorded.ended:
                self._recorder.forget(run_id)

    def _find_pipes(self, run: Run, traced: bool) -> list[int | None]:
        """Only in processes of the run's own sandbox, by its group or what is below one that
        lives: after a reboot the number of a pipe may be anybody's."""
        if self._recorder.is_recording(run.run_id):
            return []
        own = run.members() if traced or run.group is not None else []
        pids = [*own, *self._holders.others(run.sandbox_id)]
        return [pipes.open_pipe(inode, pids) for inode in run.pipes]


def _load(record: dict[str, Any]) -> Run:
    run = Run(record)
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
