"""Finding and ending processes."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from carrel.linux import processes


@pytest.mark.parametrize("number", [0, 1, -1, -5])
def test_no_signal_goes_to_all_or_to_init(number: int) -> None:
    """Signal 0 would do nothing, but must not be sent either."""
    assert not processes.send_signal(number, 0)
    assert not processes.send_group_signal(number, 0)


def test_a_process_is_known_by_its_start() -> None:
    started = processes.start_time(os.getpid())
    assert started is not None and processes.is_alive(os.getpid(), started)
    assert not processes.is_alive(os.getpid(), started + 1)
    assert processes.start_time(2**22 + 1) is None


def test_a_tree_is_found_and_ended() -> None:
    script = "sleep 60 & sh -c 'sleep 61 & wait' & echo ready; wait"
    with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE) as top:
        assert top.stdout is not None and top.stdout.readline() == b"ready\n"
        while len(below := processes.descendants(top.pid)) < 3:
            pass
        assert set(processes.children(top.pid)) <= set(below)
        processes.kill_all([top.pid, *below])
        assert top.wait(10) == -signal.SIGKILL
    assert processes.start_time(top.pid) is None
    assert not processes.send_signal(top.pid, 0)


def test_children_are_found_without_the_kernels_list() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        assert child.pid in processes._children_by_scan(os.getpid())
        child.kill()


def test_a_process_between_two_programs_keeps_its_variables() -> None:
    """It has neither program's environment for a moment."""
    again = 'exec sh -c "$0" "$0"'
    with subprocess.Popen(["sh", "-c", again, again], env={"MARK": "x"}) as restless:
        try:
            seen = [processes.has_variable(restless.pid, "MARK", "x") for _ in range(3000)]
        finally:
            restless.kill()
    assert all(seen)
    assert not processes.has_variable(restless.pid, "MARK", "x")


def test_no_environment_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "EXECUTING_S", 3600.0)
    assert not processes.has_variable(2, "MARK", "x"), "a process of the kernel"
    with subprocess.Popen(["sleep", "60"], env={}) as bare:
        assert not processes.has_variable(bare.pid, "MARK", "x")
        bare.kill()
        os.waitid(os.P_PID, bare.pid, os.WEXITED | os.WNOWAIT)
        assert not processes.has_variable(bare.pid, "MARK", "x"), "a zombie"
