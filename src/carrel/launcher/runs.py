"""A command from its request to its exit file.

`run.json` in the run's folder says which process it is; `exit.json` how it ended. Both are
written before anybody is told, so that a client (or a launcher) that comes later knows.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import signal
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from carrel.launcher import child, wire
from carrel.launcher.groups import group_members, kill_group, remove_group
from carrel.launcher.holders import Holder, Holders
from carrel.launcher.lines import LinePipe
from carrel.launcher.loop import Loop, Timer
from carrel.launcher.records import read_record, write_record
from carrel.launcher.spares import Problem
from carrel.linux import processes

TERMINATE_S = 1.0
"""From the polite signal to the last one when a command's time is up."""

Answer = Callable[[dict[str, Any], list[int]], None]


class Run:
    def __init__(self, request: dict[str, Any], on_exit: int) -> None:
        self.run_id: str = request["run_id"]
        self.sandbox_id: str = request["sandbox_id"]
        self.folder: str = request["folder"]
        self.group: str | None = request.get("group")
        self.linger: float = request["linger"]
        self.out_of_memory: list[str] | None = request.get("oom")
        self.watchers = [on_exit]
        self.kept: list[int] = []
        """Its terminal, which must not hang up when the client goes away."""
        self.pid = 0
        self.keeper = 0
        self.started_at = time.time()
        self.reason = ""
        self.timers: list[Timer] = []
        self.holder: Holder | None = None
        self.kills_before = _count(self.out_of_memory)
        self.answer: Answer | None = None
        self.problem: Problem | None = None
        self.channel: socket.socket | None = None
        self.launched = False
        self.ended: tuple[int, dict[str, Any]] | None = None
        self.exit: dict[str, Any] | None = None

    def members(self) -> list[int]:
        """All processes of the command, as far as they can be told from the sandbox's others."""
        if self.group is not None:
            return group_members(self.group)
        top = self.keeper or self.pid
        below = processes.descendants(top)
        return below if self.keeper else [top, *below]


