"""The engines that tests make containers with: podman as it is, and a docker daemon of our own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from functools import cache
from pathlib import Path

from carrel.runtimes.container_engines import run_folder
from tests.load.patience import SLOWER

READY_S = 30.0 * SLOWER
OURS = "CARREL_TESTS_DOCKER"
"""In the environment: its socket, once it is there."""
_running: list[tuple[subprocess.Popen[bytes], Path]] = []


def missing(engine: str) -> str:
    """Why there can be none; empty where there can."""
    if os.geteuid() != 0:
        return "only root's daemon uses containers"
    needed = {"podman": ("podman", "runc", "conmon"), "docker": ("dockerd", "docker")}[engine]
    found = [one for one in needed if shutil.which(one) is None]
    return f"not installed: {', '.join(found)}" if found else ""


def forget_podman(folder: Path) -> None:
    """What it notes outside of a data folder, which is about to go."""
    shutil.rmtree(run_folder(folder), ignore_errors=True)


@cache
def docker_socket() -> Path:
    """Of a daemon without a network of its own, which ends with the session. Processes that a test
    starts have the same."""
    if known := os.environ.get(OURS):
        return Path(known)
    folder = Path(tempfile.mkdtemp(prefix="carrel-dockerd-"))
    path = folder / "docker.sock"
    places = ["--data-root", f"{folder}/data", "--exec-root", f"{folder}/exec"]
    alone = ["--bridge=none", "--iptables=false", "--ip6tables=false"]
    with open(folder / "log", "wb") as log:
        daemon = subprocess.Popen(
            ["dockerd", "-H", f"unix://{path}", *places, "--pidfile", f"{folder}/pid", *alone],
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    _running.append((daemon, folder))
    deadline = time.monotonic() + READY_S
    asked = ["docker", "-H", f"unix://{path}", "version"]
    while subprocess.run(asked, capture_output=True, check=False).returncode != 0:
        assert daemon.poll() is None, (folder / "log").read_text()
        assert time.monotonic() < deadline, "dockerd is not ready"
        time.sleep(0.05)
    os.environ[OURS] = str(path)
    return path


def end_docker() -> None:
    """At the end of a session: a worker runs nothing when it exits."""
    while _running:
        os.environ.pop(OURS, None)
        _end(*_running.pop())


def _end(daemon: subprocess.Popen[bytes], folder: Path) -> None:
    daemon.send_signal(signal.SIGTERM)
    try:
        daemon.wait(READY_S)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()
    shutil.rmtree(folder, ignore_errors=True)
