"""Agents from the command line: given something to do, watched, interrupted; and their keys."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from tests.cli.program import TIMEOUT_S, Program, in_terminal
from tests.daemon.rig import Daemon


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
    assert "· write" in done.err and "working on it" in done.err
    assert carrel.good("exec", desk, "--", "cat", "a.txt") == "hello\n"
    done = carrel("send", desk, "again", "--wait", "--continue")
    assert done.out == "turn 2: again\n"
    done = carrel("send", desk, "-", "--wait", stdin=b"from standard input")
    assert done.out == "turn 1: from standard input\n"
    rows = carrel.good("turns", desk).splitlines()
    assert len(rows) == 4 and "complete" in rows[1] and "scripted" in rows[1]
    assert carrel.json("show", desk)["agent"] == "scripted"
    assert "scripted, idle; 3 turns" in carrel.good("show", desk)
    assert " idle " in carrel.good("ls")


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
    assert "No agent works" in carrel.bad(None, "interrupt", desk)
    assert "interrupted" in carrel.good("turns", desk)


def test_new_with_something_to_do(carrel: Program) -> None:
    done = carrel("new", "--empty", "--agent", "scripted", "-m", "say hello", "--wait")
    name, said = done.out.splitlines()
    assert done.code == 0 and said == "hello"
    carrel.good("rm", "--force", name)


def test_what_goes_wrong(carrel: Program, desk: str, space: str) -> None:
    assert "carrel agents" in carrel.bad(None, "new", "--empty", "--agent", "nobody")
    assert "--agent" in carrel.bad(None, "send", space, "hello")
    assert "nothing to say" in carrel.bad(None, "send", desk, " ")
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
    program.good("auth", "rm", "anthropic")
    assert not file.exists()
    assert "auth ls" in program.bad(None, "auth", "rm", "anthropic")
    for name, value in (("../x", b"v"), ("UPPER", b"v"), ("empty", b"  \n")):
        program.bad(None, "auth", "set", name, stdin=value)


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
