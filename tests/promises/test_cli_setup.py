"""docs/cli.md: agents that are installed, imported and given more, what serves them, and the daemon
as a service, by the program alone."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.server
import io
import json
import re
import shutil
import signal
import subprocess
import tarfile
import threading
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest

from carrel.cli.commands import COMMANDS, load
from carrel.daemon import control
from tests.agents.installed import require_programs
from tests.agents.standins import serving
from tests.cli.program import TIMEOUT_S, Program, in_terminal
from tests.daemon.rig import LOOK_S, Daemon, fresh_daemon
from tests.promises.test_hub import line

INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "promise", "version": "1"},
    },
}
HEADERS = {"Accept": "application/json, text/event-stream"}


@pytest.fixture
def carrel(daemon: Daemon, tmp_path: Path) -> Program:
    return Program(daemon.data, tmp_path)


@pytest.fixture
def desk(carrel: Program) -> Iterator[str]:
    name = carrel.good("new", "--empty", "--agent", "scripted").strip()
    yield name
    carrel("rm", "--force", name)


# Agents that are installed


@cache
def package(name: str, version: str, program: str) -> bytes:
    """As npm takes it: a program that says its version."""
    about = {"name": name, "version": version, "bin": {program: "run.sh"}}
    files = {"package.json": json.dumps(about), "run.sh": f"#!/bin/sh\necho {version}\n"}
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for path, text in files.items():
            entry = tarfile.TarInfo(f"package/{path}")
            entry.size, entry.mode = len(text), 0o755
            tar.addfile(entry, io.BytesIO(text.encode()))
    return stream.getvalue()


@contextlib.contextmanager
def registry(name: str, program: str) -> Iterator[tuple[str, list[str]]]:
    """One that has any version of one package; and what it was asked for."""
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            version = self.path.removesuffix(".tgz").rpartition("/-/")[2]
            body = package(name, version, program)
            if not self.path.endswith(".tgz"):
                body = json.dumps(self.about()).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def about(self) -> dict[str, Any]:
            url = f"http://127.0.0.1:{self.server.server_port}/{name}/-/"  # type: ignore[attr-defined]
            found = {}
            for version in wanted:
                digest = hashlib.sha512(package(name, version, program)).digest()
                dist = {
                    "tarball": f"{url}{version}.tgz",
                    "integrity": f"sha512-{base64.b64encode(digest).decode()}",
                }
                bins = {program: "run.sh"}
                found[version] = {"name": name, "version": version, "bin": bins, "dist": dist}
            return {"name": name, "dist-tags": {"latest": wanted[0]}, "versions": found}

        def log_message(self, *arguments: object) -> None:
            pass

    # The versions of the last thousand: which one is pinned is what the test finds out.
    wanted = [f"2.1.{number}" for number in range(999, 0, -1)]
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/", asked
        finally:
            server.shutdown()
            thread.join(TIMEOUT_S)


def test_an_agent_is_installed(tmp_path: Path) -> None:
    """With npm itself, from a registry on this machine; a pinned version, whatever is the newest,
    and into Carrel's own folder."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    (tmp_path / "npmrc").touch()
    with (
        pytest.MonkeyPatch.context() as patch,
        registry("@anthropic-ai/claude-code", "claude") as (url, asked),
    ):
        patch.setenv("npm_config_registry", url)
        patch.setenv("npm_config_cache", str(tmp_path / "cache"))
        patch.setenv("npm_config_userconfig", str(tmp_path / "npmrc"))
        with fresh_daemon(listen=None) as daemon:
            carrel = Program(daemon.data, tmp_path)
            name, version = carrel.good("agents", "install", "claude-code").split()
            assert name == "claude-code" and version.startswith("2.1.") and version != "2.1.999"
            found = {one["name"]: one for one in carrel.json("agents")["frontends"]}
            own = found["claude-code"]
            assert own["installed"] and own["version"] == version
            assert Path(own["path"]).is_relative_to(daemon.data / "agents" / "claude-code")
            assert any(one.endswith(f"{version}.tgz") for one in asked)
            asked.clear()
            assert carrel.good("agents", "install", "claude-code").split()[1] == version
            assert not asked, "it is there"
            assert carrel("agents", "install", "goose").code == 2


