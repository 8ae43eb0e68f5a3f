"""One command: what was asked, what it holds, and what is written down of it."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
import time
from collections.abc import Callable
from enum import Enum
from typing import Any

from carrel.launcher.loop import Timer
from carrel.launcher.messages import (
    Answer,
    ExitFile,
    LauncherProblem,
    Reply,
    RunFields,
    RunFile,
)
from carrel.launcher.recorder import Recording, RecordingSpec
from carrel.launcher.sandboxes import LiveSandbox
from carrel.launcher.wire import close_all, write_record
from carrel.launcher.zygotes import EarlyFork
from carrel.linux import processes
from carrel.linux.processes import group_members

MARK = "CARREL_RUN"
"""The variable that all of a command has: where no control group tells what came of it."""
RUN_FILE = "run.json"
EXIT_FILE = "exit.json"


class LaunchState(Enum):
    STARTING = "starting"
    """It was asked for, and whoever asked waits for an answer."""
    REJECTED = "rejected"
    """It executes and must not, since it cannot be written down. It is being killed, and whoever
    asked hears of it when it is dead."""
    RUNNING = "running"
    """It executes, and whoever asked was told."""
    FAILED = "failed"
    """It never became the command."""
    ENDED = "ended"
    """How it ended is written down and told."""


MOVES = {
    LaunchState.STARTING: {LaunchState.RUNNING, LaunchState.REJECTED, LaunchState.FAILED},
    LaunchState.REJECTED: {LaunchState.FAILED},
    LaunchState.RUNNING: {LaunchState.ENDED},
    LaunchState.FAILED: set[LaunchState](),
    LaunchState.ENDED: set[LaunchState](),
}
"""The states of a run, and what may follow each. One that is taken up from its file is running."""


class LaunchedRun:
    """From its request, or from what an earlier launcher wrote down of that."""

    def __init__(self, request: RunFields, state: LaunchState = LaunchState.STARTING) -> None:
        self.state = state
        self.run_id: str = request["run_id"]
        self.sandbox_id: str = request["sandbox_id"]
        self.account: str = request.get("account") or self.sandbox_id
        """Whose share it takes."""
        self.folder: str = request["folder"]
        self.group: str | None = request.get("group")
        self.linger: float = request["linger"]
        self.zygote: str = request.get("zygote", "")
        """From which it is forked; empty: it is a program."""
        self.early: EarlyFork | None = None
        """That fork, which is begun before its sandbox is there."""
        self.timeout: float | None = request.get("timeout")
        self.out_of_memory: list[str] | None = request.get("oom")
        record = request["record"]
        self.spec = RecordingSpec(
            self.run_id,
            self.sandbox_id,
            self.folder,
            tuple(record["names"]),
            record["keep"],
            record.get("reader", ""),
            record.get("lease", 0.0),
            self.account,
        )
        self.pipes: list[int] = record.get("pipes", [])
        """By their inodes, which lead to them when their launcher is dead."""
        self.sources: list[int] = []
        """Our ends of them, until they are recorded."""
        self.recorded: Recording | None = None
        self.watchers: list[int] = []
        """Pipes on which clients hear of the end."""
        self.terminal: int | None = None
        """Ours; must not hang up when the client goes away. A recording has its own."""
        self.input: int | None = None
        """The writing end of its standard input, which stays open when the client goes away."""
        self.pid = 0
        self.keeper = 0
        self.started_at = time.time()
        self.reason = ""
        self.timers: list[Timer] = []
        self.sandbox: LiveSandbox | None = None
        self.kills_before = count_kills(self.out_of_memory)
        self.answer: Answer | None = None
        self.settled: list[Callable[[], None]] = []
        """What waits until it is known whether the command runs."""
        self.problem: LauncherProblem | None = None
        self.killed = False
        """Somebody wants it gone, be it before it has become the command."""
        self.channel: socket.socket | None = None
        self.ended: tuple[int, dict[str, Any]] | None = None
        """Its wait status and what it used; known perhaps before it is known whether it ran."""
        self.over = False
        """It has ended, and is told so as soon as all that it wrote was taken."""
        self.exit: ExitFile | None = None

    @property
    def is_starting(self) -> bool:
        """Nobody was told yet whether it runs."""
        return self.state in (LaunchState.STARTING, LaunchState.REJECTED)

    def move(self, state: LaunchState) -> None:
        if state not in MOVES[self.state]:
            raise ValueError(f"a run that is {self.state.value} does not become {state.value}")
        self.state = state

    def members(self, others: list[int] | None = None) -> list[int]:
        """All processes of the command, as far as they can be told from the sandbox's others:
        `others` are those that may have detached themselves from any command."""
        if self.group is not None:
            return group_members(self.group)
        if self.keeper:
            return processes.descendants(self.keeper)
        alive = self.pid and self.ended is None and not self.over and self.exit is None
        found = [self.pid, *processes.descendants(self.pid)] if alive else []
        for pid in processes.having_variable(others or (), MARK, self.run_id):
            found += [pid, *processes.descendants(pid)]
        return found

    def gives(self) -> tuple[Reply, list[int]]:
        """The answer to who takes it up, with the terminal or the input."""
        given = self.input if self.terminal is None else self.terminal
        reply: Reply = {"pid": self.pid, "started_at": self.started_at}
        reply["terminal"] = self.terminal is not None
        return reply, [] if given is None else [given]

    def write_down(self) -> None:
        """All that a later launcher needs."""
        keeper = self.keeper
        record: RunFile = {
            "run_id": self.run_id,
            "sandbox_id": self.sandbox_id,
            "account": self.account,
            "folder": self.folder,
            "pid": self.pid,
            "started": processes.start_time(self.pid),
            "keeper": keeper,
            "keeper_started": processes.start_time(keeper) if keeper else None,
            "group": self.group,
            "started_at": self.started_at,
            "timeout": self.timeout,
            "linger": self.linger,
            "record": {
                "names": list(self.spec.names),
                "keep": self.spec.keep,
                "pipes": self.pipes,
                "reader": self.spec.reader,
                "lease": self.spec.lease,
            },
        }
        write_record(self.path(RUN_FILE), record)

    def path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def close(self) -> None:
        """What it holds, but for its input and its terminal; its recording may go on."""
        for timer in self.timers:
            timer.cancel()
        close_all(self.watchers)
        close_all(self.sources)
        if self.channel is not None:
            self.channel.close()
            self.channel = None


# How a command ended

Use = dict[str, Any]


def exit_record(status: int, use: Use, reason: str, started_at: float) -> ExitFile:
    """`reason` is empty when nobody but the command itself ended it."""
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
    return {
        **lost_record(started_at),
        "reason": reason or ("exited" if number is None else "signaled"),
        "code": None if number is not None else os.WEXITSTATUS(status),
        "signal": number,
        "cpu_seconds": use["cpu"],
        "max_rss_bytes": use["rss"],
    }


def lost_record(started_at: float) -> ExitFile:
    """Somebody else's child: that it ended can be seen, but not how."""
    return {
        "reason": "lost",
        "code": None,
        "signal": None,
        "started_at": started_at,
        "ended_at": time.time(),
        "cpu_seconds": 0.0,
        "max_rss_bytes": 0,
    }


def was_killed(status: int) -> bool:
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def tell(descriptor: int, message: ExitFile) -> None:
    # A client that is gone finds it in the exit file.
    with contextlib.suppress(BrokenPipeError):
        os.write(descriptor, json.dumps(message).encode() + b"\n")


def use_of(usage: resource.struct_rusage) -> Use:
    return {"cpu": usage.ru_utime + usage.ru_stime, "rss": usage.ru_maxrss * 1024}


def count_kills(source: list[str] | None) -> int:
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
