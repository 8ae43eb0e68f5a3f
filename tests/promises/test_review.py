"""docs/review.md, sentence by sentence, by the program alone."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import carrel as library
from tests.cli.program import TIMEOUT_S, Program
from tests.daemon.rig import LOOK_S, Daemon, good

GIT = ("git", "-c", "user.name=Ada", "-c", "user.email=ada@example.org")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "review.md"
LINES = "".join(f"line {number}\n" for number in range(1, 41))
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="each space has a user as root only")


def git(project: Path, *words: str) -> str:
    done = subprocess.run([*GIT, *words], cwd=project, capture_output=True, text=True, check=True)
    return done.stdout


@pytest.fixture
def carrel(daemon: Daemon, tmp_path: Path) -> Program:
    project = tmp_path / "greet"
    project.mkdir()
    (project / "greet.py").write_text("print('Hello')\n")
    (project / "long.txt").write_text(LINES)
    (project / ".gitignore").write_text("*.log\n")
    git(project, "init", "-q", "-b", "main")
    git(project, "add", "-A")
    git(project, "commit", "-q", "-m", "first")
    return Program(daemon.data, tmp_path)


@pytest.fixture
def project(carrel: Program) -> Path:
    return carrel.cwd / "greet"


@pytest.fixture
def desk(carrel: Program) -> Iterator[str]:
    name = carrel.good("new", "./greet", "--agent", "scripted").strip()
    yield name
    carrel("rm", "--force", name)


def sh(carrel: Program, space: str, script: str) -> str:
    return carrel.good("exec", space, "--", "sh", "-ec", script)


def commit(message: str) -> str:
    words = "-c user.name=Agent -c user.email=agent@example.org"
    return f"git add -A; git {words} commit -qm '{message}'"


# What a space has changed


def test_what_was_there_before_is_not_the_agents_work(carrel: Program, project: Path) -> None:
    (project / "greet.py").write_text("print('Mine')\n")
    (project / "mine.txt").write_text("mine\n")
    desk = carrel.good("new", "./greet").strip()
    assert carrel.good("diff", desk) == ""
    sh(carrel, desk, "echo theirs > theirs.txt; " + commit("An idea"))
    shown = carrel.good("diff", desk)
    assert "An idea" in shown.splitlines()[0] and "+theirs" in shown
    assert "mine.txt" not in shown
    kept = carrel.good("checkpoint", desk).strip()
    sh(carrel, desk, "echo more > more.txt; " + commit("Another"))
    since = carrel.good("diff", desk, "--since", kept)
    assert "+more" in since and "Another" not in since and "theirs" not in since
    # A stopped space can be compared too.
    carrel.good("stop", desk)
    assert carrel.good("diff", desk, "--name-only") == "more.txt\ntheirs.txt\n"
    carrel.good("rm", "--force", desk)


def test_what_is_shown_of_files(carrel: Program, desk: str, project: Path) -> None:
    sh(
        carrel,
        desk,
        "mv long.txt moved.txt; sed -i 's/line 20$/line twenty/' moved.txt; chmod +x greet.py;"
        " printf 'a\\0b' > raw; head -c 1100000 /dev/zero | tr '\\0' x > huge; mkdir empty;"
        " mkfifo pipe; echo x > a.log; echo new > new.txt; mkdir -p sub/.GIT; echo x > sub/.GIT/c",
    )
    found = {one["path"]: one for one in carrel.json("diff", desk)["files"]}
    assert found["moved.txt"]["kind"] == "renamed" and found["moved.txt"]["old_path"] == "long.txt"
    assert found["greet.py"]["kind"] == "mode"
    assert (found["greet.py"]["old_mode"], found["greet.py"]["new_mode"]) == ("100644", "100755")
    assert found["raw"]["binary"] and found["huge"]["binary"] and found["new.txt"]["untracked"]
    assert not {"empty", "pipe", "a.log"} & {*found}
    assert found["moved.txt"]["added"] == found["moved.txt"]["deleted"] == 1
    text = carrel.good("diff", desk, "raw", "moved.txt", "long.txt")
    assert "Binary files" in text and "rename from long.txt" in text and "+line twenty" in text
    stat = carrel("diff", desk, "--stat")
    assert "new.txt (untracked)" in stat.out and re.search(r"1 .*ignore", stat.err), stat
    assert "a.log" in carrel.good("diff", desk, "--ignored", "--name-only")
    listed = carrel.good("changes", desk)
    assert "A pipe\n" in listed and "empty" not in listed
    # Names that git would refuse are shown with a note.
    assert "sub/.GIT/c" in carrel.good("diff", desk, "--name-only")
    # Names, never patterns.
    assert carrel("diff", desk, "*.txt").code == 3
    assert carrel.good("diff", desk, "new.txt", "raw", "--name-only") == "new.txt\nraw\n"


def test_two_spaces(carrel: Program, desk: str) -> None:
    sh(carrel, desk, "mkdir other; echo a > other/a; " + commit("Theirs"))
    carrel.good("new", "./greet", "--name", "other")
    assert "-a" in carrel.good("diff", desk, "--to", "other")
    assert "Theirs" not in carrel.good("diff", desk, "--to", "other")
    refused = carrel.bad(2, "diff", desk, "other")
    assert "./other" in refused and "--to other" in refused
    assert carrel.good("diff", desk, "./other", "--name-only") == "other/a\n"
    carrel.good("rm", "--force", "other")


def test_a_project_without_git_is_compared_too(carrel: Program) -> None:
    (carrel.cwd / "plain").mkdir()
    (carrel.cwd / "plain" / "a.txt").write_text("one\n")
    desk = carrel.good("new", "./plain").strip()
    sh(carrel, desk, "echo two > a.txt")
    patch = carrel("diff", desk)
    assert "-one\n+two\n" in patch.out
    subprocess.run(["git", "apply"], cwd=carrel.cwd / "plain", input=patch.bytes, check=True)
    assert (carrel.cwd / "plain" / "a.txt").read_text() == "two\n"
    carrel.good("rm", "--force", desk)


# Comments


def test_a_comment_follows_its_line(carrel: Program, desk: str) -> None:
    ids = {
        number: carrel.good("comment", desk, f"long.txt:{number}", f"about {number}").strip()
        for number in (5, 20, 30)
    }

    def placed() -> dict[str, Any]:
        return {one["id"]: one for one in carrel.json("comments", desk)["comments"]}

    sh(carrel, desk, "sed -i -e '1i new' -e 's/^line 20$/line twenty/' long.txt; mv long.txt l")
    found = placed()
    assert (found[ids[5]]["path"], found[ids[5]]["line"]) == ("l", 6)
    assert found[ids[20]]["line"] == 21 and "changed" in carrel.good("comments", desk)
    sh(carrel, desk, "sed -i -e '26,36d' l")
    lost = placed()[ids[30]]
    assert lost["line"] is None and lost["problem"], lost
    # The turn has each with its lines, and their numbers before them.
    turn = carrel.good("comments", desk, "--send").strip()
    carrel("run", "wait", turn)
    prompt = carrel.json("turns", desk)["turns"][0]["prompt"]
    assert "about 5" in prompt and "about 30" in prompt and re.search(r"\n\D*30\D+line 30", prompt)
    assert re.search(r"27\D+line 27", prompt) and "line 26" not in prompt.partition("about 30")[2]
    assert carrel.json("comments", desk)["comments"] == []
    assert len(carrel.json("comments", desk, "--all")["comments"]) == 3


def test_what_a_comment_cannot_be_about(carrel: Program, desk: str) -> None:
    sh(carrel, desk, "printf 'a\\0b\\n' > raw; seq 50001 > long; head -c 5M /dev/zero > big")
    for place, code in (("greet.py:2", 4), ("raw:1", 4), ("long:1", 1), ("big:1", 1), ("no:1", 3)):
        assert carrel("comment", desk, place, "x").code == code, place
    assert carrel("comment", desk, "greet.py", "x").code == 2
    assert carrel.json("comments", desk)["comments"] == []


def test_comments_wait_for_the_agent(carrel: Program, desk: str) -> None:
    script = "run until [ -e go ]; do sleep 0.05; done"
    first = carrel.good("send", desk, script).strip()
    carrel.good("comment", desk, "greet.py:1", "say seen")
    assert carrel("comments", desk, "--send").code == 4, "it works"
    later = carrel.good("comments", desk, "--send", "--queue").strip()
    assert {one["id"]: one["state"] for one in carrel.json("turns", desk)["turns"]}[
        later
    ] == "queued"
    sh(carrel, desk, "touch go")
    carrel("run", "wait", first)
    until = time.monotonic() + TIMEOUT_S
    while carrel.json("turns", desk)["turns"][0]["state"] != "complete":
        assert time.monotonic() < until
        time.sleep(LOOK_S)
    # As one turn, in the same conversation.
    found = carrel.json("turns", desk)["turns"]
    assert len(found) == 2 and "say seen" in found[0]["prompt"]


# Taking files


def test_what_is_taken(carrel: Program, desk: str) -> None:
    other = carrel.good("new", "./greet").strip()
    sh(
        carrel,
        desk,
        "mkdir -p d/empty; echo one > d/x; echo x > d/a.log; ln -s x d/link; rm long.txt;"
        + commit("Mine"),
    )
    carrel.good("take", desk, "d", "long.txt", "--into", other)
    assert sh(carrel, other, "ls d; readlink d/link; test ! -e long.txt").split() == [
        *("link", "x", "x"),
    ]
    assert sh(carrel, other, "git log --format=%s") == "first\n", "commits are not taken"
    carrel.good("take", desk, "d/a.log", "--into", other)
    assert sh(carrel, other, "cat d/a.log") == "x\n", "one that is named itself"
    carrel.good("undo")
    carrel.good("undo")
    assert carrel.good("changes", other) == ""
    # Not when it has changed these files again.
    carrel.good("take", desk, "d/x", "--into", other)
    (take, *_) = carrel.json("undo", "--list")["landings"]
    sh(carrel, other, "echo more >> d/x")
    assert carrel("undo", take["id"]).code == 4 and take["kind"] == "take"
    carrel.good("rm", "--force", other)


def test_what_was_taken_counts_as_taken_out(carrel: Program, desk: str) -> None:
    other = carrel.good("new", "./greet").strip()
    sh(carrel, desk, "echo one > a.txt")
    assert carrel("rm", desk).code == 4
    carrel.good("take", desk, "a.txt", "--into", other)
    carrel.good("rm", desk)
    carrel.good("rm", "--force", other)


# Seeing


@needs_root
def test_a_space_that_sees_another(carrel: Program, desk: str) -> None:
    sh(carrel, desk, "echo secret > own; chmod 600 own; echo open > open")
    other = carrel.good("new", "--empty", "--name", f"{desk}-s", "--see", desk).strip()
    place = carrel.json("show", other)["sees"]
    assert f"/see/{desk}" in json.dumps(place)
    sh(carrel, desk, "echo later > later")
    assert sh(carrel, other, f"cat /see/{desk}/later /see/{desk}/open") == "later\nopen\n"
    for script in ("echo x > greet.py", "rm greet.py", "chmod 777 open", "touch open", "cat own"):
        done = carrel("exec", other, "--", "sh", "-c", f"cd /see/{desk} && {script}")
        assert done.code != 0, script
    carrel.good("stop", desk)
    assert sh(carrel, other, f"cat /see/{desk}/later") == "later\n"
    carrel.good("exec", "-d", other, "--", "sleep", "600")
    assert carrel("rm", desk).code == 4
    carrel.good("rm", "--force", desk)
    assert carrel("exec", other, "--", "ls", f"/see/{desk}/later").code != 0
    carrel.good("rm", "--force", other)
    refused = carrel("new", "--empty", "--runtime", "landlock", "--see", desk)
    assert refused.code != 0


# Asked for a review


def test_an_agent_asks_for_a_review(carrel: Program, desk: str) -> None:
    asked = json.dumps({"summary": "Please look at it."})
    carrel.good("send", desk, f"write a.txt 1\ntool request_review {asked}", "--wait")
    (item,) = (one for one in carrel.json("inbox")["items"] if one["name"] == desk)
    assert "Please look at it." in json.dumps(item)
    shown = carrel.good("inbox")
    assert f"carrel diff {desk}" in shown and f"carrel land {desk}" in shown
    carrel.good("answer", item["id"], "Well done", "--space", desk)
    assert not [one for one in carrel.json("inbox")["items"] if one["name"] == desk]


# Checkpoints


def test_checkpoints_of_turns(carrel: Program, desk: str) -> None:
    """After every turn, with ignored files and git's own, and the conversation."""
    carrel.good("send", desk, "write a.txt one\nwrite a.log ignored", "--wait")
    sh(carrel, desk, commit("Mine"))
    carrel.good("checkpoint", desk, "-m", "with a commit")
    carrel.good("send", desk, "write a.txt two", "--wait", "--continue")
    until = time.monotonic() + TIMEOUT_S
    while len(carrel.json("checkpoints", desk)["checkpoints"]) < 3:
        assert time.monotonic() < until
        time.sleep(LOOK_S)
    by_hand = next(
        one for one in carrel.json("checkpoints", desk)["checkpoints"] if one.get("message")
    )
    sh(carrel, desk, "rm a.txt a.log; git reset -q --hard HEAD^; mkfifo pipe")
    carrel.good("rewind", desk, by_hand["id"])
    look = "cat a.txt a.log; git log --format=%s -n 1; test ! -e pipe"
    assert sh(carrel, desk, look) == "one\nignored\nMine\n"
    # It goes on as if the turns since had not been.
    assert carrel.good("send", desk, "and?", "--wait", "--continue") == "turn 2: and?\n"
    # A rewind can be taken back itself.
    kinds = [one["kind"] for one in carrel.json("undo", "--list")["landings"]]
    assert "rewind" in kinds


