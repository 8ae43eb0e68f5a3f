"""Whose eyes the ports of a sandbox are seen with."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pytest

from carrel.domain.launching import LauncherPort
from carrel.domain.runtimes import Sandbox, SandboxSpec
from carrel.domain.trees import Owner
from carrel.linux import tcp
from carrel.runtimes.ports import SandboxPorts

LISTENS = """
import socket, sys
listener = socket.create_server(("0.0.0.0", 0)) if sys.argv[1:] else socket.socket()
print(listener.getsockname()[1] if sys.argv[1:] else 0, flush=True)
sys.stdin.read()
"""


@contextmanager
def elsewhere(*words: str) -> Iterator[tuple[int, int]]:
    """A process in a network of its own, and the port that it listens on."""
    argv = ["unshare", "--net", sys.executable, "-c", LISTENS, *words]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            yield process.pid, int(process.stdout.readline())
        finally:
            process.stdin.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user makes no network")
async def test_who_is_in_another_network_is_not_asked(tmp_path: Path) -> None:
    """Who sets a container up is in its network first, for a moment, and older than all commands
    of the pod."""
    with elsewhere() as (helper, _), elsewhere("listen") as (server, port):
        network = tcp.network_of(server)

        async def members(_: Sandbox) -> tuple[list[int], str]:
            return [helper, server], network

        ports = SandboxPorts(cast(LauncherPort, None), members)
        owner = Owner(os.getuid(), os.getgid())
        sandbox = Sandbox("podman", SandboxSpec("sp_pod", tmp_path, tmp_path, owner, pod="sp_pod"))
        found = await ports.listening(sandbox, None, private=True)
        assert [(one.port, one.pid) for one in found.ports] == [(port, server)]
