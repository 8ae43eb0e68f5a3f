"""Agents from the command line: given something to do, watched, interrupted; and their keys."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agents.installed import require_programs
from tests.agents.standins import serving
from tests.cli.program import TIMEOUT_S, Program, in_terminal
from tests.conformance.frontends import PROGRAMS
from tests.daemon.rig import LOOK_S, Daemon
from tests.instances.small import command, put_small


@pytest.fixture
def desk(carrel: Program) -> Iterator[str]:
    """A space with the scripted agent."""
    name = carrel.good("new", "--empty", "--agent", "scripted").strip()
    yield name
    carrel("rm", "--force", name)


def test_send_and_wait(carrel: Program, desk: str) -> None:
    done = carrel(
        "send", desk, "write a.txt hello\nsay working on it\nrun cat a.txt\nfoo", "--wait"
    )
    assert (done.code, done.out) == (0, "turn 1: foo\n"), done
    assert "▸ write(a.txt)" in done.err and "● working on it" in done.err
    assert carrel.good("exec", desk, "--", "cat", "a.txt") == "hello\n"
    done = carrel("send", desk, "again", "--wait", "--continue")
    assert done.out == "turn 2: again\n"
    done = carrel("send", desk, "-", "--wait", stdin=b"from standard input")
    assert done.out == "turn 1: from standard input\n"
    rows = carrel.good("turns", desk).splitlines()
    assert len(rows) == 4 and "complete" in rows[1] and "turn 1: from standard" in rows[1]
    assert carrel.json("show", desk)["agent"] == "scripted"
    assert re.search(r"scripted, idle for \S+; 3 turns", carrel.good("show", desk))
    assert " idle " in carrel.good("ls")


def test_an_agent_on_the_callers_path(own_daemon: Daemon, project: Path) -> None:
    """Also when the daemon was started before it was there, and by somebody with another PATH."""
    carrel = Program(own_daemon.data, project)
    folder = project.parent / "tools"
    words = ("new", "--agent", "goose", "--name", "mine")
    folder.mkdir()
    (folder / "goose").write_text("#!/bin/sh\necho 1.2.3\n")
    (folder / "goose").chmod(0o755)
    assert "goose" in carrel.bad(None, *words)
    mine = {"PATH": f"{folder}:{carrel.env['PATH']}"}
    done = carrel(*words, env=mine)
    assert (done.code, done.out) == (0, "mine\n"), done
    assert carrel.good("exec", "mine", "--", str(folder / "goose")) == "1.2.3\n"
    carrel.good("down")
    (found,) = [one for one in carrel.json("agents")["frontends"] if one["name"] == "goose"]
    assert (found["path"], found["version"]) == (str(folder / "goose"), "1.2.3")
    carrel.good("rm", "mine")


def test_the_exit_code_is_the_agents(carrel: Program, desk: str) -> None:
    done = carrel("send", desk, "fail so sad", "--wait")
    assert done.code == 1 and done.out == ""
    assert "so sad (agent_crashed)" in done.err.splitlines()[-1]
    done = carrel("send", desk, "crash", "--wait", "--json")
    *events, turn = map(json.loads, done.out.splitlines())
    assert done.code == 1 and turn["result"]["error"]["code"] == "agent_crashed"
    kinds = [event["type"] for event in events]
    assert kinds[0] == "agent.state" and kinds[-1] == "agent.complete"
    done = carrel("send", desk, "sleep 60", "--wait", "--timeout", "1s")
    assert done.code == 1 and "(timeout)" in done.err


def test_without_waiting_it_goes_on(carrel: Program, desk: str) -> None:
    turn = carrel.good("send", desk, "sleep 600").strip()
    assert carrel.json("show", desk)["working"] == turn
    assert " working " in carrel.good("ls")
    assert turn in carrel.bad(4, "send", desk, "me too")
    carrel.good("interrupt", desk)
    carrel("run", "wait", turn)
    until = time.monotonic() + TIMEOUT_S
    while carrel.json("show", desk)["working"]:
        assert time.monotonic() < until
        time.sleep(LOOK_S)
    assert "No agent works" in carrel.bad(None, "interrupt", desk)
    assert "interrupted" in carrel.good("turns", desk)


def test_a_turn_is_a_run_with_a_short_name(carrel: Program, desk: str) -> None:
    carrel.good("send", desk, "say hello", "--wait")
    carrel.good("exec", desk, "--", "echo", "a b")
    table = carrel.good("runs", desk)
    assert "agent: scripted" in table and "carrel.agents" not in table and "echo 'a b'" in table
    other, turn = carrel.json("runs", desk)["runs"]
    assert turn["display_command"] == "agent: scripted" and len(turn["argv"]) > 2
    assert other["display_command"] == "echo 'a b'" and other["argv"] == ["echo", "a b"]
    assert "agent: scripted" in carrel.good("run", "show", turn["id"])


def test_new_with_something_to_do(carrel: Program) -> None:
    done = carrel("new", "--empty", "--agent", "scripted", "-m", "say hello", "--wait")
    name, said = done.out.splitlines()
    assert done.code == 0 and said == "hello"
    carrel.good("rm", "--force", name)


def test_what_an_agent_is_given(carrel: Program, desk: str) -> None:
    (carrel.cwd / "rules.md").write_text("Be brief.\n")
    (carrel.cwd / "shot.png").write_bytes(b"\x89PNG")
    done = carrel("send", desk, "run ls /agent/context", "--wait", "--context", "rules.md")
    assert done.code == 0
    listed = carrel.good("context", "ls", desk)
    assert "rules.md" in listed and "shot.png" not in listed
    carrel.good("context", "add", desk, "shot.png")
    found = carrel.json("context", "ls", desk)["files"]
    assert [one["name"] for one in found] == ["rules.md", "shot.png"]
    carrel.good("context", "rm", desk, "rules.md", "shot.png")
    assert "context add" in carrel("context", "ls", desk).err
    assert "nowhere.md" in carrel.bad(None, "send", desk, "hello", "--context", "nowhere.md")
    name = carrel.good("new", "--empty", "--agent", "scripted", "--context", "rules.md").strip()
    assert "Be brief." in carrel.good("exec", name, "--", "cat", "/agent/context/rules.md")
    carrel.good("rm", "--force", name)


def test_what_a_real_agent_hears(own_daemon: Daemon, carrel: Program) -> None:
    program = Program(own_daemon.data, carrel.cwd)
    require_programs()
    (own_daemon.data / "agents").mkdir()
    (own_daemon.data / "agents" / "claude-code").symlink_to(PROGRAMS)
    (carrel.cwd / "system.txt").write_text("Speak like a sailor.")
    (carrel.cwd / "shot one.png").write_bytes(b"\x89PNG")
    name = program.good("new", "--empty", "--agent", "claude-code").strip()
    with serving() as standin:
        env = f"ANTHROPIC_BASE_URL={standin.url}"
        words = ("--wait", "--turn-env", env, "--turn-env", "ANTHROPIC_API_KEY=sk")
        given = ("--attach", "shot one.png", "--system-prompt", "@system.txt")
        done = program("send", name, "hello", *words, *given)
        assert done.code == 0, done
        body = json.dumps([one.body for one in standin.requests])
    assert "Speak like a sailor." in body and "/agent/context/shot one.png" in body
    program.good("rm", "--force", name)


def test_what_goes_wrong(carrel: Program, desk: str, space: str) -> None:
    assert "carrel agents" in carrel.bad(None, "new", "--empty", "--agent", "nobody")
    assert "--agent" in carrel.bad(None, "send", space, "hello")
    assert "prompt is empty" in carrel.bad(None, "send", desk, " ")
    assert "no conversation" in carrel.bad(None, "send", desk, "x", "--continue")
    assert "no space" in carrel.bad(None, "send", "nowhere", "hello").lower()
    assert "carrel agents install" in carrel.bad(None, "agents", "sing")


def test_what_there_is(carrel: Program) -> None:
    found = {one["name"]: one for one in carrel.json("agents")["frontends"]}
    assert found["scripted"]["installed"]
    for name in ("claude-code", "codex-cli", "agent-sdk", "pi-sdk", "acp"):
        assert found[name]["problem"] == "" and found[name]["kind"] in ("cli", "sdk", "acp")
    table = carrel.good("agents")
    assert table.startswith("AGENT") and "scripted" in table
    assert "scripted" in carrel.bad(None, "agents", "install", "scripted")


def test_who_has_a_key(own_daemon: Daemon, carrel: Program) -> None:
    program = Program(own_daemon.data, carrel.cwd)
    found = {one["name"]: one for one in program.json("agents")["frontends"]}
    assert found["agent-sdk"]["logged_in"] is False and found["agent-sdk"]["installed"]
    assert found["opencode"]["credentials"] == ["anthropic", "openai"]
    assert found["scripted"]["logged_in"] is None and found["scripted"]["credentials"] == []
    told = program("agents")
    assert "agent-sdk" in told.err and "carrel auth set anthropic" in told.err
    program.good("auth", "set", "anthropic", stdin=b"sk-planted")
    found = {one["name"]: one for one in program.json("agents")["frontends"]}
    for name in ("claude-code", "agent-sdk", "opencode"):
        assert found[name]["logged_in"] is True
    assert found["codex-cli"]["logged_in"] is False
    told = program("agents")
    assert "carrel auth set anthropic" not in told.err
    (row,) = [line for line in told.out.splitlines() if line.startswith("agent-sdk")]
    assert " yes " in row


def test_keys(own_daemon: Daemon, carrel: Program) -> None:
    program = Program(own_daemon.data, carrel.cwd)
    assert "carrel auth set" in program("auth", "ls").err
    program.good("auth", "set", "anthropic", stdin=b"sk-planted\n")
    assert program.good("auth", "ls") == "anthropic\n"
    file = own_daemon.data / "auth" / "anthropic"
    assert file.read_text() == "sk-planted" and file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    program.good("auth", "set", "anthropic", stdin=b"sk-other")
    assert file.read_text() == "sk-other"
    assert "sk-other" not in program.good("auth", "ls", "--json") + own_daemon.log()
    program.good("auth", "set", "anthropic", "--endpoint", "https://a.example", stdin=b"")
    assert file.read_text() == "sk-other"
    assert program.good("auth", "ls") == "anthropic  https://a.example\n"
    assert "endpoint" in program.bad(None, "auth", "set", "anthropic", "--endpoint", "a", stdin=b"")
    program.good("auth", "rm", "anthropic")
    assert not file.exists()
    assert "auth ls" in program.bad(None, "auth", "rm", "anthropic")
    for name, value in (("../x", b"v"), ("UPPER", b"v"), ("empty", b"  \n")):
        program.bad(None, "auth", "set", name, stdin=value)


def test_trust(own_daemon: Daemon, carrel: Program) -> None:
    """The project's hooks are agreed to by a verb, or by who is asked in a terminal."""
    program = Program(own_daemon.data, carrel.cwd)
    program.good("auth", "set", "anthropic", stdin=b"sk-planted")
    hooks = carrel.cwd / "trusting" / ".claude" / "settings.json"
    hooks.parent.mkdir(parents=True)
    hooks.write_text("{}")
    with own_daemon.equipped("claude-code"):
        name = program.good("new", "trusting", "--agent", "claude-code").strip()
    with in_terminal(program, "send", name, "hello") as terminal:
        terminal.until(b".claude/settings.json")
        terminal.until(b"[y/N] ")
        terminal.type(b"n\r")
        assert b"not installed" in terminal.rest()
    assert program.json("trust", name, "--show")["agreed"] is False
    with in_terminal(program, "send", name, "hello") as terminal:
        assert b"[y/N]" not in terminal.rest()
    assert program.good("trust", name) == ".claude/settings.json\n"
    assert program.json("trust", name, "--show")["trusted"]
    assert "goes without" in program("trust", name, "--no").err
    with own_daemon.equipped("claude-code"):
        name = program.good("new", "trusting", "--agent", "claude-code", "--trust").strip()
    assert program.json("trust", name, "--show")["trusted"]
    hooks.write_text('{"hooks": {}}')
    with own_daemon.equipped("claude-code"):
        name = program.good("new", "trusting", "--agent", "claude-code").strip()
    assert not program.json("trust", name, "--show")["trusted"]
    hooks.unlink()
    hooks.symlink_to("/etc/passwd")
    with own_daemon.equipped("claude-code"):
        name = program.good("new", "trusting", "--agent", "claude-code").strip()
    assert "cannot be agreed to" in program.bad(None, "trust", name)