def test_a_rewind_is_refused_while_the_agent_works(carrel: Program, desk: str) -> None:
    carrel.good("checkpoint", desk)
    carrel.good("send", desk, "sleep 600")
    assert carrel("rewind", desk).code == 4
    carrel.good("interrupt", desk, "--kill")


def test_a_fork_is_a_space_of_its_own(carrel: Program, desk: str, project: Path) -> None:
    sh(carrel, desk, "echo one > a.txt")
    fork = carrel.good("fork", desk).strip()
    carrel.good("rm", "--force", desk)
    assert sh(carrel, fork, "cat a.txt") == "one\n"
    assert carrel.good("changes", fork) == "A a.txt\n", "its own change too"
    carrel.good("land", fork, "--into", "forked")
    assert git(project, "show", "forked:a.txt") == "one\n"
    carrel.good("rm", "--force", fork)


# Landing


def test_only_the_agents_work_lands(carrel: Program, project: Path) -> None:
    (project / "mine.txt").write_text("mine\n")
    (project / "long.txt").write_text(LINES.replace("line 3\n", "line three\n"))
    desk = carrel.good("new", "./greet").strip()
    sh(carrel, desk, "echo x > a.log; mkdir empty; echo theirs > theirs.txt")
    before = git(project, "status", "--porcelain")
    carrel.good("land", desk)
    landed = git(project, "ls-tree", "-r", "--name-only", f"carrel/{desk}").split()
    assert landed == [".gitignore", "greet.py", "long.txt", "theirs.txt"]
    assert git(project, "show", f"carrel/{desk}:long.txt") == LINES
    assert git(project, "status", "--porcelain") == before, "the checkout stays as it is"
    # What has landed counts as taken out, and what is undone does not.
    carrel.good("undo")
    assert not git(project, "branch", "--list", f"carrel/{desk}")
    assert carrel("rm", desk).code == 4
    # Work that builds on lines that were not committed.
    sh(carrel, desk, "sed -i 's/line three/line 3!/' long.txt")
    refused = carrel("land", desk)
    assert refused.code == 4 and "commit" in refused.err
    carrel.good("rm", "--force", desk)


