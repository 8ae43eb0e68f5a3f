"""docs/cli.md: what scripts rely on, by the program alone."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.cli.program import Program


@pytest.fixture
def desk(carrel: Program) -> Iterator[str]:
    name = carrel("new", "./greet").out.strip()
    yield name
    carrel("rm", "--force", name)


def test_new_prints_the_name_and_options_do_what_they_say(carrel: Program) -> None:
    words = (
        "new --empty --name cli-a --label team=blue --memory 512M --pids 200 --ttl 2h --env CI=1"
    )
    assert carrel(*words.split()).out == "cli-a\n"
    shown = json.loads(carrel("show", "cli-a", "--json").out)
    assert shown["limits"]["memory_bytes"] == 512 << 20 and shown["limits"]["pids"] == 200
    assert shown["retention"]["ttl_s"] == 7200 and shown["labels"] == {"team": "blue"}
    assert carrel("exec", "cli-a", "--", "sh", "-c", "echo $CI").out == "1\n"
    assert carrel("ls", "-q", "--label", "team=blue").out == shown["id"] + "\n"
    assert carrel("stop", "cli-a").code == 0
    assert carrel("ls", "-q", "--state", "stopped", "--label", "team=blue").out.strip()
    assert carrel("update", "cli-a", "--label", "done=yes", "--no-label", "team").code == 0
    labels = json.loads(carrel("show", "cli-a", "--json").out)["labels"]
    assert labels == {"done": "yes"}
    assert carrel("new", "--empty", "--name", "cli-a").code == 4
    assert carrel("rm", "cli-a").code == 0


def test_changes_diff_copies_and_removal(carrel: Program, desk: str) -> None:
    assert carrel("exec", desk, "--", "sh", "-c", "echo new > notes.txt").code == 0
    assert "A notes.txt" in carrel("changes", desk).out
    assert "+new" in carrel("diff", desk).out
    assert carrel("diff", desk, "--name-only").out == "notes.txt\n"
    refused = carrel("rm", desk)
    assert refused.code == 4 and "--force" in refused.err
    assert carrel("cp", f"{desk}:notes.txt", ".").code == 0
    assert (carrel.cwd / "notes.txt").read_text() == "new\n"
    assert carrel("cp", "-", f"{desk}:note", stdin=b"from a pipe\n").code == 0
    assert carrel("cp", f"{desk}:note", "-").out == "from a pipe\n"
    assert carrel("cp", f"{desk}:../x", "-").code != 0


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("frobnicate",), 2),
        (("new", "--memory", "lots"), 2),
        (("show", "nobody"), 3),
        (("new", "./nowhere"), 3),
        (("run", "show", "ru_nobody"), 3),
        (("exec", "nobody", "--", "true"), 125),
        (("--no-start", "--data", "nowhere", "ls"), 6),
        (("--no-start", "--data", "nowhere", "exec", "x", "--", "true"), 125),
        (("config", "get", "no_such_key"), 2),
    ],
    ids=str,
)
def test_exit_codes(carrel: Program, words: tuple[str, ...], code: int) -> None:
    done = carrel(*words)
    assert done.code == code, done
    assert done.out == "" and done.err and "Traceback" not in done.err


def test_an_error_is_a_sentence_and_a_hint_or_a_problem(carrel: Program) -> None:
    done = carrel("show", "nobody")
    assert "There is no space 'nobody'." in done.err and "carrel ls" in done.err
    problem = json.loads(carrel("show", "nobody", "--json").err)
    assert problem["code"] == "space_not_found" and problem["detail"] and problem["hint"]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("sh", "-c", "exit 7"), 7),
        (("sh", "-c", "kill -TERM $$"), 143),
        (("no-such-program",), 127),
        (("./greet.py",), 126),
    ],
    ids=str,
)
def test_exec_exits_as_the_command_does(
    carrel: Program, desk: str, words: tuple[str, ...], code: int
) -> None:
    assert carrel("exec", desk, "--", *words).code == code


def test_exec_and_runs(carrel: Program, desk: str) -> None:
    done = carrel("exec", desk, "--", "sh", "-c", "echo out; echo err >&2")
    assert (done.out, done.err) == ("out\n", "err\n")
    assert carrel("exec", "-i", desk, "--", "tr", "a-z", "A-Z", stdin=b"some").out == "SOME"
    assert carrel("exec", desk, "--", "cat", stdin=b"some").out == ""
    assert carrel("exec", "--timeout", "300ms", desk, "--", "sleep", "60").code == 124
    words = ("exec", "-e", "X=1", "-C", "/tmp", desk, "--", "sh", "-c", "echo $X $PWD")
    assert carrel(*words).out == "1 /tmp\n"
    run = carrel("exec", "--detach", desk, "--", "sh", "-c", "echo done; exit 5").out.strip()
    assert carrel("run", "wait", run).code == 5
    assert carrel("logs", desk).out == carrel("logs", run).out == "done\n"
    assert (
        carrel("runs", desk).out.splitlines()[1].startswith(run) or run in carrel("runs", desk).out
    )
    lasting = carrel("exec", "-d", desk, "--", "sleep", "600").out.strip()
    assert carrel("run", "wait", "--timeout", "100ms", lasting).code == 124
    assert carrel("run", "signal", lasting, "KILL").code == 0
    assert carrel("run", "wait", lasting).code == 137
    assert carrel("shell", desk, stdin=b"echo in; exit 3\n").code == 3


def test_turns_and_their_exit_codes(carrel: Program) -> None:
    name = carrel("new", "--empty", "--agent", "scripted", "-m", "say hello", "--wait")
    assert name.code == 0 and name.out.endswith("hello\n")
    space = carrel("ls", "-q").out.split()[0]
    told = carrel("send", space, "say one", "--wait")
    assert (told.code, told.out) == (0, "one\n") and "✔" in told.err
    asked = carrel("send", space, "and again?", "--wait", "--continue")
    assert asked.out == "turn 2: and again?\n"
    assert carrel("send", space, "fail no luck", "--wait").code == 1
    lines = carrel("send", space, "say two", "--wait", "--json").out.splitlines()
    *events, turn = (json.loads(line) for line in lines)
    assert events and turn["result"]["final_output"] == "two"
    assert carrel("send", "nobody", "x").code == 3
    for words, code in ((("--agent", "nobody"), 2), (("--model", "none"), 2)):
        assert carrel("send", space, "x", *words).code == code
    assert carrel("send", space, "x", "--agent", "gemini").code == 7
    assert carrel("turns", space).code == 0 and "no luck" in carrel("turns", space).out
    carrel("rm", "--force", space)


def test_nothing_is_made_for_a_task_that_is_refused(carrel: Program) -> None:
    task = ("new", "--empty", "-m", "say hello")
    scripted = ("--agent", "scripted")
    before = carrel("ls", "-q").out
    for words, code in (
        ((*scripted, "--model", "nope"), 2),
        ((*scripted, "--model", "nope", "--turn-env", "A=b"), 2),
        ((*scripted, "--context", "nowhere.md"), 1),
        ((*scripted, "--attach", "nowhere.md"), 1),
        ((*scripted, "--system-prompt", "@nowhere.md"), 1),
        (("--agent", "nobody"), 2),
        ((), 2),
    ):
        done = carrel(*task, *words)
        assert done.code == code and done.out == "" and done.err, done
    assert carrel("new", "--empty", "-m", " ", *scripted).code == 2
    assert carrel("ls", "-q").out == before
    good = carrel(*task, *scripted, "--model", "scripted", "--wait")
    assert good.code == 0, good
    carrel("rm", "--force", good.out.split()[0])


def test_requests(carrel: Program) -> None:
    made = carrel("request", "--agent", "scripted", "--out", "made", "write hello.py print(1)")
    assert made.code == 0, made
    assert (carrel.cwd / "made" / "hello.py").read_text() == "print(1)\n"
    again = carrel("request", "--agent", "scripted", "--out", "made", "write hello.py print(2)")
    assert again.code == 4 and (carrel.cwd / "made" / "hello.py").read_text() == "print(1)\n"
    words = ("request", "--agent", "scripted", "--json", "--check", "false", "write a.txt x")
    failed = carrel(*words)
    result = json.loads(failed.out)
    assert failed.code == 1 and result["type"] == "result" and not result["complete"]
    assert not result["check"]["passed"] and result["files"][0]["path"] == "a.txt"
    named = (
        "request",
        "--agent",
        "scripted",
        "--request-id",
        "cli-1",
        "--keep",
        "1h",
        "write b.txt y",
    )
    assert carrel(*named).code == 0
    assert carrel("request", "fetch", "cli-1", "b.txt").out == "y\n"
    assert "b.txt" in carrel("request", "files", "cli-1").out
    assert carrel("request", "extend", "cli-1", "2h").code == 0
    assert carrel("request", "rm", "cli-1").code == 0
    assert carrel("request", "show", "nobody").code == 3


def test_what_happens(carrel: Program, desk: str) -> None:
    carrel("exec", desk, "--", "true")
    lines = carrel("events", "--json", "--after", "0", "--space", desk, "--type", "run.ended").out
    assert [json.loads(line)["type"] for line in lines.splitlines()] == ["run.ended"]
    assert carrel("inspect", "./greet").code == 0
    assert "complete" in carrel("completion", "bash").out
    assert carrel("gc", "--bases", "--dry-run").code == carrel("df").code == 0
    assert carrel("config", "explain", "request_agent").code == 0
    assert carrel("hub", "send", "--space", desk, "buffer_custom_x", '{"a": 1}').code == 0
    dumped = [json.loads(line) for line in carrel("hub", "dump", "--space", desk).out.splitlines()]
    assert dumped[-1]["type"] == "buffer_custom_x" and dumped[-1]["payload"] == {"a": 1}
    inside = carrel("exec", desk, "--", "sh", "-c", "echo ${CARREL_HUB:+set}")
    assert inside.out == "set\n"


def test_every_command_has_help_and_json(carrel: Program) -> None:
    for verb in (
        "ls",
        "agents",
        "status",
        "inbox",
        "df",
        "token ls",
        "auth ls",
        "instance servers",
    ):
        assert carrel(*verb.split(), "--help").code == 0
        json.loads(carrel(*verb.split(), "--json").out)
