"""What people do with `ssh SPACE.carrel`, by the programs that they do it with."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.program import TIMEOUT_S, Program, Terminal, in_terminal
from tests.ssh.conftest import Clients, free_port

ECHO = """
import socket, sys, os
if sys.argv[1].startswith("/"):
    server = socket.socket(socket.AF_UNIX)
    server.bind(sys.argv[1])
else:
    server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
server.listen()
print("up", flush=True)
if os.fork() == 0:
    os.setsid()
    for number in range(3):
        os.dup2(os.open(os.devnull, os.O_RDWR), number)
    while True:
        one, _ = server.accept()
        one.sendall(b"hello from the space")
        one.close()
"""
COPY = 3 << 20


@pytest.fixture
def clients(both_clients: Clients) -> Clients:
    """By ProxyCommand, and by the listener."""
    return both_clients


def _serve(carrel: Program, space: str, place: str) -> None:
    """Something in the space says hello there."""
    assert carrel.good("exec", space, "--", "python3", "-Ic", ECHO, place) == "up\n"


def _said(address: tuple[str, int] | str) -> bytes:
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    with socket.socket(family) as one:
        one.settimeout(TIMEOUT_S)
        one.connect(address)
        return one.recv(100)


def test_commands(clients: Clients, space: str) -> None:
    done = clients.ssh(space, "pwd; id -un; echo $CARREL_SPACE; echo wrong >&2; exit 7")
    assert done.returncode == 7
    assert done.stdout.splitlines()[:2] == [b"/workspace", b"user"]
    assert done.stdout.splitlines()[2].startswith(b"sp_")
    assert done.stderr == b"wrong\n"
    content = os.urandom(COPY)
    assert clients.ssh(space, "cat", input=content).stdout == content


def test_it_has_what_other_commands_have(carrel: Program, clients: Clients, project: Path) -> None:
    """Variables too, whatever is in them."""
    odd = 'it\'s "$HOME" `id`'
    name = carrel.good("new", str(project), "--env", f"ODD={odd}").strip()
    try:
        asked = 'printf %s "$ODD"; echo; echo $PATH; echo $HOME'
        expected = carrel.good("exec", name, "--", "sh", "-c", asked)
        assert clients.ssh(name, asked).stdout.decode() == expected
        assert expected.startswith(odd)
    finally:
        carrel("rm", "--force", name)


def test_it_needs_no_configuration(carrel: Program, space: str) -> None:
    done = carrel("ssh", space, "--", "printf", "%s-", "a b", "$HOME")
    assert (done.code, done.out) == (0, "a b-$HOME-")
    assert carrel("ssh", space, "exit 3").code == 3


def interrupt(terminal: Terminal) -> None:
    """Press Ctrl-C on a command that speaks itself: a shell overlooks one while it starts one."""
    terminal.type(b"sh -c 'echo by-$((1+1)); exec sleep 1000'; echo over\r")
    terminal.until(b"by-2")
    terminal.type(b"\x03")


def test_a_terminal(carrel: Program, space: str) -> None:
    with in_terminal(carrel, "ssh", space, rows=31, cols=97) as terminal:
        terminal.type(b"stty size; echo in-$((1+1))\r")
        assert b"31 97" in terminal.until(b"in-2")
        terminal.resize(40, 120)
        interrupt(terminal)
        terminal.type(b"stty size; exit 5\r")
        assert b"40 120" in terminal.rest()
        assert terminal.end() == 5


def test_files(carrel: Program, clients: Clients, space: str, tmp_path: Path) -> None:
    content = os.urandom(COPY)
    (tmp_path / "large").write_bytes(content)
    config = ("-F", str(clients.config))
    clients.good("scp", "-q", *config, "large", f"{space}.carrel:copied")
    clients.good("scp", "-q", *config, f"{space}.carrel:/workspace/copied", "back")
    assert (tmp_path / "back").read_bytes() == content
    said = clients.good(
        *("sftp", "-q", *config, "-b", "-", f"{space}.carrel"),
        input=b"pwd\nrename copied moved\nmkdir folder\nls\n",
    )
    assert b"Remote working directory: /workspace" in said and b"moved" in said
    (tmp_path / "many").mkdir()
    for number in range(100):
        (tmp_path / f"many/{number}").write_text(str(number))
    shell = ("-e", f"ssh -F {clients.config}")
    clients.good("rsync", "-a", *shell, "many/", f"{space}.carrel:many/")
    assert carrel.good("exec", space, "--", "sh", "-c", "cat many/* | wc -c") == "190\n"


def test_git(carrel: Program, clients: Clients, tmp_path: Path) -> None:
    """Clones a space's repository, and pushes into it."""
    git = ("git", "-c", "user.name=One", "-c", "user.email=one@example.org", "-C")
    origin = tmp_path / "origin"
    clients.good("git", "init", "-q", "-b", "main", str(origin))
    (origin / "file").write_text("one\n")
    clients.good(*git, str(origin), "add", ".")
    clients.good(*git, str(origin), "commit", "-qm", "One")
    name = carrel.good("new", str(origin)).strip()
    try:
        clients.good("git", "clone", "-q", f"ssh://{name}.carrel/workspace", "cloned")
        (tmp_path / "cloned/file").write_text("two\n")
        clients.good(*git, "cloned", "commit", "-qam", "Two")
        clients.good(*git, "cloned", "push", "-q", "origin", "HEAD:refs/heads/other")
        shown = carrel.good("exec", name, "--", "git", "show", "other:file")
        assert shown == "two\n"
    finally:
        carrel("rm", "--force", name)