def test_it_is_merged_with_where_the_branch_is(carrel: Program, desk: str, project: Path) -> None:
    sh(carrel, desk, "sed -i 's/line 30$/agent 30/' long.txt")
    (project / "long.txt").write_text(LINES.replace("line 5\n", "person 5\n"))
    git(project, "commit", "-qam", "moved on")
    carrel.good("land", desk, "--squash", "--into", "main")
    text = (project / "long.txt").read_text()
    assert "person 5\n" in text and "agent 30\n" in text
    # More work in the same lines lands on top.
    sh(carrel, desk, "sed -i 's/agent 30$/agent thirty/' long.txt")
    carrel.good("land", desk, "--into", "main")
    assert "agent thirty\n" in (project / "long.txt").read_text()
    assert git(project, "rev-list", "--count", "main") == "4\n"
    carrel.good("rm", desk)


def test_a_conflict_goes_to_the_agent(carrel: Program, desk: str, project: Path) -> None:
    sh(carrel, desk, "sed -i 's/line 3$/agent 3/' long.txt")
    (project / "long.txt").write_text(LINES.replace("line 3\n", "person 3\n"))
    git(project, "commit", "-qam", "moved on")
    refused = carrel("land", desk, "--json")
    problem = json.loads(refused.err)
    assert refused.code == 4 and problem["code"] == "landing_conflict"
    assert "person 3" in refused.err and "agent 3" in refused.err, "both versions"
    assert not git(project, "branch", "--list", "carrel/*")
    told = json.loads(carrel("land", desk, "--resolve", "--json").err)
    carrel("run", "wait", told["turn"])
    assert "person 3\n=======\nagent 3\n" in sh(carrel, desk, "cat long.txt")
    (turn,) = carrel.json("turns", desk)["turns"]
    assert "long.txt" in turn["prompt"]
    tidy = r"sed -i -e '/^<<<<<<<\|^=======\|^>>>>>>>/d' -e 's/^agent 3$/both 3/' long.txt"
    sh(carrel, desk, tidy)
    carrel.good("land", desk)
    assert "person 3\nboth 3\n" in git(project, "show", f"carrel/{desk}:long.txt")
    assert carrel("land", desk, "--resolve", "--commits").code in (2, 4)


