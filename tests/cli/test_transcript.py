"""What an agent did, as a person reads it: in a terminal, in a pipe, whole, raw and as JSON."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest

from carrel.cli.call import VerbCall
from carrel.cli.event_text import EventLines
from carrel.cli.spec import Verb
from carrel.cli.transcript import Transcript, call_text, harmless, wrapped
from tests.agents.installed import require_programs
from tests.agents.standins import serving
from tests.cli.program import PROGRAM, TIMEOUT_S, Program, in_terminal
from tests.conformance.frontends import CLAUDE, CODEX, PROGRAMS, Case
from tests.daemon.rig import LOOK_S, Daemon
from tests.sampling import beyond


@pytest.fixture
def desk(carrel: Program) -> Iterator[str]:
    name = carrel.good("new", "--empty", "--agent", "scripted").strip()
    yield name
    carrel("rm", "--force", name)


SCRIPT = "say I look.\nwrite a.txt hello\nrun seq 20\nrun echo no >&2; false\nsay It is done."
DID = """\
· turn 1
● I look.
▸ write(a.txt)
  ⎿ 6 characters
▸ run(seq 20)
  ⎿ 1
    2
    3
    4
    … +16 lines
▸ run(echo no >&2; false)
  ⎿ ✘ no
"""


def masked(text: str) -> str:
    """Without what differs from time to time."""
    text = re.sub(r"\$0\.[0-9]+", "$0", re.sub(r"\b[0-9.]+[sm]\b", "TIME", text))
    return re.sub(
        r"127\.0\.0\.1:[0-9]+", "HOST", re.sub(r"(Claude Code) \S+ with \S+", r"\1", text)
    )


def test_a_turn_is_read_by_all_verbs(carrel: Program, desk: str) -> None:
    done = carrel("send", desk, SCRIPT, "--wait")
    # The last message is the result, and nowhere else.
    assert (done.code, done.out) == (0, "It is done.\n"), done
    assert masked(done.err) == f"{DID}✔ TIME\n"
    whole = "> " + SCRIPT.replace("\n", "\n  ") + f"\n{DID}● It is done.\n✔ TIME\n"
    turn = carrel.json("turns", desk)["turns"][0]["id"]
    carrel.good("exec", desk, "--", "echo", "a command")
    assert carrel.good("logs", desk) == "a command\n"
    for words in (("logs", turn), ("logs", desk, "--run", turn), ("logs", "-f", turn)):
        assert masked(carrel.good(*words)) == whole, words
    head, _, rest = carrel.good("turn", "show", turn).partition("\n\n")
    assert masked(rest) == whole and "agent         scripted" in head and turn in head
    assert "    20\n" in carrel.good("turn", "show", turn, "--full")
    raw = carrel.good("logs", turn, "--raw").splitlines()
    assert [json.loads(line)["type"] for line in raw][:2] == ["log", "message"]
    *events, last = map(json.loads, carrel.good("logs", turn, "--json").splitlines())
    assert last["id"] == turn and events[-1]["type"] == "agent.complete"
    assert (
        events
        == list(map(json.loads, carrel.good("turn", "show", turn, "--json").splitlines()))[:-1]
    )
    assert "no turn" in carrel.bad(3, "turn", "show", "ru_nowherenowh")
    assert carrel.bad(3, "logs", "ru_nowherenowh")


def test_colours_and_widths_are_the_terminals(carrel: Program, desk: str) -> None:
    words = "word " * 30
    with in_terminal(carrel, "send", desk, f"say {words}\nrun true\nsay bye", "--wait") as terminal:
        text = terminal.rest().decode()
    assert text.count("bye") == 1, text
    assert "\x1b[36mrun(true)\x1b[0m" in text and "\x1b[32m✔" in text
    lines = re.sub(r"\x1b\[[0-9]*m", "", text).splitlines()
    assert max(map(len, lines)) <= 80 and sum("word word" in line for line in lines) == 2
    assert "\x1b" in carrel.good("logs", desk, "--color", "always")
    assert "\x1b" not in carrel.good("logs", desk)
    with in_terminal(carrel, "logs", desk, "--color", "never") as terminal:
        assert b"\x1b" not in terminal.rest()
    carrel.env["NO_COLOR"] = "1"
    with in_terminal(carrel, "logs", desk) as terminal:
        assert b"\x1b" not in terminal.rest()
    with in_terminal(carrel, "turns", desk) as terminal:
        table = terminal.rest().decode().splitlines()
    assert max(map(len, table)) <= 80 and "RESULT" in table[0] and "bye" in table[1]


def test_how_turns_ended(carrel: Program, desk: str) -> None:
    assert carrel("send", desk, "say first\nsay second line", "--wait").code == 0
    failed = carrel("send", desk, "say almost\nfail no luck", "--wait")
    assert failed.code == 1 and failed.out == ""
    assert masked(failed.err) == "· turn 1\n● almost\n✘ TIME\n  no luck (agent_crashed)\n"
    newest, oldest = (re.split(" {2,}", row) for row in carrel.good("turns", desk).splitlines()[1:])
    assert newest[2] == "agent_crashed" and newest[-1] == "no luck"
    assert oldest[2] == "complete" and oldest[-2:] == ["say first", "second line"]
    assert {"usage", "result", "prompt"} <= carrel.json("turns", desk)["turns"][0].keys()


def test_a_question_and_its_answer(carrel: Program, desk: str) -> None:
    waits = carrel.start(
        *("send", desk, "run echo hi\nsay done", "--wait", "--permission", "ask"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    asked = (
        f"▸ run(echo hi)\n  ? It asks for permission.\n    carrel permit {desk} call-1-1 [--deny]\n"
    )
    until = time.monotonic() + TIMEOUT_S
    while asked not in (
        text := carrel.good("logs", desk) if carrel.json("runs", desk)["runs"] else ""
    ):
        assert time.monotonic() < until, text
        time.sleep(LOOK_S)
    assert "… at work for" in text
    follows = carrel.start("logs", "-f", desk, stdout=subprocess.PIPE)
    carrel.good("permit", desk, "--all")
    out, err = waits.communicate(timeout=TIMEOUT_S)
    assert out == b"done\n" and asked + "  ⎿ allowed\n  ⎿ hi\n" in err.decode()
    followed = follows.communicate(timeout=TIMEOUT_S)[0].decode()
    assert "  ⎿ allowed\n  ⎿ hi\n● done\n✔" in followed


def test_who_leaves_is_told_what_goes_on(carrel: Program, desk: str) -> None:
    waits = carrel.start(
        "send", desk, "say begun\nrun echo x\nsleep 600", "--wait", stderr=subprocess.PIPE
    )
    assert waits.stderr is not None
    while b"run(echo x)" not in waits.stderr.readline():
        assert waits.poll() is None
    waits.send_signal(signal.SIGINT)
    said = waits.communicate(timeout=TIMEOUT_S)[1].decode()
    turn = carrel.json("show", desk)["working"]
    assert waits.returncode == 130
    assert f"({turn})" in said and f"carrel interrupt {desk}" in said and "Traceback" not in said
    carrel.good("interrupt", desk)
    assert "(interrupted)" in carrel.good("logs", "-f", desk)


def test_nothing_is_missed_when_the_daemon_goes(own_daemon: Daemon, carrel: Program) -> None:
    program = Program(own_daemon.data, carrel.cwd)
    name = program.good("new", "--empty", "--agent", "scripted").strip()
    # A turn goes on by itself; what it says next waits for the new daemon.
    script = "run echo one\nrun while [ ! -e go ]; do sleep 0.05; done\nsay two"
    waits = program.start("send", name, script, "--wait", stdout=-1, stderr=-1)
    assert waits.stderr is not None
    while b"sleep 0.05" not in waits.stderr.readline():
        assert waits.poll() is None
    own_daemon.kill()
    program.good("exec", name, "--", "touch", "go")
    out, err = waits.communicate(timeout=TIMEOUT_S)
    assert waits.returncode == 0 and out == b"two\n"
    assert "went away" in err.decode() and "✔" in err.decode()
    assert "▸ run(echo one)" not in err.decode(), "nothing comes twice"
    program.good("rm", "--force", name)


def test_a_reader_that_goes_away(carrel: Program, desk: str) -> None:
    carrel.good("send", desk, "repeat 300 say something", "--wait")
    for words in ("logs", "logs --full", "turns"):
        line = f"{PROGRAM} {words} {desk} | head -1"
        done = subprocess.run(
            ["bash", "-c", line],
            env=carrel.env,
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.stderr == b"" and done.stdout.count(b"\n") == 1
    done = subprocess.run(
        ["bash", "-c", f"{PROGRAM} events --space {desk} | head -1"],
        env=carrel.env,
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.stderr == b"" and b"is being made" in done.stdout


# Real agents, against stand-ins for their models' APIs

CLAUDE_DID = """\
> RUN seq 10
  hello
