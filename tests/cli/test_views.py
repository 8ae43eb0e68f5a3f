"""What people see of spaces: what they do, what they changed, what waits for somebody."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from carrel.cli.output import width_of
from tests.cli.program import TIMEOUT_S, Program, in_terminal

GIT = ("git", "-c", "user.name=n", "-c", "user.email=e")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
TIME = re.compile(r"\b[0-9.]+[smhd]\b")
POLL_S = 0.05


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("a-long-name-of-a-folder") / "repo" / "app"
    folder.mkdir(parents=True)
    (folder / ".gitignore").write_text("build/\n*.log\n")
    (folder / "a.txt").write_text("one\n")
    (folder / "b.txt").write_text("the same in both\n")
    for words in (("init", "-q", "-b", "main"), ("add", "-A"), ("commit", "-qm", "first")):
        subprocess.run([*GIT, "-C", folder, *words], check=True, timeout=TIMEOUT_S)
    return folder


@pytest.fixture
def desk(carrel: Program, repository: Path) -> Iterator[str]:
    yield carrel.good("new", str(repository), "--name", "desk", "--agent", "scripted").strip()
    carrel("rm", "--force", "desk")


def sh(carrel: Program, script: str) -> None:
    carrel.good("exec", "desk", "--", "sh", "-ec", script)


def test_changes_are_for_who_reviews_them(carrel: Program, desk: str, tmp_path: Path) -> None:
    sh(
        carrel,
        "mkdir -p build; cp b.txt build/b.txt; rm b.txt; echo l > x.log; echo more >> a.txt;"
        'git commit -qam "Do: it\x1b[31m"; printf 2 > "new\x1b[2J"',
    )
    done = carrel("changes", desk)
    first, *rest = done.out.splitlines()
    assert re.fullmatch(r"commit [0-9a-f]{7} Do: it\\x1b\[31m", first)
    assert rest == ["M a.txt", "D b.txt", "A new\\x1b[2J"], "no rename to what is ignored"
    assert re.fullmatch(r"and 2 ignored files, \d+ of \.git: --all shows them\n", done.err)
    assert "A build/b.txt" in carrel.good("changes", desk, "--ignored")
    assert ".git/index" in carrel.good("changes", desk, "--git")
    all = carrel("changes", desk, "--all")
    assert all.err == "" and "A x.log" in all.out and ".git/index" in all.out

    # The same numbers everywhere.
    counted = "3 changes and 1 commit"
    assert f"{counted}, not copied out; 2 ignored files" in carrel.good("show", desk)
    assert f"desk has {counted} that you have not copied out" in carrel.bad(4, "rm", desk)

    # What was copied out as it is does not count; what was changed then counts again.
    carrel.good("cp", "desk:a.txt", str(tmp_path))
    assert "2 changes and 1 commit" in carrel.bad(4, "rm", desk)
    sh(carrel, "echo later >> a.txt")
    assert counted in carrel.bad(4, "rm", desk)
    carrel.good("cp", "desk:.", str(tmp_path / "all"))
    assert f"{counted}, copied out" in carrel.good("show", desk)
    sh(carrel, "touch -d '2020-01-01' a.txt; echo again > build/b.txt")
    assert "desk has 1 change that" in carrel.bad(4, "rm", desk)
    carrel.good("cp", "desk:a.txt", "-")
    done = carrel("rm", desk)
    assert done.code == 0 and done.err == "3 changes are kept for a while: carrel undelete desk\n"


def test_part_of_a_file_is_not_copied_out(carrel: Program, desk: str) -> None:
    """Nor what is larger than one piece, unless all of it was read."""
    sh(carrel, "head -c 3000000 /dev/zero > large")
    with in_terminal(carrel, "cp", "desk:large", "-") as terminal:
        terminal.until(b"\0")
    assert "1 change" in carrel.bad(4, "rm", desk)
    assert len(carrel("cp", "desk:large", "-").bytes) == 3_000_000
    assert carrel("rm", desk).code == 0


def shown(carrel: Program, *words: str) -> tuple[str, list[str]]:
    """In a terminal of 80 columns: as it is, and its lines without colours and times."""
    with in_terminal(carrel, *words, cols=80) as terminal:
        text = terminal.rest().decode()
        assert terminal.end() == 0
    plain = COLOUR.sub("", text).splitlines()
    assert all(width_of(line) <= 80 for line in plain), text
    return text, [TIME.sub("TIME", line).rstrip() for line in plain]


def until_asked(carrel: Program) -> str:
    """The id of the permission that waits."""
    until = time.monotonic() + TIMEOUT_S
    while time.monotonic() < until:
        for item in carrel.json("inbox")["items"]:
            if item["kind"] == "permission" and item["name"] == "desk":
                return str(item["id"])
        time.sleep(POLL_S)
    raise AssertionError("nobody asks")


def test_who_waits_is_seen_and_answered(carrel: Program, desk: str) -> None:
    assert not [one for one in carrel.json("inbox")["items"] if one["name"] == "desk"]
    carrel.good("send", desk, "write a.txt hi", "--permission", "ask")
    item = until_asked(carrel)
    text, lines = shown(carrel, "ls")
    assert re.split(r"\s{2,}", lines[0]) == [
        *("NAME", "AGENT", "DOES", "FOR", "WAITS FOR YOU", "PROJECT")
    ]
    [line] = [line for line in lines if line.startswith("desk ")]
    *cells, place = re.split(r"\s{2,}", line)
    assert cells == ["desk", "scripted", "waiting for permission", "TIME", "1 permission"]
    assert place.startswith("…") and place.endswith("/app")
    assert "\x1b[33m" in text
    carrel.env["NO_COLOR"] = "1"
    assert "\x1b[33m" not in shown(carrel, "ls")[0]

    _, lines = shown(carrel, "inbox")
    at = lines.index("desk asks for permission, TIME ago:")
    assert lines[at + 1 : at + 4] == [
        '  scripted asks for permission: write {"path": "a.txt", "text": "hi"}',
        f"  carrel answer {item} 'yes|no'",
        *lines[at + 3 : at + 4],
    ]
    assert "yes or no" in carrel.bad(2, "answer", item, "perhaps")
    carrel.good("answer", item, "yes")
    until = time.monotonic() + TIMEOUT_S
    while carrel.json("show", desk)["activity"] != "idle":
        assert time.monotonic() < until
        time.sleep(POLL_S)
    assert carrel.good("exec", desk, "cat", "a.txt").strip() == "hi"
    assert not [one for one in carrel.json("inbox")["items"] if one["name"] == "desk"]
    assert "no question" in carrel.bad(3, "answer", item, "yes")


def test_a_question_is_shown_as_it_is_and_goes_when_it_is_answered(
    carrel: Program, desk: str
) -> None:
    asked = {"question": "Which?\x1b[2J\n" + "漢字 " * 30, "choices": ["left; reboot", "right"]}
    words = ("hub", "send", "--space", desk, "buffer_user_question", json.dumps(asked))
    carrel.good(*words)
    [item] = [one for one in carrel.json("inbox")["items"] if one["name"] == desk]
    text, lines = shown(carrel, "inbox")
    at = lines.index("desk asks, TIME ago:")
    wide = ["  " + " ".join(["漢字"] * count) for count in (15, 15)]
    answer = f"  carrel answer {item['id']} 'left; reboot|right'"
    assert lines[at + 1 : at + 5] == ["  Which?\\x1b[2J", *wide, answer]
    assert "\x1b[2J" not in text
    assert "1 question" in carrel.good("ls")
    carrel.good("answer", item["id"], "right")
    assert "1 question" not in carrel.good("ls")
    assert "answered already" in carrel.bad(4, "answer", item["id"], "right")


def test_names_that_steer_terminals(carrel: Program, tmp_path: Path) -> None:
    folder = tmp_path / ("漢字" * 20) / "new\nline\x1b[2J"
    folder.mkdir(parents=True)
    (folder / "x").touch()
    name = carrel.good("new", str(folder), "--name", "hostile").strip()
    try:
        text, lines = shown(carrel, "ls")
        [line] = [line for line in lines if line.startswith(name)]
        assert "\x1b[2J" not in text and line.endswith("/new\\nline\\x1b[2J")
        assert "\x1b" not in carrel.good("ls", "-l")
    finally:
        carrel("rm", "--force", name)


def test_new_says_what_is_not_there(carrel: Program, repository: Path) -> None:
    part = repository / "part"
    part.mkdir()
    subprocess.run(["mkfifo", part / "pipe"], check=True, timeout=TIMEOUT_S)
    done = carrel("new", str(part))
    try:
        assert "pipe: is a named pipe" in done.err
        assert ".git: is not there: this folder is a part of a git repository" in done.err
    finally:
        carrel("rm", "--force", done.out.strip())


def test_errors_say_the_name(carrel: Program, desk: str) -> None:
    carrel.good("stop", desk)
    for words in (("exec", desk, "true"), ("send", desk, "hi"), ("verify", desk)):
        said = carrel(*words).err
        assert "desk is stopped" in said and "sp_" not in said
    assert "sp_" not in carrel("attach", desk, "--json").err


def test_the_doctor_says_everything_once(carrel: Program) -> None:
    text = carrel("doctor").out
    heads = [line for line in text.splitlines() if line.endswith(":") and line[0] != " "]
    assert len(heads) == len(set(heads)) and {"agent:", "network:"} <= set(heads)
    findings = carrel.json("doctor")["findings"]
    keys = [(one["area"], one["name"], one["what"]) for one in findings]
    assert len(keys) == len(set(keys))
    assert not [one for one in findings if one["grade"] == "good" and one["remedy"]]
    assert ("agent", "scripted") in {(one["area"], one["name"]) for one in findings}