def test_ones_own_set_up_is_imported(carrel: Program, desk: str) -> None:
    home = carrel.cwd / "home"
    (home / ".claude").mkdir(parents=True)
    (home / ".claude" / "CLAUDE.md").write_text("Be brief.")
    login = {"accessToken": "sk-ant-oat01-planted", "expiresAt": (time.time() + 3600) * 1000}
    (home / ".claude" / ".credentials.json").write_text(json.dumps({"claudeAiOauth": login}))
    server = {"command": "/bin/cat", "env": {"API_TOKEN": "planted-planted-1"}}
    (home / ".claude.json").write_text(json.dumps({"mcpServers": {"docs": server}}))
    env = {"HOME": str(home)}

    def imported() -> str:
        found = {one["name"]: one for one in carrel.json("agents")["frontends"]}
        return str(found["claude-code"]["imported"])

    words = ("agents", "import", "claude-code")
    told = carrel(*words, "--dry-run", env=env)
    assert told.code == 0 and "CLAUDE.md" in told.err and not imported()
    assert "API_TOKEN" in told.err.partition("Not copied:")[2]
    assert carrel(*words, env=env).code == 2 and not imported(), "nobody agreed"
    assert carrel("agents", "import", "nobody", "--yes", env=env).code == 2
    done = carrel(*words, "--yes", "--endpoint", "http://127.0.0.1:9", env=env)
    assert done.code == 0 and "claude-code: imported" in done.out and imported()
    with_keys = carrel(*words, "--yes", "--with-keys", env=env)
    assert "API_TOKEN" not in with_keys.err.partition("Not copied:")[2]
    assert "planted" not in done.err + with_keys.err + carrel.good("agents", "--json")
    with in_terminal(carrel, *words) as terminal:
        assert b"no set-up" in terminal.rest() or terminal.end() == 2, "not of this home"
    carrel.good("agents", "import", "--forget")
    assert not imported()


# What an agent is given


def test_what_a_turn_is_given(daemon: Daemon, carrel: Program) -> None:
    require_programs()
    (carrel.cwd / "system.txt").write_text("Speak like a sailor.")
    (carrel.cwd / "shot.png").write_bytes(b"\x89PNG")
    with daemon.equipped("claude-code"), serving() as standin:
        name = carrel.good("new", "--empty", "--agent", "claude-code").strip()
        keys = (f"ANTHROPIC_BASE_URL={standin.url}", "ANTHROPIC_API_KEY=sk-planted")
        words = ("send", name, "hello", "--wait", "--turn-env", keys[0], "--turn-env", keys[1])
        more = ("--attach", "shot.png", "--system-prompt", "@system.txt", "--trust")
        done = carrel(*words, *more, "--model", "sonnet", "--color", "always")
        assert done.code == 0 and "\x1b[" in done.err, done
        body = json.dumps([one.body for one in standin.requests])
        assert "Speak like a sailor." in body and "/agent/context/shot.png" in body
        assert "sonnet" in body and "sk-planted" not in carrel.good("turns", name, "--json")
        carrel.good("rm", "--force", name)


def shows(carrel: Program, desk: str, path: str, text: str) -> None:
    """Until a file of the space has that; bounded."""
    until = time.monotonic() + TIMEOUT_S
    while (done := carrel("exec", desk, "--", "cat", path)).out != text:
        assert time.monotonic() < until, done
        time.sleep(LOOK_S)


def test_a_terminal_and_what_it_is_given(carrel: Program, desk: str) -> None:
    (carrel.cwd / "rules.md").write_text("be brief\n")
    task = "run cat /agent/context/* > got; echo $MODE >> got"
    given = ("--turn-env", "MODE=fast", "--attach", "rules.md", "--trust", "--context", "rules.md")
    more = ("--agent", "scripted", "--model", "scripted", "--session", "mine")
    words = ("attach", desk, "-d", "-m", task, *more, "--permission", "sandboxed", *given)
    turn = carrel.good(*words).strip()
    shows(carrel, desk, "got", "be brief\nfast\n")
    (told,) = carrel.json("turns", desk)["turns"]
    assert (told["id"], told["session"], told["permission"]) == (turn, "mine", "sandboxed")
    carrel.good("interrupt", desk, "--stop")
    carrel("run", "wait", turn)
    # It goes on with the last conversation, or with one that is named.
    first = json.loads(carrel.good("turn", "show", turn, "--json").splitlines()[-1])
    key = first["continuation"]["key"]
    for number, how in ((2, ("--continue",)), (3, ("--resume", key))):
        with in_terminal(carrel, "attach", desk, "-m", "and?", *how) as terminal:
            terminal.until(f"turn {number}: and?".encode())
            terminal.type(b"exit\r")
            assert terminal.end() == 0
        carrel("run", "wait", carrel.json("turns", desk)["turns"][0]["id"])
    assert carrel("attach", desk, "--system-prompt", "x", "-d", "--agent", "nobody").code == 125


