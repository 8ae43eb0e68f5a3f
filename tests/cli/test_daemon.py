"""Starting, ending and looking at the daemon; tokens; errors that concern it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from carrel import __version__
from carrel.daemon import control
from tests.cli.program import TIMEOUT_S, Program
from tests.daemon.rig import Daemon


@pytest.fixture
def own(own_daemon: Daemon, tmp_path: Path) -> Program:
    return Program(own_daemon.data, tmp_path)


def test_up_and_down(own: Program, own_daemon: Daemon) -> None:
    assert own.json("status")["pid"] == own_daemon.pid
    assert own.json("up")["pid"] == own_daemon.pid
    assert "data folder" in own.bad(4, "up", "--listen", "127.0.0.1:0")
    assert "has ended" in own.good("down")
    assert "No daemon runs" in own("down").err
    done = own("status")
    assert done.code == 6 and "No daemon runs" in done.out
    assert json.loads(own("status", "--json").out)["running"] is False
    found = json.loads(own.good("up", "--listen", "127.0.0.1:0", "--json"))
    assert found["pid"] == control.status(own.data).pid and found["address"]
    status = own.good("status")
    assert __version__ in status and found["address"] in status and str(own.data) in status


def test_commands_start_it_unless_told_not_to(own: Program, own_daemon: Daemon) -> None:
    own_daemon.stop()
    for words in (["ls", "--no-start"], ["--no-start", "ls"]):
        assert "carrel up" in own.bad(6, *words)
    assert own("ls", env={"CARREL_NO_START": "1"}).code == 6
    assert not control.status(own.data).running
    own.good("ls")
    assert control.status(own.data).running


def test_in_the_foreground(own: Program, own_daemon: Daemon) -> None:
    own_daemon.stop()
    process = own.start("up", "--foreground", stderr=subprocess.PIPE)
    try:
        while not control.status(own.data).running:
            assert process.poll() is None
            os.sched_yield()
        own.good("ls")
        assert control.status(own.data).pid == process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0


def test_another_folder(own: Program, own_daemon: Daemon) -> None:
    own.env["CARREL_DATA"] = "/nonexistent/carrel"
    own.good("--data", str(own_daemon.data), "ls")
    assert own("--data", str(own_daemon.data), "status").code == 0


def test_a_folder_that_cannot_be_used(carrel: Program) -> None:
    carrel.env["CARREL_DATA"] = "relative"
    assert "absolute" in carrel.bad(2, "ls")
    carrel.env["CARREL_DATA"] = "/proc/nowhere"
    assert "daemon" in carrel.bad(None, "ls")


def test_tokens_and_tcp(carrel: Program, daemon: Daemon, space: str) -> None:
    done = carrel("token", "create", "--name", "mine", "--space", space, "--ttl", "1h")
    secret = done.out.strip()
    assert done.code == 0 and secret.startswith("crl_") and "not shown again" in done.err
    assert secret not in carrel.good("token", "ls") and "mine" in carrel.good("token", "ls")
    other = carrel.good("new", "--empty").strip()
    elsewhere = {"CARREL_URL": f"http://{daemon.address}", "CARREL_TOKEN": secret}
    done = carrel("ls", env=elsewhere)
    assert done.code == 0 and space in done.out and other not in done.out
    assert carrel("exec", space, "echo", "hi", env=elsewhere).out == "hi\n"
    assert carrel("show", other, env=elsewhere).code == 3
    assert carrel("token", "ls", env=elsewhere).code == 5
    assert carrel("down", env=elsewhere).code == 2
    assert carrel.json("status")["running"]
    assert carrel("status", env=elsewhere).code == 0
    carrel.good("token", "revoke", "mine")
    done = carrel("ls", env=elsewhere)
    assert done.code == 5 and "revoked" in done.err
    assert carrel("--url", "http://127.0.0.1:1", "ls").code == 6
    assert "one scope" in carrel.bad(2, "token", "create", "--space", "x", "--label", "a=b")
    carrel.good("rm", other)


def test_df(carrel: Program, space: str) -> None:
    text = carrel.good("df")
    assert space in text and "are free" in text
    found = carrel.json("df")
    assert space in {part["name"] for part in found["parts"] if part["kind"] == "space"}


def test_unused_bases(carrel: Program, project: Path) -> None:
    name = carrel.good("new", str(project)).strip()
    base = carrel.json("show", name)["base"]
    carrel.good("rm", "--force", name)
    assert base in carrel.good("gc", "--bases", "--dry-run")
    assert base in carrel.good("gc", "--bases")
    assert base not in carrel.good("df")


def test_doctor(carrel: Program) -> None:
    text = carrel("doctor").out
    assert "machine:" in text and "runtime:" in text and "Spaces are confined by" in text
    found = json.loads(carrel("doctor", "--json").out)
    assert found["findings"] and isinstance(found["healthy"], bool)
