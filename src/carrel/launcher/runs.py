"""A command from its request to its exit file.

`run.json` in the run's folder says which process it is; `exit.json` how it ended, and how much
it wrote. Both are written before anybody is told, so that a client (or a launcher) that comes
later knows.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal
import socket
from functools import partial
from typing import Any, cast

from carrel.launcher import wire
from carrel.launcher.loop import LinePipe, Loop
from carrel.launcher.messages import (
    Answer,
    CommandPlan,
    ExitFile,
    LauncherProblem,
    Orders,
    RunRequest,
    SandboxBase,
    WarmRequest,
    failure,
    told,
)
from carrel.launcher.pool import Standby
from carrel.launcher.recorder import Recorder
from carrel.launcher.run import (
    EXIT_FILE,
    MARK,
    RUN_FILE,
    LaunchedRun,
    LaunchState,
    Use,
    count_kills,
    exit_record,
    lost_record,
    tell,
    use_of,
    was_killed,
)
from carrel.launcher.sandboxes import LiveSandbox, LiveSandboxes
from carrel.launcher.wire import remove_record, write_record
from carrel.launcher.zygotes import EarlyFork, Zygotes
from carrel.linux import processes
from carrel.linux.processes import kill_group, remove_group
from carrel.linux.reserve import Reserve

ROUNDS = 3
"""Of killing what the one before has missed: some fork while the others are looked for."""
CALM_S = 0.02
"""Between two looks whether there is nothing more urgent to start."""
RUN_DESCRIPTORS = 8
"""Of ours, that a command takes while it runs: its streams and their files, its input, its end."""
SHARE = 4
"""One sandbox may take this part of all descriptors, so that others can always run something."""
LEAST_RUNS = 16
"""Where the machine allows few descriptors."""
TERMINATE_S = 1.0
"""From the polite signal to the last one when a command's time is up."""


