"""Ports of real processes, and ports that are kept for them."""

from __future__ import annotations

import socket
import subprocess
import sys
from contextlib import closing

import pytest

from carrel.instances.processes import endpoints
from carrel.instances.sockets import Reserved
from carrel.linux.tcp import Endpoint

LISTENS = """\
import os, socket, sys
for host in sys.argv[1:]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    one = socket.socket(family)
    one.bind((host, 0))
    one.listen()
    globals()[host] = one
    print(one.getsockname()[1], flush=True)
other = socket.socket()
other.bind(("127.0.0.1", 0))
print(flush=True)
sys.stdin.read()
"""


@pytest.fixture(params=[("127.0.0.1",), ("127.0.0.1", "0.0.0.0", "::1")], ids=len)
def listening(request: pytest.FixtureRequest) -> tuple[int, set[Endpoint]]:
    hosts: tuple[str, ...] = request.param
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", LISTENS, *hosts],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None and process.stdout is not None

    def end() -> None:
        process.communicate(timeout=60)

    request.addfinalizer(end)
    ports = [int(process.stdout.readline()) for _ in hosts]
    assert process.stdout.readline() == b"\n"
    return process.pid, {Endpoint(host, port) for host, port in zip(hosts, ports, strict=True)}


def test_what_a_process_listens_on(listening: tuple[int, set[Endpoint]]) -> None:
    """All of that, and nothing that it has only bound."""
    pid, wanted = listening
    assert endpoints([pid]) == wanted
    assert {one.host for one in wanted if one.is_open} <= {"0.0.0.0"}


def test_processes_that_have_none_or_are_gone() -> None:
    ended = subprocess.Popen([sys.executable, "-c", "pass"])
    ended.wait(60)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as idle:
        assert endpoints([ended.pid, idle.pid]) == frozenset()


def test_a_port_that_is_kept() -> None:
    with closing(Reserved()) as one, closing(Reserved()) as other:
        assert one.port != other.port
        with socket.socket() as stranger, pytest.raises(OSError):
            stranger.bind(("127.0.0.1", one.port))
        with socket.socket() as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(("127.0.0.1", one.port))
            server.listen()
            one.close()
            with socket.create_connection(("127.0.0.1", one.port), 10):
                pass


def test_the_same_port_again_or_another() -> None:
    with closing(Reserved()) as one, closing(Reserved.again(one.port)) as same:
        assert same.port == one.port
    with (
        socket.create_server(("127.0.0.1", 0)) as stranger,
        closing(Reserved.again(stranger.getsockname()[1])) as other,
    ):
        assert other.port not in (0, stranger.getsockname()[1])
