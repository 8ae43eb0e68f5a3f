"""One command: what was asked, what it holds, and what is written down of it."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from typing import Any

from carrel.launcher.exits import count_kills
from carrel.launcher.groups import group_members
from carrel.launcher.holders import Holder
from carrel.launcher.loop import Timer
from carrel.launcher.recorder import Recorded, Subject
from carrel.launcher.records import write_record
from carrel.launcher.spares import Problem
from carrel.launcher.wire import Answer, close_all
from carrel.launcher.zygotes import Early
from carrel.linux import processes

MARK = "CARREL_RUN"
"""The variable that all of a command has: where no control group tells what came of it."""
RUN_FILE = "run.json"
EXIT_FILE = "exit.json"


class Run:
    """From its request, or from what an earlier launcher wrote down of that."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.run_id: str = request["run_id"]
        self.sandbox_id: str = request["sandbox_id"]
        self.folder: str = request["folder"]
        self.group: str | None = request.get("group")
        self.linger: float = request["linger"]
        self.zygote: str = request.get("zygote", "")
        """From which it is forked; empty: it is a program."""
        self.early: Early | None = None
        """That fork, which is begun before its sandbox is there."""
        self.timeout: float | None = request.get("timeout")
        self.out_of_memory: list[str] | None = request.get("oom")
        record = request["record"]
        self.subject = Subject(
            self.run_id, self.sandbox_id, self.folder, tuple(record["names"]), record["keep"]
        )
        self.pipes: list[int] = record.get("pipes", [])
        """By their inodes, which lead to them when their launcher is dead."""
        self.sources: list[int] = []
        """Our ends of them, until they are recorded."""
        self.recorded: Recorded | None = None
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
        self.holder: Holder | None = None
        self.kills_before = count_kills(self.out_of_memory)
        self.answer: Answer | None = None
        self.settled: list[Callable[[], None]] = []
        """What waits until it is known whether the command runs."""
        self.problem: Problem | None = None
        self.doomed = False
        """It runs and must not: the problem is told when it is dead."""
        self.killed = False
        """Somebody wants it gone, be it before it has become the command."""
        self.channel: socket.socket | None = None
        self.launched = False
        self.ended: tuple[int, dict[str, Any]] | None = None
        self.exit: dict[str, Any] | None = None

    def members(self, others: list[int] | None = None) -> list[int]:
        """All processes of the command, as far as they can be told from the sandbox's others:
        `others` are those that may have detached themselves from any command."""
        if self.group is not None:
            return group_members(self.group)
        if self.keeper:
            return processes.descendants(self.keeper)
        alive = self.pid and self.ended is None and self.exit is None
        found = [self.pid, *processes.descendants(self.pid)] if alive else []
        for pid in others or ():
            if processes.has_variable(pid, MARK, self.run_id):
                found += [pid, *processes.descendants(pid)]
        return found

    def gives(self) -> tuple[dict[str, Any], list[int]]:
        """The answer to who takes it up, with the terminal or the input."""
        reply = {"pid": self.pid, "started_at": self.started_at}
        if self.terminal is not None:
            return {**reply, "terminal": True}, [self.terminal]
        return {**reply, "terminal": False}, [] if self.input is None else [self.input]

    def write_down(self) -> None:
        """All that a later launcher needs."""
        record: dict[str, Any] = {"run_id": self.run_id, "sandbox_id": self.sandbox_id}
        record |= {"folder": self.folder, "pid": self.pid, "keeper": self.keeper}
        record["group"] = self.group
        record["started"] = processes.start_time(self.pid)
        record["keeper_started"] = processes.start_time(self.keeper) if self.keeper else None
        record |= {"started_at": self.started_at, "timeout": self.timeout, "linger": self.linger}
        record["record"] = {"names": self.subject.names, "keep": self.subject.keep}
        record["record"]["pipes"] = self.pipes
        write_record(self.path(RUN_FILE), record)

    def path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def close_input(self) -> None:
        if self.input is not None:
            os.close(self.input)
            self.input = None

    def close(self) -> None:
        """What it holds; its recording may go on."""
        for timer in self.timers:
            timer.cancel()
        close_all(self.watchers)
        close_all(self.sources)
        self.close_input()
        if self.terminal is not None:
            os.close(self.terminal)
            self.terminal = None
        if self.channel is not None:
            self.channel.close()
            self.channel = None
