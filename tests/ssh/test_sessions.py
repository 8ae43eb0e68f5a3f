"""Connections as the daemon knows them: who gets in, and what becomes of them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from carrel.daemon import places
from tests.accounts import Account, run_as
from tests.cli.program import TIMEOUT_S, Program
from tests.daemon.rig import Daemon, daemon_in
from tests.ssh.conftest import Clients, as_root


def _events(carrel: Program, space: str) -> list[tuple[str, dict[str, Any]]]:
    lines = map(json.loads, carrel.good("events", "--json").splitlines())
    return [(one["type"], one["data"]) for one in lines if one["type"].startswith("ssh.")]


def _sshd(carrel: Program, space: str) -> int:
    script = "pgrep -xc sshd || true"
    return int(carrel.good("exec", space, "--", "sh", "-c", script))


def _until(what: Any) -> Any:
    import time

    until = time.monotonic() + TIMEOUT_S
    while not (found := what()):
        assert time.monotonic() < until
    return found


def test_it_is_told_who_is_there(carrel: Program, clients: Clients, space: str) -> None:
    with clients.held(space) as process:
        (one,) = carrel.json("ps", space)["ssh"]
        assert one["place"] == "agent" and not one["conversation"]
        assert one["session"] in carrel.good("ps", space)
        assert process.pid
    _until(lambda: not carrel.json("ps", space)["ssh"])
    _until(lambda: "ssh.ended" in [kind for kind, _ in _events(carrel, space)])
    mine = [
        (kind, data) for kind, data in _events(carrel, space) if data["session"] == one["session"]
    ]
    assert [kind for kind, _ in mine] == ["ssh.begun", "ssh.did", "ssh.ended"]
    assert mine[1][1]["what"] == "command"
    assert _sshd(carrel, space) == 0


def test_what_cannot_be_entered(carrel: Program, clients: Clients, space: str) -> None:
    done = clients.ssh("nowhere", "true")
    assert done.returncode == 255 and b"There is no space 'nowhere'" in done.stderr
    carrel.good("stop", space)
    done = clients.ssh(space, "true")
    assert done.returncode == 255 and b"carrel start" in done.stderr
    carrel.good("start", space)
    assert clients.ssh(space, "true").returncode == 0
    assert "is no space" in carrel.bad(2, "ssh", "--", "-oProxyCommand=x")


def test_a_name_that_ends_as_another_ones_agent(
    carrel: Program, clients: Clients, space: str, project: Path
) -> None:
    name = f"{space}-agent"
    carrel.good("new", str(project), "--name", name)
    try:
        mine = carrel.json("show", name)["id"]
        assert clients.ssh(name, "echo $CARREL_SPACE").stdout.decode().strip() == mine
    finally:
        carrel("rm", "--force", name)


def test_a_runtime_without_accounts(carrel: Program, clients: Clients) -> None:
    name = carrel.good("new", "--empty", "--runtime", "process").strip()
    try:
        done = clients.ssh(name, "true")
        assert done.returncode == 255 and b"bubblewrap" in done.stderr
    finally:
        carrel("rm", "--force", name)


def test_only_the_owners_key_opens_it(clients: Clients, space: str, tmp_path: Path) -> None:
    clients.good("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "other"))
    config = clients.config.read_text()
    own = next(line for line in config.splitlines() if "IdentityFile" in line)
    clients.config.write_text(config.replace(own, f'  IdentityFile "{tmp_path}/other"'))
    done = clients.ssh(space, "true")
    assert done.returncode == 255 and b"Permission denied (publickey)" in done.stderr
    clients.config.write_text(config.replace("User carrel", "User user"))
    assert b"Permission denied" in clients.ssh(space, "true").stderr


def test_a_host_is_who_the_daemon_says(clients: Clients, space: str, tmp_path: Path) -> None:
    """Another signature is not believed."""
    clients.good("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "hosts"))
    known = tmp_path / "known"
    known.write_text(f"@cert-authority *.carrel {(tmp_path / 'hosts.pub').read_text()}")
    done = clients.ssh(space, "true", options=("-o", f"UserKnownHostsFile={known}"))
    assert done.returncode == 255 and b"Host key verification failed" in done.stderr


def test_a_space_that_got_another_name(carrel: Program, clients: Clients, space: str) -> None:
    clients.ssh(space, "true")
    carrel.good("update", space, "--name", f"{space}-new")
    assert clients.ssh(f"{space}-new", "echo here").stdout == b"here\n"
    carrel.good("update", f"{space}-new", "--name", space)


def test_a_connection_ends_with_its_space(carrel: Program, clients: Clients, space: str) -> None:
    words = ["ssh", "-F", str(clients.config), f"{space}.carrel", "echo there; sleep 1000"]
    with subprocess.Popen(words, env=clients.env, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"there\n"
        carrel.good("stop", space)
        assert process.wait(TIMEOUT_S) == 255
    folder = next(carrel.data.glob("spaces/*/ssh"), None)
    _until(lambda: folder is None or not list(folder.glob("*.json")))


def test_a_killed_daemon_disturbs_nobody(own_daemon: Daemon, tmp_path: Path, project: Path) -> None:
    carrel = Program(own_daemon.data, tmp_path)
    clients = Clients(carrel)
    space = carrel.good("new", str(project)).strip()
    content = os.urandom(5 << 20)
    with clients.held(space) as process:
        own_daemon.kill()
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(content[:1000])
        process.stdin.flush()
        assert process.stdout.read(1000) == content[:1000]
        # A client starts the next one, which knows of it.
        (one,) = carrel.json("ps", space)["ssh"]
        assert clients.ssh(space, "cat", input=content).stdout == content
        assert one in carrel.json("ps", space)["ssh"]
    _until(lambda: not carrel.json("ps", space)["ssh"])
    ended = [data["session"] for kind, data in _events(carrel, space) if kind == "ssh.ended"]
    assert one["session"] in ended
    assert list(own_daemon.data.glob("spaces/*/ssh/*")) == []


def test_a_client_that_is_killed_leaves_nothing(
    carrel: Program, clients: Clients, space: str
) -> None:
    words = ["ssh", "-F", str(clients.config), f"{space}.carrel", "echo there; cat"]
    process = subprocess.Popen(
        words, env=clients.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with process:
        assert process.stdout is not None and process.stdout.readline() == b"there\n"
        process.send_signal(signal.SIGKILL)
    _until(lambda: _sshd(carrel, space) == 0)
    _until(lambda: not carrel.json("ps", space)["ssh"])


@as_root
def test_other_accounts_do_not_get_in(
    carrel: Program, daemon: Daemon, ordinary_user: Account
) -> None:
    folder = Path(places.folder(daemon.data))
    script = (
        "import socket, sys\n"
        "one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
        "one.connect(sys.argv[1])\n"
    )
    done = run_as(ordinary_user, ["python3", "-Ic", script, str(folder / "ssh")])
    assert done.returncode != 0 and "Permission denied" in done.stderr


def test_what_is_no_request(daemon: Daemon, carrel: Program) -> None:
    """Nothing is disturbed by it."""
    carrel.good("ls")
    path = f"{places.folder(daemon.data)}/ssh"
    for body in (b"", b"x", b"{}", b'{"host": 1}', b"[" * 4000, b'{"host": "a\\u0000b"}'):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as one:
            one.settimeout(TIMEOUT_S)
            one.connect(path)
            ours, theirs = socket.socketpair()
            with ours, theirs:
                socket.send_fds(one, [body or b" "], [theirs.fileno()])
                answer = one.recv(4096)
            assert not answer or b'"ok":false' in answer, answer
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as one:
            one.settimeout(TIMEOUT_S)
            one.connect(path)
            one.send(body or b" ")
            assert one.recv(4096) == b""


def test_what_is_no_connection(daemon: Daemon, carrel: Program, space: str) -> None:
    """It is closed again."""
    path = f"{places.folder(daemon.data)}/ssh"
    before = len(os.listdir(f"/proc/{daemon.pid}/fd"))
    for _ in range(50):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as one:
            one.settimeout(TIMEOUT_S)
            one.connect(path)
            with open(os.devnull) as file:
                asked = json.dumps({"host": space}).encode()
                socket.send_fds(one, [asked], [file.fileno()])
            assert one.recv(4096) == b""
    assert len(os.listdir(f"/proc/{daemon.pid}/fd")) < before + 20


def test_keys_that_were_removed(carrel: Program, clients: Clients, space: str) -> None:
    """Are made again, and the new ones are good for every space."""
    assert clients.ssh(space, "true").returncode == 0
    before = (carrel.data / "ssh/hosts.pub").read_text()
    shutil.rmtree(carrel.data / "ssh")
    done = carrel("ssh", space, "--", "echo here")
    assert done.out == "here\n", done
    assert (carrel.data / "ssh/hosts.pub").read_text() != before


def test_a_connection_that_cannot_be_noted(carrel: Program, clients: Clients, space: str) -> None:
    """The reason is told."""
    folder = carrel.data / "spaces" / carrel.json("show", space)["id"] / "ssh"
    folder.write_text("in the way")
    done = clients.ssh(space, "true")
    assert done.returncode == 255 and b"cannot be written down" in done.stderr, done
    folder.unlink()
    assert clients.ssh(space, "true").returncode == 0


@pytest.mark.parametrize("name", ["o dd'%h #x=y,*$HOME;\u00e9", "a\\b", "a${HOME}", "a\udcff"])
def test_odd_names_of_data_folders(data: Path, tmp_path: Path, name: str) -> None:
    with daemon_in(data / name) as daemon:
        carrel = Program(daemon.data, tmp_path)
        if name.startswith("a"):
            assert "data folder" in carrel.bad(None, "ssh-config")
            return
        space = carrel.good("new", "--empty").strip()
        assert Clients(carrel).ssh(space, "echo here").stdout == b"here\n"
        carrel.good("rm", "--force", space)


def test_the_proxy_is_for_ssh_alone(carrel: Program, space: str) -> None:
    assert "ProxyCommand" in carrel.bad(2, "ssh-proxy", f"{space}.carrel")
    _until(lambda: not carrel.json("ps", space)["ssh"])


def test_a_daemon_that_does_not_answer(daemon: Daemon, carrel: Program) -> None:
    """Nobody waits for ever, and a sentence says why."""
    script = (
        "import sys; from carrel.cli.verbs import ssh; ssh.ANSWER_S = 0.2;"
        "from carrel.cli import main; sys.argv[0] = 'carrel'; main.main()"
    )
    carrel.good("ls")
    os.kill(daemon.pid, signal.SIGSTOP)
    try:
        done = subprocess.run(
            [sys.executable, "-c", script, "ssh-proxy", "x.carrel"],
            env=carrel.env,
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    finally:
        os.kill(daemon.pid, signal.SIGCONT)
    assert b"The daemon does not answer" in done.stderr, done


def test_what_another_daemon_says_is_not_followed(daemon: Daemon, carrel: Program) -> None:
    """A configuration names programs, which would run here."""
    url = f"http://127.0.0.1:{daemon.port}"
    env = {"CARREL_URL": url, "CARREL_TOKEN": daemon.token("admin")}
    for words in (("ssh-config",), ("ssh-config", "--install", "--yes"), ("ssh", "x")):
        done = carrel(*words, env=env)
        assert done.code == 2 and "on another machine" in done.err, done


# The user's own configuration


@pytest.fixture
def home(carrel: Program, tmp_path: Path) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    carrel.env["HOME"] = str(home)
    return home


def test_it_is_put_in_and_taken_out(carrel: Program, home: Path) -> None:
    folder = home / ".ssh"
    folder.mkdir(mode=0o700)
    config = folder / "config"
    config.write_text("Host other\n  User me\n")
    config.chmod(0o640)
    assert "add --yes" in carrel.bad(2, "ssh-config", "--install").replace("then ", "")
    assert config.read_text() == "Host other\n  User me\n"
    shown = carrel.good("ssh-config", "--install", "--yes")
    assert "+Include ~/.ssh/carrel.conf" in shown and "+Host *.carrel" in shown
    assert config.read_text() == "Include ~/.ssh/carrel.conf\nHost other\n  User me\n"
    assert config.stat().st_mode & 0o777 == 0o640
    assert (folder / "carrel.conf").read_text() == carrel.good("ssh-config")
    assert carrel.good("ssh-config", "--install", "--yes") == ""
    carrel.good("ssh-config", "--remove", "--yes")
    assert config.read_text() == "Host other\n  User me\n"
    assert not (folder / "carrel.conf").exists()


def test_a_home_without_any(carrel: Program, home: Path) -> None:
    carrel.good("ssh-config", "--install", "--yes")
    assert (home / ".ssh").stat().st_mode & 0o777 == 0o700
    assert (home / ".ssh/config").stat().st_mode & 0o777 == 0o600
    carrel.good("ssh-config", "--remove", "--yes")
    assert (home / ".ssh/config").read_text() == ""


def test_lines_end_as_they_did(carrel: Program, home: Path) -> None:
    config = home / ".ssh/config"
    config.parent.mkdir(mode=0o700)
    config.write_bytes(b"Host other\r\n  User me")
    carrel.good("ssh-config", "--install", "--yes")
    assert config.read_bytes() == b"Include ~/.ssh/carrel.conf\nHost other\r\n  User me"
    config.write_bytes(config.read_bytes().replace(b"conf\n", b"conf\r\n"))
    assert carrel.good("ssh-config", "--install", "--yes") == ""
    carrel.good("ssh-config", "--remove", "--yes")
    assert config.read_bytes() == b"Host other\r\n  User me"


def test_a_configuration_that_cannot_be_changed(carrel: Program, home: Path) -> None:
    """What is to be done is told, and nothing is left."""
    folder = home / ".ssh"
    folder.mkdir(mode=0o700)
    (folder / "config").symlink_to(home / "nowhere/config")
    said = carrel.bad(2, "ssh-config", "--install", "--yes")
    assert "cannot be changed" in said and "by hand" in said
    shutil.rmtree(folder)
    folder.write_text("no folder")
    assert "cannot be read" in carrel.bad(2, "ssh-config", "--install", "--yes")


def test_a_configuration_that_is_a_link(carrel: Program, home: Path) -> None:
    """It stays one, and what it leads to keeps its owner: ssh refuses another one's."""
    (home / ".ssh").mkdir(mode=0o700)
    real = home / "dotfiles"
    real.write_text("Host other\n")
    if os.geteuid() == 0:
        os.chown(real, 1000, 1000)
    before = real.stat()
    (home / ".ssh/config").symlink_to(real)
    carrel.good("ssh-config", "--install", "--yes")
    assert (home / ".ssh/config").is_symlink() and real.read_text().endswith("Host other\n")
    after = real.stat()
    assert (after.st_uid, after.st_mode) == (before.st_uid, before.st_mode)
    assert sorted(one.name for one in home.iterdir()) == [".ssh", "dotfiles"]