class Runs:
    def __init__(self, loop: Loop, holders: Holders) -> None:
        self._loop = loop
        self._holders = holders
        self._runs: dict[str, Run] = {}
        self._keepers: dict[int, str] = {}
        """A keeper outlives its command when that left something running."""

    def __len__(self) -> int:
        return len(self._runs) + len(self._keepers)

    def of(self, sandbox_id: str) -> list[Run]:
        return [run for run in self._runs.values() if run.sandbox_id == sandbox_id]

    def start(self, request: dict[str, Any], descriptors: list[int], answer: Answer) -> None:
        """Descriptors: stdin, stdout, stderr, the exit pipe, staged mounts."""
        streams, staged_fds = descriptors[:3], descriptors[4:]
        run = Run(request, descriptors[3])
        if "holder" not in request:
            self._launch(run, request, streams, answer)
            return
        if request["holder"] is None and not self._is_live(run.sandbox_id):
            _close_all([*streams, *staged_fds, *run.watchers])
            answer({"problem": {"step": "cold", "errno": 0, "text": "it has no holder"}}, [])
            return
        names = request["holder"]["stage"] if request["holder"] is not None else []
        staged = dict(zip(names, staged_fds, strict=True))

        def ready(holder: Holder | None, problem: Problem | None) -> None:
            if holder is None:
                _close_all(streams)
                _close_all(run.watchers)
                answer({"problem": problem}, [])
                return
            run.holder = holder
            self._holders.enter(holder, run.run_id)
            self._launch(run, request, streams, answer)

        self._holders.acquire(request, staged, ready)
        _close_all(staged_fds)

    def warm(self, request: dict[str, Any], descriptors: list[int], answer: Answer) -> None:
        """Makes a sandbox ready for its first command. Descriptors: staged mounts."""
        staged = dict(zip(request["holder"]["stage"], descriptors, strict=True))
        linger = request["linger"]

        def ready(holder: Holder | None, problem: Problem | None) -> None:
            if holder is None:
                answer({"problem": problem}, [])
                return
            self._holders.leave(holder, "", linger)
            answer({}, [])

        self._holders.acquire(request, staged, ready)
        _close_all(descriptors)

    def _is_live(self, sandbox_id: str) -> bool:
        holder = self._holders.get(sandbox_id)
        return holder is not None and holder.live

    def _launch(
        self, run: Run, request: dict[str, Any], streams: list[int], answer: Answer
    ) -> None:
        run.answer = answer
        self._runs[run.run_id] = run
        if run.holder is not None:
            self._order(run, run.holder, request["plan"], streams)
        else:
            self._fork(run, request["plan"], streams)
        if request.get("timeout") is not None:
            timer = self._loop.after(request["timeout"], lambda: self.expire(run, "timeout"))
            run.timers.append(timer)

    def _order(self, run: Run, holder: Holder, plan: dict[str, Any], streams: list[int]) -> None:
        """In a sandbox with namespaces: the process that waits there becomes the command."""
        spare, holder.spare = holder.spare, None
        if spare is None or not spare.usable:
            spare = self._holders.make_spare(holder)
        run.group = spare.group

        def launched(problem: Problem | None) -> None:
            if problem is not None and problem.get("errno") == errno.ENOMEM:
                # So says the kernel of a pid namespace whose first process has died.
                self._holders.end(holder)
                problem = {**problem, "step": "ending"}
            run.problem = problem
            run.kept = spare.terminal
            self._settle(run)
            if holder.live and not holder.stopping and holder.spare is None:
                holder.spare = self._holders.make_spare(holder)

        def ready() -> None:
            spare.order(
                plan, streams, launched, lambda status, use: self._on_exit(run, status, _use(use))
            )
            _close_all(streams)
            if spare.pid and run.run_id in self._runs:
                # While it executes; before anybody is told.
                self._note_process(run, spare.pid, 0)

        spare.when_ready(ready)

    def _fork(self, run: Run, plan: dict[str, Any], streams: list[int]) -> None:
        """Without namespaces: a child of ours becomes the command."""
        status = LinePipe(self._loop, partial(self._on_status, run), partial(self._on_closed, run))
        pipes = [status]
        run.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if plan["keeper"]:
            on_end = partial(self._on_keeper_gone, run)
            pipes.append(LinePipe(self._loop, partial(self._on_kept, run), on_end))
        writers = [status.write, theirs.fileno(), *(pipe.write for pipe in pipes[1:])]
        self._loop.expect_children(1)
        self._loop.fork(lambda: child.become_command(plan, streams, writers))
        for pipe in pipes:
            pipe.parent_side()
        theirs.close()
        _close_all(streams)

    def _on_status(self, run: Run, line: bytes) -> None:
        message = json.loads(line)
        if "pid" not in message:
            run.problem = message
            return
        self._note_process(run, message["pid"], message.get("keeper", 0))
        if run.keeper:
            self._keepers[run.keeper] = run.sandbox_id
            self._loop.on_exit(run.keeper, lambda _status, _usage: self._keeper_gone(run.keeper))
        else:
            self._loop.on_exit(
                run.pid, lambda status, usage: self._on_exit(run, status, _use(usage))
            )

    def _keeper_gone(self, keeper: int) -> None:
        self._keepers.pop(keeper, None)

    def kept_by(self, sandbox_id: str) -> list[int]:
        """What commands of the sandbox left running, where no control group tells."""
        keepers = [pid for pid, owner in self._keepers.items() if owner == sandbox_id]
        return [pid for keeper in keepers for pid in processes.descendants(keeper)]

    def _note_process(self, run: Run, pid: int, keeper: int) -> None:
        run.pid, run.keeper = pid, keeper
        if run.reason:
            # Its time was up before it began.
            self._loop.after(0.0, lambda: self.kill(run, run.reason))
        record = {"run_id": run.run_id, "pid": run.pid, "keeper": run.keeper}
        record["started"] = processes.start_time(run.keeper or run.pid)
        record["started_at"] = run.started_at
        write_record(os.path.join(run.folder, "run.json"), record)

    def _on_kept(self, run: Run, line: bytes) -> None:
        message = json.loads(line)
        self._on_exit(run, message["ended"], {"cpu": message["cpu"], "rss": message["rss"]})

    def _on_keeper_gone(self, run: Run) -> None:
        """With or before its command: somebody killed the keeper too."""
        if run.ended is None:
            self._on_exit(run, signal.SIGKILL, {"cpu": 0.0, "rss": 0})

    def _on_exit(self, run: Run, status: int, usage: dict[str, Any]) -> None:
        """Held back until it is known whether the command ran at all."""
        run.ended = (status, usage)
        if run.launched:
            self._finish(run)

    def _on_closed(self, run: Run) -> None:
        """The status pipe closes when the command executes, or when it could not."""
        self._loop.expect_children(-1)
        if not run.pid and run.problem is None:
            run.problem = {"step": "fork", "errno": 0, "text": "the helper died"}
        self._settle(run)

    def _settle(self, run: Run) -> None:
        if run.answer is None:
            return
        answer, run.answer = run.answer, None
        if run.problem is not None:
            self._forget(run)
            _remove(os.path.join(run.folder, "run.json"))
            answer({"problem": run.problem}, [])
            return
        run.launched = True
        if run.channel is not None:
            run.kept = _received(run.channel)
            run.channel = None
        answer({"pid": run.pid, "started_at": run.started_at}, run.kept)
        if run.ended is not None:
            self._finish(run)

    def _finish(self, run: Run) -> None:
        if run.ended is None or run.run_id not in self._runs:
            return
        status, usage = run.ended
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        reason = run.reason or ("exited" if number is None else "signaled")
        killed = number == signal.SIGKILL and not run.reason
        if killed and _count(run.out_of_memory) > run.kills_before:
            reason = "memory"
        run.exit = {
            "reason": reason,
            "code": None if number is not None else os.WEXITSTATUS(status),
            "signal": number,
            "started_at": run.started_at,
            "ended_at": time.time(),
            "cpu_seconds": usage["cpu"],
            "max_rss_bytes": usage["rss"],
        }
        try:
            write_record(os.path.join(run.folder, "exit.json"), run.exit)
        finally:
            # A full disk keeps it from being written down, not from being told.
            self._forget(run)

    def _forget(self, run: Run) -> None:
        self._runs.pop(run.run_id, None)
        for timer in run.timers:
            timer.cancel()
        for descriptor in run.watchers:
            if run.exit is not None:
                _tell(descriptor, run.exit)
        _close_all(run.watchers)
        _close_all(run.kept)
        if run.channel is not None:
            run.channel.close()
        if run.group is not None:
            remove_group(run.group)
        if run.holder is not None:
            self._holders.leave(run.holder, run.run_id, run.linger)

    def expire(self, run: Run, reason: str) -> None:
        """Asks, then kills all that belongs to the command."""
        run.reason = run.reason or reason
        processes.send_group_signal(run.pid, signal.SIGTERM)
        run.timers.append(self._loop.after(TERMINATE_S, lambda: self.kill(run, reason)))

    def kill(self, run: Run, reason: str) -> None:
        if run.run_id not in self._runs:
            return
        run.reason = run.reason or reason
        if run.group is None or not kill_group(run.group):
            processes.kill_all(run.members())
            processes.send_group_signal(run.pid, signal.SIGKILL)

    def signal(self, run_id: str, number: int) -> bool:
        run = self._runs.get(run_id)
        if run is None or not run.pid:
            return False
        return processes.send_group_signal(run.pid, number)

    def get(self, run_id: str) -> Run | None:
        return self._runs.get(run_id)

    def attach(self, request: dict[str, Any], on_exit: int, answer: Answer) -> None:
        """A client takes up a run again: ours, one that has ended, or an earlier launcher's."""
        run = self._runs.get(request["run_id"])
        if run is not None:
            run.watchers.append(on_exit)
            answer({"pid": run.pid, "started_at": run.started_at}, run.kept)
            return
        folder = request["folder"]
        ended = read_record(os.path.join(folder, "exit.json"))
        record = read_record(os.path.join(folder, "run.json"))
        if record is None:
            os.close(on_exit)
            answer({"problem": {"step": "attach", "text": "no such run"}}, [])
            return
        if ended is None:
            ended = self._adopt(record, folder, on_exit)
        if ended is not None:
            _tell(on_exit, ended)
            os.close(on_exit)
        answer({"pid": record["pid"], "started_at": record["started_at"]}, [])

    def _adopt(self, record: dict[str, Any], folder: str, on_exit: int) -> dict[str, Any] | None:
        """Its launcher died: we can see when it ends, but not how. A keeper still knows."""
        top = record["keeper"] or record["pid"]
        if not processes.is_alive(top, record["started"]):
            lost = _lost(record)
            write_record(os.path.join(folder, "exit.json"), lost)
            return lost
        end = os.pidfd_open(top)

        def ended() -> None:
            self._loop.unwatch(end)
            os.close(end)
            lost = _lost(record)
            write_record(os.path.join(folder, "exit.json"), lost)
            _tell(on_exit, lost)
            os.close(on_exit)

        self._loop.watch(end, ended)
        return None


