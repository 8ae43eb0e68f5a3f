"""docs/cli.md and docs/review.md: from what a space has changed to where it goes, by the program
alone."""

from __future__ import annotations

import json
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.cli.program import Program
from tests.daemon.rig import Daemon

IDEA = "echo new > notes.txt; mkdir d; echo one > d/x; echo 'print(2)' >> greet.py"


def git(project: Path, *words: str) -> str:
    line = ["git", "-c", "user.name=Ada", "-c", "user.email=ada@example.org", *words]
    return subprocess.run(line, cwd=project, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def carrel(daemon: Daemon, tmp_path: Path) -> Program:
    (tmp_path / "greet").mkdir()
    (tmp_path / "greet" / "greet.py").write_text("print('Hello')\n")
    git(tmp_path / "greet", "init", "-q", "-b", "main")
    git(tmp_path / "greet", "add", "-A")
    git(tmp_path / "greet", "commit", "-q", "-m", "first")
    return Program(daemon.data, tmp_path)


def made(carrel: Program, *words: str) -> str:
    """A space in which something was changed."""
    name = carrel.good("new", "./greet", *words).strip()
    carrel.good("exec", name, "--", "sh", "-c", IDEA)
    return name


def test_diff_and_changes(carrel: Program) -> None:
    one, other = made(carrel), carrel.good("new", "./greet").strip()
    assert carrel.good("changes", one).splitlines() == ["A d/x", "M greet.py", "A notes.txt"]
    assert carrel.good("diff", one, "d", "--name-only") == "d/x\n"
    assert "3 files changed, 3 insertions(+)" in carrel.good("diff", one, "--stat")
    assert [file["path"] for file in carrel.json("diff", one)["files"]] == [
        *("d/x", "greet.py", "notes.txt"),
    ]
    assert "-print(2)" in carrel.good("diff", one, other, "greet.py")
    assert carrel.good("diff", one, "--to", other) == carrel.good("diff", one, other)
    carrel.good("exec", one, "--", "sh", "-c", "echo '*.log' > .gitignore; echo x > a.log")
    assert "a.log" not in carrel.good("diff", one, "--name-only")
    assert "a.log" in carrel.good("diff", one, "--name-only", "--ignored")
    assert "a.log" not in carrel.good("changes", one)
    assert "A a.log" in carrel.good("changes", one, "--ignored")
    carrel.good("exec", one, "--", "git", "add", "-A")
    assert ".git/index" in carrel.good("changes", one, "--git")
    both = carrel.good("changes", one, "--all")
    assert ".git/index" in both and "a.log" in both
    # It can be given to git.
    patch = carrel("diff", one).bytes
    subprocess.run(["git", "apply", "--check"], cwd=carrel.cwd / "greet", input=patch, check=True)
    assert carrel("diff", one, "no-such-path").code != 0


def test_checkpoints_rewind_and_fork(carrel: Program) -> None:
    desk = made(carrel)
    kept = carrel.good("checkpoint", desk, "-m", "before I try").strip()
    assert kept in carrel.good("checkpoints", desk)
    assert carrel.json("checkpoints", desk)["checkpoints"][0]["message"] == "before I try"
    carrel.good("exec", desk, "--", "rm", "notes.txt")
    assert carrel.good("diff", desk, "--since", kept, "--name-only") == "notes.txt\n"
    carrel.good("rewind", desk)
    assert carrel.good("exec", desk, "--", "cat", "notes.txt") == "new\n"
    carrel.good("rewind", desk, "start")
    assert carrel.good("changes", desk) == ""
    carrel.good("undo")
    assert "A notes.txt" in carrel.good("changes", desk)
    carrel.good("rewind", desk, kept)
    assert carrel("rewind", desk, "ck_nothing").code == 3
    named = carrel.good("fork", desk, "--name", f"{desk}-x", "--checkpoint", kept)
    assert named == f"{desk}-x\n"
    two = carrel.good("fork", desk, "--count", "2").split()
    assert len(two) == 2
    for name in (f"{desk}-x", *two):
        assert carrel.good("exec", name, "--", "cat", "d/x") == "one\n"


def test_what_one_has_is_taken_into_another(carrel: Program) -> None:
    one, two = made(carrel), carrel.good("new", "./greet").strip()
    assert carrel.good("take", one, "d", "notes.txt", "--into", two).split()[1::2] == [
        *("d/x", "notes.txt"),
    ]
    assert carrel.good("exec", two, "--", "cat", "d/x") == "one\n"
    carrel.good("undo")
    assert carrel.good("changes", two) == ""
    carrel.good("exec", two, "--", "sh", "-c", "echo mine > notes.txt")
    assert "notes.txt" in carrel.bad(4, "take", one, "notes.txt", "--into", two)
    carrel.good("take", one, "notes.txt", "--into", two, "--force")
    assert carrel.good("exec", two, "--", "cat", "notes.txt") == "new\n"
    assert carrel("take", one, "none", "--into", two).code == 3
    assert carrel("take", one, "d").code == 2


def test_comments(carrel: Program) -> None:
    desk = made(carrel)
    first = carrel.good("comment", desk, "greet.py:1", "say seen").strip()
    second = carrel.good("comment", desk, "greet.py:2", "-", stdin=b"from a pipe").strip()
    shown = carrel.good("comments", desk)
    assert f"{first} greet.py:1" in shown and "from a pipe" in shown
    carrel.good("comments", desk, "--remove", second)
    assert [one["id"] for one in carrel.json("comments", desk)["comments"]] == [first]
    assert carrel("comment", desk, "greet.py:9", "x").code == 4
    turn = carrel.good("comments", desk, "--send", "--agent", "scripted").strip()
    assert carrel("run", "wait", turn).code == 0
    assert first not in carrel.good("comments", desk)
    assert first in carrel.good("comments", desk, "--all")


def test_landing_and_taking_it_back(carrel: Program) -> None:
    desk, project = made(carrel), carrel.cwd / "greet"
    words = ("land", desk, "-m", "Greet", "--author", "Bo <bo@example.org>")
    assert carrel(*words, "--check", "false").code != 0
    assert not git(project, "branch", "--list", "carrel/*")
    landed = carrel(*words, "--check", "test -f notes.txt")
    assert landed.code == 0 and f"carrel/{desk}" in landed.err
    log = git(project, "log", "-1", "--format=%an %s", f"carrel/{desk}")
    assert log == "Bo Greet\n" and not (project / "notes.txt").exists()
    told = json.loads(carrel.good("land", desk, "--into", "main", "--json"))
    assert told["branch"] == "main" and (project / "notes.txt").read_text() == "new\n"
    (newest, *_) = carrel.json("undo", "--list")["landings"]
    assert (newest["id"], newest["state"]) == (told["id"], "landed")
    carrel.good("undo", told["id"])
    assert not (project / "notes.txt").exists() and not git(project, "status", "--porcelain")
    carrel.good("land", desk, "--into", "topic", "--worktree")
    assert (project / "notes.txt").exists()
    carrel.good("undo")
    assert not (project / "notes.txt").exists()
    # What is in its way.
    (project / "greet.py").write_text("print('Mine')\n")
    git(project, "commit", "-q", "-am", "mine")
    carrel.good("exec", desk, "--", "sh", "-c", "echo 'print(3)' > greet.py")
    refused = carrel("land", desk, "--into", "main", "--json")
    assert refused.code == 4 and json.loads(refused.err)["code"] == "landing_conflict"


def test_the_agents_own_commits(carrel: Program) -> None:
    desk, project = made(carrel), carrel.cwd / "greet"
    commit = "git add -A; git -c user.name=A -c user.email=a@b.c commit -qm 'An idea'"
    carrel.good("exec", desk, "--", "sh", "-c", commit)
    assert "An idea" in carrel.good("changes", desk)
    carrel.good("land", desk, "--commits", "--into", "ideas")
    assert git(project, "log", "-1", "--format=%an %s", "ideas") == "A An idea\n"
    git(project, "init", "-q", "--bare", "../remote.git")
    git(project, "remote", "add", "up", "../remote.git")
    carrel.good("land", desk, "--push", "up")
    assert git(carrel.cwd / "remote.git", "show", f"carrel/{desk}:notes.txt") == "new\n"


def test_a_queue(carrel: Program) -> None:
    one, two = made(carrel), made(carrel)
    carrel.good("exec", two, "--", "sh", "-c", "git checkout -q . ; rm -r d notes.txt; echo 2 > b")
    carrel.good("land", one, two, "--queue", "--check", "sleep 600")
    entries = carrel.json("queue")["entries"]
    mine = [entry["id"] for entry in entries if entry["name"] in (one, two)]
    assert len(mine) == 2
    for entry in mine:
        carrel.good("queue", "--cancel", entry)
    assert carrel("queue", "--cancel", "qe_none").code == 3


def test_work_for_other_places(carrel: Program) -> None:
    desk, project = made(carrel), carrel.cwd / "greet"
    patch = carrel("export", desk, "--patch", "-m", "An idea")
    assert "Subject: [PATCH] An idea" in patch.out
    subprocess.run(["git", "apply", "--check"], cwd=project, input=patch.bytes, check=True)
    carrel.good("export", desk, "--bundle", "-o", "work.bundle")
    git(project, "fetch", "-q", "../work.bundle", f"carrel/{desk}:fetched")
    assert git(project, "show", "fetched:d/x") == "one\n"
    carrel.good("export", desk, "--tar", "-o", "work.tar")
    with tarfile.open(carrel.cwd / "work.tar") as archive:
        assert {"d/x", "greet.py", "notes.txt"} <= set(archive.getnames())
    carrel.good("export", desk, "--branch", "-m", "On a branch")
    assert git(project, "log", "-1", "--format=%s", f"carrel/{desk}") == "On a branch\n"
    assert carrel("export", desk).code == carrel("export", desk, "--tar", "--patch").code == 2


def test_a_race(carrel: Program) -> None:
    words = ("race", "./greet", "-m", "write r.txt x", "--agents", "scripted", "--count", "2")
    done = carrel(*words, "--check", "test -f r.txt", "--name", "sprint")
    assert done.code == 0, done
    rows = [row.split()[:5] for row in done.out.splitlines()[1:]]
    assert [row[1:] for row in rows] == [["scripted", "complete", "passed", "1"]] * 2
    race = done.err.split()[1].rstrip(":")
    again = carrel.json("race", "--show", race)
    assert again["ended"] and [one["name"] for one in again["racers"]] == [row[0] for row in rows]
    assert carrel("race", "--show", "rc_none").code == 3
    assert carrel(*words[:-2], "--model", "none").code == 2


def test_removed_and_restored(carrel: Program) -> None:
    desk = made(carrel, "--name", "gone")
    assert carrel("rm", desk).code == 4
    carrel.good("rm", "--force", desk)
    assert desk in carrel.good("undelete")
    assert desk in carrel.good("ls", "--all") and desk not in carrel.good("ls")
    back = carrel.good("undelete", desk).strip()
    assert carrel.good("exec", back, "--", "cat", "notes.txt") == "new\n"
