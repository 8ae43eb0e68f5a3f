"""Ports of spaces on this machine, and what is at work in spaces, as people ask for them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from carrel import Client
from tests.accounts import PYTHON, ordinary_account, run_as
from tests.cli.program import Program
from tests.daemon.rig import Daemon

WAIT_S = 30.0
SERVER = """
import http.server, os, socket, sys
host, port, word = sys.argv[1], int(sys.argv[2]), sys.argv[3].encode()

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", str(len(word)))
        self.end_headers()
        self.wfile.write(word)

    def log_message(self, *arguments):
        pass

class Server(http.server.ThreadingHTTPServer):
    address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

server = Server((host, port), Handler)
print(server.server_port, flush=True)
if os.fork() == 0:
    os.setsid()
    for number in range(3):
        os.dup2(os.open(os.devnull, os.O_RDWR), number)
    server.serve_forever()
"""
CONNECT = "import socket, sys; s = socket.create_connection(('127.0.0.1', int(sys.argv[1])), 5); \
s.sendall(b'GET / HTTP/1.0\\r\\n\\r\\n'); print(s.recv(15))"


def _serve(carrel: Program, space: str, word: str, port: int = 3000, host: str = "0.0.0.0") -> int:
    """The port on which a server listens in the space when this returns."""
    argv = ("python3", "-I", "-c", SERVER, host, str(port), word)
    return int(carrel.good("exec", space, "--", *argv))


def _forward(carrel: Program, space: str, port: str = "3000") -> int:
    """The port here."""
    return int(carrel.good("port", space, port).strip().rpartition(":")[2])


def _get(port: int, host: str = "127.0.0.1") -> str:
    with urllib.request.urlopen(f"http://{host}:{port}/", timeout=WAIT_S) as answer:
        return str(answer.read().decode())


def _events(carrel: Program, *types: str) -> list[dict[str, Any]]:
    lines = carrel.good("events", "--json").splitlines()
    return [one for one in map(json.loads, lines) if one["type"] in types]


@pytest.fixture
def other(carrel: Program, project: Path) -> Iterator[str]:
    name = carrel.good("new", str(project)).strip()
    yield name
    carrel("rm", "--force", name)


def test_two_spaces_have_the_same_port_here_at_once(
    carrel: Program, space: str, other: str
) -> None:
    _serve(carrel, space, "first")
    _serve(carrel, other, "second", host="127.0.0.1")
    first, second = _forward(carrel, space), _forward(carrel, other)
    assert [_get(first), _get(second)] == ["first", "second"]
    assert [_get(first, host) for host in ("[::1]", "localhost")] == ["first", "first"]
    assert _forward(carrel, space) == first
    assert f"127.0.0.1:{first}" in carrel.good("port", space)

    assert carrel.good("port", space, "3000", "--stop") == ""
    with pytest.raises(OSError, match="refused"):
        _get(first)
    assert _get(second) == "second"
    assert "not forwarded" in carrel.bad(3, "port", space, "3000", "--stop")


def test_what_listens_by_ipv6_alone_is_reached(carrel: Program, space: str) -> None:
    _serve(carrel, space, "six", host="::1")
    assert _get(_forward(carrel, space)) == "six"


def test_a_port_is_here_before_something_listens(carrel: Program, space: str) -> None:
    done = carrel("port", space, "3000")
    assert done.code == 0 and "Nothing listens on 3000" in done.err
    local = int(done.out.strip().rpartition(":")[2])
    with pytest.raises(ConnectionError):
        _get(local)
    assert "Nothing listens on port 3000" in carrel.good("ps", space)
    _serve(carrel, space, "word")
    assert _get(local) == "word"
    assert "Nothing listens" not in carrel.good("ps", space)


def test_it_is_told_what_is_at_work(carrel: Program, space: str) -> None:
    assert f"{space} " in carrel.good("ps")
    _serve(carrel, space, "word")
    local = _forward(carrel, space)
    text = carrel.good("ps", space)
    assert "listens   3000  python3" in text and f"3000 is 127.0.0.1:{local}" in text
    found = carrel.json("ps", space)
    assert [one["port"] for one in found["listening"]] == [3000]
    assert [(one["port"], one["local"]) for one in found["forwards"]] == [(3000, local)]
    assert found["usage"]["pids"] is None or found["usage"]["pids"] > 0
    assert f"3000->{local}" in carrel.good("ps")
    assert any(one["space"]["name"] == space for one in carrel.json("ps")["spaces"])


@pytest.mark.parametrize("word", ["0", "65536", "http", "3000:x", "3000:-1", ":80", "\uff13000"])
def test_what_is_no_port(carrel: Program, space: str, word: str) -> None:
    assert "no port" in carrel.bad(2, "port", space, word)


def test_a_port_here_that_is_taken(carrel: Program, space: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        assert "is taken" in carrel.bad(4, "port", space, f"3000:{number}")
    assert _forward(carrel, space, f"3000:{number}") == number
    assert "forwarded already" in carrel.bad(4, "port", space, "3000:1")


def test_it_ends_with_its_space(carrel: Program, daemon: Daemon, space: str) -> None:
    _serve(carrel, space, "word")
    local = _forward(carrel, space)
    with socket.create_connection(("127.0.0.1", local)) as connection:
        connection.settimeout(WAIT_S)
        connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert connection.recv(15) == b"HTTP/1.1 200 OK"
        carrel.good("stop", space)
        with pytest.raises(ConnectionResetError):
            while connection.recv(1000):
                pass
    with pytest.raises(OSError, match="refused"):
        _get(local)
    assert "Start it" in carrel.bad(4, "port", space, "3000")
    carrel.good("start", space)
    assert carrel.json("port", space)["forwards"] == []


def test_processes_of_spaces_do_not_get_in(carrel: Program, space: str, project: Path) -> None:
    """What runs without walls, or with the machine's network, is not the owner."""
    _serve(carrel, space, "word")
    local = _forward(carrel, space)
    own = subprocess.run(["python3", "-c", CONNECT, str(local)], capture_output=True, text=True)
    assert "200" in own.stdout, own
    for options in (("--runtime", "process"), ("--network", "open")):
        name = carrel.good("new", str(project), *options).strip()
        try:
            done = carrel("exec", name, "--", "python3", "-I", "-c", CONNECT, str(local))
            assert done.code != 0 and "ConnectionResetError" in done.err, done
        finally:
            carrel("rm", "--force", name)
    # The port is nothing in a space without network.
    done = carrel("exec", space, "--", "python3", "-I", "-c", CONNECT, str(local))
    assert "ConnectionRefusedError" in done.err, done


