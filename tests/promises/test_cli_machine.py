"""docs/cli.md: spaces on their machine, what comes in and goes out, and the daemon itself."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from carrel.daemon import control
from tests.busybox import busybox_image
from tests.cli.program import PROGRAM, TIMEOUT_S, Program, in_terminal
from tests.instances.small import command, put_small


def test_stopped_started_and_shown(carrel: Program, desk: str) -> None:
    carrel.good("exec", desk, "--", "sh", "-c", "echo new > notes.txt")
    run = carrel.good("exec", "-d", desk, "--", "sleep", "600").strip()
    assert run in carrel.good("ps", desk)
    assert desk in carrel.good("ps") and carrel.json("ps", desk)["runs"]
    carrel.good("stop", desk, "--grace", "100ms")
    assert carrel("exec", desk, "--", "true").code == 125
    carrel.good("start", desk)
    assert carrel.good("exec", desk, "--", "cat", "notes.txt") == "new\n"
    carrel.good("restart", desk)
    carrel.good("update", desk, "--name", f"{desk}-b", "--ttl", "1h", "--idle", "10m")
    shown = carrel.json("show", f"{desk}-b")
    assert (shown["retention"]["ttl_s"], shown["retention"]["idle_s"]) == (3600, 600)
    carrel.good("update", shown["id"][:9], "--name", desk)
    assert shown["id"] in carrel.good("ls", "-l")
    assert desk in carrel.good("show", desk) and carrel.good("services", desk) == ""
    once = carrel.good("top", "--once", "--disk")
    assert desk in once and "DISK" in once.splitlines()[0]
    used = {one["space"] for one in carrel.json("top", "--once")["usage"]}
    assert shown["id"] in used


def test_what_new_takes(carrel: Program) -> None:
    (carrel.cwd / "greet" / "big.log").write_text("x")
    (carrel.cwd / "shown").mkdir()
    limits = ("--tier", "minimal", "--cpus", "1", "--disk", "1G", "--wall", "90s")
    words = ("--exclude", "*.log", "--no-home-tools", "--show", "shown", "--no-caches", "--wake")
    kept = ("--ttl", "7d", "--idle", "15m", "--keep", "2h", "--discard", "--driver", "copy")
    confined = ("--runtime", "landlock", "--network", "none", "--no-setup")
    name = carrel.good("new", "./greet", *limits, *words, *kept, *confined).strip()
    shown = carrel.json("show", name)
    assert carrel.good("exec", name, "--", "ls") == "greet.py\n"
    assert (shown["runtime"], shown["driver"]) == ("landlock", "copy")
    assert (shown["network"], shown["tier"], shown["tools"]) == ("none", "minimal", [])
    asked = shown["limits"]
    assert (asked["cpus"], asked["disk_bytes"], asked["wall_seconds"]) == (1, 1 << 30, 90)
    assert shown["retention"] == {"ttl_s": 604800, "idle_s": 900, "keep_s": 7200, "discard": True}
    assert shown["wake"] and str(carrel.cwd / "shown") in str(shown["shown"])
    other = carrel.good("new", "--base", shown["base"]).strip()
    assert carrel.good("exec", other, "--", "ls") == "greet.py\n"
    bare = carrel("new", "--empty", "--runtime", "process")
    assert bare.code == 0 and "process !" in bare.err and "process !" in carrel.good("ls", "-l")
    carrel.good("rm", "--force", name, other, bare.out.strip())
    git = ["git", "-c", "user.name=A", "-c", "user.email=a@example.org"]
    for line in (("init", "-q", "-b", "main"), ("add", "-A"), ("commit", "-qm", "one")):
        subprocess.run([*git, *line], cwd=carrel.cwd / "greet", check=True)
    (carrel.cwd / "greet" / "later").write_text("x")
    name = carrel.good("new", "./greet", "--ref", "main").strip()
    assert "later" not in carrel.good("exec", name, "--", "ls")
    carrel.good("rm", "--force", name)
    assert carrel("new", "./greet", "--empty").code == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="each space has a user as root only")
def test_one_sees_another(carrel: Program, desk: str) -> None:
    name = carrel.good("new", "--empty", "--see", desk).strip()
    assert carrel.good("exec", name, "--", "ls", f"/see/{desk}") == "greet.py\n"
    carrel.good("rm", name)


def test_a_terminal(carrel: Program, desk: str) -> None:
    words = ("exec", "-t", desk, "--", "sh", "-c", "stty size; exit 4")
    with in_terminal(carrel, *words, rows=30, cols=90) as terminal:
        terminal.until(b"30 90")
        assert terminal.end() == 4


def test_nobody_gets_out(carrel: Program, desk: str) -> None:
    assert "refused" in carrel.good("verify", desk)
    assert len(carrel.good("verify", desk, "-v").splitlines()) > 50


def test_disk_and_clean_up(carrel: Program, desk: str) -> None:
    kinds = {part["kind"] for part in carrel.json("df")["parts"]}
    assert {"base", "space"} <= kinds and desk in carrel.good("df")
    carrel.good("rm", "--force", desk)
    carrel.good("gc", "--bases", "--dry-run")
    carrel.good("gc", "--bases")
    assert str(carrel.cwd / "greet") not in carrel.good("df")


def test_copies_both_ways(carrel: Program, desk: str) -> None:
    here = carrel.cwd
    carrel.good("cp", "./greet", f"{desk}:copy")
    carrel.good("cp", f"{desk}:copy/greet.py", "./out.py")
    assert (here / "out.py").read_text() == "print('Hello')\n"
    carrel.good("exec", desk, "--", "sh", "-c", "chmod +x greet.py; ln -s /etc/passwd out")
    copied = carrel("cp", f"{desk}:.", "./everything")
    assert copied.code == 0 and "out" in copied.err
    assert os.access(here / "everything" / "greet.py", os.X_OK)
    assert (here / "everything/copy/greet.py").exists()
    assert not (here / "everything" / "out").is_symlink()
    (here / "into").mkdir()
    carrel.good("cp", f"{desk}:greet.py", "into")
    assert (here / "into" / "greet.py").exists()
    assert carrel("cp", f"{desk}:none", ".").code == 3
    # What was taken out does not keep it from going.
    carrel.good("rm", desk)


def test_ports_and_ssh(carrel: Program, desk: str) -> None:
    told = carrel("port", desk, "3000")
    assert told.code == 0 and told.out.startswith("127.0.0.1:") and "Nothing listens" in told.err
    assert [one["port"] for one in carrel.json("port", desk)["forwards"]] == [3000]
    carrel.good("port", desk, "3000", "--stop")
    assert carrel("port", desk, "3000", "--stop").code == 3
    assert carrel("port", desk, "http").code == 2
    config = carrel.good("ssh-config")
    assert config.startswith("Host *.carrel\n")
    done = carrel("ssh", desk, "--", "sh -c 'cat greet.py; exit 5'")
    assert (done.code, done.out) == (5, "print('Hello')\n"), done
    home = {"HOME": str(carrel.cwd)}
    own = carrel.cwd / ".ssh" / "carrel.conf"
    assert carrel("ssh-config", "--install", "--yes", env=home).code == 0 and own.exists()
    assert carrel("ssh-config", "--remove", "--yes", env=home).code == 0 and not own.exists()


def test_images_and_services(carrel: Program) -> None:
    image = carrel.good("image", "import", "cli:1", str(busybox_image(carrel.cwd))).strip()
    assert "cli:1" in carrel.good("image", "ls")
    assert carrel.json("image", "show", "cli:1")["id"] == image
    project = carrel.cwd / "shop"
    project.mkdir()
    web = {"image": "cli:1", "command": ["sh", "-c", "echo up; exec sleep 600"]}
    (project / "compose.yaml").write_text(json.dumps({"services": {"web": web}}))
    name = carrel.good("new", "./shop", "--services", "auto").strip()
    (service,) = carrel.json("services", name, "web")["services"]
    assert service["state"] == "running" and "web" in carrel.good("services", name)
    assert carrel.good("logs", "--in", "web", name) == "up\n"
    assert carrel.good("exec", "--in", "web", name, "--", "echo", "hi") == "hi\n"
    carrel.good("services", name, "web", "--restart")
    assert carrel.json("services", name, "web")["services"][0]["run"] != service["run"]
    carrel.good("rm", "--force", name)
    carrel.good("image", "prune", "--dry-run")
    carrel.good("image", "rm", "cli:1")
    assert carrel("image", "show", "cli:1").code == 3


def test_servers_on_standard_input_and_output(carrel: Program) -> None:
    about = {"protocolVersion": "2025-06-18", "capabilities": {}}
    about["clientInfo"] = {"name": "promise", "version": "1"}
    asked = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": about}
    line = json.dumps(asked).encode() + b"\n"
    put_small(carrel.cwd / "greet")
    lines = ("--transport", "stdio", "--", *command("streams"))
    carrel.good("instance", "add", "cli-lines", *lines)
    try:
        for words in (("instance", "connect", "cli-lines", "./greet"), ("mcp",), ("codesmith",)):
            done = carrel(*words, stdin=line)
            assert done.code == 0, done
            answer = json.loads(done.out.splitlines()[0])
            assert answer["id"] == 1 and answer["result"]["serverInfo"]["name"]
    finally:
        carrel.good("instance", "remove", "cli-lines")


def test_instances(carrel: Program) -> None:
    put_small(carrel.cwd / "greet")
    carrel.good("instance", "add", "cli-small", "--", *command("http"))
    try:
        assert "cli-small" in carrel.good("instance", "servers")
        started = carrel.json("instance", "start", "cli-small", "./greet", "--ttl", "1h")
        name = started["instance_id"]
        assert name in carrel.good("instance", "ls")
        assert carrel.json("instance", "show", name)["state"] == "ready"
        assert carrel("instance", "logs", name).code == 0
        carrel.good("instance", "stop", name)
        assert name not in carrel.good("instance", "ls")
        # With a pipe it ends at its end.
        printed = json.loads(
            carrel.good("instance", "run", "cli-small", "./greet", "--format", "json")
        )
        assert printed["instance_id"] not in carrel.good("instance", "ls")
    finally:
        carrel.good("instance", "remove", "cli-small")
    assert carrel("instance", "show", "in_none").code == 3


def test_requests_are_listed(carrel: Program) -> None:
    words = ("request", "--agent", "scripted", "--series", "cli")
    for number in (1, 2):
        carrel.good(*words, f"write v.txt {number}", "--request-id", f"cli-v{number}")
    assert len(carrel.json("request", "versions", "cli")["versions"]) == 2
    assert "v.txt" in carrel.good("request", "diff", "cli")
    assert "cli-v2" in carrel.good("request", "ls", "-q", "--series", "cli")
    assert carrel.json("request", "show", "cli-v1")["request_id"] == "cli-v1"
    slow = ("request", "--agent", "scripted", "--detach", "--request-id", "cli-slow", "sleep 600")
    assert carrel.good(*slow) == "cli-slow\n"
    assert "cli-slow" in carrel.good("request", "ls", "--live")
    carrel.good("request", "cancel", "cli-slow")
    carrel.good("request", "rm", "cli-v1", "cli-v2")


def heard_while(carrel: Program, desk: str, *words: str) -> dict[str, Any]:
    """The first event that is printed while commands run."""
    process = carrel.start("events", "-f", "--json", *words, stdout=subprocess.PIPE)
    assert process.stdout is not None
    until = time.monotonic() + TIMEOUT_S
    while not select.select([process.stdout], [], [], 0.5)[0]:
        assert time.monotonic() < until
        carrel.good("exec", desk, "--", "true")
    first: dict[str, Any] = json.loads(process.stdout.readline())
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 130
    return first


def test_runs_and_events(carrel: Program, desk: str) -> None:
    words = ("exec", "-i", desk, "--", "sh", "-c", "echo begun; read x; echo got $x")
    left = carrel.start(*words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert left.stdout is not None and left.stdout.readline() == b"begun\n"
    left.kill()
    left.communicate(timeout=TIMEOUT_S)
    run = carrel.json("runs", desk)["runs"][0]["id"]
    assert carrel.json("run", "show", run)["id"] == run
    done = carrel("run", "attach", "-i", run, stdin=b"it\n")
    assert (done.code, done.out) == (0, "begun\ngot it\n")
    assert carrel.good("logs", desk, "--run", run) == done.out
    assert carrel("exec", "-d", "-i", desk, "--", "true").code == 125
    assert f"{run} ended with 0" in carrel.good("events", "--space", desk)
    ended = carrel.good("events", "--json", "--space", desk, "--type", "run.ended")
    assert [json.loads(line)["type"] for line in ended.splitlines()] == ["run.ended"]
    first = carrel.good("events", "--json", "--after", "0").splitlines()[0]
    assert json.loads(first)["type"]
    assert heard_while(carrel, desk, "--after", "0")["seq"] == json.loads(first)["seq"]
    last = json.loads(ended.splitlines()[-1])["seq"]
    assert heard_while(carrel, desk, "--space", desk)["seq"] > last
    assert carrel("doctor").code in (0, 8)
    nowhere = ("--no-start", "--data", "nowhere", "inspect", "./greet")
    assert carrel(*nowhere).code == 0, "it needs no daemon"


def test_tokens(carrel: Program, desk: str) -> None:
    whole = carrel.json("token", "create", "--name", "cli", "--ttl", "1h")
    assert whole["scope"] == "admin" and whole["secret"] and whole["expires_at"]
    bound = carrel.json("token", "create", "--space", desk)
    labelled = carrel.json("token", "create", "--label", "team=blue")
    assert carrel.json("show", desk)["id"] in bound["scope"] and "blue" in labelled["scope"]
    listed = carrel.good("token", "ls")
    assert whole["id"] in listed and whole["secret"] not in listed
    for one in (whole, bound, labelled):
        carrel.good("token", "revoke", one["id"])
    assert carrel("token", "revoke", "tk_none").code == 3


def test_settings(carrel: Program) -> None:
    carrel.env["CARREL_CONFIG"] = str(carrel.cwd / "own.toml")
    (carrel.cwd / "own.toml").write_text("# Mine.\nidle_s = 5\n")
    assert carrel.good("config", "path") == f"{carrel.cwd / 'own.toml'}\n"
    settings = {one["name"]: one for one in carrel.json("config")["settings"]}
    assert settings["idle_s"]["from"] == "file" and settings["keep_s"]["from"] == "default"
    assert settings["data"]["from"] == "environment"
    done = carrel("config", "set", "idle_s", "60")
    assert done.code == 0 and "carrel down && carrel up" in done.err
    assert carrel.good("config", "get", "idle_s") == "60\n"
    assert (carrel.cwd / "own.toml").read_text() == "# Mine.\nidle_s = 60\n"
    assert "Did you mean" in carrel.bad(2, "config", "explain", "idel_s")


def test_the_daemon_comes_and_goes(tmp_path: Path) -> None:
    carrel = Program(tmp_path / "data", tmp_path)
    try:
        assert carrel("status").code == 6 and not carrel("service", "status").code
        carrel.good("up", "--listen", "127.0.0.1:0")
        address = carrel.json("status")["address"]
        secret = carrel.json("token", "create")["secret"]
        env = {"CARREL_URL": f"http://{address}", "CARREL_TOKEN": secret}
        assert carrel("ls", env=env).code == 0
        assert carrel("ls", env={**env, "CARREL_TOKEN": "crl_wrong"}).code == 5
        carrel.good("down")
        assert carrel("status").code == 6
        assert carrel("ls", env={"CARREL_NO_START": "1"}).code == 6
        carrel.good("ls")
        assert carrel("status").code == 0
    finally:
        control.stop(tmp_path / "data")


def test_tracebacks_and_readers_that_go(carrel: Program) -> None:
    told = carrel("show", "nobody", env={"CARREL_DEBUG": "1"})
    assert told.code == 3 and "Traceback" in told.err
    line = "set -o pipefail; carrel completion bash | true; carrel events --json | head -n 1"
    folder = os.path.dirname(PROGRAM)
    env = {**carrel.env, "PATH": f"{folder}:{carrel.env['PATH']}"}
    done = subprocess.run(["bash", "-c", line], env=env, capture_output=True, timeout=TIMEOUT_S)
    assert done.returncode in (0, 141) and done.stderr == b""


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(carrel: Program, shell: str) -> None:
    script = carrel.good("completion", shell)
    assert "carrel" in script
    if shell == "bash":
        subprocess.run(["bash", "-n"], input=script, text=True, check=True, timeout=TIMEOUT_S)