def test_a_terminal_with_another_prefix(carrel: Program, desk: str) -> None:
    with in_terminal(carrel, "attach", desk, "--prefix", "C-a") as terminal:
        terminal.until(b"Ctrl-a d detaches")
        terminal.type(b"\x01d")
        assert terminal.end() == 0
    with in_terminal(carrel, "attach", desk) as terminal:
        terminal.until(b"scripted")
        terminal.type(b"\x02d")
        assert terminal.end() == 0
    carrel.good("interrupt", desk, "--kill")


def test_several_agents_side_by_side(carrel: Program, desk: str) -> None:
    if shutil.which("tmux") is None:
        pytest.skip("tmux is not installed")
    other = carrel.good("new", "--empty", "--agent", "scripted", "--name", f"{desk}-b").strip()
    with in_terminal(carrel, "attach", desk, other, rows=30, cols=150) as terminal:
        terminal.until(b"leave all")
        terminal.type(b"say in-the-first\r")
        terminal.until(b"in-the-first")
        terminal.type(b"\x01n")
        terminal.until(b"scripted> ")
        terminal.type(b"say in-the-second\r")
        terminal.until(b"in-the-second")
        terminal.type(b"\x01d")
        assert terminal.end() == 0
    for name in (desk, other):
        # They go on.
        until = time.monotonic() + TIMEOUT_S
        while not carrel.json("show", name)["working"]:
            assert time.monotonic() < until
            time.sleep(LOOK_S)
        carrel.good("interrupt", name, "--kill")
    assert carrel("attach", desk, other, "--detach").code == 2
    carrel.good("rm", "--force", other)


def test_an_invocation_has_all_that_it_was_asked_for(daemon: Daemon, carrel: Program) -> None:
    require_programs()
    (carrel.cwd / "work").mkdir()
    words = ("invocation", "hello", "--agent", "claude-code", "--state", "st", "--cwd", "work")
    more = ("--mode", "headless", "--io", "pipes", "--model", "sonnet", "--permission", "deny")
    given = ("--turn-env", "A=b", "--system-prompt", "Be brief.", "--session", "mine", "--trust")
    with daemon.equipped("claude-code"):
        found = carrel.json(*words, *more, *given)
        spec = found["spec"]
        assert (spec["interaction_mode"], spec["io_mode"]) == ("headless", "pipes")
        assert spec["cwd"] == str(carrel.cwd / "work") and spec["env"]["A"] == "b"
        assert "sonnet" in spec["argv"]
        (prompt,) = (one for one in spec["argv"] if one.endswith("/system-prompt.md"))
        assert "Be brief." in Path(prompt).read_text()
        key = spec["continuation"]["key"]
        again = carrel.json(*words, *more, "--resume", key)
        assert again["spec"]["continuation"]["key"] == key and key in again["spec"]["argv"]
        assert carrel(*words, "--permission", "sandboxed").code == 5
        assert spec["argv"][0] in carrel.good(*words)
    assert carrel("kit", "describe", "some", "--agent", "claude-code").code == 1


# Messages


def test_a_consumer_continues_where_it_was(carrel: Program, desk: str) -> None:
    send = ("hub", "send", "--space", desk, "buffer_custom_n")
    follow = ("hub", "follow", "--consumer", f"mine-{desk}", "--space", desk, "--json")
    words = (*follow, "--type", "buffer_custom_n")

    def heard(count: int) -> list[int]:
        process = carrel.start(*words, stdout=subprocess.PIPE)
        assert process.stdout is not None
        found = [json.loads(process.stdout.readline())["payload"]["n"] for _ in range(count)]
        assert "cli" in carrel.good("hub", "clients", "--space", desk)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=TIMEOUT_S)
        return found

    for number in (1, 2):
        carrel.good(*send, json.dumps({"n": number}))
    first = heard(2)
    carrel.good(*send, json.dumps({"n": 3}))
    # What it had printed without a chance to say so comes once more.
    last = heard(1)
    assert first == [1, 2] and (last == [3] or last[0] in first)