def test_your_checkout_is_yours(carrel: Program, desk: str, project: Path) -> None:
    """Nothing lands on what you have changed; other files of yours stay as they are."""
    sh(carrel, desk, "sed -i 's/line 3$/agent 3/' long.txt; echo n > n.txt")
    (project / "long.txt").write_text(LINES.replace("line 40\n", "person 40\n"))
    for words in (("--into", "main"), ("--into", "topic", "--worktree")):
        assert carrel("land", desk, *words).code == 4
    assert git(project, "rev-list", "--count", "main") == "1\n" and not (project / "n.txt").exists()
    git(project, "checkout", "-q", "--", "long.txt")
    (project / "greet.py").write_text("print('Mine')\n")
    carrel.good("land", desk, "--into", "main")
    assert (project / "greet.py").read_text() == "print('Mine')\n"
    assert "agent 3" in (project / "long.txt").read_text() and (project / "n.txt").exists()
    # An undo is refused when the branch has moved on.
    (landing, *_) = carrel.json("undo", "--list")["landings"]
    git(project, "commit", "-qam", "further")
    assert carrel("undo", landing["id"]).code == 4


HARMFUL = {
    "a link out": "ln -s ../../../etc/passwd out",
    "a link into git": "ln -s .git/config g",
    "a link by way of another": "ln -s .. up; ln -s up/.git x; ln -s ../.. y",
    "control characters": "touch \"$(printf 'a\\033b')\"",
    "another case": "echo x > Greet.py",
}


