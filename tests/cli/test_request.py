"""`carrel request`: something made, in front of a person or for a script."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Any

import pytest

from carrel import Client
from carrel.cli.commands import find_command
from tests.cli.program import TIMEOUT_S, Program, in_terminal
from tests.daemon.rig import LOOK_S, Daemon

GONE_S = 10.0
"""For a workspace to go after its result was told."""
MAKE = "write src/main.py print('hi')\nrun printf '\\0' > raw\nsay It is made."


@pytest.fixture(autouse=True)
def _nothing_stays(carrel: Program) -> Iterator[None]:
    """No workspace is left by what was not asked to leave one."""
    before = {one["id"] for one in carrel.json("ls")["spaces"]}
    yield
    until = time.monotonic() + GONE_S
    while left := [one["id"] for one in carrel.json("ls")["spaces"] if one["id"] not in before]:
        if time.monotonic() > until:
            carrel.good("rm", "--force", *left)
            pytest.fail(f"left: {left}")
        time.sleep(LOOK_S)


def made(carrel: Program, *words: str) -> dict[str, Any]:
    """What comes as JSON, and nothing else."""
    done = carrel("request", *words, "--json")
    assert done.code in (0, 1) and done.out.count("\n") == 1, done
    return dict(json.loads(done.out))


def test_for_people(carrel: Program) -> None:
    done = carrel("request", MAKE, "--check", "cat src/main.py; echo fine >&2")
    assert done.code == 0, done
    shown = [line.split() for line in done.out.splitlines()]
    assert shown[0] == ["It", "is", "made."]
    assert ["A", "1", "12B", "python", "src/main.py"] in shown
    assert ["A", "-", "1B", "-", "raw"] in shown
    assert "print('hi')" in done.out and "fine" in done.out
    assert done.out.splitlines()[-1] == "Complete: 2 files."
    told = done.err.splitlines()
    assert [int(line.split("%")[0]) for line in told] == sorted(
        int(line.split("%")[0]) for line in told
    )
    assert "making the workspace" in done.err and "\x1b" not in done.err


def test_as_json(carrel: Program, tmp_path: Path) -> None:
    out = tmp_path / "new" / "out"
    found = made(carrel, MAKE, "--out", str(out), "--request-id", "as-json")
    assert found["complete"] and found["request_id"] == "as-json"
    assert [file["path"] for file in found["files"]] == ["raw", "src/main.py"]
    assert found["saved"] == {"folder": str(out), "files": ["raw", "src/main.py"], "skipped": []}
    assert (out / "src" / "main.py").read_text() == "print('hi')\n"


def test_the_same_again(carrel: Program) -> None:
    """It is not made again."""
    first, second = (made(carrel, MAKE, "--request-id", "again") for _ in range(2))
    assert first["space_id"] == second["space_id"] and second["complete"]
    carrel.bad(4, "request", "say something else", "--request-id", "again")


def test_not_complete(carrel: Program) -> None:
    done = carrel("request", "write a.txt 1", "--check", "echo broken; exit 3")
    assert done.code == 1 and "Not complete: the check ended with 3 (1 file)." in done.out
    assert "broken" in done.out
    done = carrel("request", "-", stdin=b"say Well.\n")
    assert done.code == 1 and "Not complete: nothing was made (0 files)." in done.out
    found = made(carrel, "fail it cannot be done")
    assert (found["type"], found["message"]) == ("error", "it cannot be done")
    done = carrel("request", "fail it cannot be done")
    assert done.code == 1 and "carrel: it cannot be done" in done.err and done.out == ""


def test_what_it_is_told(carrel: Program, project: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("a note")
    said = "run cp README.md out.txt; cat $CARREL_CONTEXT/* >> out.txt 2>/dev/null || true"
    words = ["--project", str(project), "--context", f"@{tmp_path / 'notes.md'}", "--tier"]
    found = made(carrel, said, *words, "minimal", "--agent", "scripted", "--timeout", "1m")
    (file,) = found["files"]
    assert file["path"] == "out.txt" and file["text"].startswith("read me\n")


def test_what_its_workspace_has(carrel: Program) -> None:
    """As a space has it: variables, the network, servers, what the agent may do."""
    words = ["--env", "COLOR=blue", "--network", "none", "--permission", "ask", "--keep", "1h"]
    found = made(carrel, "say $COLOR", *words, "--check", "echo $COLOR; exit 1")
    try:
        assert found["check"]["output"] == "blue\n"
        assert carrel.json("show", found["space_id"])["network"] == "none"
        (turn,) = carrel.json("turns", found["space_id"])["turns"]
        assert turn["permission"] == "ask"
    finally:
        carrel.good("request", "rm", found["request_id"])
    assert "no-such" in carrel.bad(None, "request", MAKE, "--mcp", "no-such")


def test_files_that_are_there_already(carrel: Program, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "a.txt").write_text("mine")
    said = "write a.txt theirs\nwrite b.txt theirs"
    done = carrel("request", said, "--out", str(out), "--request-id", "there-already")
    assert done.code == 4 and "'a.txt' is there already" in done.err, done
    assert os.listdir(out) == ["a.txt"] and (out / "a.txt").read_text() == "mine"
    # Nothing of the work is lost.
    other = tmp_path / "other"
    names = carrel.good("request", "fetch", "there-already", "--out", str(other), "--done")
    assert names.splitlines() == ["a.txt", "b.txt"]
    assert (other / "a.txt").read_text() == "theirs\n"
    carrel.good("request", said, "--out", str(out), "--force")
    assert (out / "a.txt").read_text() == "theirs\n"
    err = carrel.bad(None, "request", said, "--out", str(out / "a.txt"))
    assert "is not a folder" in err


def test_nothing_is_written_elsewhere(carrel: Program, tmp_path: Path) -> None:
    outside, out = tmp_path / "outside", tmp_path / "out"
    outside.mkdir()
    out.mkdir()
    (out / "way").symlink_to(outside)
    said = f"run ln -s {outside}/x link; ln -s ../../up up; mkdir way; echo 1 > way/in.txt"
    done = carrel("request", said, "--out", str(out), "--force", "--request-id", "elsewhere")
    assert done.code != 0 and list(outside.iterdir()) == [], done
    fresh = tmp_path / "fresh"
    shown = carrel("request", "fetch", "elsewhere", "--out", str(fresh), "--done")
    assert shown.code == 0 and sorted(os.listdir(fresh)) == ["way"], shown
    assert "left out: link" in shown.err and "left out: up" in shown.err


# One that is kept


def test_one_that_is_kept(carrel: Program, tmp_path: Path) -> None:
    carrel.good("request", MAKE, "--keep", "1h", "--request-id", "kept")
    (shown,) = (
        one for one in carrel.json("request", "ls")["requests"] if one["workspace"] == "there"
    )
    assert shown["request_id"] == "kept"
    assert "kept" in carrel.good("request", "ls") and "more" in carrel.good("request", "ls")
    assert "retain, until" in carrel.good("request", "show", "kept")
    assert carrel.json("request", "show", "kept")["result"]["summary"] == "It is made."
    assert "src/main.py" in carrel.good("request", "files", "kept")
    assert carrel.json("request", "files", "kept")["total"] == 2
    assert carrel.good("request", "fetch", "kept", "src/main.py") == "print('hi')\n"
    archive = tmp_path / "kept.tar.gz"
    carrel.good("request", "fetch", "kept", "--archive", str(archive))
    assert archive.read_bytes()[:2] == b"\x1f\x8b"
    carrel.bad(None, "request", "fetch", "kept", "--archive", str(archive))
    assert carrel.good("request", "extend", "kept", "36h").strip().endswith("Z")
    carrel.bad(2, "request", "extend", "kept", "soon")
    carrel.bad(2, "request", "fetch", "kept")
    carrel.good("request", "rm", "kept")
    carrel.bad(3, "request", "files", "kept")


def test_versions(carrel: Program) -> None:
    for number in (1, 2, 3):
        words = ["--series", "site/home", "--newest", "2", "--older", "archive"]
        carrel.good("request", f"write a.txt version {number}", *words)
    shown = carrel.json("request", "versions", "site/home")["versions"]
    assert [one["version"] for one in shown] == [3, 2, 1]
    assert "site/home 3" in carrel.good("request", "ls", "--series", "site/home")
    assert carrel.good("request", "versions", "site/home").splitlines()[1].split()[0] == "3"
    assert "-version 2\n+version 3\n" in carrel.good("request", "diff", "site/home")
    first = carrel.json("request", "diff", "site/home", "--from", "0", "--to", "1")
    assert "+version 1\n" in first["diff"]
    carrel.bad(3, "request", "diff", "site/home", "--to", "9")
    carrel.bad(3, "request", "versions", "no/such")
    carrel.good("request", "rm", *(one["request_id"] for one in shown))


def test_one_that_is_left_to_itself(carrel: Program) -> None:
    name = carrel.json("request", "sleep 3600", "--detach", "--keep", "1h")["request_id"]
    assert name in carrel.good("request", "ls", "--live", "-q")
    carrel.good("request", "cancel", name)
    assert "cancelled" in carrel.good("request", "show", name)
    assert carrel("request", "cancel", name).err == ""
    carrel.bad(2, "request", "answer", name)
    carrel.bad(4, "request", "answer", name, "this one")
    done = carrel("request", "say hello", "--detach")
    assert done.code == 0 and "--keep" in done.err and done.out.count("\n") == 1
    carrel.good("request", "rm", done.out.strip())


# At a terminal


def test_a_bar_and_a_question(carrel: Program, daemon: Daemon) -> None:
    asked = {"question": "Which colour?", "choices": ["red", "blue"]}
    words = [f"write a.txt 1\ntool ask_user {json.dumps(asked)}", "--keep", "1h"]
    with in_terminal(carrel, "request", *words, "--request-id", "asked") as terminal:
        terminal.until(b"#")
        terminal.until(b"? Which colour?")
        terminal.until(b"2. blue")
        terminal.type(b"\n2\n")
        assert b"\x1b[K" in terminal.until(b"Complete: 1 file.")
        assert terminal.end() == 0
    with Client(data=daemon.data, autostart=False) as client:
        events = [one.event for one in client.requests.follow("asked") if one.event]
    told = [one["payload"]["output"] for one in events if one["type"] == "tool_result"]
    assert "blue" in told[-1]
    carrel.good("request", "rm", "asked")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_cancels(carrel: Program, number: signal.Signals) -> None:
    mark = f"{time.time():.6f}"
    with in_terminal(carrel, "request", f"run sleep 3600 # {mark}") as terminal:
        terminal.until(b"scripted begins")
        if number is signal.SIGINT:
            terminal.type(b"\x03")
        else:
            # `setsid` has become the program.
            terminal.process.send_signal(number)
        terminal.until(b"Cancelled.")
        assert terminal.end() == 128 + number
    assert carrel.json("request", "ls", "--live")["requests"] == []


def test_a_question_that_nobody_can_answer_here(carrel: Program) -> None:
    process = carrel.start(
        "request", "ask Which?\nwrite a.txt 1", stdin=DEVNULL, stdout=PIPE, stderr=PIPE
    )
    assert process.stderr is not None
    told = b""
    while b"Answer it:" not in told:
        line = process.stderr.readline()
        assert line, told
        told += line
    words = told.decode().rpartition("carrel ")[2].replace("TEXT", "this").split()
    carrel.good(*words)
    out, _ = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0 and b"Complete: 1 file." in out


# Words


@pytest.mark.parametrize(
    ("words", "verb", "rest"),
    [
        (["make a stack"], "new", ["make a stack"]),
        (["ls"], "ls", []),
        (["--", "ls"], "new", ["--", "ls"]),
        (["new", "ls"], "new", ["ls"]),
        (["--json", "make a stack"], "new", ["--json", "make a stack"]),
        (["-"], "new", ["-"]),
    ],
)
def test_the_verb_may_be_left_out(words: list[str], verb: str, rest: list[str]) -> None:
    assert find_command(["request", *words]) == (f"request {verb}", rest)


@pytest.mark.parametrize("words", [["lss"], ["--json", "ls"], ["--keep", "soon", "make it"]])
def test_slips_begin_nothing(carrel: Program, words: list[str]) -> None:
    assert carrel("request", *words).code == 2
    assert carrel.json("request", "ls", "--live")["requests"] == []


@pytest.mark.parametrize(
    "words",
    [
        ["--keep", "1h", "--series", "a"],
        ["--newest", "3"],
        ["--older", "drop"],
        ["--series", "../a"],
        ["--agent", "no-such"],
        ["--request-id", "rq_mine"],
    ],
)
def test_what_cannot_be_asked(carrel: Program, words: list[str]) -> None:
    carrel.bad(2, "request", "write a.txt 1", *words)


def test_help(carrel: Program, daemon: Daemon) -> None:
    assert "Commands:" in carrel.good("request", "--help")
    assert "--architecture" in carrel.good("request", "new", "--help")
