"""A space whose agent has taken over the `sshd`, and what that reaches of the person's side.

It may do so: it has the same user, and may read the key of its host.
"""

from __future__ import annotations

import os
import re
import select
import shlex
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from carrel.domain.ssh import TAKEN
from carrel.service.dev_shells import MOST
from tests.cli.program import PROGRAM, TIMEOUT_S, Program
from tests.sampling import whole_only
from tests.ssh.conftest import Clients
from tests.ssh.test_sessions import _until

SERVER = """HostKey /run/carrel/ssh/host_key
HostCertificate /run/carrel/ssh/host_key-cert.pub
AuthorizedKeysFile {keys}
PidFile none
UsePAM no
StrictModes no
AllowAgentForwarding yes
X11Forwarding yes
PasswordAuthentication yes
"""


class Hostile:
    """Its own server, behind the connection."""

    def __init__(self, carrel: Program, clients: Clients, space: str) -> None:
        self._carrel = carrel
        self._clients = clients
        self._space = space

    def ssh(self, *options: str, keys: str = "/run/carrel/ssh/authorized_keys") -> list[str]:
        """What a client answers to it, with the user's own settings for all hosts below ours."""
        script = "cat > /tmp/hostile.conf"
        settings = SERVER.format(keys=keys).encode()
        self._carrel.good("exec", "-i", self._space, "--", "sh", "-c", script, stdin=settings)
        server = "exec -i {} -- /usr/sbin/sshd -i -e -f /tmp/hostile.conf"
        proxy = f"{shlex.quote(str(PROGRAM))} {server.format(self._space)}"
        through = ("-o", "ProxyUseFdpass=no", "-o", f"ProxyCommand={proxy}")
        asked = 'echo "agent <$SSH_AUTH_SOCK>"; echo "display <$DISPLAY>"; ssh-add -l'
        done = self._clients.ssh(self._space, asked, options=(*through, *options))
        return (done.stdout + done.stderr).decode().splitlines()


@pytest.fixture
def hostile(carrel: Program, clients: Clients, space: str) -> Hostile:
    # Its keys are made when somebody first comes.
    assert clients.ssh(space, "true").returncode == 0
    return Hostile(carrel, clients, space)


@pytest.fixture
def own_agent(clients: Clients, tmp_path: Path) -> Iterator[None]:
    """With a key of the person's."""
    key, place = tmp_path / "personal", "./agent"
    words = ["ssh-agent", "-D", "-a", place]
    with subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None and process.stdout.readline()
            clients.env["SSH_AUTH_SOCK"] = place
            clients.good("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key))
            clients.good("ssh-add", "-q", str(key))
            yield
        finally:
            process.terminate()
            process.wait(TIMEOUT_S)


@pytest.mark.usefixtures("own_agent")
def test_it_gets_no_agent_of_keys(hostile: Hostile) -> None:
    """Also not with `-A`."""
    said = hostile.ssh("-A")
    assert any(line.startswith("agent ") for line in said), said
    assert not any("ED25519)" in line for line in said), said
    assert "Could not open a connection to your authentication agent." in said or (
        "agent <>" in said
    ), said


def test_it_gets_no_display(hostile: Hostile, clients: Clients) -> None:
    """Many have this for all hosts."""
    clients.env["DISPLAY"] = ":99"
    more = "\nHost *\n  ForwardX11 yes\n  ForwardX11Trusted yes\n"
    clients.config.write_text(clients.config.read_text() + more)
    assert "display <>" in hostile.ssh()


def test_nobody_is_asked_for_a_password(hostile: Hostile, clients: Clients, tmp_path: Path) -> None:
    """A person might type it."""
    asked = tmp_path / "asked"
    ask = tmp_path / "ask"
    ask.write_text(f'#!/bin/sh\necho "$@" > {shlex.quote(str(asked))}\necho secret\n')
    ask.chmod(0o700)
    clients.env.update(SSH_ASKPASS=str(ask), SSH_ASKPASS_REQUIRE="force")
    said = hostile.ssh(keys="/dev/null")
    assert any("Permission denied" in line for line in said), said
    assert not asked.exists(), asked.read_text()


def _errors_of_sshd(folder: Path) -> str:
    """Where the `sshd` of the one connection says what it does, as who has taken it over has it."""
    for process in filter(str.isdigit, os.listdir("/proc")):
        path = f"/proc/{process}/fd/2"
        try:
            if re.fullmatch(rf"{re.escape(str(folder))}/sp_\w+/ssh/ss_\w+\.log", os.readlink(path)):
                return path
        except OSError:
            continue
    raise AssertionError("no sshd")


def test_it_fills_no_disk(carrel: Program, clients: Clients, space: str) -> None:
    """What an `sshd` says is not counted as the space's. Nor does it fill the list of events."""
    with clients.held(space):
        place = _errors_of_sshd(carrel.data / "spaces")
        taken = os.open(place, os.O_WRONLY | os.O_NONBLOCK)
        wrote = 0
        try:
            while wrote < 50_000_000:
                wrote += os.write(taken, b"x" * 4096)
        except BlockingIOError:
            pass
        assert wrote < 1 << 20
        line = b"Starting session: shell on pts/1\n" * 100
        for _ in range(30):
            assert select.select([], [taken], [], TIMEOUT_S)[1]
            os.write(taken, b"\n" + line)
        os.close(taken)
        (one,) = carrel.json("ps", space)["ssh"]
        assert clients.ssh(space, "echo on").stdout == b"on\n"
    text = carrel.good("events", "--json")
    did = [line for line in text.splitlines() if '"ssh.did"' in line and one["session"] in line]
    assert len(did) <= 1000


def test_one_that_is_stopped_ends_with_its_space(
    carrel: Program, clients: Clients, space: str
) -> None:
    words = ["ssh", "-F", str(clients.config), f"{space}.carrel", "echo there; sleep 1000"]
    with subprocess.Popen(words, env=clients.env, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"there\n"
        carrel.good("exec", space, "--", "pkill", f"-{signal.SIGSTOP.value}", "-x", "sshd")
        carrel.good("stop", space)
        assert process.wait(TIMEOUT_S) == 255


def test_another_space_is_not_taken_for_the_agents_terminal(
    carrel: Program, space: str, project: Path
) -> None:
    """Who may make spaces may call one so."""
    name = f"{space}-agent"
    carrel.good("new", str(project), "--name", name)
    try:
        mine = carrel.json("show", space)["id"]
        asked = ("ssh", space, "--agent", "--", "echo $CARREL_SPACE")
        assert carrel.good(*asked).strip() == mine
    finally:
        carrel("rm", "--force", name)


@whole_only
def test_commands_that_were_left_keep_no_agent_waiting(
    carrel: Program, clients: Clients, imaged: str
) -> None:
    """A connection that breaks leaves its command there, as with every sshd. These begin as they
    do behind one."""
    one = f"{TAKEN}=1 /run/carrel/dev/bash -c 'sleep 1000' < /dev/null &"
    script = f"for i in $(seq {MOST}); do {one} done; wait"
    inside = ("exec", "--in", "agent", imaged, "--")
    carrel.good("exec", "-d", *inside[1:], "sh", "-c", script)
    _until(lambda: clients.ssh(imaged, "true").returncode == 126)
    assert carrel.good(*inside, "/run/carrel/dev/bash", "-c", "echo on") == "on\n"
