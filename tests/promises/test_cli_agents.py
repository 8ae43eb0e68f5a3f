"""docs/cli.md: agents, their turns and what they say, by the program alone."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.program import TIMEOUT_S, Program, in_terminal
from tests.daemon.rig import LOOK_S, Daemon

HOOK = '{"hooks": {"Stop": [{"hooks": [{"type": "command", "command": "true"}]}]}}'


@pytest.fixture
def carrel(daemon: Daemon, tmp_path: Path) -> Program:
    return Program(daemon.data, tmp_path)


@pytest.fixture
def desk(carrel: Program) -> Iterator[str]:
    name = carrel.good("new", "--empty", "--agent", "scripted").strip()
    yield name
    carrel("rm", "--force", name)


def settled(carrel: Program, desk: str, state: str) -> None:
    """Until its agent is that; bounded."""
    until = time.monotonic() + TIMEOUT_S
    while carrel.json("show", desk)["activity"] != state:
        assert time.monotonic() < until, carrel.good("show", desk)
        time.sleep(LOOK_S)


def test_agents_and_their_keys(carrel: Program) -> None:
    listed = carrel.good("agents")
    assert "scripted" in listed and "carrel agents install claude-code" in listed
    found = {one["name"]: one for one in carrel.json("agents")["frontends"]}
    assert found["scripted"]["installed"] and found["scripted"]["models"] == ["scripted"]
    assert carrel("agents", "install", "nobody").code == 2
    home = {"HOME": str(carrel.cwd)}
    assert carrel("agents", "import", "--dry-run", env=home).code != 0, "nothing is there"
    assert "empty" in carrel.bad(2, "auth", "set", "openai")
    address = "http://127.0.0.1:9"
    assert carrel.good("auth", "set", "openai", stdin=b"sk-secret\n") == ""
    carrel.good("auth", "set", "openai", "--endpoint", address)
    assert carrel.good("auth", "ls") == f"openai  {address}\n"
    assert "sk-secret" not in carrel.good("auth", "ls", "--json")
    carrel.good("auth", "rm", "openai")
    assert carrel("auth", "rm", "openai").code == 3


def test_what_a_project_brings_is_agreed_to(carrel: Program) -> None:
    (carrel.cwd / "greet" / ".claude").mkdir(parents=True)
    (carrel.cwd / "greet" / ".claude" / "settings.json").write_text(HOOK)
    name = carrel.good("new", "./greet").strip()
    words = ("trust", name, "--agent", "claude-code")
    assert carrel.good(*words, "--show") == ".claude/settings.json\n"
    assert not carrel.json(*words, "--show")["trusted"]
    carrel.good(*words)
    assert carrel.json(*words, "--show")["trusted"]
    carrel.good(*words, "--no")
    assert not carrel.json(*words, "--show")["trusted"]
    carrel.good("rm", "--force", name)


def test_documents(carrel: Program, desk: str) -> None:
    for name in ("rules.md", "more.md"):
        (carrel.cwd / name).write_text(f"in {name}\n")
    carrel.good("context", "add", desk, "rules.md", "more.md")
    read = ("exec", desk, "--", "cat", "/agent/context/rules.md")
    assert carrel.good(*read) == "in rules.md\n"
    listed = carrel.json("context", "ls", desk)["files"]
    assert [one["name"] for one in listed] == ["more.md", "rules.md"]
    carrel.good("context", "rm", desk, "rules.md", "more.md")
    assert carrel.json("context", "ls", desk)["files"] == []
    assert carrel("context", "rm", desk, "rules.md").code == 3
    words = ("send", desk, "run cat /agent/context/*.md", "--wait", "--full")
    assert "in rules.md" in carrel(*words, "--context", "rules.md").err


def test_a_turn_and_its_transcript(carrel: Program, desk: str) -> None:
    turn = carrel.good("send", desk, "-", stdin=b"write a.txt hi\nsay done").strip()
    assert carrel("run", "wait", turn).code == 0
    assert turn in carrel.good("turns", desk)
    shown = carrel.good("turn", "show", turn)
    assert "write(a.txt)" in shown and "done" in shown and "\x1b" not in shown
    assert "\x1b[" in carrel.good("turn", "show", turn, "--color", "always")
    assert "write(a.txt)" in carrel.good("logs", turn)
    *events, last = carrel.good("turn", "show", turn, "--json").splitlines()
    assert events and json.loads(last)["result"]["success"]
    assert carrel("turn", "show", "ru_none").code == 3
    key = json.loads(last)["continuation"]["key"]
    again = ("send", desk, "and?", "--wait")
    assert carrel.good(*again, "--resume", key) == "turn 2: and?\n"
    late = carrel("send", desk, "sleep 600", "--wait", "--timeout", "500ms")
    assert late.code == 1 and "timeout" in late.err


def test_permissions(carrel: Program, desk: str) -> None:
    asking = ("--permission", "ask")
    for answer, code in ((("--all", "--deny"), 1), ((), 0)):
        turn = carrel.good("send", desk, "write a.txt hi", *asking).strip()
        until = time.monotonic() + TIMEOUT_S
        while not (waiting := carrel.json("permit", desk)["permissions"]):
            assert time.monotonic() < until
            time.sleep(LOOK_S)
        assert waiting[0]["name"] == "write" and waiting[0]["id"] in carrel.good("permit", desk)
        assert "asks for permission: write" in carrel.good("inbox")
        carrel.good("permit", desk, *(answer or (waiting[0]["id"],)))
        carrel("run", "wait", turn)
        assert carrel("exec", desk, "--", "cat", "a.txt").code == code
    assert carrel("permit", desk, "call-9").code == 4
    words = ("send", desk, "write b.txt hi", "--wait", *asking, "--answer", "100ms")
    carrel(*words)
    assert carrel("exec", desk, "--", "cat", "b.txt").code == 1


def test_more_for_the_agent_that_works(carrel: Program, desk: str) -> None:
    turn = carrel.good("send", desk, "sleep 600", "--session", "mine").strip()
    carrel.good("send", desk, "say later", "--queue")
    carrel.good("interrupt", desk, "--queued")
    assert carrel.json("show", desk)["working"] == turn, "it goes on"
    carrel.good("interrupt", desk, "--kill")
    carrel("run", "wait", turn)


def test_interrupted(carrel: Program, desk: str) -> None:
    for more in ((), ("--stop",), ("--kill",)):
        turn = carrel.good("send", desk, "sleep 600").strip()
        assert carrel("send", desk, "me too").code == 4
        carrel.good("interrupt", desk, *more)
        assert carrel("run", "wait", turn).code != 0
        settled(carrel, desk, "idle")
    assert carrel("interrupt", desk).code == 4
    errors = [one["result"]["error"]["code"] for one in carrel.json("turns", desk)["turns"]]
    assert errors[1:] == ["interrupted"] * 2 and len(errors) == 3


def test_waiting_ends_at_ctrl_c_and_the_agent_goes_on(carrel: Program, desk: str) -> None:
    words = ("send", desk, "sleep 600", "--wait")
    process = carrel.start(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stderr is not None
    assert b"turn 1" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 130
    assert carrel.json("show", desk)["working"]
    carrel.good("interrupt", desk, "--kill")


def test_in_a_terminal(carrel: Program, desk: str) -> None:
    turn = carrel.good("attach", desk, "--detach").strip()
    assert carrel.good("attach", desk, "-d").strip() == turn, "the one that runs"
    with in_terminal(carrel, "attach", desk, "--read-only") as terminal:
        terminal.until(b"scripted")
        terminal.type(b"\x02d")
        assert terminal.end() == 0
    assert carrel.json("show", desk)["working"] == turn
    carrel.good("interrupt", desk, "--stop")
    assert carrel("attach", "nobody").code == 125


def test_an_invocation_needs_an_agent_and_a_folder(carrel: Program) -> None:
    assert "--state" in carrel.bad(2, "invocation", "hi", "--agent", "claude-code")
    assert carrel("invocation", "hi", "--agent", "scripted", "--state", "st").code == 2
    for verb in ("resolve", "describe"):
        assert carrel("kit", verb, "some").code == 1


def test_what_processes_say_and_ask(carrel: Program, desk: str) -> None:
    def inside(line: str) -> str:
        return carrel.good("exec", desk, "--", "sh", "-c", line)

    assert inside("carrel log half --percent 50 --category milestone") == ""
    assert inside("carrel notify look --priority high --action open") == ""
    (item,) = (one for one in carrel.json("inbox")["items"] if one["name"] == desk)
    assert (item["text"], item["priority"]) == ("look", "high")
    assert "look" in carrel.good("inbox")
    carrel.good("inbox", "--seen")
    assert "look" not in carrel.good("inbox")
    lines = carrel.good("hub", "dump", "--space", desk).splitlines()
    progress = [json.loads(one) for one in lines if "taskspace_progress" in one]
    assert progress[0]["payload"] == {"message": "half", "percent": 50, "category": "milestone"}
    # A question, and its answer, which is given once.
    ask = '{"question": "Which?", "choices": ["a", "b"]}'
    inside(f"carrel hub send buffer_user_question '{ask}'")
    (question,) = (one for one in carrel.json("inbox")["items"] if one["name"] == desk)
    assert question["kind"] == "question" and "Which?" in carrel.good("inbox")
    carrel.good("answer", question["id"], "a", "--space", desk)
    assert not [one for one in carrel.json("inbox")["items"] if one["name"] == desk]
    assert carrel("answer", "none", "a").code == 3


def test_the_hub(carrel: Program, desk: str) -> None:
    send = ("hub", "send", "--space", desk, "buffer_custom_note")
    assert "number" in carrel.good(*send, '{"n": 1}')
    carrel.good(*send, "-", "--reply-to", "q1", stdin=b'{"n": 2}')
    words = ("hub", "follow", "--space", desk, "--type", "buffer_*", "--from", "0", "--json")
    process = carrel.start(*words, stdout=subprocess.PIPE)
    assert process.stdout is not None
    heard = [json.loads(process.stdout.readline()) for _ in range(2)]
    assert [one["payload"] for one in heard] == [{"n": 1}, {"n": 2}]
    assert heard[1]["reply_to"] == "q1"
    assert "cli" in carrel.good("hub", "clients")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 130
    # In a space no --space is needed.
    line = "carrel hub send buffer_custom_note '{\"n\": 3}'"
    carrel.good("exec", desk, "--", "sh", "-c", line)
    assert '"n": 3' in carrel.good("hub", "dump", "--space", desk)
    asked = ("hub", "request", "--space", desk, "ide_operation", '{"operation": "open"}')
    assert carrel(*asked, "--to", "ide", "--deadline", "1s").code == 3
