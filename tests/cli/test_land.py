"""Landing and taking back, from the command line and from Python."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

import carrel as library
from carrel.domain.errors import CheckFailed, QueueEntryNotFound
from tests.cli.program import Program

GIT = ("git", "-c", "user.name=Ada", "-c", "user.email=ada@example.org")


def git(project: Path, *words: str) -> str:
    done = subprocess.run([*GIT, *words], cwd=project, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_push_and_pull_request(carrel: Program, project: Path, tmp_path: Path) -> None:
    git(project, "init", "-q", "-b", "main")
    git(project, "add", "-A")
    git(project, "commit", "-q", "-m", "first")
    name = carrel.good("new", str(project)).strip()
    carrel.good("exec", name, "--", "sh", "-c", "echo idea > idea.txt")
    missing = carrel("land", name, "--push", "origin")
    assert missing.code == 4 and "no remote 'origin'" in missing.err
    remote, programs = tmp_path / "remote.git", tmp_path / "bin"
    git(project, "init", "-q", "--bare", str(remote))
    git(project, "remote", "add", "origin", str(remote))
    programs.mkdir()
    for program in ("git", "sh"):
        (programs / program).symlink_to(shutil.which(program) or "")
    env = {"PATH": str(programs)}
    missing = carrel("land", name, "--pr", env=env)
    assert missing.code == 4 and "`gh` is not on your PATH" in missing.err
    assert git(project, "branch", "--list", "carrel/*") == ""
    assert carrel("land", name, "--pr", "--queue").code == 2
    fake = programs / "gh"
    fake.write_text('#!/bin/sh\nprintf "%s\\n" "$PWD" "$@"\n')
    fake.chmod(0o755)
    done = carrel("land", name, "--pr", "-m", "An idea\n\nA body.", env=env)
    assert done.code == 0, done
    branch = f"carrel/{name}"
    told = ["pr", "create", "--head", branch, "--title", "An idea", "--body", "A body."]
    assert done.out.split("\n")[1:10] == [str(project), *told]
    assert git(remote, "rev-parse", branch) == git(project, "rev-parse", branch)
    fake.write_text("#!/bin/sh\nexit 3\n")
    carrel.good("exec", name, "--", "sh", "-c", "echo more > more.txt")
    failed = carrel("land", name, "--pr", env=env)
    assert failed.code == 1 and "gh pr create` ended with 3" in failed.err
    assert git(remote, "show", f"{branch}:more.txt") == "more"


def test_a_project_without_git(carrel: Program, project: Path) -> None:
    """It has no branches, and none is told of."""
    name = carrel.good("new", str(project)).strip()
    carrel.good("exec", name, "--", "sh", "-c", "echo idea > idea.txt")
    assert "Landed in the project's files. Take" in carrel("land", name).err
    assert (project / "idea.txt").exists()
    undone = carrel("undo").err
    assert undone == f"The project's files are as before. {name} has its work.\n"
    assert not (project / "idea.txt").exists()
    carrel.good("checkpoint", name)
    carrel.good("rewind", name)
    [_, rewind, landing] = carrel.good("undo", "--list").splitlines()[:3]
    assert rewind.split()[1:6] == ["rewind", name, "-", "-", "done"]
    assert landing.split()[1:6] == ["landing", name, "-", "1", "undone"]


def test_a_push_runs_nothing_of_what_landed(carrel: Program, project: Path, tmp_path: Path) -> None:
    """The person's git has its hooks in the project, where an agent has just written others."""
    git(project, "init", "-q", "-b", "main")
    hooks, fired, remote = project / ".hooks", tmp_path / "fired", tmp_path / "remote.git"
    hooks.mkdir()
    names = ("pre-push", "reference-transaction", "post-index-change")
    for name in names:
        (hooks / name).write_text("#!/bin/sh\n")
        (hooks / name).chmod(0o755)
    git(project, "add", "-A")
    git(project, "commit", "-q", "-m", "first")
    git(project, "config", "core.hooksPath", ".hooks")
    git(project, "init", "-q", "--bare", str(remote))
    git(project, "remote", "add", "origin", str(remote))
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "gh").write_text("#!/bin/sh\ngit update-ref refs/heads/x HEAD; git add .\n")
    (programs / "gh").chmod(0o755)
    space = carrel.good("new", str(project)).strip()
    script = f"for h in {' '.join(names)}; do echo 'touch {fired}' >> .hooks/$h; done"
    carrel.good("exec", space, "--", "sh", "-c", script)
    env = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        **{"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "x.y", "GIT_CONFIG_VALUE_0": "z"},
    }
    done = carrel("land", space, "--into", "main", "--pr", env=env)
    assert done.code == 0, done
    assert git(remote, "rev-parse", "main") and git(project, "rev-parse", "x")
    assert not fired.exists()


