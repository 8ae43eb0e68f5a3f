"""The two small programs that become a server: with a port of the sandbox, or with a
connection as its standard streams."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

from carrel.instances import inside
from tests.instances.inside.serving import port_in

WAIT_S = 60.0
PYTHON = [sys.executable, "-I", "-S"]
SERVE = """
import os, socket, sys
assert os.environ["LISTEN_FDS"] == "1" and os.environ["LISTEN_PID"] == str(os.getpid())
assert sys.argv[1] == "--fd=3", sys.argv
with socket.socket(fileno=3) as listener:
    client, _ = listener.accept()
    client.sendall(b"here")
"""
CAT = "import sys; print('up', file=sys.stderr); sys.stdout.write(sys.stdin.read().upper())"


def run(words: list[str], *fds: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PYTHON, *words],
        pass_fds=fds,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )


def test_a_server_gets_a_port_of_its_sandbox(tmp_path: Path) -> None:
    port_file = tmp_path / "port"
    serve = [*PYTHON, "-c", SERVE, "--fd={fd}"]
    with subprocess.Popen([*PYTHON, str(inside.LISTEN), str(port_file), "--", *serve]) as process:
        address = ("127.0.0.1", port_in(port_file, process))
        with socket.create_connection(address, WAIT_S) as client:
            assert client.recv(10) == b"here"
        assert process.wait(WAIT_S) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["port"]


def test_a_command_that_is_not_there(tmp_path: Path) -> None:
    for words in (
        [str(inside.LISTEN), str(tmp_path / "port"), "--", "/nowhere/server"],
        [str(inside.LISTEN), str(tmp_path / "none" / "port"), "--", "true"],
        [str(inside.LISTEN), "true"],
        [str(inside.STDIO), "--fd", "99", "--", "true"],
        [str(inside.STDIO), "true"],
    ):
        ran = run(words)
        assert (ran.returncode, ran.stdout) == (1, "")
        assert ran.stderr.startswith("carrel: ") and ran.stderr.count("\n") == 1


def test_one_connection_is_the_servers_streams(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        words = [str(inside.STDIO), "--fd", str(listener.fileno()), "--", *PYTHON, "-c", CAT]
        process = subprocess.Popen(
            [*PYTHON, *words],
            pass_fds=(listener.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    with process, socket.socket(socket.AF_UNIX) as client, socket.socket(socket.AF_UNIX) as other:
        client.settimeout(WAIT_S)
        client.connect(str(tmp_path / "s"))
        client.sendall(b"hello")
        assert process.stderr is not None and process.stderr.readline() == b"up\n"
        assert other.connect_ex(str(tmp_path / "s")) != 0
        client.shutdown(socket.SHUT_WR)
        assert client.recv(10) == b"HELLO"
        assert client.recv(10) == b""
        assert process.communicate(timeout=WAIT_S) == (b"", b"")
        assert process.returncode == 0


def test_nobody_comes(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        number = listener.fileno()
        ran = run([str(inside.STDIO), "--fd", str(number), "--wait", "0.1", "--", "true"], number)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert "nobody came in 0.1 s" in ran.stderr


_WITHOUT_FILES = """
import sys
sys.path.insert(0, sys.argv[1])
from carrel.launcher import calls
# What startup has loaded differs by version.
for name in ("warnings", "contextlib"):
    sys.modules.pop(name, None)
function = calls.find({"file": sys.argv[2], "function": "run"})
# From here on it is in a sandbox, where the interpreter's files may be missing.
sys.path.clear()
function(sys.argv[3:])
"""


def test_becoming_a_server_imports_nothing(tmp_path: Path) -> None:
    package = str(Path(inside.__file__).parents[3])
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as client:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        client.connect(str(tmp_path / "s"))
        for words in (
            [str(inside.LISTEN), str(tmp_path / "port"), "--", "true"],
            [str(inside.STDIO), "--fd", str(listener.fileno()), "--", "true"],
        ):
            ran = run(["-c", _WITHOUT_FILES, package, *words], listener.fileno())
            assert (ran.returncode, ran.stderr) == (0, "")
