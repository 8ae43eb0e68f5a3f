"""Finding and ending processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

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


def test_children_of_any_thread_are_found() -> None:
    """What a second thread forked was seen by nobody, neither to be stopped nor to be counted."""
    code = """
import os, sys, threading
def fork():
    if os.fork() == 0:
        threading.Event().wait(60)
threading.Thread(target=lambda: (fork(), print("ready", flush=True), threading.Event().wait(60)),
                 daemon=True).start()
sys.stdin.read()
"""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe) as top:
        assert top.stdout is not None and top.stdout.readline() == b"ready\n"
        found = processes.descendants(top.pid)
        processes.kill_all([top.pid, *found])
    assert len(found) == 1


def test_children_are_found_without_the_kernels_list() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        assert child.pid in processes._children_by_scan(os.getpid())
        child.kill()


def test_a_process_between_two_programs_keeps_its_variables() -> None:
    """It has neither program's environment for a moment."""
    again = 'exec sh -c "$0" "$0"'
    with subprocess.Popen(["sh", "-c", again, again], env={"MARK": "x"}) as restless:
        try:
            seen = [_is_marked(restless.pid) for _ in range(3000)]
        finally:
            restless.kill()
    assert all(seen)
    assert not _is_marked(restless.pid)


def test_no_environment_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "EXECUTING_WAITS", 10_000_000)
    assert not _is_marked(2), "a process of the kernel"
    with subprocess.Popen(["sleep", "60"], env={}) as bare:
        assert not _is_marked(bare.pid)
        bare.kill()
        os.waitid(os.P_PID, bare.pid, os.WEXITED | os.WNOWAIT)
        assert not _is_marked(bare.pid), "a zombie"


_HIDES_ITS_ENVIRONMENT = """
import ctypes, mmap, sys
fields = open("/proc/self/stat").read().rpartition(")")[2].split()
first = int(fields[47]) & -mmap.PAGESIZE
size = (int(fields[48]) - first + mmap.PAGESIZE - 1) & -mmap.PAGESIZE
assert ctypes.CDLL(None).munmap(ctypes.c_void_p(first), ctypes.c_size_t(size)) == 0
print("hidden", flush=True)
sys.stdin.read()
"""


def test_nobody_waits_for_an_environment_that_was_taken_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The launcher would, for each such process of a sandbox, while all others wait for it."""
    monkeypatch.setattr(processes, "EXECUTING_WAITS", 10_000_000)
    argv = [sys.executable, "-c", _HIDES_ITS_ENVIRONMENT]
    pipe = subprocess.PIPE
    for _ in range(50):
        # Where the kernel has put the stack into the same page, the process ends with it.
        with subprocess.Popen(argv, env={"MARK": "x"}, stdin=pipe, stdout=pipe) as hiding:
            assert hiding.stdout is not None
            if hiding.stdout.readline() == b"hidden\n":
                assert not _is_marked(hiding.pid)
                return
    pytest.skip("no process can be without its environment here")


def test_threads_that_share_their_descriptors_are_looked_at_once() -> None:
    code = """
import ctypes, sys, threading
CLONE_FILES = 0x400
ready, end = threading.Barrier(6), threading.Event()
def own():
    assert ctypes.CDLL(None).unshare(CLONE_FILES) == 0
    ready.wait()
    end.wait()
for target in (own, lambda: (ready.wait(), end.wait())):
    for _ in range(1 if target is own else 4):
        threading.Thread(target=target, daemon=True).start()
ready.wait()
print("ready", flush=True)
sys.stdin.read()
"""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline() == b"ready\n"
        found = processes.owners_of_descriptors(process.pid)
        assert len(os.listdir(f"/proc/{process.pid}/task")) == 6
        process.stdin.close()
    assert found[0] == process.pid and 2 <= len(found) <= 3
    assert processes.owners_of_descriptors(process.pid) == []


def _is_marked(pid: int) -> bool:
    return processes.having_variable([pid], "MARK", "x") == [pid]