def test_a_key_is_asked_for_and_not_shown(own_daemon: Daemon, carrel: Program) -> None:
    program = Program(own_daemon.data, carrel.cwd)
    with in_terminal(program, "auth", "set", "openai") as terminal:
        terminal.until(b"openai: ")
        terminal.type(b"sk-typed\r")
        assert b"sk-typed" not in terminal.rest()
    assert (own_daemon.data / "auth" / "openai").read_text() == "sk-typed"


def test_an_agent_that_asks_is_in_the_inbox(carrel: Program, desk: str) -> None:
    turn = carrel.good("send", desk, "write a.txt hello", "--permission", "ask").strip()
    until = time.monotonic() + TIMEOUT_S
    while carrel.json("show", desk)["activity"] != "waiting for permission":
        assert time.monotonic() < until
    found = [one for one in carrel.json("inbox")["items"] if "permission: write" in one["text"]]
    assert len(found) == 1 and found[0]["priority"] == "high"
    carrel.good("interrupt", desk)
    carrel("run", "wait", turn)


def test_servers_of_a_space(carrel: Program, tmp_path: Path) -> None:
    put_small(tmp_path)
    carrel.good("instance", "add", "tiny", "--", *command("http"))
    try:
        words = ("new", str(tmp_path), "--name", "served", "--agent", "scripted")
        assert "no-such" in carrel.bad(None, *words, "--mcp", "no-such")
        said = 'tool mcp__tiny__echo {"a": 1}\nsay done'
        done = carrel(*words, "--mcp", "tiny", "-m", said, "--wait")
        assert (done.code, done.out) == (0, "served\ndone\n"), done
        assert "▸ tiny.echo(" in done.err
        assert "tiny, ready" in carrel.good("show", "served")
        (shown,) = carrel.json("show", "served")["mcp"]
        assert shown["instance"] in carrel.good("instance", "ls")
    finally:
        carrel("rm", "--force", "served")
        carrel("instance", "remove", "tiny")
    assert "tiny" not in carrel.good("instance", "ls")


@pytest.mark.parametrize("task", [(), ("-m", "hi")])
def test_an_agent_that_is_missing_leaves_no_space(
    carrel: Program, project: Path, task: tuple[str, ...]
) -> None:
    said = carrel.bad(7, "new", str(project), "--name", "lonely", "--agent", "goose", *task)
    assert "not installed" in said
    assert "lonely" not in [one["name"] for one in carrel.json("ls")["spaces"]]