@pytest.mark.parametrize("script", HARMFUL.values(), ids=[*HARMFUL])
def test_what_could_harm_a_checkout_is_refused(
    carrel: Program, desk: str, project: Path, script: str
) -> None:
    sh(carrel, desk, script)
    refused = carrel("land", desk)
    assert refused.code == 4, refused
    assert not git(project, "branch", "--list", "carrel/*")


def test_nothing_runs(carrel: Program, desk: str, project: Path) -> None:
    """Neither hooks nor filters, of the space or the project."""
    fired = carrel.cwd / "fired"
    hook = project / ".git" / "hooks" / "post-checkout"
    for name in ("post-checkout", "pre-commit", "reference-transaction", "post-merge"):
        hook = project / ".git" / "hooks" / name
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(f"#!/bin/sh\ntouch {fired}\n")
        hook.chmod(0o755)
    sh(
        carrel,
        desk,
        f"echo n > n.txt; git config core.fsmonitor 'touch {fired}'; git config core.pager x;"
        f"printf '#!/bin/sh\\ntouch {fired}\\n' > .git/hooks/pre-commit; chmod +x .git/hooks/*",
    )
    carrel.good("diff", desk)
    carrel.good("land", desk, "--into", "main")
    carrel.good("undo")
    assert not fired.exists()


