"""Starts the interactive programs of agents in a terminal, as tmux would."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from carrel.domain.agents import Prepared
from carrel.domain.turns import AgentSetup
from tests.agents.programs import environment, write_files

WAIT_SECONDS = 60.0
"""For an interactive agent to be up, on two busy cores."""

POLL_SECONDS = 0.05


@dataclass
class Terminal:
    """What is written on it is read all the time, else the program would stand still."""

    process: subprocess.Popen[bytes]
    screen: int
    shown: bytes = b""

    def until(self, reached: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while not reached():
            assert time.monotonic() < deadline, self.shown[-4000:]
            ready, _, _ = select.select([self.screen], [], [], POLL_SECONDS)
            if ready:
                self._read()

    def _read(self) -> None:
        try:
            self.shown += os.read(self.screen, 65536)
        except OSError:
            raise AssertionError(f"the program ended: {self.shown[-4000:]!r}") from None


@contextlib.contextmanager
def terminal(prepared: Prepared, setup: AgentSetup) -> Iterator[Terminal]:
    write_files(prepared, setup)
    screen, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    try:
        process = subprocess.Popen(
            prepared.argv,
            cwd=setup.workspace,
            env={**environment(prepared, setup), "TERM": "xterm-256color"},
            stdin=side,
            stdout=side,
            stderr=side,
            start_new_session=True,
        )
    finally:
        os.close(side)
    try:
        yield Terminal(process, screen)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        os.close(screen)