· Claude Code
↻ Try 1 of 10 again: overloaded (529)
▸ Bash(seq 10)
  ⎿ 1
    2
    3
    4
    … +6 lines
● reply 1: RUN seq 10
  hello
✔ TIME · 200 tokens in (80 cached), 40 out · $0
"""
CODEX_DID = """\
> RUN seq 10
  hello
· Codex
! Model metadata for `small` not found. Defaulting to fallback metadata; this can degrade \
performance and cause issues.
↻ Reconnecting... 1/5 (unexpected status 503 Service Unavailable: stand-in failed with 503, \
url: http://HOST/v1/responses)
▸ shell(seq 10)
  ⎿ 1
    2
    3
    4
    … +6 lines
● reply 1: RUN seq 10
  hello
✔ TIME · 200 tokens in (80 cached), 40 out
"""


@pytest.mark.parametrize(
    ("case", "failures", "did"),
    # Codex asks five times before it says that it does.
    [(CLAUDE, [529], CLAUDE_DID), *beyond((CODEX, [503] * 5, CODEX_DID))],
    ids=("claude-code", *beyond("codex-cli")),
)
def test_a_real_agent_and_its_retries(
    own_daemon: Daemon, carrel: Program, case: Case, failures: list[int], did: str
) -> None:
    require_programs()
    program = Program(own_daemon.data, carrel.cwd)
    (own_daemon.data / "agents").mkdir()
    (own_daemon.data / "agents" / case.name).symlink_to(PROGRAMS)
    name = program.good("new", "--empty", "--agent", case.name).strip()
    with serving() as standin:
        standin.failures += failures
        env = {**case.env(standin.url), f"{case.key.upper()}_API_KEY": "sk"}
        words = [word for one in env.items() for word in ("--turn-env", "=".join(one))]
        words += ["--model", case.model] if case.model else []
        done = program("send", name, "RUN seq 10\nhello", "--wait", *words)
        assert (done.code, done.out) == (0, "reply 1: RUN seq 10\nhello\n"), done
        assert "↻" in done.err
    assert masked(program.good("logs", name)) == did
    row = program.good("turns", name).splitlines()[1]
    assert " 240 " in row and "reply 1" in row
    happened = program.good("events", "--space", name, "--type", "agent.log")
    assert f"  {name}  agent: tries again: " in happened
    program.good("rm", "--force", name)


# Hostile text

EVIL = "\x1b]0;owned\x07\x1b[2J\u202etxt.exe\u2066\x9b31m\rback\x00\ud800"
STEERING = ("\x1b", "\x07", "\x9b", "\u202e", "\u2066", "\r", "\x00", "\ud800")


def event(kind: str, payload: dict[str, Any], seq: int = 1) -> dict[str, Any]:
    return {"type": f"agent.{kind}", "payload": {"seq": seq, "payload": payload}}


def shown(capsys: pytest.CaptureFixture[str], *events: dict[str, Any], **options: object) -> str:
    """As in a pipe."""
    transcript = Transcript(VerbCall(Verb(), dict(options)), "desk")
    for one in events:
        transcript.hear(one)
    return capsys.readouterr().out


def test_what_an_agent_says_steers_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    told = [
        event("message", {"text": EVIL}),
        event("tool_call", {"id": EVIL, "name": EVIL, "input": {"command": EVIL}}),
        event("tool_call", {"id": 1, "name": None, "input": {EVIL: [EVIL]}}),
        event("tool_result", {"id": EVIL, "output": EVIL, "is_error": True}),
        event("permission", {"id": EVIL, "name": EVIL, "input": EVIL}),
        event("permission", {"id": "x", "name": EVIL, "decision": "deny", "reason": EVIL}),
        *(
            event("log", {"text": EVIL, "kind": kind})
            for kind in ("thinking", "retry", "error", "")
        ),
        event("log", {"raw": {EVIL: EVIL}}),
        event("state", {"state": "running", "activity": EVIL}),
    ]
    for full in (False, True):
        text = shown(capsys, *told, full=full)
        assert not any(one in text for one in STEERING), repr(text)
        assert "txt.exe" in text and text.count("\n") >= len(told) - 1
    lines = EventLines(VerbCall(Verb(), {}))
    for one in told:
        found = {"at": "2026-01-02T03:04:05Z", "space": "", "type": one["type"]}
        line = lines.line({**found, "data": one["payload"]})
        assert not any(steering in line for steering in (*STEERING, "\n")), repr(line)
    assert (
        harmless("a\u00a0b \U0001f469\u200d\U0001f4bb\tc\r\nd")
        == "a b \U0001f469\u200d\U0001f4bb\tc\nd"
    )


def test_what_an_agent_says_has_a_bound(capsys: pytest.CaptureFixture[str]) -> None:
    much, deep = "x\u0301" * 5_000_000, "y\n" * 1_000_000
    told = (
        [event("message", {"text": text}) for text in (much, deep)]
        + [
            event("tool_call", {"id": much, "name": much, "input": {"command": text}})
            for text in (much, deep)
        ]
        + [event("tool_result", {"id": "1", "output": text}) for text in (much, deep)]
        + [
            event("permission", {"id": text, "name": "run", "input": {"many": [text]}})
            for text in (much, deep)
        ]
        + [
            event("log", {"text": text, "kind": kind})
            for text in (much, deep)
            for kind in ("retry", "")
        ]
    )
    text = shown(capsys, *told)
    assert len(text) < 50_000 and max(map(len, text.splitlines())) <= 2100
    assert "letters" in text and "… +" in text


def test_events_of_any_shape(capsys: pytest.CaptureFixture[str]) -> None:
    """A frontend may tell anything in its payloads."""
    values: tuple[Any, ...] = (None, 0, 1.5, True, "text", [], [1], {}, {"a": {"b": []}})
    kinds = (
        "state",
        "message",
        "tool_call",
        "tool_result",
        "usage",
        "permission",
        "log",
        "complete",
    )
    names = ("text", "id", "name", "input", "output", "decision", "kind", "result", "activity")
    lines = EventLines(VerbCall(Verb(), {}))
    for kind in (*kinds, "unheard_of", "line", "put"):
        for value in values:
            payload = dict.fromkeys(names, value)
            for told in (event(kind, payload), event(kind, value)):
                shown(capsys, told)
                about = {"at": "2026-01-02T03:04:05Z", "space": "", "type": told["type"]}
                assert "\n" not in lines.line({**about, "data": told["payload"]})


def test_what_is_no_longer_kept(capsys: pytest.CaptureFixture[str]) -> None:
    assert "no longer kept" in shown(capsys, event("message", {"text": "late"}, seq=7))


@pytest.mark.parametrize(
    ("name", "given", "text"),
    [
        ("Bash", {"command": "make test", "description": "Tests"}, "Bash(make test)"),
        ("shell", {"command": "/bin/bash -lc 'ls -l'"}, "shell(ls -l)"),
        ("shell", {"command": ["zsh", "-c", "ls -l"]}, "shell(ls -l)"),
        ("shell", {"command": "./evil/bash -c 'ls -l'"}, "shell(./evil/bash -c 'ls -l')"),
        ("shell", {"command": "/bin/../x/sh -c 'ls -l'"}, "shell(/bin/../x/sh -c 'ls -l')"),
        ("shell", {"command": ["ls", "a b"]}, "shell(ls 'a b')"),
        ("Read", {"file_path": "/workspace/a.py", "limit": 3}, "Read(/workspace/a.py)"),
        ("Grep", {"pattern": "TODO", "path": "src"}, "Grep(TODO in src)"),
        ("apply_patch", {"changes": [{"path": "a"}, {"path": "b"}]}, "apply_patch(a, b)"),
        ("mcp__carrel__ask_user", {"question": "Which?"}, "carrel.ask_user(Which?)"),
        ("run", {"command": "cat <<E\nx\nE"}, "run(cat <<E … +2 lines)"),
        ("Other", {"a": 1, "b": [2]}, 'Other({"a": 1, "b": [2]})'),
        ("ls", {}, "ls"),
        ("", None, "tool"),
    ],
)
def test_a_call_in_a_line(name: str, given: object, text: str) -> None:
    assert call_text(name, given) == text


def test_lines_are_wrapped_by_columns() -> None:
    assert list(wrapped("one two three", 7)) == ["one two", "three"]
    assert list(wrapped("  in two lines", 8)) == ["  in two", "  lines"]
    assert list(wrapped("abcdefgh", 3)) == ["abc", "def", "gh"]
    assert list(wrapped("漢字漢字", 5)) == ["漢字", "漢字"]
    assert list(wrapped("", 5)) == [""]