def test_forwards_to_the_space(
    carrel: Program, clients: Clients, space: str, tmp_path: Path
) -> None:
    """By TCP, by a Unix socket, and as an editor does it, by SOCKS."""
    _serve(carrel, space, "3456")
    _serve(carrel, space, "/tmp/answers")
    local, proxy = free_port(), free_port()
    path = "./s"
    options = ("-L", f"127.0.0.1:{local}:127.0.0.1:3456", "-L", f"{path}:/tmp/answers")
    with clients.held(space, *options, "-D", f"127.0.0.1:{proxy}"):
        assert _said(("127.0.0.1", local)) == b"hello from the space"
        before = Path.cwd()
        os.chdir(tmp_path)
        try:
            assert _said(path) == b"hello from the space"
        finally:
            os.chdir(before)
        with socket.create_connection(("127.0.0.1", proxy), TIMEOUT_S) as one:
            one.sendall(b"\x05\x01\x00")
            assert one.recv(2) == b"\x05\x00"
            one.sendall(b"\x05\x01\x00\x01\x7f\x00\x00\x01" + (3456).to_bytes(2, "big"))
            assert one.recv(10)[:2] == b"\x05\x00"
            assert one.recv(100) == b"hello from the space"


def test_forwards_from_the_space(carrel: Program, clients: Clients, space: str) -> None:
    """Only to what the person named, on the person's side."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        port = server.getsockname()[1]

        def answer() -> None:
            for _ in range(2):
                one, _ = server.accept()
                with one:
                    one.sendall(b"from here")

        thread = threading.Thread(target=answer)
        thread.start()
        there = f"127.0.0.1:{port}"
        with clients.held(space, "-R", f"4567:{there}", "-R", f"/tmp/back:{there}"):
            script = "import socket; print(socket.create_connection(('127.0.0.1', 4567)).recv(99))"
            said = carrel.good("exec", space, "--", "python3", "-Ic", script)
            script = "import socket; s=socket.socket(1); s.connect('/tmp/back'); print(s.recv(99))"
            said += carrel.good("exec", space, "--", "python3", "-Ic", script)
        thread.join(TIMEOUT_S)
        assert said == "b'from here'\n" * 2


def test_a_forward_reaches_nothing_of_the_host(clients: Clients, space: str) -> None:
    """Loopback there is the space's own."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        port, local = server.getsockname()[1], free_port()
        with clients.held(space, "-L", f"127.0.0.1:{local}:127.0.0.1:{port}"):
            assert _said(("127.0.0.1", local)) == b""
        server.settimeout(0)
        with pytest.raises(BlockingIOError):
            server.accept()


