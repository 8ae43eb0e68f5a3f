"""A command from its request to its exit file.

`run.json` in the run's folder says which process it is; `exit.json` how it ended, and how much
it wrote. Both are written before anybody is told, so that a client (or a launcher) that comes
later knows.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import socket
from functools import partial
from typing import Any

from carrel.launcher import wire
from carrel.launcher.exits import (
    Use,
    count_kills,
    exit_record,
    lost_record,
    tell,
    use_of,
    was_killed,
)
from carrel.launcher.groups import kill_group, remove_group
from carrel.launcher.holders import Holder, Holders
from carrel.launcher.lines import LinePipe
from carrel.launcher.loop import Loop
from carrel.launcher.recorder import Recorder
from carrel.launcher.records import remove_record, write_record
from carrel.launcher.run import EXIT_FILE, MARK, RUN_FILE, Run
from carrel.launcher.spares import Problem, Spare
from carrel.launcher.wire import Answer
from carrel.launcher.zygotes import Early, Zygotes
from carrel.linux import processes

ROUNDS = 3
"""Of killing what the one before has missed: some fork while the others are looked for."""
CALM_S = 0.02
"""Between two looks whether there is nothing more urgent to start."""
TERMINATE_S = 1.0
"""From the polite signal to the last one when a command's time is up."""


