"""Launchers that are forked (`tests.nursery`): hundreds would else begin an interpreter each. And
no MCP process before its first session: each daemon would else load the SDK at its first turn, for
more than a second.

Tests of how launchers start have none of it.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from carrel import __version__
from carrel.interfaces.mcp import McpProcess
from carrel.launcher.client import START_S, Launcher

ROOT = Path(__file__).resolve().parent.parent
END_S = 20.0
"""It ends at once when it is told to; the rest is for a loaded machine."""
_PROGRAM = """
import sys
sys.path[:0] = sys.argv[1:3]
from tests.nursery import main
main(int(sys.argv[3]))
"""

_begun: list[tuple[str, subprocess.Popen[bytes]]] = []


def nursery() -> str:
    """The address of this session's, which the first who needs it begins."""
    if not _begun:
        # Nobody else's to enter: who is heard there decides what is started.
        address = os.path.join(tempfile.mkdtemp(prefix="carrel-nursery-"), "socket")
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(address)
            listener.listen()
            argv = [sys.executable, "-I", "-S", "-c", _PROGRAM, str(ROOT / "src"), str(ROOT)]
            process = subprocess.Popen(
                [*argv, str(listener.fileno())],
                stdin=subprocess.PIPE,
                pass_fds=(listener.fileno(),),
                cwd="/",
                env={"PATH": "/usr/bin:/bin"},
            )
        _begun.append((address, process))
    return _begun[0][0]


def end_nursery() -> None:
    while _begun:
        address, process = _begun.pop()
        with process:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                shutil.rmtree(os.path.dirname(address))


@contextlib.contextmanager
def forked_launchers() -> Iterator[None]:
    """Those that this process starts meanwhile are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Launcher, "_start", functools.partialmethod(_start, nursery()))
        patch.setattr(McpProcess, "expect", _expect_nothing)
        yield


def fork_launchers(address: str) -> None:
    """For the rest of this process's life: it was started by one that has a nursery."""
    Launcher._start = functools.partialmethod(_start, address)  # type: ignore[assignment]
    McpProcess.expect = _expect_nothing  # type: ignore[method-assign]


def _expect_nothing(self: McpProcess) -> None:
    """Its first session starts it."""


def _start(launcher: Launcher, address: str) -> None:
    folder = launcher._folder.resolve()
    done, ready = os.pipe2(os.O_CLOEXEC)
    try:
        message = json.dumps([str(folder), __version__]).encode()
        with (
            open(folder / "log", "ab") as log,
            socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection,
        ):
            connection.settimeout(START_S)
            connection.connect(address)
            socket.send_fds(connection, [message], [ready, log.fileno()])
    finally:
        os.close(ready)
    try:
        select.select([done], [], [], START_S)
    finally:
        os.close(done)
