"""The process that waits in a sandbox and becomes the command: once, whatever comes late."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from carrel.launcher import child
from carrel.launcher.loop import Loop
from carrel.launcher.messages import LauncherProblem
from carrel.launcher.pool import EXECUTE_S, LONGEST_S, Standby
from carrel.linux import processes

BASE: Any = {"tracking": None, "join": []}
PLAN: Any = {"warm": False, "argv": ["true"]}


class Inside:
    """The side of the child, played here; the process that is killed is real."""

    def __init__(self, program: str = "sleep 1000") -> None:
        self.process = subprocess.Popen(["sh", "-c", f"exec {program}"])

    def take(self, _orders: object, descriptors: list[int]) -> Any:
        status, channel = (os.dup(one) for one in descriptors)
        self.status, self.channel = status, socket.socket(fileno=channel)
        return self

    def forget(self) -> None:
        pass

    def rests(self) -> None:
        """Returns when it waits for something that never comes."""
        while processes.is_waiting_its_turn(self.process.pid):
            pass

    def say(self, message: dict[str, int]) -> None:
        os.write(self.status, json.dumps(message).encode() + b"\n")

    def executing(self) -> None:
        self.channel.send(child.EXECUTING)

    def executed(self) -> None:
        os.close(self.status)


class Stage:
    def __init__(self, inside: Inside) -> None:
        self.inside = inside
        self.loop = Loop()
        self.standby = Standby(self.loop, inside.take, BASE)
        inside.say({"pid": inside.process.pid})
        self.look()
        self.told: list[LauncherProblem | None] = []
        self.standby.order(PLAN, [], self.told.append, lambda _status, _usage: None)

    def look(self) -> None:
        for key, _events in self.loop._selector.select(0):
            key.data()

    def much_later(self) -> None:
        """The loop was kept from its work, and sees its timers first."""
        timers = list(self.loop._timers)
        self.loop._timers.clear()
        for timer in timers:
            if timer.action is not None:
                timer.action()

    def close(self) -> None:
        self.inside.process.kill()
        self.inside.process.wait()
        self.loop._selector.close()
        for one in (self.inside.channel, self.loop._wake, self.loop._wake_write):
            one.close()


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    # This process has handlers of its own.
    monkeypatch.setattr(signal, "set_wakeup_fd", lambda *_args, **_named: -1)
    monkeypatch.setattr(signal, "signal", lambda *_args: None)
    made = Stage(Inside())
    yield made
    made.close()


def test_who_has_executed_is_not_executed_again(stage: Stage) -> None:
    inside = stage.inside
    inside.executing()
    inside.executed()
    stage.much_later()
    assert stage.told == [None]
    assert inside.process.poll() is None


def test_who_says_that_it_executes_and_stops_is_killed_and_not_executed_again(stage: Stage) -> None:
    inside = stage.inside
    inside.executing()
    inside.rests()
    stage.much_later()
    assert inside.process.wait(30) == -signal.SIGKILL
    inside.executed()
    stage.look()
    assert stage.told == [None]


def test_who_is_not_given_a_processor_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for ever: it might be kept busy from inside."""
    monkeypatch.setattr(signal, "set_wakeup_fd", lambda *_args, **_named: -1)
    monkeypatch.setattr(signal, "signal", lambda *_args: None)
    made = Stage(Inside("python3 -Ic 'while True: pass'"))
    try:
        while not processes.is_waiting_its_turn(made.inside.process.pid):
            pass
        for _ in range(int(LONGEST_S / EXECUTE_S) - 1):
            made.much_later()
            assert made.inside.process.poll() is None
        made.much_later()
        assert made.inside.process.wait(30) == -signal.SIGKILL
        made.inside.executed()
        made.look()
    finally:
        made.close()


def test_who_never_says_so_makes_room_for_another(stage: Stage) -> None:
    inside = stage.inside
    inside.rests()
    stage.much_later()
    assert inside.process.wait(30) == -signal.SIGKILL
    inside.executed()
    stage.look()
    (problem,) = stage.told
    assert problem is not None and problem["step"] == "ending"


def test_the_number_of_one_that_has_ended_is_anybodys(stage: Stage) -> None:
    """Those in a sandbox may kill who waits there, and can have its number go to somebody else."""
    pid = stage.inside.process.pid
    assert stage.standby.is_process(pid)
    stage.loop._on_exit.pop(pid)(signal.SIGKILL, resource.getrusage(resource.RUSAGE_CHILDREN))
    assert not stage.standby.is_process(pid)
    stage.standby.discard()
    stage.much_later()
    assert stage.inside.process.poll() is None
