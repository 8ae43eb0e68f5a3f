"""Editors, as they come in by SSH: the server of one, and `carrel open`."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.program import TIMEOUT_S, Program
from tests.ssh.conftest import Clients, free_port

MODULES = Path(__file__).resolve().parents[2] / "tools/editors/node_modules"
SERVER = MODULES / "code-server/out/node/entry.js"
LARGE = 64 << 20


@pytest.fixture
def clients(both_clients: Clients) -> Clients:
    return both_clients


@pytest.fixture
def server_space(carrel: Program, project: Path) -> Iterator[str]:
    """A space that sees the server of an editor."""
    if not SERVER.exists() or not (MODULES / ".setup").exists():
        pytest.skip("the server of an editor is not installed: make setup")
    name = carrel.good("new", str(project), "--show", os.path.realpath(MODULES)).strip()
    yield name
    carrel("rm", "--force", name)


BEGIN = """
cd /tmp
nohup {node} {server} --bind-addr 127.0.0.1:{port} --auth none \
    --disable-telemetry --disable-update-check --config /tmp/none.yaml \
    --user-data-dir /tmp/server --extensions-dir /tmp/extensions > /tmp/log 2>&1 &
until grep -q "HTTP server listening" /tmp/log; do sleep 0.1; done
echo there
exec cat
"""
"""What such an editor gives a shell on its standard input."""


def _upgrade(one: socket.socket) -> bytes:
    """The connection that the window of an editor has to its server."""
    asked = (
        "GET /?reconnectionToken=0b8f4c5e-0000-4000-8000-000000000001&reconnection=false"
        "&skipWebSocketFrames=false HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\n"
        "Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        "Sec-WebSocket-Version: 13\r\n\r\n"
    )
    one.sendall(asked.encode())
    answer = b""
    while b"\r\n\r\n" not in answer:
        more = one.recv(1000)
        assert more, answer
        answer += more
    return answer


def test_the_server_of_an_editor(clients: Clients, server_space: str, tmp_path: Path) -> None:
    """As VS Code does it: a shell starts the server, and a SOCKS proxy of ssh reaches it, or a
    socket of this machine that is forwarded."""
    node = shutil.which("node")
    assert node is not None
    port, proxy = 8123, free_port()
    clients.prepare()
    words = ["ssh", "-T", "-F", str(clients.config), "-D", f"127.0.0.1:{proxy}"]
    words += ["-L", f"./s:127.0.0.1:{port}", f"{server_space}.carrel", "sh"]
    with subprocess.Popen(
        words, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=-1
    ) as process:
        try:
            assert process.stdin is not None and process.stdout is not None
            script = BEGIN.format(node=node, server=os.path.realpath(SERVER), port=port)
            process.stdin.write(script.encode())
            process.stdin.flush()
            assert process.stdout.readline() == b"there\n"
            page = clients.good("curl", "-sLf", "--unix-socket", "./s", "http://x/")
            assert b"vscode" in page or b"code-server" in page
            with socket.create_connection(("127.0.0.1", proxy), TIMEOUT_S) as one:
                one.sendall(b"\x05\x01\x00")
                assert one.recv(2) == b"\x05\x00"
                one.sendall(b"\x05\x01\x00\x03\x09localhost" + port.to_bytes(2, "big"))
                assert one.recv(10)[:2] == b"\x05\x00"
                assert b" 101 " in _upgrade(one).partition(b"\r\n")[0]
        finally:
            process.kill()


SERVE = """
import http.server, os, sys
class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *words): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet)
print(server.server_address[1], flush=True)
if os.fork() == 0:
    server.serve_forever()
