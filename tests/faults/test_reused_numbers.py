"""The kernel gives the number of a process that has ended to another one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

RUN_S = 60.0
LAST = Path("/proc/sys/kernel/ns_last_pid")
_PROGRAM = """
import os, sys
from carrel.launcher.loop import Loop

TRIES = 500

def turn(loop, seconds):
    loop.running = True
    loop.after(seconds, lambda: setattr(loop, "running", False))
    loop.run()

def again(loop, number, become):
    # Somebody else's process may get the number first.
    for _ in range(TRIES):
        with open("/proc/sys/kernel/ns_last_pid", "w") as file:
            file.write(str(number - 1))
        pid = loop.fork(become)
        if pid == number:
            return pid
        os.waitpid(pid, 0)
    sys.exit("the number did not come again")

loop = Loop()
loop.expect_children(1)
first = loop.fork(lambda: os._exit(3))
turn(loop, 0.3)
wait, go = os.pipe()

def become():
    if os.getpid() == first:
        os.close(go)
        os.read(wait, 1)
    os._exit(5)

second = again(loop, first, become)
told = []
loop.on_exit(second, lambda status, usage: told.append(os.waitstatus_to_exitcode(status)))
print("at once:", told)
os.close(go)
turn(loop, 0.3)
print("at its end:", told)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root chooses the numbers of processes")
def test_an_end_is_not_told_of_a_later_process_with_that_number() -> None:
    """Else a command would be said to have ended that has just begun, and with the exit code
    of another."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=RUN_S, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "at once: []\nat its end: [5]\n"
