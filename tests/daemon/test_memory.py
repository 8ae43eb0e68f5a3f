"""How much memory a daemon has when all is quiet again."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from carrel import Client
from carrel.daemon.main import SLIM_S
from tests.daemon.rig import Daemon, fresh_daemon

MUCH = 16 << 20
CONNECTIONS = 300
SMALL_BYTES = 150 << 20
QUIET_S = 3 * SLIM_S
"""For it to give back what it had; mostly at once."""


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    with fresh_daemon(listen=None) as found:
        yield found


def _resident(pid: int, field: str = "VmRSS") -> int:
    fields = Path(f"/proc/{pid}/status").read_text().split(f"{field}:")[1].split()
    return int(fields[0]) * 1024


def _asking(space: str, **body: object) -> bytes:
    content = json.dumps(body).encode()
    head = f"POST /v1/spaces/{space}/exec HTTP/1.1\r\nHost: carrel\r\nContent-Type: "
    return f"{head}application/json\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content


def test_large_outputs_that_nobody_reads_yet_are_not_kept_in_memory(daemon: Daemon) -> None:
    """Sixfold, as JSON has them."""
    with Client(data=daemon.data) as client, client.space() as space, ExitStack() as stack:
        argv = ["head", "-c", str(MUCH), "/dev/zero"]
        request = _asking(space.id, argv=argv, max_output_bytes=MUCH)
        asked = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(4)]
        for connection in asked:
            connection.connect(daemon.socket)
            connection.sendall(request)
        for connection in asked:
            assert connection.recv(15) == b"HTTP/1.1 200 OK"
        assert _resident(daemon.pid, "VmHWM") < SMALL_BYTES


def test_large_outputs_and_many_connections_leave_a_small_daemon(daemon: Daemon) -> None:
    with Client(data=daemon.data) as client, client.space() as space:
        argv = ["head", "-c", str(MUCH), "/dev/zero"]
        request = _asking(space.id, argv=argv, max_output_bytes=MUCH, base64=True)

        def ask() -> int:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(daemon.socket)
                connection.sendall(request)
                size = 0
                while size <= MUCH:
                    size += len(connection.recv(1 << 20))
                return size

        with ThreadPoolExecutor(8) as pool:
            assert min(pool.map(lambda _: ask(), range(8))) > MUCH
        opened = [socket.socket(socket.AF_UNIX) for _ in range(CONNECTIONS)]
        for connection in opened:
            connection.connect(daemon.socket)
            connection.sendall(b"GET /v1/spaces HTTP/1.1\r\nHost: carrel\r\n\r\n")
        for connection in opened:
            assert connection.recv(4).startswith(b"HTTP")
            connection.close()
    until = time.monotonic() + QUIET_S
    while _resident(daemon.pid) >= SMALL_BYTES:
        assert time.monotonic() < until, _resident(daemon.pid)
        time.sleep(0.1)
