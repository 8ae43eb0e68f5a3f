"""OpenSSH's own programs, and spaces that they come into."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from carrel.domain.errors import SshUnavailable
from carrel.ssh.keys import find_server
from tests.busybox import busybox_image
from tests.cli.conftest import carrel, daemon, own_daemon, project, space, tidy
from tests.cli.program import TIMEOUT_S, Program

__all__ = ["carrel", "daemon", "own_daemon", "project", "space", "tidy"]
NEEDED = ("ssh", "sftp", "scp", "rsync", "git")


@pytest.fixture(autouse=True, scope="session")
def needs_openssh() -> None:
    try:
        find_server()
    except SshUnavailable as error:
        pytest.skip(f"{error.message} {error.hint}")
    if missing := [name for name in NEEDED if shutil.which(name) is None]:
        pytest.skip(f"not installed: {', '.join(missing)}")


class Clients:
    """Programs that are given the configuration which `carrel ssh-config` prints."""

    def __init__(self, carrel: Program) -> None:
        self.carrel = carrel
        self.folder = carrel.cwd
        self.config = carrel.cwd / "ssh_config"
        self.config.write_text(carrel.good("ssh-config"))
        self.env = {**carrel.env, "GIT_SSH_COMMAND": f"ssh -F {self.config}"}

    def prepare(self) -> None:
        """Called before a program is started."""

    def run(self, *words: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
        self.prepare()
        options.setdefault("input", b"")
        return subprocess.run(
            words,
            env=self.env,
            cwd=self.folder,
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
            **options,
        )

    def good(self, *words: str, **options: Any) -> bytes:
        done = self.run(*words, **options)
        assert done.returncode == 0, done
        return done.stdout

    def ssh(
        self, host: str, *command: str, options: tuple[str, ...] = (), **more: Any
    ) -> subprocess.CompletedProcess[bytes]:
        return self.run("ssh", "-F", str(self.config), *options, f"{host}.carrel", *command, **more)

    @contextmanager
    def held(self, host: str, *options: str) -> Iterator[subprocess.Popen[bytes]]:
        """A connection that is there until the context ends, and has done what it was asked."""
        self.prepare()
        words = ["ssh", "-F", str(self.config), *options, f"{host}.carrel"]
        process = subprocess.Popen(
            [*words, "echo there; cat"],
            env=self.env,
            cwd=self.folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        with process:
            assert process.stdin is not None and process.stdout is not None
            try:
                assert process.stdout.readline() == b"there\n"
                yield process
            finally:
                process.stdin.close()
                process.wait(TIMEOUT_S)


class ListenerClients(Clients):
    """The same programs by the listener, with a key of their own that opens every space."""

    def __init__(self, carrel: Program, *limits: str) -> None:
        self.key = carrel.cwd / "listener_key"
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.key)],
            check=True,
            timeout=TIMEOUT_S,
        )
        self.id = carrel.good("ssh-key", "add", f"{self.key}.pub", *(limits or ("--all",))).strip()
        self.port = int(carrel.json("ssh-listen")["port"])
        super().__init__(carrel)

    def prepare(self) -> None:
        listener = self.carrel.json("ssh-listen", "--show")
        known = self.folder / "known_hosts"
        known.write_text(f"[127.0.0.1]:{listener['port']} {listener['host_key']}\n")
        names = [one["name"] for one in self.carrel.json("ls")["spaces"]]
        users = [f"{name}{end}" for name in names for end in ("", "-agent", "-dev")]
        self.config.write_text(
            "".join(f"Host {user}.carrel\n  User {user}\n" for user in dict.fromkeys(users))
            + "Host *.carrel\n  HostName 127.0.0.1\n"
            f"  Port {listener['port']}\n  UserKnownHostsFile {known}\n"
            f"  IdentityFile {self.key}\n  IdentitiesOnly yes\n  StrictHostKeyChecking yes\n"
        )


@pytest.fixture
def clients(carrel: Program) -> Clients:
    return Clients(carrel)


@pytest.fixture
def by_listener(carrel: Program) -> Iterator[ListenerClients]:
    found = ListenerClients(carrel)
    yield found
    carrel("ssh-key", "rm", found.id)


@pytest.fixture(params=["proxy", "listener"])
def both_clients(request: pytest.FixtureRequest) -> Clients:
    found = request.getfixturevalue("clients" if request.param == "proxy" else "by_listener")
    assert isinstance(found, Clients)
    return found


@pytest.fixture
def imaged(carrel: Program, project: Path, tmp_path: Path) -> Iterator[str]:
    """A space with an image that has neither an ssh nor an sftp."""
    image = busybox_image(tmp_path)
    name = carrel.good("new", str(project), "--image", str(image)).strip()
    yield name
    carrel("rm", "--force", name)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs another account to try it as")
