"""Bytes between standard streams and a socket, in a process of their own."""

from __future__ import annotations

import hashlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from carrel.cli import bridge as bridges

TIMEOUT_S = 60.0
SCRIPT = """
import _socket, os, signal, sys
from carrel.cli import bridge as bridges
from carrel.cli.terminal import Signals
bridges.QUIET_S = float(sys.argv[2])
sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
sock.connect(sys.argv[1])
with Signals([signal.SIGTERM]) as signals:
    bridge = bridges.StdioBridge(sock, signals.descriptor)
    ended = bridge.run()
os.write(2, ended.encode())
"""
LARGE = 8 << 20


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as found:
        found.bind(str(tmp_path / "socket"))
        found.listen()
        found.settimeout(TIMEOUT_S)
        yield found


@contextmanager
def bridged(
    listener: socket.socket, quiet_s: float = TIMEOUT_S
) -> Iterator[tuple[subprocess.Popen[bytes], socket.socket]]:
    command = [sys.executable, "-c", SCRIPT, listener.getsockname(), str(quiet_s)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            server, _ = listener.accept()
            with server:
                server.settimeout(TIMEOUT_S)
                yield process, server
        finally:
            process.kill()


def ended(process: subprocess.Popen[bytes]) -> str:
    process.wait(TIMEOUT_S)
    assert process.stderr is not None
    return process.stderr.read().decode()


def read_all(server: socket.socket) -> bytes:
    pieces = []
    while piece := server.recv(65536):
        pieces.append(piece)
    return b"".join(pieces)


def test_both_ways_and_half_closed(listener: socket.socket) -> None:
    """What the server says after our input has ended still comes."""
    with bridged(listener) as (process, server):
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(b"question\n")
        process.stdin.flush()
        assert server.recv(100) == b"question\n"
        server.sendall(b"answer\n")
        assert process.stdout.readline() == b"answer\n"
        process.stdin.close()
        assert server.recv(100) == b""
        server.sendall(b"the last\n")
        server.close()
        assert process.stdout.read() == b"the last\n"
        assert ended(process) == bridges.SERVER


def test_much_at_once_both_ways(listener: socket.socket) -> None:
    """Both are full at the same time: whoever waited for one to write would hang."""
    question, answer = os.urandom(LARGE), os.urandom(LARGE)
    with bridged(listener) as (process, server):
        assert process.stdin is not None and process.stdout is not None
        source, got = process.stdin, []
        heard = threading.Event()

        def write() -> None:
            source.write(question)
            source.close()

        def read() -> None:
            got.append(read_all(server))
            heard.set()

        def say() -> None:
            server.sendall(answer)
            # A server that says no more has ended, and hears no more either.
            assert heard.wait(TIMEOUT_S)
            server.shutdown(socket.SHUT_WR)

        threads = [threading.Thread(target=work) for work in (write, read, say)]
        for thread in threads:
            thread.start()
        told = process.stdout.read()
        for thread in threads:
            thread.join(TIMEOUT_S)
        assert ended(process) == bridges.SERVER
    digests = [hashlib.sha256(data).digest() for data in (told, answer, got[0], question)]
    assert digests[0] == digests[1] and digests[2] == digests[3]


def test_nobody_reads(listener: socket.socket) -> None:
    with bridged(listener) as (process, _server):
        assert process.stdout is not None
        process.stdout.close()
        assert ended(process) == bridges.READER


def test_a_signal(listener: socket.socket) -> None:
    with bridged(listener) as (process, server):
        assert process.stdin is not None
        # It has its handler when it has passed something on.
        process.stdin.write(b"x")
        process.stdin.flush()
        assert server.recv(1) == b"x"
        process.terminate()
        assert ended(process) == bridges.SIGNAL


def test_a_server_that_does_not_end(listener: socket.socket) -> None:
    with bridged(listener, quiet_s=0.05) as (process, server):
        assert process.stdin is not None
        process.stdin.close()
        assert read_all(server) == b""
        assert ended(process) == bridges.QUIET


def test_a_server_that_went_away(listener: socket.socket) -> None:
    """While we have something to say, and much of it."""
    with bridged(listener) as (process, server):
        assert process.stdin is not None
        server.close()
        assert ended(process) == bridges.SERVER