class LaunchedRuns:
    """Those that live, of this launcher and, once they were taken up, of earlier ones."""

    def __init__(
        self,
        loop: Loop,
        sandboxes: LiveSandboxes,
        recorder: Recorder,
        zygotes: Zygotes,
        home: int | None = None,
        reserve: Reserve | None = None,
    ) -> None:
        """`home`: the host's mounts, where the launcher has others. `reserve` is given up for
        exit files on a full disk."""
        self._reserve = reserve
        self._loop = loop
        self._home = home
        self._sandboxes = sandboxes
        self._zygotes = zygotes
        self._recorder = recorder
        self._runs: dict[str, LaunchedRun] = {}
        self._keepers: dict[int, str] = {}
        """A keeper outlives its command when that left something running."""

    def __len__(self) -> int:
        return len(self._runs) + len(self._keepers)

    def get(self, run_id: str) -> LaunchedRun | None:
        return self._runs.get(run_id)

    def of(self, sandbox_id: str) -> list[LaunchedRun]:
        return [run for run in self._runs.values() if run.sandbox_id == sandbox_id]

    # Starting

    def start(self, request: RunRequest, descriptors: list[int], answer: Answer) -> None:
        """Descriptors: stdin, stdout, stderr, what else the command is given, the exit pipe,
        with `input` the other end of stdin, the other ends of what is recorded, and staged
        mounts."""
        run = LaunchedRun(request)
        if self._has_its_share(run.account):
            wire.close_all(descriptors)
            text = "so many run, or have left something that writes"
            answer({"problem": failure("share", text, errno.EAGAIN)}, [])
            return
        request["plan"]["env"][MARK] = run.run_id
        count = 3 + request["plan"]["given"]
        streams, rest = descriptors[:count], descriptors[count:]
        run.watchers = [rest.pop(0)]
        if request["input"]:
            run.input = rest.pop(0)
        if request["plan"]["pty"] is None:
            count = len(run.spec.names)
            run.sources, rest = rest[:count], rest[count:]
        run.answer = answer
        self._loop.urgent += 1
        self._runs[run.run_id] = run
        holding = request.get("holder")
        if "holder" not in request:
            self._launch(run, request["plan"], streams)
            return
        if holding is None and not self._sandboxes.is_coming(run.sandbox_id):
            wire.close_all([*streams, *rest])
            run.problem = failure("cold", "it has no holder")
            self._settle(run)
            return
        names = holding["stage"] if holding is not None else []
        if run.zygote:
            run.early = EarlyFork(self._loop, self._zygotes, run.zygote, self._base(request))
            self._sandboxes.forgo_standby(run.sandbox_id)

        def ready(sandbox: LiveSandbox | None, problem: LauncherProblem | None) -> None:
            if sandbox is None:
                if run.early is not None:
                    run.early.drop()
                wire.close_all(streams)
                run.problem = problem
                self._settle(run)
                return
            run.sandbox = sandbox
            self._sandboxes.enter(sandbox, run.run_id)
            self._launch(run, request["plan"], streams)

        self._sandboxes.acquire(request, dict(zip(names, rest, strict=True)), ready)
        wire.close_all(rest)

    def _has_its_share(self, account: str) -> bool:
        descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        most = max(LEAST_RUNS, descriptors // SHARE // RUN_DESCRIPTORS)
        if len(self._runs) + len(self._recorder) < most:
            return False
        mine = sum(run.account == account for run in self._runs.values())
        return mine + self._recorder.count(account) >= most

    def _base(self, request: RunRequest) -> SandboxBase:
        """Of a sandbox that is there, is coming, or is asked for."""
        sandbox = self._sandboxes.get(request["sandbox_id"])
        if sandbox is not None:
            return sandbox.base
        plan = request.get("holder")
        assert plan is not None
        return plan["base"]

    def warm(self, request: WarmRequest, descriptors: list[int], answer: Answer) -> None:
        """Makes a sandbox ready for its first command. Descriptors: staged mounts."""
        staged = dict(zip(request["holder"]["stage"], descriptors, strict=True))
        linger = request["linger"]
        self._loop.urgent += 1

        def ready(sandbox: LiveSandbox | None, problem: LauncherProblem | None) -> None:
            self._loop.urgent -= 1
            if sandbox is None:
                answer({"problem": problem}, [])
                return
            self._sandboxes.leave(sandbox, "", linger)
            answer({}, [])

        self._sandboxes.acquire(request, staged, ready)
        wire.close_all(descriptors)

    def _launch(self, run: LaunchedRun, plan: CommandPlan, streams: list[int]) -> None:
        try:
            if run.sandbox is not None and run.early is not None:
                self._fork(run, run.sandbox, run.early, plan, streams)
            elif run.sandbox is not None:
                self._order(run, run.sandbox, plan, streams)
            else:
                self._start_plain(run, plan, streams)
        except OSError as error:
            # The machine has no process, descriptor or group left.
            wire.close_all(streams)
            run.problem = failure("fork", str(error), error.errno or 0)
            self._settle(run)
            return
        if run.timeout is not None:
            self.expire_after(run, run.timeout)

    def _record(self, run: LaunchedRun) -> None:
        """While it executes: its pipes are open here already, so nothing is lost."""
        run.pipes = [os.fstat(source).st_ino for source in run.sources]
        sources, run.sources = run.sources, []
        run.recorded = self._recorder.record(run.spec, sources)

    def _order(
        self, run: LaunchedRun, sandbox: LiveSandbox, plan: CommandPlan, streams: list[int]
    ) -> None:
        """In a sandbox with namespaces: the process that waits there becomes the command."""
        standby, sandbox.standby = sandbox.standby, None
        if standby is None or not standby.usable:
            standby = self._sandboxes.make_standby(sandbox)
        self._give(run, sandbox, standby, plan, streams)

    def _fork(
        self,
        run: LaunchedRun,
        sandbox: LiveSandbox,
        early: EarlyFork,
        plan: CommandPlan,
        streams: list[int],
    ) -> None:
        """In a sandbox with namespaces: a fork of a warm process enters and becomes it."""

        def made(standby: Standby | None, problem: LauncherProblem) -> None:
            if standby is not None and sandbox.live:
                standby.enter(sandbox.namespaces, {})
                self._give(run, sandbox, standby, plan, streams)
                return
            if standby is not None:
                standby.discard()
                problem = failure("ending", "the sandbox ended")
            wire.close_all(streams)
            run.problem = problem
            self._settle(run)

        early.take(made)

    def _give(
        self,
        run: LaunchedRun,
        sandbox: LiveSandbox,
        standby: Standby,
        plan: CommandPlan,
        streams: list[int],
    ) -> None:
        """When it has entered, it gets its orders."""
        run.group = standby.group

        def launched(problem: LauncherProblem | None) -> None:
            if problem is not None and problem.get("errno") == errno.ENOMEM:
                # So says the kernel of a pid namespace whose first process has died.
                self._sandboxes.end(sandbox)
                problem = {**problem, "step": "ending"}
            if problem is not None:
                if run.state is LaunchState.REJECTED:
                    run.move(LaunchState.FAILED)
                problem = _of_zygote(run, sandbox, problem)
            run.problem = run.problem or _of_kill(run, problem)
            self._take_terminal(run, standby.terminal)
            self._settle(run)
            if not run.zygote:
                # A short command has ended already: that is told first.
                self._loop.after(0.0, lambda: self._stand_by(sandbox))

        def ready() -> None:
            standby.order(
                plan, streams, launched, lambda status, use: self._on_exit(run, status, use_of(use))
            )
            self._close(run, streams)
            if standby.pid and run.run_id in self._runs:
                self._note_process(run, standby.pid, 0)

        standby.when_ready(ready)

    def _stand_by(self, sandbox: LiveSandbox) -> None:
        """The next command finds a process ready. That is for later: whoever waits for a
        start comes first."""
        if not sandbox.live or sandbox.stopping or sandbox.standby is not None:
            return
        if self._loop.urgent:
            self._loop.after(CALM_S, lambda: self._stand_by(sandbox))
        else:
            sandbox.standby = self._sandboxes.make_standby(sandbox)

    def _start_plain(self, run: LaunchedRun, plan: CommandPlan, streams: list[int]) -> None:
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
        orders: Orders = {"become": "command", "plan": plan, "home": bool(home)}
        try:
            self._sandboxes.pool.take(orders, [*streams, *writers, *home]).forget()
        finally:
            for pipe in pipes:
                pipe.parent_side()
            theirs.close()
        self._close(run, streams)

    def _on_status(self, run: LaunchedRun, line: bytes) -> None:
        message = told(line, "pid")
        if "pid" not in message:
            run.problem = cast(LauncherProblem, message)
            return
        if run.pid:
            return
        self._note_process(run, message["pid"], message.get("keeper", 0))
        if run.keeper:
            self._keepers[run.keeper] = run.sandbox_id
            self._loop.on_exit(run.keeper, lambda _status, _usage: self._keeper_gone(run.keeper))
        else:
            self._loop.on_exit(
                run.pid, lambda status, usage: self._on_exit(run, status, use_of(usage))
            )

    def _note_process(self, run: LaunchedRun, pid: int, keeper: int) -> None:
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
            run.problem = failure("record", str(error), error.errno or 0)
            run.move(LaunchState.REJECTED)
            self.kill(run, "stopped")

    def _take_terminal(self, run: LaunchedRun, received: list[int]) -> None:
        """The child made it, and sent it before it executed."""
        if received and run.problem is None:
            run.terminal = received.pop()
            run.recorded = self._recorder.record_terminal(run.spec, os.dup(run.terminal))
        wire.close_all(received)

    def _on_closed(self, run: LaunchedRun) -> None:
        """The status pipe closes when the command executes, or when it could not."""
        self._loop.expect_children(-1)
        if not run.pid and run.problem is None:
            died: LauncherProblem = failure("fork", "the helper died")
            run.problem = _of_kill(run, died)
        if run.channel is not None:
            self._take_terminal(run, _received(run.channel))
            run.channel = None
        self._settle(run)

    def _settle(self, run: LaunchedRun) -> None:
        """It runs, or it is known why not."""
        if run.answer is None or (run.state is LaunchState.REJECTED and run.ended is None):
            return
        answer, run.answer = run.answer, None
        self._loop.urgent -= 1
        if run.problem is not None:
            if run.state is not LaunchState.FAILED:
                run.move(LaunchState.FAILED)
            if run.recorded is not None:
                run.recorded.close()
            self._forget(run)
            remove_record(run.path(RUN_FILE))
            answer({"problem": run.problem}, [])
        else:
            run.move(LaunchState.RUNNING)
            reply, given = run.gives()
            answer(reply, given if run.terminal is not None else [])
        for action in run.settled:
            action()
        if run.state is LaunchState.RUNNING and run.ended is not None:
            self._finish(run)

    # Ending

    def _on_kept(self, run: LaunchedRun, line: bytes) -> None:
        message = told(line, "ended", "cpu", "rss")
        if "ended" not in message:
            # Its end says the rest.
            return
        self._on_exit(run, message["ended"], {"cpu": message["cpu"], "rss": message["rss"]})

    def _on_keeper_gone(self, run: LaunchedRun) -> None:
        """With or before its command: somebody killed the keeper too."""
        if run.ended is None:
            self._on_exit(run, signal.SIGKILL, {"cpu": 0.0, "rss": 0})

    def _keeper_gone(self, keeper: int) -> None:
        self._keepers.pop(keeper, None)

    def keepers_of(self, sandbox_id: str) -> list[int]:
        """Below them is what commands left running, where no control group tells."""
        return [pid for pid, owner in self._keepers.items() if owner == sandbox_id]

    def _on_exit(self, run: LaunchedRun, status: int, use: Use) -> None:
        """Held back until it is known whether the command ran at all."""
        run.ended = (status, use)
        if run.state is LaunchState.RUNNING:
            self._finish(run)
        elif run.state is LaunchState.REJECTED:
            self._settle(run)

    def _finish(self, run: LaunchedRun) -> None:
        if run.ended is None or run.over or run.run_id not in self._runs:
            return
        status, use = run.ended
        reason = run.reason
        if was_killed(status) and not reason:
            reason = "memory" if count_kills(run.out_of_memory) > run.kills_before else ""
        self._conclude(run, exit_record(status, use, reason, run.started_at))

    def _conclude(self, run: LaunchedRun, ended: ExitFile) -> None:
        """When all that it wrote was taken. Its number may be another's from here on."""
        run.over = True
        if run.recorded is None:
            self._concluded(run, ended, {})
        else:
            run.recorded.settle(partial(self._concluded, run, ended))

    def _concluded(self, run: LaunchedRun, ended: ExitFile, totals: Any) -> None:
        run.exit = {**ended, **totals}
        run.move(LaunchState.ENDED)
        if self._reserve is not None:
            self._reserve.ensure()
        # A full disk keeps it from being written down, not from being told.
        with contextlib.suppress(OSError):
            write_record(run.path(EXIT_FILE), run.exit)
        self._forget(run)

    def _forget(self, run: LaunchedRun) -> None:
        self._runs.pop(run.run_id, None)
        for descriptor in run.watchers:
            if run.exit is not None:
                tell(descriptor, run.exit)
        run.close()
        self.close_input(run)
        terminal, run.terminal = run.terminal, None
        if terminal is not None:
            self._close(run, [terminal])
        if run.recorded is not None:
            self._recorder.leave(run.recorded)
        if run.group is not None:
            remove_group(run.group)
        if run.sandbox is not None:
            self._sandboxes.leave(run.sandbox, run.run_id, run.linger)

    def close_input(self, run: LaunchedRun) -> None:
        given, run.input = run.input, None
        if given is not None:
            self._close(run, [given])

    def _close(self, run: LaunchedRun, ends: list[int]) -> None:
        """Of what the command may have by now. A terminal waits for who writes to it, too."""
        if ends:
            self._recorder.workers.close(run.account, partial(wire.close_all, ends))

    def expire_after(self, run: LaunchedRun, seconds: float) -> None:
        run.timers.append(self._loop.after(seconds, lambda: self._expire(run)))

    def _expire(self, run: LaunchedRun) -> None:
        """Asks, then kills all that belongs to the command."""
        run.reason = run.reason or "timeout"
        if not run.over:
            processes.send_group_signal(run.pid, signal.SIGTERM)
        run.timers.append(self._loop.after(TERMINATE_S, lambda: self.kill(run, "timeout")))

    def kill(self, run: LaunchedRun, reason: str) -> None:
        if run.run_id not in self._runs:
            return
        run.reason = run.reason or reason
        self.kill_family(run)

    def kill_family(self, run: LaunchedRun) -> None:
        """Also of one that has ended itself."""
        if run.group is not None and kill_group(run.group):
            return
        for _ in range(ROUNDS):
            members = self.family(run)
            if not members:
                break
            processes.kill_all(members)
        alive = run.pid and run.ended is None and not run.over
        if alive and self._runs.get(run.run_id) is run:
            processes.send_group_signal(run.pid, signal.SIGKILL)
        if run.keeper in self._keepers:
            # It ends by itself when nothing is left below it, unless somebody stopped it.
            processes.send_signal(run.keeper, signal.SIGCONT)

    def family(self, run: LaunchedRun) -> list[int]:
        """The living processes that came of the command, whether or not it lives itself."""
        if run.keeper and run.run_id not in self._runs and run.keeper not in self._keepers:
            return []
        grouped = run.group is not None
        members = run.members([] if grouped else self._sandboxes.others(run.sandbox_id))
        return [pid for pid in members if processes.start_time(pid) is not None]

    def is_gone(self, run: LaunchedRun) -> bool:
        """All of it, and how it ended is told."""
        known = run.run_id in self._runs or run.keeper in self._keepers
        return not known and not self.family(run)

    def signal(self, run_id: str, number: int) -> bool:
        run = self._runs.get(run_id)
        if run is None or not run.pid or run.over:
            return False
        return processes.send_group_signal(run.pid, number)

    # Of earlier launchers

    def adopt(self, run: LaunchedRun) -> None:
        """It lives, but is not our child: we can see when it ends, and not how. Raises OSError
        when it has just ended."""
        self._loop.on_process_end(run.pid, lambda: self.lose(run))
        self._runs[run.run_id] = run
        run.sandbox = self._sandboxes.get(run.sandbox_id)
        if run.sandbox is not None:
            self._sandboxes.enter(run.sandbox, run.run_id)

    def adopt_keeper(self, keeper: int, sandbox_id: str) -> None:
        """Raises OSError when it has just ended."""
        if keeper not in self._keepers:
            self._loop.on_process_end(keeper, lambda: self._keeper_gone(keeper))
            self._keepers[keeper] = sandbox_id

    def lose(self, run: LaunchedRun) -> None:
        self._runs[run.run_id] = run
        self._conclude(run, lost_record(run.started_at))


def _of_kill(run: LaunchedRun, problem: LauncherProblem | None) -> LauncherProblem | None:
    """One that was killed on its way is not to be tried again: it has ended by that."""
    if problem is None or not run.killed:
        return problem
    if not run.pid:
        return failure("killed", "it was killed before it began")
    run.ended = run.ended or (signal.SIGKILL, {"cpu": 0.0, "rss": 0})
    return None


def _of_zygote(run: LaunchedRun, sandbox: LiveSandbox, problem: LauncherProblem) -> LauncherProblem:
    """What kept a fork from getting in, and would not keep a program."""
    if not run.zygote or not sandbox.live or problem["step"] in ("cwd", "call", "streams"):
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