def test_commit_by_commit(carrel: Program, desk: str, project: Path) -> None:
    sh(carrel, desk, "echo 1 > one.txt;" + commit("One") + "; echo 2 > two.txt; " + commit("Two"))
    sh(carrel, desk, "echo 3 > three.txt")
    carrel.good("land", desk, "--commits", "-m", "The rest", "--into", "work")
    log = git(project, "log", "--format=%an %s", "work").splitlines()
    assert [log[0].partition(" ")[2], *log[1:3]] == ["The rest", "Agent Two", "Agent One"]
    # A merge is refused; as one commit it lands.
    sh(
        carrel,
        desk,
        "git checkout -q -b side HEAD^; echo 4 > four.txt; "
        + commit("Side")
        + "; git -c user.name=A -c user.email=a@b merge -q -m M main",
    )
    assert carrel("land", desk, "--commits", "--into", "merged").code == 4
    carrel.good("land", desk, "--squash", "--into", "merged")
    assert carrel("land", desk, "--squash", "--commits").code == 2


def test_a_check_decides(carrel: Program, desk: str, project: Path) -> None:
    (project / "installed.log").write_text("a package\n")
    other = carrel.good("new", "./greet", "-e", "MODE=fast").strip()
    sh(carrel, other, "echo n > n.txt")
    refused = carrel("land", other, "--check", "echo told $MODE; exit 3")
    assert refused.code == 4 and "told fast" in refused.err
    assert not git(project, "branch", "--list", "carrel/*")
    late = carrel("land", other, "--check", "sleep 60", "--check-timeout", "300ms")
    assert late.code == 4
    # It has the merged result, and what git ignores.
    look = "test -f n.txt && test -f installed.log && test ! -e /etc/shadow -o ! -r /etc/shadow"
    carrel.good("land", other, "--check", look, "--check-timeout", "1m")
    assert "n.txt" in git(project, "ls-tree", "--name-only", f"carrel/{other}")
    carrel.good("rm", other)


def test_a_project_without_git_lands_in_its_files(carrel: Program) -> None:
    plain = carrel.cwd / "plain"
    plain.mkdir()
    (plain / "a.txt").write_text("one\n")
    desk = carrel.good("new", "./plain").strip()
    sh(carrel, desk, "echo two > a.txt; echo x > b.txt; chmod 700 b.txt; mkdir empty")
    carrel.good("land", desk)
    assert (plain / "a.txt").read_text() == "two\n" and os.access(plain / "b.txt", os.X_OK)
    assert sorted(os.listdir(plain)) == ["a.txt", "b.txt"]
    carrel.good("undo")
    assert (plain / "a.txt").read_text() == "one\n" and not (plain / "b.txt").exists()
    (plain / "a.txt").write_text("mine\n")
    assert carrel("land", desk).code == 4 and not (plain / "b.txt").exists()
    carrel.good("rm", "--force", desk)