class Runs:
    """Those that live, of this launcher and, once they were taken up, of earlier ones."""

    def __init__(
        self,
        loop: Loop,
        holders: Holders,
        recorder: Recorder,
        zygotes: Zygotes,
        home: int | None = None,
    ) -> None:
        """`home`: the host's mounts, where the launcher has others."""
        self._loop = loop
        self._home = home
        self._holders = holders
        self._zygotes = zygotes
        self._recorder = recorder
        self._runs: dict[str, Run] = {}
        self._keepers: dict[int, str] = {}
        """A keeper outlives its command when that left something running."""

    def __len__(self) -> int:
        return len(self._runs) + len(self._keepers)

    def get(self, run_id: str) -> Run | None:
        return self._runs.get(run_id)

    def of(self, sandbox_id: str) -> list[Run]:
        return [run for run in self._runs.values() if run.sandbox_id == sandbox_id]

    # Starting

    def start(self, request: dict[str, Any], descriptors: list[int], answer: Answer) -> None:
        """Descriptors: stdin, stdout, stderr, what else the command is given, the exit pipe,
        with `input` the other end of stdin, the other ends of what is recorded, and staged
        mounts."""
        run = Run(request)
        request["plan"]["env"][MARK] = run.run_id
        count = 3 + request["plan"]["given"]
        streams, rest = descriptors[:count], descriptors[count:]
        run.watchers = [rest.pop(0)]
        if request["input"]:
            run.input = rest.pop(0)
        if request["plan"]["pty"] is None:
            count = len(run.subject.names)
            run.sources, rest = rest[:count], rest[count:]
        run.answer = answer
        self._loop.urgent += 1
        self._runs[run.run_id] = run
        holding = request.get("holder")
        if "holder" not in request:
            self._launch(run, request["plan"], streams)
            return
        if holding is None and not self._holders.is_coming(run.sandbox_id):
            wire.close_all([*streams, *rest])
            run.problem = {"step": "cold", "errno": 0, "text": "it has no holder"}
            self._settle(run)
            return
        names = holding["stage"] if holding is not None else []
        if run.zygote:
            run.early = Early(self._loop, self._zygotes, run.zygote, self._base(request))
            self._holders.forgo_spare(run.sandbox_id)

        def ready(holder: Holder | None, problem: Problem | None) -> None:
            if holder is None:
                if run.early is not None:
                    run.early.drop()
                wire.close_all(streams)
                run.problem = problem
                self._settle(run)
                return
            run.holder = holder
            self._holders.enter(holder, run.run_id)
            self._launch(run, request["plan"], streams)

        self._holders.acquire(request, dict(zip(names, rest, strict=True)), ready)
        wire.close_all(rest)

    def _base(self, request: dict[str, Any]) -> dict[str, Any]:
        """Of a sandbox that is there, is coming, or is asked for."""
        holder = self._holders.get(request["sandbox_id"])
        base: dict[str, Any] = request["holder"]["base"] if holder is None else holder.base
        return base

    def warm(self, request: dict[str, Any], descriptors: list[int], answer: Answer) -> None:
        """Makes a sandbox ready for its first command. Descriptors: staged mounts."""
        staged = dict(zip(request["holder"]["stage"], descriptors, strict=True))
        linger = request["linger"]
        self._loop.urgent += 1

        def ready(holder: Holder | None, problem: Problem | None) -> None:
            self._loop.urgent -= 1
            if holder is None:
                answer({"problem": problem}, [])
                return
            self._holders.leave(holder, "", linger)
            answer({}, [])

        self._holders.acquire(request, staged, ready)
        wire.close_all(descriptors)

    def _launch(self, run: Run, plan: dict[str, Any], streams: list[int]) -> None:
        try:
            if run.holder is not None and run.early is not None:
                self._fork(run, run.holder, run.early, plan, streams)
            elif run.holder is not None:
                self._order(run, run.holder, plan, streams)
            else:
                self._recruit(run, plan, streams)
        except OSError as error:
            # The machine has no process, descriptor or group left.
            wire.close_all(streams)
            run.problem = {"step": "fork", "errno": error.errno or 0, "text": str(error)}
            self._settle(run)
            return
        if run.timeout is not None:
            self.expire_after(run, run.timeout)

    def _record(self, run: Run) -> None:
        """While it executes: its pipes are open here already, so nothing is lost."""
        run.pipes = [os.fstat(source).st_ino for source in run.sources]
        sources, run.sources = run.sources, []
        run.recorded = self._recorder.record(run.subject, sources)

    def _order(self, run: Run, holder: Holder, plan: dict[str, Any], streams: list[int]) -> None:
        """In a sandbox with namespaces: the process that waits there becomes the command."""
        spare, holder.spare = holder.spare, None
        if spare is None or not spare.usable:
            spare = self._holders.make_spare(holder)
        self._give(run, holder, spare, plan, streams)

    def _fork(
        self, run: Run, holder: Holder, early: Early, plan: dict[str, Any], streams: list[int]
    ) -> None:
        """In a sandbox with namespaces: a fork of a warm process enters and becomes it."""

        def made(spare: Spare | None, problem: Problem) -> None:
            if spare is not None and holder.live:
                spare.enter(holder.namespaces, {})
                self._give(run, holder, spare, plan, streams)
                return
            if spare is not None:
                spare.discard()
                problem = {"step": "ending", "errno": 0, "text": "the sandbox ended"}
            wire.close_all(streams)
            run.problem = problem
            self._settle(run)

        early.take(made)

    def _give(
        self, run: Run, holder: Holder, spare: Spare, plan: dict[str, Any], streams: list[int]
    ) -> None:
        """When it has entered, it gets its orders."""
        run.group = spare.group

        def launched(problem: Problem | None) -> None:
            if problem is not None and problem.get("errno") == errno.ENOMEM:
                # So says the kernel of a pid namespace whose first process has died.
                self._holders.end(holder)
                problem = {**problem, "step": "ending"}
            if problem is not None:
                run.doomed = False
                problem = _of_zygote(run, holder, problem)
            run.problem = run.problem or _of_kill(run, problem)
            self._take_terminal(run, spare.terminal)
            self._settle(run)
            if not run.zygote:
                # A short command has ended already: that is told first.
                self._loop.after(0.0, lambda: self._stand_by(holder))

        def ready() -> None:
            spare.order(
                plan, streams, launched, lambda status, use: self._on_exit(run, status, use_of(use))
            )
            wire.close_all(streams)
            if spare.pid and run.run_id in self._runs:
                self._note_process(run, spare.pid, 0)

        spare.when_ready(ready)

    def _stand_by(self, holder: Holder) -> None:
        """The next command finds a process ready. That is for later: whoever waits for a
        start comes first."""
        if not holder.live or holder.stopping or holder.spare is not None:
            return
        if self._loop.urgent:
            self._loop.after(CALM_S, lambda: self._stand_by(holder))
        else:
            holder.spare = self._holders.make_spare(holder)

    def _recruit(self, run: Run, plan: dict[str, Any], streams: list[int]) -> None:
        """Without namespaces: a child of ours becomes the command."""
        status = LinePipe(self._loop, partial(self._on_status, run), partial(self._on_closed, run))
        pipes = [status]
        run.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if plan["keeper"]:
            on_end = partial(self._on_keeper_gone, run)
            pipes.append(LinePipe(self._loop, partial(self._on_kept, run), on_end))
        writers = [status.write, theirs.fileno(), *(pipe.write for pipe in pipes[1:])]
        self._loop.expect_children(1)
        home = [] if self._home is None else [self._home]
        orders = {"become": "command", "plan": plan, "home": bool(home)}
        try:
            self._holders.recruits.take(orders, [*streams, *writers, *home]).forget()
        finally:
            for pipe in pipes:
                pipe.parent_side()
            theirs.close()
        wire.close_all(streams)

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
                run.pid, lambda status, usage: self._on_exit(run, status, use_of(usage))
            )

    def _note_process(self, run: Run, pid: int, keeper: int) -> None:
        """While it executes; before anybody is told."""
        run.pid, run.keeper = pid, keeper
        if run.sources:
            self._record(run)
        if run.reason:
            # Its time was up before it began.
            self._loop.after(0.0, lambda: self.kill(run, run.reason))
        try:
            run.write_down()
        except OSError as error:
            # Nobody could take it up again.
            run.problem = {"step": "record", "errno": error.errno or 0, "text": str(error)}
            run.doomed = True
            self.kill(run, "stopped")

    def _take_terminal(self, run: Run, received: list[int]) -> None:
        """The child made it, and sent it before it executed."""
        if received and run.problem is None:
            run.terminal = received.pop()
            run.recorded = self._recorder.record_terminal(run.subject, os.dup(run.terminal))
        wire.close_all(received)

    def _on_closed(self, run: Run) -> None:
        """The status pipe closes when the command executes, or when it could not."""
        self._loop.expect_children(-1)
        if not run.pid and run.problem is None:
            run.problem = {"step": "fork", "errno": 0, "text": "the helper died"}
        if run.channel is not None:
            self._take_terminal(run, _received(run.channel))
            run.channel = None
        self._settle(run)

    def _settle(self, run: Run) -> None:
        """It runs, or it is known why not."""
        if run.answer is None or (run.doomed and run.ended is None):
            return
        answer, run.answer = run.answer, None
        self._loop.urgent -= 1
        if run.problem is not None:
            if run.recorded is not None:
                run.recorded.close()
            self._forget(run)
            remove_record(run.path(RUN_FILE))
            answer({"problem": run.problem}, [])
        else:
            run.launched = True
            reply, given = run.gives()
            answer(reply, given if run.terminal is not None else [])
        for action in run.settled:
            action()
        if run.launched and run.ended is not None:
            self._finish(run)

    # Ending

    def _on_kept(self, run: Run, line: bytes) -> None:
        message = json.loads(line)
        self._on_exit(run, message["ended"], {"cpu": message["cpu"], "rss": message["rss"]})

    def _on_keeper_gone(self, run: Run) -> None:
        """With or before its command: somebody killed the keeper too."""
        if run.ended is None:
            self._on_exit(run, signal.SIGKILL, {"cpu": 0.0, "rss": 0})

    def _keeper_gone(self, keeper: int) -> None:
        self._keepers.pop(keeper, None)

    def keepers_of(self, sandbox_id: str) -> list[int]:
        """Below them is what commands left running, where no control group tells."""
        return [pid for pid, owner in self._keepers.items() if owner == sandbox_id]

    def _on_exit(self, run: Run, status: int, use: Use) -> None:
        """Held back until it is known whether the command ran at all."""
        run.ended = (status, use)
        if run.launched:
            self._finish(run)
        elif run.doomed:
            self._settle(run)

    def _finish(self, run: Run) -> None:
        if run.ended is None or run.run_id not in self._runs:
            return
        status, use = run.ended
        reason = run.reason
        if was_killed(status) and not reason:
            reason = "memory" if count_kills(run.out_of_memory) > run.kills_before else ""
        self._conclude(run, exit_record(status, use, reason, run.started_at))

    def _conclude(self, run: Run, ended: dict[str, Any]) -> None:
        run.exit = ended
        if run.recorded is not None:
            run.exit |= run.recorded.settle()
        # A full disk keeps it from being written down, not from being told.
        with contextlib.suppress(OSError):
            write_record(run.path(EXIT_FILE), run.exit)
        self._forget(run)

    def _forget(self, run: Run) -> None:
        self._runs.pop(run.run_id, None)
        for descriptor in run.watchers:
            if run.exit is not None:
                tell(descriptor, run.exit)
        run.close()
        if run.recorded is not None:
            self._recorder.leave(run.recorded)
        if run.group is not None:
            remove_group(run.group)
        if run.holder is not None:
            self._holders.leave(run.holder, run.run_id, run.linger)

    def expire_after(self, run: Run, seconds: float) -> None:
        run.timers.append(self._loop.after(seconds, lambda: self._expire(run)))

    def _expire(self, run: Run) -> None:
        """Asks, then kills all that belongs to the command."""
        run.reason = run.reason or "timeout"
        processes.send_group_signal(run.pid, signal.SIGTERM)
        run.timers.append(self._loop.after(TERMINATE_S, lambda: self.kill(run, "timeout")))

    def kill(self, run: Run, reason: str) -> None:
        if run.run_id not in self._runs:
            return
        run.reason = run.reason or reason
        self.kill_family(run)

    def kill_family(self, run: Run) -> None:
        """Also of one that has ended itself."""
        if run.group is not None and kill_group(run.group):
            return
        for _ in range(ROUNDS):
            members = self.family(run)
            if not members:
                break
            processes.kill_all(members)
        if run.pid and run.ended is None and self._runs.get(run.run_id) is run:
            processes.send_group_signal(run.pid, signal.SIGKILL)
        if run.keeper in self._keepers:
            # It ends by itself when nothing is left below it, unless somebody stopped it.
            processes.send_signal(run.keeper, signal.SIGCONT)

    def family(self, run: Run) -> list[int]:
        """The living processes that came of the command, whether or not it lives itself."""
        if run.keeper and run.run_id not in self._runs and run.keeper not in self._keepers:
            return []
        grouped = run.group is not None
        members = run.members([] if grouped else self._holders.others(run.sandbox_id))
        return [pid for pid in members if processes.start_time(pid) is not None]

    def is_gone(self, run: Run) -> bool:
        """All of it, and how it ended is told."""
        known = run.run_id in self._runs or run.keeper in self._keepers
        return not known and not self.family(run)

    def signal(self, run_id: str, number: int) -> bool:
        run = self._runs.get(run_id)
        if run is None or not run.pid:
            return False
        return processes.send_group_signal(run.pid, number)

    # Of earlier launchers

    def adopt(self, run: Run) -> None:
        """It lives, but is not our child: we can see when it ends, and not how. Raises OSError
        when it has just ended."""
        self._loop.on_process_end(run.pid, lambda: self.lose(run))
        self._runs[run.run_id] = run
        run.launched = True
        run.holder = self._holders.get(run.sandbox_id)
        if run.holder is not None:
            self._holders.enter(run.holder, run.run_id)

    def adopt_keeper(self, keeper: int, sandbox_id: str) -> None:
        """Raises OSError when it has just ended."""
        if keeper not in self._keepers:
            self._loop.on_process_end(keeper, lambda: self._keeper_gone(keeper))
            self._keepers[keeper] = sandbox_id

    def lose(self, run: Run) -> None:
        self._conclude(run, lost_record(run.started_at))


def _of_kill(run: Run, problem: Problem | None) -> Problem | None:
    """One that was killed on its way is not to be tried again: it has ended by that."""
    if problem is None or not run.killed:
        return problem
    if not run.pid:
        return {"step": "killed", "errno": 0, "text": "it was killed before it began"}
    run.ended = run.ended or (signal.SIGKILL, {"cpu": 0.0, "rss": 0})
    return None


def _of_zygote(run: Run, holder: Holder, problem: Problem) -> Problem:
    """What kept a fork from getting in, and would not keep a program."""
    if not run.zygote or not holder.live or problem["step"] in ("cwd", "call", "streams"):
        return problem
    text = f"{problem['step']}: {problem.get('text', '')}"
    return {"step": "zygote", "errno": problem.get("errno", 0), "text": text}


def _received(channel: socket.socket) -> list[int]:
    """The terminal, which the child sent before it executed, if it was to have one."""
    channel.setblocking(False)
    with channel:
        try:
            return wire.receive_descriptors(channel, 16, 1)[1]
        except BlockingIOError:
            return []
