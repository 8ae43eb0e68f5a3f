"""Keys that agents have are in no file, whatever becomes of the agent and of the daemon."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.rig import ANSWER_S, LOOK_S, Daemon, good

PLANTED = "sk-planted-with-the-turn"
ODD = "planted-by-an-odd-name"
ENV = {"ANTHROPIC_API_KEY": PLANTED, "LETTERS": ODD}
CORE_PATTERN = Path("/proc/sys/kernel/core_pattern")


# They share a daemon that is started as a person does it.
pytestmark = pytest.mark.xdist_group("secrets of agents")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """Started by someone whose programs leave cores wherever they may, each time."""
    folder = tmp_path_factory.mktemp("secrets")
    folder.chmod(0o711)
    found = Daemon(folder / "data", forked=False)
    with cores(), contextlib.closing(found):
        found.start()
        yield found


@contextlib.contextmanager
def cores() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))


class Desk:
    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self.client = daemon.local()
        self.space = good(self.client.post("/v1/spaces", json={"agent": "scripted"}))["id"]

    def begin(self, prompt: str) -> str:
        body = {"prompt": prompt, "env": ENV}
        return str(good(self.client.post(f"/v1/spaces/{self.space}/turns", json=body))["id"])

    def end(self, turn: str) -> dict[str, Any]:
        until = time.monotonic() + ANSWER_S
        while True:
            found = good(self.client.get(f"/v1/turns/{turn}", params={"wait_s": 20}))
            if found["state"] != "running":
                return dict(found)
            assert time.monotonic() < until

    def exists(self, name: str) -> bool:
        answer = self.client.get(f"/v1/spaces/{self.space}/files", params={"path": name})
        return answer.status_code == 200


def files(folder: Path) -> Iterator[Path]:
    for above, _folders, names in os.walk(folder):
        for name in names:
            path = Path(above, name)
            if path.is_file() and not path.is_symlink():
                yield path


def assert_nowhere(daemon: Daemon) -> None:
    for path in files(daemon.data):
        content = path.read_bytes()
        assert PLANTED.encode() not in content, path
        assert ODD.encode() not in content, path


def kept(daemon: Daemon, turn: str) -> dict[str, Any]:
    """The record of a turn."""
    place = f"file:{daemon.data}/carrel.db?mode=ro"
    with contextlib.closing(sqlite3.connect(place, uri=True)) as store:
        ask = "SELECT document FROM turns WHERE run_id = ?"
        (document,) = store.execute(ask, (turn,)).fetchone()
    return dict(json.loads(document))


def test_what_a_turn_is_given_is_not_kept(daemon: Daemon) -> None:
    desk = Desk(daemon)
    script = (
        'run test "$ANTHROPIC_API_KEY" && touch begun\nsleep 2\nrun printf %s "$LETTERS" | wc -c'
    )
    turn = desk.begin(script)
    until = time.monotonic() + ANSWER_S
    while not desk.exists("begun"):
        assert time.monotonic() < until
        time.sleep(LOOK_S)
    assert_nowhere(daemon)
    daemon.kill()
    assert_nowhere(daemon)
    daemon.start()
    desk.client = daemon.local()
    ended = desk.end(turn)
    assert ended["result"]["success"], ended
    assert_nowhere(daemon)
    shown = desk.client.get(f"/v1/turns/{turn}").text + desk.client.get(f"/v1/runs/{turn}").text
    shown += desk.client.get(f"/v1/spaces/{desk.space}").text + daemon.log()
    assert PLANTED not in shown and ODD not in shown


def test_what_is_said_first_is_not_kept_for_ever(daemon: Daemon) -> None:
    """It is in the record for a daemon that takes the turn up, and has the prompt in it."""
    desk = Desk(daemon)
    turn = desk.begin("sleep 1")
    assert kept(daemon, turn)["first"]
    desk.end(turn)
    assert kept(daemon, turn)["first"] == ""


def test_this_machine_would_write_a_core(tmp_path: Path) -> None:
    """Else the next test shows nothing."""
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    pattern = CORE_PATTERN.read_text().strip()
    if hard == 0 or pattern.startswith(("|", "/", "@")):
        pytest.skip(f"cores are not put where a program runs: {pattern!r}, limit {hard}")
    crash = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
    with cores():
        subprocess.run([sys.executable, "-c", crash], cwd=tmp_path, env=ENV, timeout=ANSWER_S)
    (core,) = files(tmp_path)
    assert PLANTED.encode() in core.read_bytes()


def test_an_agent_that_crashes_leaves_no_core(daemon: Daemon) -> None:
    desk = Desk(daemon)
    for victim in ("$PPID", "$$"):
        turn = desk.end(desk.begin(f"run ulimit -c; ulimit -Hc\nrun kill -SEGV {victim}"))
        assert turn["state"] == ("error" if victim == "$PPID" else "complete"), turn
        output = good(desk.client.get(f"/v1/runs/{turn['id']}"))
        assert output["state"] == "ended"
    assert not desk.exists("core")
    assert not [path for path in files(daemon.data) if path.name.startswith("core")]
    assert_nowhere(daemon)


def test_what_has_keys_may_leave_no_core(daemon: Daemon) -> None:
    desk = Desk(daemon)
    run = {"argv": ["sh", "-c", "ulimit -Hc; ulimit -c unlimited"]}
    refused = good(desk.client.post(f"/v1/spaces/{desk.space}/exec", json=run))
    assert refused["stdout"] == "0\n" and refused["run"]["exit"]["code"] != 0
    launcher = int((daemon.data / "launcher" / "lock").read_text())
    for pid in (daemon.pid, launcher):
        lines = Path(f"/proc/{pid}/limits").read_text().splitlines()
        assert [line.split()[4:6] for line in lines if "core file" in line] == [["1", "1"]]


def test_the_daemon_leaves_no_core(daemon: Daemon) -> None:
    Desk(daemon)
    folder = Path(os.readlink(f"/proc/{daemon.pid}/cwd"))
    before = {path.name for path in folder.glob("core*")}
    descriptor = os.pidfd_open(daemon.pid)
    try:
        signal.pidfd_send_signal(descriptor, signal.SIGSEGV)
        assert select.select([descriptor], [], [], ANSWER_S)[0]
    finally:
        os.close(descriptor)
    assert {path.name for path in folder.glob("core*")} == before
    daemon.start()
