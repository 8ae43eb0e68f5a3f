"""The listener: who gets in, how far, and what becomes of connections when something dies."""

from __future__ import annotations

import base64
import os
import pty
import re
import signal
import socket
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from carrel.client import Client
from carrel.daemon import places
from carrel.domain.errors import SshKeyInvalid, SshKeyNotFound
from carrel.linux.processes import is_alive, start_time
from tests.cli.program import TIMEOUT_S, Program
from tests.daemon.rig import Daemon
from tests.ssh.conftest import Clients, ListenerClients, free_port
from tests.ssh.test_sessions import _events, _sshd, _until

HALF_OPEN = 1000
MUCH = 128 << 20
ROOM = 32 << 20
"""What the listener's process may grow by while somebody reads nothing."""


def _listener(carrel: Program) -> int:
    """Its process."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if b"carrel.ssh.listener" in words and os.fsencode(f"{carrel.data}/daemon") in words:
            return int(pid)
    return 0


def _resident(pid: int) -> int:
    text = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", text)
    assert found is not None
    return int(found[1]) << 10


@contextmanager
def _key(carrel: Program, *limits: str) -> Iterator[ListenerClients]:
    for old in carrel.cwd.glob("listener_key*"):
        old.unlink()
    found = ListenerClients(carrel, *limits)
    try:
        yield found
    finally:
        carrel("ssh-key", "rm", found.id)


@contextmanager
def _running(
    clients: Clients, space: str, command: str, *options: str
) -> Iterator[subprocess.Popen[bytes]]:
    clients.prepare()
    words = ["ssh", "-F", str(clients.config), *options, f"{space}.carrel", command]
    process = subprocess.Popen(
        words, env=clients.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=-1
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


# Who gets in


def test_it_is_off_until_somebody_wants_it(own_daemon: Daemon, tmp_path: Path) -> None:
    carrel = Program(own_daemon.data, tmp_path)
    assert carrel.json("ssh-listen", "--show")["port"] == 0
    assert _listener(carrel) == 0
    port = carrel.json("ssh-listen")["port"]
    pid = _listener(carrel)
    assert carrel.json("ssh-listen")["port"] == port and _listener(carrel) == pid
    assert "No key opens it" in carrel("ssh-listen").err
    with socket.create_connection(("::1", port), TIMEOUT_S) as one:
        assert one.recv(8) == b"SSH-2.0-"
    carrel.good("ssh-listen", "--stop")
    started = start_time(pid)
    assert started is None or _until(lambda: not is_alive(pid, started))
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
    assert "Nothing listens" in carrel.good("ssh-listen", "--stop")


def test_a_port_that_is_taken(own_daemon: Daemon, tmp_path: Path) -> None:
    carrel = Program(own_daemon.data, tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        said = carrel.bad(None, "ssh-listen", "--port", str(port))
    assert f"Port {port} of this machine is taken" in said
    assert carrel.json("ssh-listen", "--show")["port"] == 0
    assert _listener(carrel) == 0


def test_a_key_opens_what_it_is_for(carrel: Program, space: str, project: Path) -> None:
    other = carrel.good("new", str(project), "-l", "team=blue").strip()
    try:
        with _key(carrel, "--space", space) as clients:
            assert clients.ssh(space, "echo in").stdout == b"in\n"
            assert clients.ssh(f"{space}-agent", "echo in").stdout == b"in\n"
            refused = [clients.ssh(other, "true"), clients.ssh(f"{other}-agent", "true")]
            nobody = clients.run(
                *("ssh", "-F", str(clients.config), "-l", "nowhere", "x.carrel", "true")
            )
            # Whether there is such a space is not told.
            said = {re.sub(rb"^\S+", b"", one.stderr) for one in (*refused, nobody)}
            assert said == {b" Permission denied (publickey).\r\n"}, said
        with _key(carrel, "--label", "team=blue", "--label", "x=y") as clients:
            assert clients.ssh(other, "echo in").stdout == b"in\n"
            assert clients.ssh(space, "true").returncode == 255
            (event,) = [
                data
                for kind, data in _events(carrel, other)
                if kind == "ssh.begun" and data.get("key") == clients.id
            ]
            assert event["from"].startswith("127.0.0.1:")
        # The key was removed.
        assert b"Permission denied" in clients.ssh(other, "true").stderr
    finally:
        carrel("rm", "--force", other)


def test_no_password_is_asked_for(by_listener: ListenerClients, space: str) -> None:
    by_listener.prepare()
    asked = ("-o", "PubkeyAuthentication=no", "-o", "PreferredAuthentications=password")
    done = by_listener.ssh(space, "true", options=asked)
    assert done.returncode == 255 and b"(publickey)" in done.stderr


def test_a_stopped_space(carrel: Program, by_listener: ListenerClients, space: str) -> None:
    carrel.good("stop", space)
    done = by_listener.ssh(space, "true")
    assert done.returncode == 255 and b"carrel start" in done.stderr, done
    carrel.good("start", space)
    assert by_listener.ssh(space, "true").returncode == 0


def test_who_is_there(carrel: Program, by_listener: ListenerClients, space: str) -> None:
    with by_listener.held(space):
        (one,) = carrel.json("ps", space)["ssh"]
        assert one["key"] == by_listener.id and one["origin"].startswith("127.0.0.1:")
        assert by_listener.id in carrel.good("ps", space)
    _until(lambda: not carrel.json("ps", space)["ssh"])


def test_a_key_that_is_removed_takes_its_connections_along(carrel: Program, space: str) -> None:
    """And nobody else's."""
    with ExitStack() as stack:
        own = stack.enter_context(Clients(carrel).held(space))
        kept = stack.enter_context(_key(carrel, "--space", space))
        staying = stack.enter_context(kept.held(space))
        with _key(carrel, "--space", space) as clients:
            going = stack.enter_context(_running(clients, space, "echo there; (sleep 1000 &); cat"))
            assert going.stdout is not None and going.stdout.readline() == b"there\n"
            carrel.good("ssh-key", "rm", clients.id)
            assert going.wait(TIMEOUT_S) == 255
            assert carrel.good("exec", space, "--", "sh", "-c", "pgrep -x sleep || true") == ""
            assert b"Permission denied" in clients.ssh(space, "true").stderr
        assert own.poll() is None and staying.poll() is None
        assert len(carrel.json("ps", space)["ssh"]) == 2
        carrel("ssh-key", "rm", kept.id)