def test_many_commands_on_one_connection(carrel: Program, clients: Clients, space: str) -> None:
    control = ("-o", "ControlPath=c")
    master = ("-o", "ControlMaster=yes")
    with clients.held(space, *master, *control):
        for number in range(5):
            done = clients.ssh(space, f"echo {number}", options=control)
            assert done.stdout == f"{number}\n".encode(), done
        assert len(carrel.json("ps", space)["ssh"]) == 1


def test_an_agent_of_keys_stays_outside(clients: Clients, space: str) -> None:
    """What runs in the space could use them."""
    done = clients.ssh(space, 'echo "<$SSH_AUTH_SOCK>"', options=("-A",))
    assert done.stdout == b"<>\n"


def test_the_agents_terminal(carrel: Program, project: Path) -> None:
    name = carrel.good("new", str(project), "--agent", "scripted").strip()
    try:
        done = carrel("ssh", name, "--agent")
        assert done.code == 1 and "carrel attach" in done.err
        carrel.good("attach", "-d", name)
        with in_terminal(carrel, "ssh", name, "--agent") as terminal:
            terminal.type(b"say hello there\r")
            terminal.until(b"hello there")
            terminal.type(b"\x02d")
            assert terminal.end() == 0
        assert carrel("ssh", name, "--agent", "--", "pwd").out == "/workspace\n"
    finally:
        carrel("rm", "--force", name)


# In an image


def test_an_image_is_what_one_comes_into(
    carrel: Program, clients: Clients, imaged: str, tmp_path: Path
) -> None:
    done = clients.ssh(imaged, "pwd; ls /bin/busybox; command -v python3; exit 7")
    assert (done.returncode, done.stdout) == (7, b"/workspace\n/bin/busybox\n")
    content = os.urandom(COPY)
    assert clients.ssh(imaged, "cat", input=content).stdout == content
    (tmp_path / "large").write_bytes(content)
    clients.good("scp", "-q", "-F", str(clients.config), "large", f"{imaged}.carrel:/root/large")
    assert carrel.good("exec", imaged, "--", "sh", "-c", "wc -c < /root/large") == f"{COPY}\n"
    beside = clients.ssh(f"{imaged}-agent", "command -v python3 && ls /bin/busybox-is-not-here")
    assert beside.returncode == 2 and beside.stdout.strip().endswith(b"python3")


def test_a_terminal_in_an_image(carrel: Program, imaged: str) -> None:
    """Its shell has the terminal as its own: jobs, Ctrl-C, the size of the window."""
    with in_terminal(carrel, "ssh", imaged, rows=31, cols=97) as terminal:
        terminal.type(b"echo in-$((1+1))\r")
        terminal.until(b"in-2")
        terminal.type(b"sleep 1000 &\r")
        terminal.type(b"jobs; echo jobs-$((1+1))\r")
        assert b"Running" in terminal.until(b"jobs-2")
        terminal.type(b"kill %1\r")
        interrupt(terminal)
        terminal.type(b"exit 5\r")
        assert terminal.end() == 5


def test_a_server_in_an_image_is_reached(carrel: Program, clients: Clients, imaged: str) -> None:
    local = free_port()
    carrel.good("exec", "-d", imaged, "--", "nc", "-ll", "-p", "3456", "-e", "echo", "hello")
    with clients.held(imaged, "-L", f"127.0.0.1:{local}:127.0.0.1:3456"):
        until = time.monotonic() + TIMEOUT_S
        # It begins to listen at some time.
        while not (said := _said(("127.0.0.1", local))):
            assert time.monotonic() < until
    assert said == b"hello\n"


def test_a_slow_reader_loses_nothing(clients: Clients, space: str) -> None:
    """It slows the command."""
    words = ["ssh", "-F", str(clients.config), f"{space}.carrel", "head -c 60000000 /dev/zero"]
    with subprocess.Popen(words, env=clients.env, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        first = os.read(process.stdout.fileno(), 1)
        done = clients.ssh(space, "echo meanwhile")
        assert done.stdout == b"meanwhile\n"
        rest = process.stdout.read()
        assert process.wait(TIMEOUT_S) == 0
    assert len(first) + len(rest) == 60_000_000
