"""Whose connections on the loopback are the owner's."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from carrel.instances.owners import OwnersConnections

WAIT_S = 30.0
ORPHAN = """
import os, socket, sys
parent = os.getpid()
if os.fork() == 0:
    while os.getppid() == parent:
        pass
    connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    os.write(1, b".")
    os.read(0, 1)
"""
SENDER = """
import os, socket, sys
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
with socket.socket(fileno=int(sys.argv[2])) as channel:
    socket.send_fds(channel, [b"."], [connection.fileno()])
    connection.close()
    os.read(0, 1)
"""


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        made.settimeout(WAIT_S)
        yield made


def _admits(data: Path, listener: socket.socket) -> bool:
    async def ask() -> bool:
        return await asyncio.wait_for(owners(came), WAIT_S)

    came, _ = listener.accept()
    with came, contextlib.closing(OwnersConnections(data)) as owners:
        return asyncio.run(ask())


def test_a_process_of_its_own_is_admitted(tmp_path: Path, listener: socket.socket) -> None:
    """Such as a browser: nobody has started it whom we know."""
    port = str(listener.getsockname()[1])
    argv = [sys.executable, "-I", "-c", ORPHAN, port]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.read(1) == b"."
        assert _admits(tmp_path, listener)


def test_a_connection_that_was_sent_to_us_is_not(tmp_path: Path, listener: socket.socket) -> None:
    """Code in a space can send one over the socket of the agent's shell. While it has the other
    copy on its way to itself, nobody but the daemon has it open."""
    ours, theirs = socket.socketpair()
    port = str(listener.getsockname()[1])
    argv = [sys.executable, "-I", "-c", SENDER, port, str(theirs.fileno())]
    with (
        ours,
        theirs,
        subprocess.Popen(argv, stdin=subprocess.PIPE, pass_fds=[theirs.fileno()]),
    ):
        ours.settimeout(WAIT_S)
        _, received, _, _ = socket.recv_fds(ours, 1, 1)
        try:
            assert not _admits(tmp_path, listener)
        finally:
            os.close(received[0])


def test_nor_is_what_we_have_started(tmp_path: Path, listener: socket.socket) -> None:
    """It has what we have open, until it begins."""
    port = str(listener.getsockname()[1])
    script = (
        "import os, socket, sys\n"
        "connection = socket.create_connection(('127.0.0.1', int(sys.argv[1])))\n"
        "os.read(0, 1)\n"
    )
    argv = [sys.executable, "-I", "-c", script, port]
    with subprocess.Popen(argv, stdin=subprocess.PIPE):
        assert not _admits(tmp_path, listener)
