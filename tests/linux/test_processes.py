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