def _received(channel: socket.socket) -> list[int]:
    """The terminal, which the child sent before it executed, if it was to have one."""
    channel.setblocking(False)
    with channel:
        try:
            return wire.receive_descriptors(channel, 16, 1)[1]
        except BlockingIOError:
            return []


def _lost(record: dict[str, Any]) -> dict[str, Any]:
    return {
        "reason": "lost",
        "code": None,
        "signal": None,
        "started_at": record["started_at"],
        "ended_at": time.time(),
        "cpu_seconds": 0.0,
        "max_rss_bytes": 0,
    }


def _tell(descriptor: int, message: dict[str, Any]) -> None:
    # A client that is gone finds it in the exit file.
    with contextlib.suppress(BrokenPipeError):
        os.write(descriptor, json.dumps(message).encode() + b"\n")


def _use(usage: resource.struct_rusage) -> dict[str, Any]:
    return {"cpu": usage.ru_utime + usage.ru_stime, "rss": usage.ru_maxrss * 1024}


def _count(source: list[str] | None) -> int:
    """How often the kernel killed something of the sandbox for want of memory."""
    if source is None:
        return 0
    path, key = source
    try:
        with open(path) as file:
            pairs = dict(line.split()[:2] for line in file if len(line.split()) >= 2)
    except OSError:
        return 0
    return int(pairs.get(key, 0))


def _close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
    descriptors.clear()


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
