"""Runs a command with a temporary folder of its own, and buries at once whatever was left alone
below it.

    python -m tests.reaping pytest …

Tests kill launchers and daemons whose children go on. A sandbox is gone only when somebody has
waited for the last of its processes, and the first process of some machines does so once in a
second or two.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from carrel.linux import namespaces
from tests.folders import remove_folder, spread


def run(argv: Sequence[str]) -> int:
    """Its exit status, as a shell has it."""
    shared = tempfile.gettempdir()
    own = Path(tempfile.mkdtemp(prefix="ct-"))
    # As the one that all share; and what pytest keeps for a look stays there.
    own.chmod(0o1777)
    spread(own)
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", shared)
    os.environ["TMPDIR"] = str(own)
    try:
        return _run(argv)
    finally:
        remove_folder(own)


def _run(argv: Sequence[str]) -> int:
    namespaces.become_subreaper()
    keys, others = (signal.SIGINT, signal.SIGQUIT), (signal.SIGTERM, signal.SIGHUP)
    # What a shell or nohup starts in the background ignores some, and tests are about them.
    child = os.posix_spawnp(argv[0], [*argv], os.environ, setsigdef=[*keys, *others])
    # From a terminal they come to the command as well.
    for number in keys:
        signal.signal(number, signal.SIG_IGN)

    def pass_on(number: int, _frame: FrameType | None) -> None:
        os.kill(child, number)

    for number in others:
        signal.signal(number, pass_on)
    while True:
        pid, status = os.wait()
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