def test_a_pull_request(carrel: Program, desk: str, project: Path) -> None:
    """By your own git and gh; what is missing is said before anything lands."""
    sh(carrel, desk, "echo n > n.txt")
    assert "origin" in carrel.bad(4, "land", desk, "--pr")
    remote, programs = carrel.cwd / "remote.git", carrel.cwd / "bin"
    git(project, "init", "-q", "--bare", str(remote))
    git(project, "remote", "add", "origin", str(remote))
    programs.mkdir()
    for program in ("git", "sh"):
        (programs / program).symlink_to(f"/usr/bin/{program}")
    env = {"PATH": str(programs)}
    missing = carrel("land", desk, "--pr", env=env)
    assert missing.code == 4 and "gh" in missing.err
    assert not git(project, "branch", "--list", "carrel/*")
    (programs / "gh").write_text('#!/bin/sh\nprintf "%s\\n" "$PWD" "$@"\n')
    (programs / "gh").chmod(0o755)
    done = carrel("land", desk, "--pr", "-m", "An idea\n\nA body.", env=env)
    assert done.code == 0 and f"{project}\npr\ncreate\n" in done.out, done
    assert git(remote, "show", f"carrel/{desk}:n.txt") == "n\n"
    assert carrel("land", desk, "--pr", "--queue").code == 2
    # If a push fails, the landing stays.
    git(project, "remote", "set-url", "origin", str(carrel.cwd / "nowhere.git"))
    sh(carrel, desk, "echo m > m.txt")
    failed = carrel("land", desk, "--push", "origin")
    assert failed.code == 1
    assert git(project, "show", f"carrel/{desk}:m.txt") == "m\n"


# Taking the work elsewhere


def test_work_for_other_places(carrel: Program, desk: str, project: Path) -> None:
    sh(carrel, desk, "echo n > n.txt; rm greet.py; echo x > a.log; printf 'a\\0b' > raw")
    carrel.good("export", desk, "--tar", "-o", "work.tar")
    with tarfile.open(carrel.cwd / "work.tar") as archive:
        names = archive.getnames()
        deleted = archive.extractfile(".carrel-deleted")
        assert deleted is not None and deleted.read() == b"greet.py\0"
    assert {"n.txt", "raw"} <= {*names} and "a.log" not in names
    git(carrel.cwd, "clone", "-q", "greet", "elsewhere")
    patch = carrel("export", desk, "--patch").bytes
    subprocess.run([*GIT, "am", "-q"], cwd=carrel.cwd / "elsewhere", input=patch, check=True)
    assert (carrel.cwd / "elsewhere" / "raw").read_bytes() == b"a\0b"
    assert not (carrel.cwd / "elsewhere" / "greet.py").exists()
    # It counts as taken out.
    carrel.good("rm", desk)


def test_a_bundle_has_no_work_that_was_not_committed(carrel: Program, project: Path) -> None:
    (project / "greet.py").write_text("print('Mine')\n")
    desk = carrel.good("new", "./greet").strip()
    sh(carrel, desk, "sed -i s/Mine/Theirs/ greet.py")
    refused = carrel("export", desk, "--bundle", "-o", "b", "--json")
    assert refused.code == 4 and json.loads(refused.err)["code"] == "landing_conflict"
    assert "Theirs" in carrel.good("export", desk, "--patch")
    carrel.good("rm", "--force", desk)


# The queue


def test_one_after_the_other(carrel: Program, project: Path) -> None:
    desks = [carrel.good("new", "./greet").strip() for _ in range(3)]
    for number, desk in enumerate(desks):
        sh(
            carrel,
            desk,
            f"echo {number} > {number}.txt; sed -i 's/line 3$/agent {number}/' long.txt",
        )
    sh(carrel, desks[1], "git checkout -q long.txt")
    check = "test ! -e 2.txt"
    carrel.good("land", *desks, "--queue", "--check", check, "-m", "In line")

    def ended() -> list[Any]:
        entries = {one["name"]: one for one in carrel.json("queue")["entries"]}
        return [entries[desk] for desk in desks]

    until = time.monotonic() + TIMEOUT_S
    while any(one["state"] in ("waiting", "landing", "checking") for one in ended()):
        assert time.monotonic() < until, ended()
        time.sleep(LOOK_S)
    first, second, third = ended()
    assert (first["state"], second["state"]) == ("landed", "landed")
    assert third["state"] == "returned" and third["reason"], third
    assert git(project, "rev-list", "--count", "carrel/queue") == "3\n"
    names = git(project, "ls-tree", "--name-only", "carrel/queue").split()
    assert {"0.txt", "1.txt"} <= {*names} and "2.txt" not in names
    # What nothing has landed on can be taken back.
    (landing, *_) = carrel.json("undo", "--list")["landings"]
    carrel.good("undo", landing["id"])
    assert git(project, "rev-list", "--count", "carrel/queue") == "2\n"
    carrel.good("rm", "--force", *desks)