@pytest.mark.skipif(os.geteuid() != 0, reason="takes another account")
def test_other_accounts_do_not_get_in(carrel: Program, space: str) -> None:
    _serve(carrel, space, "word")
    local = _forward(carrel, space)
    ran = run_as(ordinary_account(), [PYTHON, "-c", CONNECT, str(local)])
    assert "ConnectionResetError" in ran.stderr, ran
    assert _get(local) == "word"


def test_the_next_daemon_takes_it_up(own_daemon: Daemon, tmp_path: Path, project: Path) -> None:
    carrel = Program(own_daemon.data, tmp_path)
    space = carrel.good("new", str(project)).strip()
    _serve(carrel, space, "word")
    kept, lost = _forward(carrel, space), _forward(carrel, space, "3001")
    own_daemon.kill()
    with socket.create_server(("127.0.0.1", lost)):
        own_daemon.start()
        assert _get(kept) == "word"
        assert [one["port"] for one in carrel.json("port", space)["forwards"]] == [3000]
    ended = _events(carrel, "forward.ended")
    assert [one["data"]["local"] for one in ended] == [lost]
    assert "is taken" in ended[0]["data"]["problem"]["message"]
    own_daemon.kill()
    own_daemon.start()
    assert _get(kept) == "word"
    carrel.good("rm", "--force", space)
    with pytest.raises(OSError, match="refused"):
        _get(kept)


def test_what_begins_and_ends_to_listen_is_told_while_somebody_looks(
    own_daemon: Daemon, tmp_path: Path, project: Path
) -> None:
    carrel = Program(own_daemon.data, tmp_path)
    with Client(data=own_daemon.data) as client:
        space = client.create(str(project))
        _serve(carrel, space.name, "unseen")
        assert [one.port for one in space.ports().listening] == [3000]
        assert _events(carrel, "port.listens") == []
        made = space.forward(3001)
        begun = _events(carrel, "forward.begun")[0]["seq"]
        types = ["port.listens", "port.closed"]
        events = client.events(after=begun, spaces=[space.id], types=types)
        _serve(carrel, space.name, "word", 3001)
        # What listened before is not told as new.
        assert next(events).data["port"] == 3001
        assert _get(made.local) == "word"
        assert space.ps().forwards[0].port == 3001
        carrel.good("exec", space.name, "--", "pkill", "-f", "3001 word")
        found = next(events)
        assert (found.type, found.data["port"]) == ("port.closed", 3001)
        events.close()
        assert space.stop_forward(3001).local == made.local
        assert client.ps()[0].forwards == ()
        space.remove(force=True)
