"""docs/daemon.md, docs/ports.md, docs/data.md and docs/spaces.md: the daemon's own process, its
files and bounds, ports, and what is kept where."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from carrel.daemon import control
from tests.accounts import PYTHON, ordinary_account, run_as
from tests.busybox import busybox_image
from tests.cli.program import TIMEOUT_S, Program
from tests.daemon.rig import ANSWER_S, LOOK_S, Daemon, fresh_daemon, good
from tests.instances.small import command, put_small

DOCS = Path(__file__).resolve().parents[2] / "docs"
GIT = ("git", "-c", "user.name=Ada", "-c", "user.email=ada@example.org")
SERVE = "nohup python3 -m http.server {} --bind 127.0.0.1 > /dev/null 2>&1 &"


@pytest.fixture
def carrel(daemon: Daemon, tmp_path: Path) -> Program:
    return Program(daemon.data, tmp_path)


@pytest.fixture(scope="module")
def own() -> Iterator[Daemon]:
    """One on TCP, which a test may end; the next one starts it again."""
    with fresh_daemon() as found:
        yield found


@pytest.fixture
def desk(carrel: Program) -> Iterator[str]:
    name = carrel.good("new", "--empty").strip()
    yield name
    carrel("rm", "--force", name)


def until(holds: Callable[[], Any]) -> Any:
    end = time.monotonic() + ANSWER_S
    while not (found := holds()):
        assert time.monotonic() < end
        time.sleep(LOOK_S)
    return found


# The daemon


def test_its_files(own: Daemon) -> None:
    folder = own.data / "daemon"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "socket").stat().st_mode & 0o777 == 0o600
    assert str(control.status(own.data).pid) in (folder / "lock").read_text()
    assert (folder / "address").read_text().strip() == own.address
    assert (folder / "log").exists()


ENDS: dict[str, Callable[[Daemon], object]] = {
    "down": lambda one: Program(one.data, one.data.parent).good("down"),
    "SIGTERM": lambda one: os.kill(control.status(one.data).pid, signal.SIGTERM),
    "SIGINT": lambda one: os.kill(control.status(one.data).pid, signal.SIGINT),
    "shutdown": lambda one: one.local().post("/v1/shutdown"),
}


@pytest.mark.parametrize("how", ENDS)
def test_commands_outlive_the_daemon(own: Daemon, tmp_path: Path, how: str) -> None:
    """Their output and exit codes are complete, of those that ended meanwhile too."""
    carrel = Program(own.data, tmp_path)
    carrel.good("up")
    name = carrel.good("new", "--empty").strip()
    script = "echo begun; until [ -e go ]; do sleep 0.05; done; echo ended; exit 5"
    run = carrel.good("exec", "-d", name, "--", "sh", "-c", script).strip()
    short = carrel.good("exec", "-d", name, "--", "sh", "-c", "until [ -e go ]; do :; done; exit 6")
    process = os.pidfd_open(control.status(own.data).pid)
    ENDS[how](own)
    signal_end(process)
    assert carrel("status").code == 6
    carrel.good("cp", "-", f"{name}:go", stdin=b"")
    assert carrel("run", "wait", run).code == 5 and carrel("run", "wait", short.strip()).code == 6
    assert carrel.good("logs", run) == "begun\nended\n"
    carrel.good("rm", "--force", name)


def signal_end(process: int) -> None:
    import select

    try:
        assert select.select([process], [], [], ANSWER_S)[0]
    finally:
        os.close(process)


def test_a_second_daemon_names_the_first(own: Daemon) -> None:
    Program(own.data, own.data.parent).good("up")
    line = [sys.executable, "-P", "-m", "carrel.daemon", "--data", str(own.data)]
    second = subprocess.run(line, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert second.returncode != 0 and str(control.status(own.data).pid) in second.stderr


def test_without_the_program(tmp_path: Path) -> None:
    """`python -P -m carrel.daemon` writes `ready PID ADDRESS` to a descriptor."""
    reading, writing = os.pipe()
    # Longer than an address of a Unix socket may be.
    data = tmp_path / ("long" * 30) / "data"
    data.parent.mkdir()
    words = ["--data", str(data), "--listen", "127.0.0.1:0", "--ready-fd", str(writing)]
    line = [sys.executable, "-P", "-m", "carrel.daemon", *words]
    with subprocess.Popen(line, pass_fds=[writing], stderr=subprocess.DEVNULL) as process:
        os.close(writing)
        with open(reading) as told:
            ready, pid, address = told.readline().split()
        assert (ready, int(pid)) == ("ready", process.pid) and address.startswith("127.0.0.1:")
        carrel = Program(data, tmp_path)
        assert carrel.json("status")["pid"] == process.pid
        # Room for the time when the disk is full: a hundredth of it, within bounds.
        until(lambda: 4 << 20 <= used(data / "reserve") <= 65 << 20)
        process.terminate()
        assert process.wait(TIMEOUT_S) == 0


def used(folder: Path) -> int:
    return sum(one.stat().st_blocks * 512 for one in folder.rglob("*"))


def test_a_data_folder_is_its_users_own(tmp_path: Path) -> None:
    carrel = Program(tmp_path / "open" / "data", tmp_path)
    (tmp_path / "open" / "data").mkdir(parents=True)
    (tmp_path / "open" / "data").chmod(0o777)
    refused = carrel("up")
    assert refused.code != 0 and "data" in refused.err
    assert carrel("status").code == 6


BOUNDS: list[tuple[dict[str, Any], int]] = [
    ({"headers": {"X-Long": "x" * 70_000}}, 431),
    ({"headers": {f"X-{number}": "x" for number in range(101)}}, 431),
    ({"content": b'{"name": "' + b"x" * (1 << 20) + b'"}'}, 413),
    ({"content": b"[" * 65 + b"]" * 65}, 400),
]


@pytest.mark.parametrize(("asked", "status"), BOUNDS, ids=range(4))
def test_what_one_call_may_have(own: Daemon, asked: dict[str, Any], status: int) -> None:
    Program(own.data, own.data.parent).good("up")
    with own.local() as client:
        given = {"Content-Type": "application/json", **asked.get("headers", {})}
        answer = client.post("/v1/spaces", headers=given, content=asked.get("content", b"{}"))
        assert answer.status_code in (status, 422 if status == 400 else status), answer.text


def test_who_may_call(own: Daemon, tmp_path: Path) -> None:
    carrel = Program(own.data, tmp_path)
    carrel.good("down")
    carrel.good("up", "--listen", "127.0.0.1:0")
    with own.tcp() as nobody, own.tcp(own.token("label:a=b")) as blue:
        assert nobody.get("/v1/spaces").status_code == 401
        assert blue.get("/v1/spaces").status_code == 200
        assert blue.get("/metrics").status_code == 403
        # Wrong ones are slowed down to 20 a minute.
        wrong = {"Authorization": "Bearer crl_wrong"}
        codes = [nobody.get("/v1/spaces", headers=wrong).status_code for _ in range(25)]
        assert codes[0] == 401 and codes[-1] == 429


def test_figures(daemon: Daemon, desk: str, carrel: Program) -> None:
    carrel.good("exec", desk, "--", "true")
    with daemon.local() as client:
        text = client.get("/metrics").text
    names = set(re.findall(r"^(carrel_\w+|process_\w+)", text, re.M))
    for word in ("spaces", "request", "event", "memory", "cpu"):
        assert any(word in name for name in names), (word, names)
    assert re.search(r'_bucket\{.*le="', text)


# Ports


def served(local: int) -> bytes:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{local}/", timeout=5) as answer:
            return bytes(answer.read())
    except (urllib.error.URLError, OSError):
        return b""


def test_a_port_on_this_machine(carrel: Program, daemon: Daemon) -> None:
    one, other = (carrel.good("new", "--empty").strip() for _ in "12")
    for name in (one, other):
        carrel.good(
            "exec", name, "--", "sh", "-c", f"echo in {name} > index.html; {SERVE.format(3000)}"
        )
    addresses = {name: carrel.good("port", name, "3000").strip() for name in (one, other)}
    locals = {name: int(told.rpartition(":")[2]) for name, told in addresses.items()}
    for name, local in locals.items():
        assert until(lambda local=local: served(local)) == f"in {name}\n".encode()  # type: ignore[misc]
    assert "3000" in carrel.good("ps", one) and "3000" in carrel.good("port", one)
    assert [port["port"] for port in carrel.json("ps", one)["listening"]] == [3000]
    # A port that is chosen; several at once; nothing need listen yet.
    with socket.create_server(("127.0.0.1", 0)) as free:
        chosen = free.getsockname()[1]
    told = carrel.good("port", one, f"4000:{chosen}", "4001")
    assert f"127.0.0.1:{chosen}\n" in told and len(told.splitlines()) == 2
    assert served(chosen) == b""
    # It tells what begins and ends to listen.
    until(lambda: "port.listens" in carrel.good("events", "--space", one, "--json"))
    if os.geteuid() == 0:
        script = "import socket,sys; s=socket.create_connection(('127.0.0.1',int(sys.argv[1])),5)"
        script += "; s.sendall(b'GET / HTTP/1.0\\r\\n\\r\\n'); sys.exit(bool(s.recv(9)))"
        refused = run_as(ordinary_account(), [PYTHON, "-c", script, str(locals[one])])
        assert "ConnectionReset" in refused.stderr or refused.returncode == 0
    carrel.good("port", one, "--stop")
    assert carrel.json("port", one)["forwards"] == [] and served(locals[one]) == b""
    # It ends with its space.
    carrel.good("stop", other)
    assert until(lambda: served(locals[other]) == b"")
    carrel.good("rm", "--force", one, other)


def test_a_forward_outlives_the_daemon(own: Daemon, tmp_path: Path) -> None:
    carrel = Program(own.data, tmp_path)
    name = carrel.good("new", "--empty").strip()
    carrel.good("exec", name, "--", "sh", "-c", f"echo here > index.html; {SERVE.format(3000)}")
    local = int(carrel.good("port", name, "3000").rpartition(":")[2])
    carrel.good("down")
    carrel.good("up")
    assert until(lambda: served(local)) == b"here\n"
    carrel.good("down")
    carrel.good("up", "--listen", "127.0.0.1:0")
    with own.local() as client, own.tcp(own.token("label:a=b")) as blue:
        space = carrel.json("show", name)["id"]
        assert good(client.get(f"/v1/spaces/{space}/ports"))["forwards"][0]["local"] == local
        assert blue.post(f"/v1/spaces/{space}/ports", json={"port": 1}).status_code in (403, 404)
    carrel.good("rm", "--force", name)


# What is where


def page_names() -> tuple[set[str], set[str]]:
    """What docs/data.md says is in the data folder, and in that of a space."""
    block = re.findall(r"^```\n(.*?)^```$", (DOCS / "data.md").read_text(), re.M | re.S)[0]
    top, inside, in_spaces = set(), set(), False
    for one in block.splitlines():
        if one[:1].strip():
            top.add(re.split(r"[/\s]", one)[0])
            in_spaces = one.startswith("spaces/<space id>/")
        elif in_spaces and one[24:25].strip():
            inside |= {re.split(r"[/\s]", one[24:])[0]}
    return top, inside


def test_everything_in_the_data_folder_is_on_the_page(daemon: Daemon, carrel: Program) -> None:
    top, inside = page_names()
    assert {"carrel.db", "hub.db", "spaces", "trash", "ssh"} <= top
    project = carrel.cwd / "greet"
    project.mkdir()
    put_small(project)
    for words in (("init", "-q"), ("add", "-A"), ("commit", "-qm", "one")):
        subprocess.run([*GIT, *words], cwd=project, check=True)
    name = carrel.good("new", "./greet", "--agent", "scripted").strip()
    carrel.good("send", name, "write a.txt 1\nrun cat small.py", "--wait")
    carrel.good("port", name, "3000")
    carrel.good("auth", "set", "openai", stdin=b"sk-planted\n")
    carrel.good("instance", "add", "here", "--", *command("http"))
    started = carrel.json("instance", "start", "here", "./greet")["instance_id"]
    carrel.good("image", "import", "box", str(busybox_image(carrel.cwd)))
    boxed = carrel.good("new", "./greet", "--image", "box").strip()
    carrel.good("land", name)
    carrel.good("take", name, "a.txt", "--into", boxed)
    carrel.good("export", name, "--tar", "-o", "x.tar")
    carrel.good("request", "--agent", "scripted", "write b.txt 1", "--series", "s")
    carrel("ssh", name, "--", "true")
    carrel.good("new", f"file://{project}")
    gone = carrel.good("new", "./greet").strip()
    carrel.good("exec", gone, "--", "touch", "new")
    carrel.good("rm", "--force", gone)
    assert {one.name for one in daemon.data.iterdir()} <= {
        *top,
        *(f"{one}{end}" for one in ("carrel.db", "hub.db") for end in ("-wal", "-shm")),
    }
    there = {each.name for one in (daemon.data / "spaces").iterdir() for each in one.iterdir()}
    assert there <= inside, there - inside
    # Which only its user can enter, and what keys are.
    for path, mode in (("spaces", 0o700), ("images", 0o700), ("auth/openai", 0o600)):
        assert (daemon.data / path).stat().st_mode & 0o777 in (mode, 0o711), path
    key = (daemon.data / "auth" / "openai").stat()
    assert key.st_mode & 0o777 == 0o600
    carrel.good("instance", "stop", started)
    carrel.good("instance", "remove", "here")
    carrel.good("auth", "rm", "openai")
    for one in carrel.json("ls")["spaces"]:
        carrel.good("rm", "--force", one["id"])


# Spaces


def test_what_counts_as_a_change(carrel: Program) -> None:
    project = carrel.cwd / "greet"
    project.mkdir()
    (project / ".gitignore").write_text("*.log\n")
    (project / "tracked.log").write_text("x\n")
    for words in (("init", "-q"), ("add", "-Af"), ("commit", "-qm", "one")):
        subprocess.run([*GIT, *words], cwd=project, check=True)
    (project / ".git" / "info" / "exclude").write_text("*.tmp\n")
    desk = carrel.good("new", "./greet").strip()
    sh = ("exec", desk, "--", "sh", "-ec")
    carrel.good(*sh, "echo x > a.log; echo x > b.tmp; mkdir empty; echo more >> tracked.log")
    listed = carrel("changes", desk)
    assert listed.out == "M tracked.log\n" and "2" in listed.err, "ignored ones are counted"
    carrel.good(*sh, "git checkout -q tracked.log")
    carrel.good("rm", desk)
    desk = carrel.good("new", "./greet").strip()
    sh = ("exec", desk, "--", "sh", "-ec")
    commit = "git -c user.name=a -c user.email=a@b commit -qm Mine"
    carrel.good(*sh, f"echo x > c.txt; git add c.txt; {commit}")
    refused = carrel.bad(4, "rm", desk)
    assert "1 commit" in refused
    carrel.good("cp", f"{desk}:c.txt", ".")
    assert carrel("rm", desk).code == 4, "the commit is not copied with it"
    carrel.good("cp", f"{desk}:.git", "whole.git")
    carrel.good("rm", desk)
    # A copy that fails does not count; nor does an old one.
    desk = carrel.good("new", "--empty").strip()
    carrel.good("exec", desk, "--", "sh", "-c", "echo 1 > f")
    assert carrel("cp", f"{desk}:f", "no/such/folder/f").code != 0
    assert carrel("rm", desk).code == 4
    carrel.good("cp", f"{desk}:f", ".")
    carrel.good("exec", desk, "--", "sh", "-c", "echo 2 > f")
    assert carrel("rm", desk).code == 4
    carrel.good("rm", "--force", desk)
    back = carrel.good("undelete", desk).strip()
    assert carrel.good("exec", back, "--", "cat", "f") == "2\n"
    carrel.good("rm", "--force", back)


def test_what_was_left_out_is_told(carrel: Program) -> None:
    (carrel.cwd / "odd").mkdir()
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(carrel.cwd / "odd" / "sock"))
        done = carrel("new", "./odd", "--json")
    made = json.loads(done.out)
    assert [each["path"] for each in made["left_out"]] == ["sock"]
    carrel.good("rm", made["id"])


def test_states(carrel: Program, desk: str) -> None:
    assert carrel.json("show", desk)["state"] == "ready"
    run = carrel.good("exec", "-d", desk, "--", "sleep", "600").strip()
    assert carrel.json("show", desk)["state"] == "running"
    carrel.good("stop", desk, "--grace", "100ms")
    assert carrel.json("show", desk)["state"] == "stopped"
    assert carrel.json("run", "show", run)["exit"]
    assert carrel("exec", desk, "--", "true").code == 125
    known = carrel.json("show", desk)["id"]
    carrel.good("rm", desk)
    assert carrel.json("show", known)["state"] == "removed", "its record stays for a while"