# From Python and HTTP


def test_the_pages_programs(
    daemon: Daemon, carrel: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they stand there, on spaces that have what they name."""
    monkeypatch.chdir(carrel.cwd)
    monkeypatch.setenv("CARREL_DATA", str(daemon.data))
    (carrel.cwd / "greet" / "greet.py").write_text(LINES)
    (carrel.cwd / "greet" / "src").mkdir()
    git(carrel.cwd / "greet", "commit", "-qam", "lines")
    first, *rest = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    exec(compile(first, "docs/review.md", "exec"), {})
    with library.Client() as client, client.space("./greet", agent="scripted") as space:
        other = client.create("./greet", name="other")
        space.files.write("notes.txt", "mine\n")
        names = {"carrel": library, "client": client, "space": space}
        for block in rest:
            block = block.replace("make test", "test -f notes.txt")
            exec(compile(block, "docs/review.md", "exec"), names)
            space.files.write("more.txt", "more\n")
        assert other.files.read("notes.txt") == b"mine\n"
        for entry in client.queue():
            client.get(entry.space)
        other.remove(force=True)


ROWS: tuple[tuple[str, str, Any], ...] = (
    ("POST", "diff", {}),
    ("POST", "diff/files", {"limit": 1}),
    ("POST", "comments", {"path": "greet.py", "line": 1, "text": "say seen"}),
    ("GET", "comments", None),
    ("POST", "comments/send", {"frontend": "scripted"}),
    ("POST", "export", {"format": "patch"}),
    ("POST", "checkpoints", {"message": "kept"}),
    ("GET", "checkpoints", None),
    ("POST", "rewind", {}),
    ("POST", "fork", {"count": 1}),
    ("POST", "land", {"branch": "by-http"}),
)


def test_the_rows_of_http(daemon: Daemon, carrel: Program, desk: str) -> None:
    sh(carrel, desk, "echo n > n.txt")
    space = carrel.json("show", desk)["id"]
    with daemon.local() as http:
        for method, path, body in ROWS:
            answer = http.request(method, f"/v1/spaces/{space}/{path}", json=body)
            assert answer.is_success, (path, answer.text)
            if path == "comments/send":
                turn = answer.json()["turn"]["id"] if "turn" in answer.json() else ""
                carrel("run", "wait", turn or carrel.json("turns", desk)["turns"][0]["id"])
            if path == "diff":
                assert answer.headers["content-type"].startswith("text/x-diff")
            if path == "export":
                assert answer.headers["carrel-copy"]
        landings = good(http.get("/v1/landings"))["landings"]
        assert {one["kind"] for one in landings} <= {"landing", "take", "rewind", "removal"}
        assert good(http.post("/v1/undo", json={"landing": landings[0]["id"]}))
        assert "entries" in good(http.get("/v1/queue"))
        made = good(http.post("/v1/queue", json={"spaces": [space], "check": "sleep 60"}))
        entry = made["entries"][0]["id"]
        assert http.post(f"/v1/queue/{entry}/cancel").is_success
        other = good(http.post("/v1/spaces", json={}))["id"]
        taken = {"paths": ["n.txt"], "into": other}
        assert good(http.post(f"/v1/spaces/{space}/take", json=taken))
        assert http.delete(f"/v1/spaces/{other}", params={"force": "true"}).is_success