sys.stdin.read()
os.kill(0, 15)
"""


def test_a_large_download_beside_a_command_that_stays(
    clients: Clients, space: str, tmp_path: Path
) -> None:
    """As Gateway does it: a program is copied there, and serves its files through a forward for as
    long as the command on the same connection runs."""
    content = os.urandom(1 << 20) * (LARGE >> 20)
    (tmp_path / "backend").write_bytes(content)
    clients.good("scp", "-q", "-F", str(clients.config), "backend", f"{space}.carrel:/tmp/backend")
    options = ("-o", "ControlPath=c", "-o", "ControlMaster=yes")
    with clients.held(space, *options):
        words = ["ssh", "-F", str(clients.config), "-o", "ControlPath=c", f"{space}.carrel"]
        with subprocess.Popen(
            [*words, f"cd /tmp && exec python3 -Ic '{SERVE}'"],
            cwd=tmp_path,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as process:
            assert process.stdin is not None and process.stdout is not None
            port, local = int(process.stdout.readline()), free_port()
            forward = ("-O", "forward", "-L", f"127.0.0.1:{local}:127.0.0.1:{port}")
            clients.good(*words[:-1], *forward, words[-1])
            got = clients.good("curl", "-sf", f"http://127.0.0.1:{local}/backend")
            assert hashlib.sha256(got).digest() == hashlib.sha256(content).digest()
            assert process.poll() is None
            process.stdin.close()
            process.wait(TIMEOUT_S)


# carrel open


@pytest.fixture
def desktop(carrel: Program, tmp_path: Path) -> Path:
    """A home with the configuration of ssh, and a PATH with editors that say what they are
    given."""
    home = tmp_path / "home"
    home.mkdir()
    programs = tmp_path / "programs"
    programs.mkdir()
    carrel.env.update(HOME=str(home), PATH=f"{programs}:/usr/bin:/bin", VISUAL="", EDITOR="")
    return programs


def _editor(programs: Path, name: str) -> None:
    path = programs / name
    path.write_text('#!/bin/sh\necho "$0" "$@"\n')
    path.chmod(0o755)


def test_editors_are_opened_by_ssh(carrel: Program, space: str, desktop: Path) -> None:
    _editor(desktop, "code")
    said = carrel.bad(2, "open", space, "--editor", "code")
    assert "carrel ssh-config --install" in said
    carrel.good("ssh-config", "--install", "--yes")
    uri = f"vscode-remote://ssh-remote+{space}.carrel/workspace"
    assert carrel.good("open", space, "--editor", "code").strip() == (
        f"{desktop}/code --folder-uri {uri}"
    )
    assert carrel.good("open", space).strip().endswith(uri)
    shown = carrel.good("open", space, "--editor", "cursor", "--print")
    assert shown == f"cursor --folder-uri {uri}\n"
    shown = carrel.good("open", space, "--editor", "zed", "--print")
    assert shown == f"zed ssh://{space}.carrel/workspace\n"
    _editor(desktop, "cursor")
    assert "/cursor " in carrel("open", space, env={"VISUAL": "/usr/bin/cursor --wait"}).out
    shown = carrel.good("open", space, "--editor", "vim", "--print")
    own = carrel.json("show", space)["id"]
    assert shown == f"carrel ssh -t {own} -- vim .\n"


def test_an_editor_that_is_missing(carrel: Program, space: str, desktop: Path) -> None:
    carrel.good("ssh-config", "--install", "--yes")
    said = carrel.bad(None, "open", space, "--editor", "zed")
    assert "There is no program zed" in said and "Install Zed" in said
    assert "no space" in carrel.bad(None, "open", "nowhere", "--editor", "zed")
    carrel.good("stop", space)
    assert f"carrel start {space}" in carrel.bad(2, "open", space, "--editor", "zed")


def test_gateway_comes_in_by_the_listener(carrel: Program, space: str, desktop: Path) -> None:
    carrel.good("ssh-listen", "--stop")
    said = carrel.bad(2, "open", space, "--editor", "idea", "--print")
    assert "carrel ssh-listen" in said and "carrel ssh-key add" in said
    port = carrel.json("ssh-listen")["port"]
    shown = carrel.good("open", space, "--editor", "idea", "--print")
    own = carrel.json("show", space)["id"]
    assert f"port={port}" in shown and f"user={own}" in shown and "type=ssh" in shown


def test_a_space_without_ssh_is_a_folder(carrel: Program, desktop: Path) -> None:
    name = carrel.good("new", "--empty", "--runtime", "process").strip()
    try:
        _editor(desktop, "code")
        path = carrel.json("show", name)["path"]
        driver = carrel.json("show", name)["driver"]
        done = carrel("open", name, "--editor", "code")
        if driver == "overlay" and not os.path.ismount(path):
            assert done.code == 2 and "not seen on this machine" in done.err
        else:
            assert done.out.strip() == f"{desktop}/code {path}"
    finally:
        carrel("rm", "--force", name)


def test_another_ones_daemon(carrel: Program) -> None:
    done = carrel("open", "x", env={"CARREL_URL": "http://127.0.0.1:9"})
    assert done.code == 2 and "on another machine" in done.err