def test_questions_of_two_spaces_with_the_same_id(
    carrel: Program, daemon: Daemon, desk: str
) -> None:
    other = carrel.good("new", "--empty").strip()
    with line(daemon) as hub:
        for name in (desk, other):
            asked = {"question": "Which?", "choices": ["a", "b"]}
            space = carrel.json("show", name)["id"]
            hub.say("buffer_user_question", asked, space=space, id="same")
            while hub.next().get("reply_to") != "same":
                pass
    mine = [one for one in carrel.json("inbox")["items"] if one["name"] in (desk, other)]
    assert [one["id"] for one in mine] == ["same", "same"]
    assert "--space" in carrel.bad(4, "answer", "same", "a")
    carrel.good("answer", "same", "a", "--space", desk)
    left = [one["name"] for one in carrel.json("inbox")["items"] if one["id"] == "same"]
    assert left == [other]
    carrel.good("rm", "--force", other)


# What serves agents and editors


@contextlib.contextmanager
def tools(carrel: Program, *words: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    with carrel.start("mcp", *words, stderr=subprocess.PIPE) as process:
        try:
            assert process.stderr is not None
            line = process.stderr.readline().decode()
            assert line.startswith("carrel mcp: http://") and line.endswith("/mcp\n"), line
            yield line.removeprefix("carrel mcp: ").strip(), process
        finally:
            process.terminate()
            process.communicate(timeout=TIMEOUT_S)


def greeted(url: str, **headers: str) -> int:
    answer = httpx.post(url, json=INITIALIZE, headers={**HEADERS, **headers}, timeout=TIMEOUT_S)
    return answer.status_code


@pytest.mark.parametrize("by", ["variable", "option", "made", "no-token"])
def test_tools_over_http(carrel: Program, by: str) -> None:
    words: tuple[str, ...] = ("--allow-host", "desk.example")
    if by == "variable":
        carrel.env["CARREL_MCP_TOKEN"] = "sesame"
    elif by == "option":
        words = (*words, "--token", "sesame")
    elif by == "no-token":
        words = (*words, "--no-token")
    with tools(carrel, "--http", "127.0.0.1:0", *words) as (url, process):
        token = "sesame"
        if by == "made":
            assert process.stderr is not None
            token = process.stderr.readline().decode().strip().rpartition(" ")[2]
        own = {"Authorization": f"Bearer {token}"}
        assert greeted(url, **own) == 200
        assert greeted(url) == (200 if by == "no-token" else 401)
        assert greeted(url, **own, Host="evil.example") in (403, 421)
        named = f"desk.example:{httpx.URL(url).port}"
        assert greeted(url, **own, Host=named) == 200


def test_tools_beyond_this_machine_need_a_token(carrel: Program) -> None:
    assert "CARREL_MCP_TOKEN" in carrel.bad(5, "mcp", "--http", "0.0.0.0:0")


def test_codesmith_has_defaults_for_its_calls(carrel: Program) -> None:
    lines = [
        INITIALIZE,
        {"jsonrpc": "2.0", "method": "notifications/initialized", "params": {}},
    ]
    asked = {"instructions": "run echo $MODE > a.txt"}
    call = {"name": "generate", "arguments": asked}
    lines.append({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call})
    defaults = ("--agent", "scripted", "--model", "scripted", "--timeout", "1m")
    words = ("codesmith", *defaults, "--tier", "minimal", "--env", "MODE=fast")
    with carrel.start(*words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write("".join(f"{json.dumps(one)}\n" for one in lines).encode())
        process.stdin.flush()
        answers = (json.loads(line) for line in process.stdout)
        answer = next(one for one in answers if one.get("id") == 2)
        process.communicate(timeout=TIMEOUT_S)
    made = answer["result"]["structuredContent"]
    assert made["complete"] and made["files"][0]["text"] == "fast\n"
    request = carrel.json("request", "show", made["request_id"])
    assert request["env"] == ["MODE"] and request["model"] == "scripted"
    # What it cannot be given is said before anybody calls.
    assert carrel("codesmith", "--tier", "huge").code == 2


# The daemon


def test_in_the_foreground_with_its_log(tmp_path: Path) -> None:
    carrel = Program(tmp_path / "data", tmp_path)
    process = carrel.start("up", "--foreground", "--listen", "127.0.0.1:0", stderr=subprocess.PIPE)
    try:
        assert process.stderr is not None and process.stderr.readline()
        until = time.monotonic() + TIMEOUT_S
        while carrel("status").code:
            assert time.monotonic() < until and process.poll() is None
            time.sleep(LOOK_S)
        assert carrel.json("status")["pid"] == process.pid
        assert "127.0.0.1:" in carrel.good("status")
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0 and carrel("status").code == 6


@pytest.mark.skipif(Path("/run/systemd/system").exists(), reason="systemd runs here")
def test_a_service_where_there_is_no_systemd(tmp_path: Path) -> None:
    """It says so, and what to do; nothing is written, and nothing starts."""
    carrel = Program(tmp_path / "data", tmp_path)
    carrel.env["XDG_CONFIG_HOME"] = str(tmp_path / "config")
    unit = Path("/etc/systemd/system/carrel.service")
    before = unit.exists()
    told = carrel.bad(6, "service", "install")
    assert "no service manager" in told and "carrel up --foreground" in told
    assert not (tmp_path / "config").exists() and carrel("status").code == 6
    assert unit.exists() is before
    gone = carrel("service", "remove")
    assert gone.code == 0 and "No service is installed" in gone.err
    assert "There is no service" in carrel.good("service", "status")
    assert carrel.json("service", "status")["installed"] is False
    assert not control.status(tmp_path / "data").running


# How it speaks


@pytest.mark.parametrize("words", [("ls",), ("diff",), ("turn", "show")], ids=str)
def test_colours(carrel: Program, desk: str, words: tuple[str, ...]) -> None:
    """In a terminal, unless NO_COLOR is set."""
    said = carrel.good("send", desk, "write a.txt x\nsay hi", "--wait", "--json")
    turn = json.loads(said.splitlines()[-1])
    subject = {"ls": (), "diff": (desk,), "turn": (turn["id"],)}[words[0]]
    carrel.env["PAGER"] = "cat"
    coloured = b"\x1b["
    with in_terminal(carrel, *words, *subject, cols=150) as terminal:
        assert coloured in terminal.rest()
    assert b"\x1b" not in carrel(*words, *subject).bytes
    carrel.env["NO_COLOR"] = "1"
    with in_terminal(carrel, *words, *subject, cols=150) as terminal:
        assert coloured not in terminal.rest()
    if words == ("turn", "show"):
        assert "\x1b[" in carrel.good(*words, *subject, "--color", "always")
        assert "\x1b[" not in carrel.good(*words, *subject, "--color", "never")


def test_a_pager(carrel: Program, desk: str) -> None:
    carrel.good("exec", desk, "--", "sh", "-c", "printf 'a\\033[8mb\\n' > hidden")
    carrel.env["PAGER"] = "sed 's/^/> /'"
    with in_terminal(carrel, "diff", desk, cols=150) as terminal:
        shown = terminal.rest()
    assert b"> " in shown and b"\x1b[8m" not in shown and b"\\x1b[8m" in shown
    assert b"\x1b[8m" in carrel("diff", desk).bytes, "as it is, elsewhere"


def test_what_is_wrong_has_an_exit_code_of_its_own(carrel: Program) -> None:
    bare = carrel("new", "--empty", "--runtime", "process").out.strip()
    assert carrel("verify", bare).code == 8
    carrel.good("rm", bare)
    found = carrel("doctor", "--json")
    assert found.code == (0 if json.loads(found.out)["healthy"] else 8)


def test_use_is_shown_again_and_again(carrel: Program, desk: str) -> None:
    with in_terminal(carrel, "top", "--interval", "100ms", rows=40, cols=150) as terminal:
        for _ in range(3):
            terminal.until(desk.encode())
        terminal.type(b"\x03")
        assert terminal.end() in (0, 130)


def test_the_manual() -> None:
    """`man carrel` has every verb and option, as the help has them."""
    page = Path(__file__).resolve().parents[2] / "man" / "carrel.1"
    text = page.read_text().replace("\\-", "-").replace("[new] ", "new ").replace("[show]", "show")
    parts = text.split('.SS "carrel ')
    for name in COMMANDS:
        (part,) = (one for one in parts if re.match(rf"{name}[ \"]", one))
        for option in load(name).options:
            assert all(flag in part for flag in option.flags[:1]) or option.name in (
                *("json", "no_start"),
            ), (name, option.flags)