def test_land_and_undo(carrel: Program, project: Path) -> None:
    git(project, "init", "-q", "-b", "main")
    git(project, "add", "-A")
    git(project, "commit", "-q", "-m", "first")
    name = carrel.good("new", str(project)).strip()
    refused = carrel("land", name)
    assert refused.code == 4 and "changed nothing" in refused.err
    carrel.good("exec", name, "--", "sh", "-c", "echo idea > idea.txt")
    failed = carrel("land", name, "--check", "cat idea.txt; echo no >&2; exit 7")
    assert (failed.code, failed.out) == (4, ""), failed
    assert failed.err.startswith("idea\nno\n") and "the check ended with 7" in failed.err
    assert json.loads(carrel("land", name, "--check", "exit 7", "--json").err)["code"] == (
        "check_failed"
    )
    done = carrel(
        "land",
        name,
        "--check",
        "test -e idea.txt",
        "-m",
        "An idea",
        "--author",
        "Bob <bob@example.org>",
    )
    assert (done.code, done.out) == (0, "A idea.txt\n"), done
    assert f"Landed on carrel/{name} as " in done.err
    assert git(project, "log", "-1", "--format=%an %s", f"carrel/{name}") == "Bob An idea"
    assert git(project, "status", "--porcelain") == ""
    [landing, *_] = json.loads(carrel.good("undo", "--list", "--json"))["landings"]
    assert landing["branch"] == f"carrel/{name}" and landing["id"] in carrel.good("undo", "--list")
    assert f"landed on carrel/{name}" in carrel.good("events", "--space", name)
    carrel.good("rm", name)
    undone = carrel("undo", landing["id"])
    assert undone.code == 0 and f"carrel/{name} was removed" in undone.err
    assert carrel("undo", landing["id"]).code == 4

    assert carrel("land", "a", "b").code == 2 and "--queue" in carrel("land", "a", "b").err
    assert carrel("land", "a", "--squash", "--commits").code == 2
    desks = [carrel.good("new", str(project), "--name", f"desk{n}").strip() for n in range(2)]
    for desk in desks:
        carrel.good("exec", desk, "--", "sh", "-c", f"echo x > {desk}.txt")
    held = carrel.good("land", *desks, "--queue", "--check", "sleep 1000", "--json")
    for entry in json.loads(held)["entries"][::-1]:
        assert entry["branch"] == "carrel/queue" and entry["state"] == "waiting"
        assert "does not land" in carrel("queue", "--cancel", entry["id"]).err
    assert "cancelled" in carrel.good("queue") and carrel("queue", "--cancel", "qe_x").code == 3
    carrel.good("rm", "--force", *desks)

    with library.Client(data=carrel.data) as client, client.space(str(project)) as space:
        [entry] = client.land([space.id], check="exit 3")
        with pytest.raises(QueueEntryNotFound):
            client.cancel_landing("qe_x")
        assert client.queue()[0].id == entry.id
        client.cancel_landing(entry.id)
        space.files.write("more.txt", b"more\n")
        space.run(["sh", "-c", r"echo odd > $(printf 'odd \377')"])
        with pytest.raises(CheckFailed) as failure:
            space.land(branch="topic", check="echo no; false", check_s=60.0)
        assert failure.value.details["output"] == "no\n"
        made = space.land(branch="topic", check="true")
        assert (made.branch, made.before, made.files) == ("topic", "", 2)
        assert [os.fsencode(one.path) for one in made.listed] == [b"more.txt", b"odd \xff"]
        assert client.landings()[0].id == made.id
        assert client.undo(made.id).state == "undone"