GOOD = (
    "ssh-ed25519 "
    + base64.b64encode(struct.pack(">I11sI32s", 11, b"ssh-ed25519", 32, bytes(range(32)))).decode()
)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n\n",
        "ssh-ed25519",
        "ssh-ed25519 AAAA",
        "ssh-ed25519 !!!!",
        GOOD.replace("ssh-ed25519 ", "ssh-rsa "),
        f'command="true" {GOOD}',
        f"from=10.0.0.1,no-pty {GOOD}",
        f"{GOOD}\n{GOOD}",
        GOOD + "AAAA",
        "ssh-ed25519-cert-v01@openssh.com AAAA x",
        "ssh-dss AAAA x",
        "-----BEGIN OPENSSH PRIVATE KEY-----",
        "x" * 20_000,
    ],
)
def test_what_is_no_key(carrel: Program, text: str) -> None:
    said = carrel.bad(None, "ssh-key", "add", "-", "--all", stdin=text.encode())
    assert "Give it as it stands" in said or (len(text) > 16_384 and "length" in said)
    assert all("range" not in one["name"] for one in carrel.json("ssh-key", "ls")["keys"])


def test_kinds_of_keys(carrel: Program, space: str, tmp_path: Path) -> None:
    """Those of OpenSSH that are sound."""
    carrel.good("ssh-listen")
    for kind, bits, good in (
        ("rsa", "3072", True),
        ("rsa", "1024", False),
        ("ecdsa", "256", True),
        ("ecdsa", "521", True),
    ):
        path = tmp_path / f"{kind}{bits}"
        subprocess.run(
            ["ssh-keygen", "-q", "-t", kind, "-b", bits, "-N", "", "-f", str(path)], check=True
        )
        done = carrel("ssh-key", "add", f"{path}.pub", "--space", space)
        assert (done.code == 0) is good, done
        if not good:
            continue
        again = carrel.bad(None, "ssh-key", "add", f"{path}.pub", "--space", space)
        assert "already" in again
        port = carrel.json("ssh-listen", "--show")["port"]
        words = ("-F", "none", "-p", str(port), "-i", str(path), "-o", "IdentitiesOnly=yes")
        trust = ("-o", "StrictHostKeyChecking=no", "-o", f"UserKnownHostsFile={tmp_path}/known")
        found = subprocess.run(
            ["ssh", *words, *trust, f"{space}@127.0.0.1", "echo in"],
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert found.stdout == b"in\n", found
        carrel.good("ssh-key", "rm", done.out.strip())


def test_keys_need_limits(carrel: Program) -> None:
    for words in ((), ("--all", "--label", "a=b")):
        assert "what the key opens" in carrel.bad(2, "ssh-key", "add", GOOD, *words)
    assert "no space" in carrel.bad(None, "ssh-key", "add", GOOD, "--space", "nowhere")
    assert "no key" in carrel.bad(None, "ssh-key", "rm", "nothing")


WATCH = """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGWINCH})
print(*os.get_terminal_size(), flush=True)
signal.sigwait({signal.SIGWINCH})
print(*os.get_terminal_size(), os.ttyname(0), flush=True)
sys.exit(5)
"""


def test_a_terminal_has_the_size_of_the_window(by_listener: ListenerClients, space: str) -> None:
    leader, follower = pty.openpty()
    try:
        termios.tcsetwinsize(leader, (31, 97))
        by_listener.prepare()
        words = ["ssh", "-tt", "-F", str(by_listener.config), f"{space}.carrel"]
        with subprocess.Popen(
            [*words, f"python3 -Ic '{WATCH}'"], stdin=follower, stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"97 31\r\n"
            termios.tcsetwinsize(leader, (40, 120))
            process.send_signal(signal.SIGWINCH)
            assert process.stdout.readline().startswith(b"120 40 /dev/pts/")
            assert process.wait(TIMEOUT_S) == 5
    finally:
        os.close(leader)
        os.close(follower)


def test_from_python(daemon: Daemon) -> None:
    with Client(data=daemon.data) as client:
        port = client.ssh.listen().port
        assert client.ssh.listener().port == port and client.ssh.listener().host_key
        made = client.ssh.add_key(GOOD, "label:team=blue", "label:team=red", name="tester")
        assert made.scopes == ("label:team=blue", "label:team=red")
        known = client.ssh.keys()
        assert made in known
        with pytest.raises(SshKeyInvalid):
            client.ssh.add_key(GOOD, "admin")
        assert client.ssh.remove_key("tester").id == made.id
        with pytest.raises(SshKeyNotFound):
            client.ssh.remove_key(made.id)
        assert client.ssh.stop_listening().port == 0


# How far they get


def test_files_stay_inside(
    carrel: Program, by_listener: ListenerClients, space: str, tmp_path: Path
) -> None:
    """By sftp: above the tree, and by links, is the sandbox's own, and never the host's."""
    secret = tmp_path / "secret"
    secret.write_text("of the host")
    (tmp_path / "other").write_text("of a guest")
    carrel.good("exec", space, "--", "ln", "-s", str(secret), "link")
    carrel.good("exec", space, "--", "ln", "-s", "/", "root")
    by_listener.prepare()
    paths = (f"../../../..{secret}", str(secret), "link", f"root{secret}")
    words = ("sftp", "-q", "-F", str(by_listener.config), "-b", "-", f"{space}.carrel")
    for path in paths:
        done = by_listener.run(*words, input=f"get {path} got\n".encode())
        assert done.returncode != 0 and not (tmp_path / "got").exists(), (path, done)
    for path in paths:
        by_listener.run(*words, input=f"put other {path}\n".encode())
        assert secret.read_text() == "of the host"


def test_forwards_stay_inside(
    carrel: Program, daemon: Daemon, by_listener: ListenerClients, space: str, project: Path
) -> None:
    """Neither the daemon's sockets nor another space's ports are reached."""
    other = carrel.good("new", str(project)).strip()
    try:
        listen = "import socket,os,sys\ns=socket.create_server(('127.0.0.1',3457))\n"
        listen += "print('up',flush=True)\nif os.fork()==0:\n os.setsid()\n"
        listen += " [os.dup2(os.open(os.devnull,2),n) for n in range(3)]\n s.accept()\n"
        assert carrel.good("exec", other, "--", "python3", "-Ic", listen) == "up\n"
        first, second = free_port(), free_port()
        hub = places.socket(daemon.data)
        options = ("-L", f"127.0.0.1:{first}:{hub}", "-L", f"127.0.0.1:{second}:127.0.0.1:3457")
        with by_listener.held(space, *options):
            for port in (first, second):
                with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as one:
                    assert one.recv(10) == b""
    finally:
        carrel("rm", "--force", other)


def test_a_space_may_not_use_an_agent_of_keys_unless_somebody_says_so(
    carrel: Program, by_listener: ListenerClients, space: str, tmp_path: Path
) -> None:
    words = ["ssh-agent", "-D", "-a", "./agent"]
    with subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None and process.stdout.readline()
            by_listener.env["SSH_AUTH_SOCK"] = "./agent"
            by_listener.good("ssh-add", "-q", str(by_listener.key))
            look = "ssh-add -l | cut -d' ' -f4"
            assert by_listener.ssh(space, look, options=("-A",)).stdout == b""
            said = carrel.bad(2, "ssh", "-A", space, "--", look)
            assert "could log in elsewhere as you" in said and "--ssh-agent yes" in said
            carrel.good("update", space, "--ssh-agent", "yes")
            assert by_listener.ssh(space, look).stdout == b""
            assert by_listener.ssh(space, look, options=("-A",)).stdout == b"(ED25519)\n"
            env = {"SSH_AUTH_SOCK": str(tmp_path / "agent")}
            if len(env["SSH_AUTH_SOCK"]) < 100:
                assert carrel("ssh", "-A", space, "--", look, env=env).out == "(ED25519)\n"
            carrel.good("update", space, "--ssh-agent", "no")
            assert by_listener.ssh(space, look, options=("-A",)).stdout == b""
        finally:
            process.terminate()
            process.wait(TIMEOUT_S)


# Too many, too slow


def test_those_who_say_nothing_keep_nobody_out(
    carrel: Program, daemon: Daemon, by_listener: ListenerClients, space: str
) -> None:
    by_listener.prepare()
    before = len(os.listdir(f"/proc/{daemon.pid}/fd"))
    with ExitStack() as stack:
        for number in range(HALF_OPEN):
            one = stack.enter_context(socket.create_connection(("127.0.0.1", by_listener.port)))
            if number % 2:
                one.send(b"SSH-2.0-Nobody\r\n")
        assert by_listener.ssh(space, "echo in").stdout == b"in\n"
        listener = _listener(carrel)
        assert len(os.listdir(f"/proc/{listener}/fd")) < HALF_OPEN / 2
        assert len(os.listdir(f"/proc/{daemon.pid}/fd")) < before + 20
        assert _resident(listener) < 200 << 20
        assert by_listener.ssh(space, "echo in").stdout == b"in\n"


def test_much_before_a_login_is_not_kept(by_listener: ListenerClients) -> None:
    by_listener.prepare()
    with socket.create_connection(("127.0.0.1", by_listener.port), TIMEOUT_S) as one:
        one.sendall(b"SSH-2.0-Nobody\r\n")
        with pytest.raises(ConnectionError):
            for _ in range(MUCH >> 20):
                one.sendall(bytes(1 << 20))


def test_a_client_that_reads_nothing_slows_its_command(
    carrel: Program, by_listener: ListenerClients, space: str
) -> None:
    """And nothing of it is kept by the listener, nor is anybody else slowed."""
    with _running(by_listener, space, f"echo there; head -c {MUCH} /dev/zero") as process:
        assert process.stdout is not None and process.stdout.readline() == b"there\n"
        process.send_signal(signal.SIGSTOP)
        listener = _listener(carrel)
        before = _resident(listener)
        content = os.urandom(5 << 20)
        assert by_listener.ssh(space, "cat", input=content).stdout == content
        script = "pgrep -x head || true"
        assert carrel.good("exec", space, "--", "sh", "-c", script) != ""
        assert _resident(listener) < before + ROOM
        process.send_signal(signal.SIGCONT)
        assert len(process.stdout.read()) == MUCH
        assert process.wait(TIMEOUT_S) == 0


GREEDY = """
import asyncio, asyncssh, os, sys
async def main():
    port, key, user, command = sys.argv[1:]
    connection = await asyncssh.connect("127.0.0.1", int(port), username=user, client_keys=[key],
        known_hosts=None, agent_path=None, config=None)
    window = (1 << 32) - 1
    process = await connection.create_process(command, window=window, encoding=None)
    print(await process.stdout.readline(), flush=True)
    os.kill(os.getpid(), 19)
asyncio.run(main())
"""
"""It has a window without end, and then takes nothing from the wire."""


def test_a_greedy_client_fills_no_memory(
    carrel: Program, by_listener: ListenerClients, space: str
) -> None:
    command = f"echo there; head -c {MUCH} /dev/zero"
    words = (str(by_listener.port), str(by_listener.key), space, command)
    with subprocess.Popen(
        [sys.executable, "-c", GREEDY, *words], stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None and b"there" in process.stdout.readline()
            listener = _listener(carrel)
            before = _resident(listener)
            seen: list[str] = []

            def stands_still() -> bool:
                seen.append(Path(f"/proc/{listener}/io").read_text().split("\n")[0])
                carrel.good("exec", space, "--", "true")
                return len(seen) > 3 and seen[-1] == seen[-3]

            _until(stands_still)
            assert carrel.good("exec", space, "--", "sh", "-c", "pgrep -x head || true") != ""
            assert _resident(listener) < before + ROOM
        finally:
            process.kill()
    _until(lambda: not carrel.json("ps", space)["ssh"])


def test_new_keys_within_a_copy(by_listener: ListenerClients, space: str) -> None:
    content = os.urandom(8 << 20)
    often = ("-o", "RekeyLimit=300K")
    assert by_listener.ssh(space, "cat", options=often, input=content).stdout == content


def test_a_command_that_nobody_reads_from_ends(by_listener: ListenerClients, space: str) -> None:
    """The client tells it by a message of OpenSSH's own."""
    with _running(by_listener, space, "echo there; cat /dev/zero") as process:
        assert process.stdout is not None and process.stdout.readline() == b"there\n"
        process.stdout.close()
        process.wait(TIMEOUT_S)


# Deaths


def test_a_killed_daemon_disturbs_no_connection(
    own_daemon: Daemon, tmp_path: Path, project: Path
) -> None:
    """The next one listens on the same port, and knows of those that are there."""
    carrel = Program(own_daemon.data, tmp_path)
    space = carrel.good("new", str(project)).strip()
    clients = ListenerClients(carrel, "--space", space)
    content = os.urandom(3 << 20)
    with clients.held(space) as process:
        own_daemon.kill()
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(content[:1000])
        process.stdin.flush()
        assert process.stdout.read(1000) == content[:1000]
        (one,) = carrel.json("ps", space)["ssh"]
        assert one["key"] == clients.id
        assert carrel.json("ssh-listen", "--show") == {
            **carrel.json("ssh-listen", "--show"),
            "port": clients.port,
            "problem": "",
        }
        assert clients.ssh(space, "cat", input=content).stdout == content
        # Its key is taken away by another daemon than it came to.
        carrel.good("ssh-key", "rm", clients.id)
        assert process.wait(TIMEOUT_S) == 255
    _until(lambda: not carrel.json("ps", space)["ssh"])
    carrel.good("ssh-listen", "--stop")
    _until(lambda: _listener(carrel) == 0)


def test_a_killed_listener_is_started_again(
    own_daemon: Daemon, tmp_path: Path, project: Path
) -> None:
    carrel = Program(own_daemon.data, tmp_path)
    space = carrel.good("new", str(project)).strip()
    clients = ListenerClients(carrel, "--space", space)
    with _running(clients, space, f"head -c {MUCH} /dev/zero") as process:
        assert process.stdout is not None and len(process.stdout.read(1 << 20)) == 1 << 20
        os.kill(_listener(carrel), signal.SIGKILL)
        process.stdout.read()
        assert process.wait(TIMEOUT_S) == 255
    _until(lambda: _sshd(carrel, space) == 0)
    _until(lambda: not carrel.json("ps", space)["ssh"])
    _until(lambda: clients.ssh(space, "true").returncode == 0)
    assert carrel.json("ssh-listen", "--show")["port"] == clients.port


def test_a_killed_client_leaves_nothing(
    carrel: Program, by_listener: ListenerClients, space: str
) -> None:
    with _running(by_listener, space, "cat > copied") as process:
        assert process.stdin is not None
        process.stdin.write(bytes(1 << 20))
        process.stdin.flush()
        process.kill()
    _until(lambda: _sshd(carrel, space) == 0)
    _until(lambda: not carrel.json("ps", space)["ssh"])


def test_a_killed_launcher(own_daemon: Daemon, tmp_path: Path, project: Path) -> None:
    """In the middle of a copy: what is under way ends or goes on, and what is told is true."""
    carrel = Program(own_daemon.data, tmp_path)
    space = carrel.good("new", str(project)).strip()
    clients = ListenerClients(carrel, "--space", space)
    with _running(clients, space, f"head -c {MUCH} /dev/zero") as process:
        assert process.stdout is not None and len(process.stdout.read(1 << 20)) == 1 << 20
        os.kill(int((own_daemon.data / "launcher/lock").read_text()), signal.SIGKILL)
        # One that does not wait for the launcher's answer any more has heard of it.
        carrel("exec", space, "--", "true")
        assert process.poll() is not None or len(carrel.json("ps", space)["ssh"]) == 1
        own_daemon.kill()
        assert process.poll() is not None or len(carrel.json("ps", space)["ssh"]) == 1
        rest = process.stdout.read()
        code = process.wait(TIMEOUT_S)
        assert code == 255 or len(rest) == MUCH - (1 << 20)
    _until(lambda: not carrel.json("ps", space)["ssh"])
    carrel("stop", space)
    carrel.good("start", space)
    assert clients.ssh(space, "echo again").stdout == b"again\n"
    assert _sshd(carrel, space) == 0 or _until(lambda: _sshd(carrel, space) == 0)


def test_a_key_that_is_removed_after_the_launcher_died(
    own_daemon: Daemon, tmp_path: Path, project: Path
) -> None:
    """Its connections end all the same."""
    carrel = Program(own_daemon.data, tmp_path)
    space = carrel.good("new", str(project)).strip()
    clients = ListenerClients(carrel, "--space", space)
    with _running(clients, space, "echo there; cat") as process:
        assert process.stdout is not None and process.stdout.readline() == b"there\n"
        os.kill(int((own_daemon.data / "launcher/lock").read_text()), signal.SIGKILL)
        carrel.good("ssh-key", "rm", clients.id)
        assert process.wait(TIMEOUT_S) == 255
    _until(lambda: not carrel.json("ps", space)["ssh"])


def test_asyncssh_stays_out_of_the_daemon() -> None:
    """It is as large as all the rest."""
    script = "import sys, carrel.daemon.main, carrel.app.service; print('asyncssh' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert done.stdout == b"False\n"


def test_an_sshd_that_hangs_goes_with_its_client(
    carrel: Program, clients: Clients, space: str
) -> None:
    """What runs in the space may stop it, and it sees nothing any more."""
    with clients.held(space) as process:
        carrel.good("exec", space, "--", "pkill", f"-{signal.SIGSTOP.value}", "-x", "sshd")
        process.kill()
    _until(lambda: not carrel.json("ps", space)["ssh"])
    assert _sshd(carrel, space) == 0


def test_an_sshd_that_was_killed(carrel: Program, clients: Clients, space: str) -> None:
    with _running(clients, space, "echo there; sleep 1000") as process:
        assert process.stdout is not None and process.stdout.readline() == b"there\n"
        carrel.good("exec", space, "--", "pkill", f"-{signal.SIGKILL.value}", "-x", "sshd")
        assert process.wait(TIMEOUT_S) == 255
    _until(lambda: not carrel.json("ps", space)["ssh"])
