"""Spaces from the command line."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cli.program import Program, in_terminal
from tests.environments.homes import tool


def test_new_prints_the_name(carrel: Program, project: Path) -> None:
    done = carrel("new", str(project))
    assert done.code == 0 and done.err == ""
    name = done.out.strip()
    assert name.startswith("project-")
    carrel.good("rm", name)


def test_without_a_project_it_is_the_current_folder(carrel: Program, project: Path) -> None:
    carrel.cwd = project
    space = carrel.json("new")
    assert space["project"] == {"kind": "folder", "location": str(project), "ref": None}
    carrel.good("rm", space["id"])


def test_all_that_can_be_said(carrel: Program, project: Path) -> None:
    words = "--name all-said --network open --tier minimal --memory 512M --cpus 1.5 --pids 50"
    words += " --disk 1G --wall 1h --label a=b --label c=d --ttl 2h --idle 15m --keep 7d --env X=1"
    space = carrel.json("new", str(project), "--exclude", "*.md", *words.split())
    try:
        assert (space["name"], space["network"], space["tier"]) == ("all-said", "open", "minimal")
        limits = space["limits"]
        assert (limits["memory_bytes"], limits["cpus"], limits["pids"]) == (512 << 20, 1.5, 50)
        assert (limits["disk_bytes"], limits["wall_seconds"]) == (1 << 30, 3600.0)
        assert space["labels"] == {"a": "b", "c": "d"} and space["env"] == {"X": "1"}
        retention = space["retention"]
        assert (retention["ttl_s"], retention["idle_s"]) == (7200.0, 900.0)
        assert retention["keep_s"] == 604800.0
        assert carrel.good("exec", "all-said", "--", "sh", "-c", "ls; echo $X") == "1\n"
        shown = carrel.good("show", "all-said")
        assert "memory 512M" in shown and "a=b, c=d" in shown
        again = carrel.json("new", "--base", space["base"])
        assert again["base"] == space["base"]
        carrel.good("rm", again["id"])
    finally:
        carrel.good("rm", "--force", "all-said")


def test_variables_that_look_like_keys_are_not_shown(carrel: Program) -> None:
    key = "sk-abcdefghij0123456789"
    words = ("new", "--empty", "--name", "keyed", "--env", f"OPENAI_API_KEY={key}", "--env", "X=1")
    try:
        said = [carrel.good(*words, "--json")]
        for verb in (("show", "keyed"), ("ls",), ("ls", "-l"), ("events",)):
            said += [carrel.good(*verb), carrel.good(*verb, "--json")]
        assert key not in "".join(said) and json.loads(said[0])["env"]["X"] == "1"
        assert carrel.good("exec", "keyed", "--", "printenv", "OPENAI_API_KEY") == f"{key}\n"
    finally:
        carrel("rm", "--force", "keyed")


def test_a_project_whose_git_tidies_up_meanwhile(carrel: Program, project: Path) -> None:
    """As `git gc` does by itself after a commit: thousands of objects become one file."""
    git = ["git", "-C", str(project)]
    subprocess.run([*git, "init", "-q", "-b", "main"], check=True)
    for number in range(1500):
        (project / f"{number}.txt").write_text(f"{number}\n")
    subprocess.run([*git, "add", "-A"], check=True)
    subprocess.run([*git, "commit", "-qm", "x"], check=True)
    with subprocess.Popen([*git, "gc", "-q", "--prune=now"]) as tidying:
        name = carrel.good("new", str(project)).strip()
        assert tidying.wait(timeout=60) == 0
    try:
        check = "git fsck --strict && git status --porcelain && git log --format=%s"
        assert carrel.good("exec", name, "--", "sh", "-ec", check) == "x\n"
    finally:
        carrel("rm", "--force", name)


def test_repositories_archives_and_nothing(carrel: Program, project: Path) -> None:
    git = ["git", "-C", str(project)]
    subprocess.run([*git, "init", "-q", "-b", "main"], check=True)
    subprocess.run([*git, "add", "-A"], check=True)
    subprocess.run([*git, "commit", "-qm", "x"], check=True)
    (project / "later").touch()
    space = carrel.json("new", str(project), "--ref", "main")
    assert space["project"]["kind"] == "git" and space["project"]["ref"] == "main"
    assert carrel.good("exec", space["id"], "ls") == "README.md\n"
    carrel.good("rm", space["id"])
    archive = project.parent / "it.tar.gz"
    subprocess.run(["tar", "-czf", archive, "-C", project, "README.md"], check=True)
    space = carrel.json("new", str(archive))
    assert space["project"]["kind"] == "archive"
    carrel.good("rm", space["id"])
    space = carrel.json("new", "--empty")
    assert space["project"]["kind"] == "empty"
    carrel.good("rm", space["id"])


def test_an_unconfined_space_is_told_loudly(carrel: Program, project: Path) -> None:
    done = carrel("new", str(project), "--runtime", "process")
    assert done.code == 0 and "process !" in done.err
    name = done.out.strip()
    try:
        [line] = [line for line in carrel.good("ls").splitlines() if line.startswith(name)]
        assert " unconfined ! " in line
        assert " process ! " in carrel.good("ls", "--long")
        assert "process !  nothing confines it" in carrel.good("show", name)
    finally:
        carrel.good("rm", name)


def test_lists_are_for_people_and_programs(carrel: Program, space: str, project: Path) -> None:
    text = carrel.good("ls")
    [line] = [line for line in text.splitlines() if line.startswith(space)]
    assert "ready" in line and line.endswith(str(project))
    found = carrel.json("ls", "--state", "ready")
    [mine] = [one for one in found["spaces"] if one["name"] == space]
    assert mine["id"] in carrel.good("ls", "-q").split()
    assert carrel.json("ls", "--label", "no=such") == {"spaces": [], "total": 0}
    assert "no spaces" in carrel("ls", "--label", "no=such").err
    carrel.good("rm", space)
    assert mine["id"] not in carrel.good("ls", "-q").split()
    assert mine["id"] in carrel.good("ls", "-q", "--all").split()


def test_a_table_fits_the_terminal(carrel: Program, space: str) -> None:
    with in_terminal(carrel, "ls", cols=60) as terminal:
        text = terminal.rest().decode()
        assert terminal.end() == 0
    lines = re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()
    assert len(lines) > 1 and all(len(line) <= 60 for line in lines)
    assert any("…" in line for line in lines)


def test_spaces_are_named_in_three_ways(carrel: Program, space: str) -> None:
    space_id = carrel.json("show", space)["id"]
    for word in (space, space_id, space_id[:10]):
        assert space_id in carrel.good("show", word)


def test_stop_start_update(carrel: Program, space: str) -> None:
    assert carrel.good("stop", space, "--grace", "0.1").strip() == space
    assert "is stopped" in carrel.bad(125, "exec", space, "true")
    assert carrel.json("start", space)["state"] == "ready"
    carrel.good("exec", space, "--detach", "--", "sleep", "1000")
    assert carrel.good("restart", space, "--grace", "0.1").strip() == space
    shown = carrel.json("show", space)
    assert (shown["state"], shown["live_runs"]) == ("ready", 0)
    found = carrel.json("update", space, "--label", "a=b", "--label", "c=d", "--ttl", "1h")
    assert found["labels"] == {"a": "b", "c": "d"}
    found = carrel.json("update", space, "--no-label", "a", "--idle", "5m")
    assert found["labels"] == {"c": "d"}
    assert (found["retention"]["ttl_s"], found["retention"]["idle_s"]) == (3600.0, 300.0)
    assert carrel.good("update", space, "--name", "renamed-one").strip() == "renamed-one"
    carrel.good("update", "renamed-one", "--name", space)


def test_changes_are_not_lost(carrel: Program, space: str) -> None:
    carrel.good("exec", space, "--", "sh", "-c", "echo x > new; rm README.md")
    assert carrel.good("changes", space) == "D README.md\nA new\n"
    said = carrel.bad(4, "rm", space)
    assert "2 changes" in said and "--force" in said
    done = carrel("rm", "--force", space)
    assert done.code == 0 and f"carrel undelete {space}" in done.err
    assert space in carrel.good("undelete")
    kept = carrel.json("undelete")["trash"]
    assert [one["changes"] for one in kept if one["space"]["name"] == space] == [2]
    assert carrel.good("undelete", space).strip() == space
    assert carrel.good("exec", space, "cat", "new") == "x\n"


def test_several_at_once(carrel: Program, project: Path) -> None:
    names = [carrel.good("new", str(project)).strip() for _ in range(2)]
    done = carrel("rm", names[0], "nobody", names[1])
    assert done.code == 3
    assert done.err.count("carrel: ") == 1 and "nobody" in done.err
    assert not set(names) & set(carrel.good("ls").split())


def test_proof_and_use(carrel: Program, space: str) -> None:
    assert "holds" in carrel.good("verify", space)
    assert carrel.json("verify", space)["holds"] is True
    assert "refused" in carrel.good("verify", space, "--verbose")
    assert space in carrel.good("top")
    found = carrel.json("top", "--disk")["usage"]
    assert any(one["disk_bytes"] is not None for one in found)


def test_top_goes_on_and_leaves_the_terminal_as_it_was(carrel: Program, space: str) -> None:
    with in_terminal(carrel, "top", "--interval", "0.1", rows=40, cols=100) as terminal:
        terminal.until(b"\x1b[?1049h")
        for _ in range(3):
            terminal.until(space.encode())
        terminal.type(b"\x03")
        text = terminal.rest()
        assert terminal.end() == 130
    assert b"\x1b[?25h\x1b[?1049l" in text


def test_progress_is_shown_to_who_watches(carrel: Program, project: Path) -> None:
    for number in range(500):
        (project / str(number)).write_text(str(number))
    with in_terminal(carrel, "new", str(project)) as terminal:
        text = terminal.rest().decode()
        assert terminal.end() == 0
    assert "\r\x1b[K" in text and "Ready (sp_" in text
    name = [word for word in text.split() if word.startswith("project-")][-1]
    carrel.good("rm", name)


def test_cleaning_up(carrel: Program, space: str) -> None:
    report = carrel.json("gc", "--dry-run")
    assert report["dry_run"] is True
    carrel.good("gc", "-n")
    assert space in carrel.good("ls")


def test_events(carrel: Program, space: str) -> None:
    carrel.good("exec", space, "true")
    text = carrel.good("events", "--space", space)
    assert f"  {space}  is ready\n" in text and " started: true\n" in text
    assert "{" not in text and "[" not in text
    lines = carrel.good("events", "--space", space, "--type", "run.ended", "--json").splitlines()
    [event] = [json.loads(line) for line in lines]
    assert event["data"]["code"] == 0
    after = str(event["seq"])
    assert carrel.good("events", "--space", space, "--type", "run.ended", "--after", after) == ""


def test_events_as_they_happen(carrel: Program, space: str) -> None:
    with in_terminal(carrel, "events", "-f", "--json", "--after", "0", cols=300) as terminal:
        carrel.good("exec", space, "--", "echo", "marked-word")
        terminal.until(b"marked-word")
        terminal.until(b"run.ended")
        terminal.type(b"\x03")
        assert terminal.end() == 130


def test_what_a_space_sees_of_the_machine(carrel: Program, project: Path, tmp_path: Path) -> None:
    """In `show`, in `doctor`, and from inside."""
    deno = tool(Path.home() / ".deno" / "bin" / "deno", "of-the-home")
    (tmp_path / "extra").mkdir()
    (tmp_path / "extra" / "file").write_text("seen")
    try:
        words = ["new", str(project), "--name", "seeing", "--show", "extra", "--show", "project"]
        assert "contains the project" in carrel.bad(None, *words)
        carrel.good(*words[:-2])
        shown = carrel.json("show", "seeing")
        assert shown["tools"] == [{"name": "deno", "paths": [str(deno.parent)]}]
        assert shown["shown"] == [f"{tmp_path}/extra"]
        assert f"deno ({deno.parent}), {tmp_path}/extra" in carrel.good("show", "seeing")
        assert str(deno.parent) in carrel("doctor").out
        script = f"deno; cat {tmp_path}/extra/file"
        assert carrel.good("exec", "seeing", "--", "sh", "-c", script) == "of-the-home\nseen"
        (project / "deno.json").write_text("{}")
        assert str(deno) in carrel.good("inspect", str(project))
        plain = carrel.json("new", str(project), "--no-home-tools")
        assert (plain["tools"], plain["shown"]) == ([], [])
        error = carrel.bad(None, "new", "--show", str(Path.home()))
        assert "is a whole home" in error
    finally:
        shutil.rmtree(deno.parent.parent)
        carrel("rm", "--force", "seeing")


def test_settings_of_package_managers_and_a_set_up(carrel: Program, project: Path) -> None:
    npmrc = Path.home() / ".npmrc"
    npmrc.write_text("registry=https://npm.example.com/\n//npm.example.com/:_authToken=s3cr3t\n")
    container = project / ".devcontainer.json"
    container.write_text('{"image": "x", "postCreateCommand": "cat ~/.npmrc > made"}')
    try:
        words = ("new", str(project), "--setup", "--name")
        carrel.good(*words, "ready")
        assert "npm.example.com" in carrel.good("exec", "ready", "--", "cat", "made")
        shown = carrel.json("show", "ready")
        assert shown["setup"] == ["cat ~/.npmrc > made"] and "~/.npmrc" in shown["packages"]
        assert shown["withheld"] == ["npm //npm.example.com/:_authToken"]
        text = carrel.good("show", "ready")
        assert "cat ~/.npmrc > made" in text and shown["withheld"][0] in text
        assert shown["withheld"][0] in carrel("doctor").out
        asked = carrel.json("new", str(project), "--with-credentials", "--name", "trusted")
        assert asked["withheld"] == [] and "s3cr3t" not in str(asked)
        assert "s3cr3t" in carrel.good("exec", "trusted", "--", "sh", "-c", "cat ~/.npmrc")
        container.write_text(
            '{"image": "x", "postCreateCommand": "printf \\"\\\\033[31mno\\"; exit 3"}'
        )
        own = project / "carrel.toml"
        own.write_text('[setup]\nrun = "echo by itself > made"\n')
        assert "(carrel.toml, at create)" in carrel.good("inspect", str(project))
        assert "echo by itself > made" in carrel("new", str(project), "--name", "own").err
        assert carrel.good("exec", "own", "--", "cat", "made") == "by itself\n"
        plain = carrel.json("new", str(project), "--no-setup", "--name", "plain")
        assert plain["setup"] == []
        assert "or it is not" in carrel.bad(None, *words, "never", "--no-setup")
        own.unlink()
        done = carrel(*words, "never")
        assert done.code == 1 and "ended with 3. It said last:\n" in done.err
        assert "[31mno\nhint: " in done.err
    finally:
        npmrc.unlink()
        carrel("rm", "--force", "ready", "trusted", "own", "plain")


def test_a_script_whose_interpreter_is_missing(carrel: Program, space: str) -> None:
    (carrel.cwd / "oldtool").write_text("#!/opt/old/bin/python3 -u\n")
    (carrel.cwd / "oldtool").chmod(0o755)
    carrel.good("cp", str(carrel.cwd / "oldtool"), f"{space}:oldtool")
    done = carrel("exec", space, "--", "./oldtool")
    assert done.code == 127 and "is a script for '/opt/old/bin/python3'" in done.err
    done = carrel("exec", "-e", "PATH=/nowhere:/workspace:/usr/bin", space, "--", "oldtool")
    assert done.code == 127 and "is a script for '/opt/old/bin/python3'" in done.err
    assert "There is no command" in carrel("exec", space, "--", "missing").err


def test_inspect_needs_no_daemon(carrel: Program, project: Path) -> None:
    (project / "go.mod").write_text("module x\n\ngo 1.21\n")
    (project / "Dockerfile").write_text("FROM debian:\x1b[31m\nEXPOSE 80\n")
    carrel.env["CARREL_DATA"] = "/nonexistent/data"
    text = carrel.good("inspect", str(project))
    assert text.startswith("decided: dockerfile") and "version: go 1.21" in text
    assert "\x1b" not in text
    found = carrel.json("inspect", str(project))
    assert found["decided"]["rule"] == "dockerfile" and "missing" in found
    assert "nothing-there" in carrel.bad(3, "inspect", "nothing-there")


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_closed_stream_is_no_error(carrel: Program, space: str, stream: str) -> None:
    closed = {"stdout": ">&-", "stderr": "2>&-"}[stream]
    line = f'exec "$@" {closed}'
    from tests.cli.program import PROGRAM, TIMEOUT_S

    done = subprocess.run(
        ["sh", "-c", line, "sh", str(PROGRAM), "ls"],
        env=carrel.env,
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0 and b"Traceback" not in done.stderr


def test_a_full_disk_is_told(carrel: Program, space: str) -> None:
    with open("/dev/full", "wb") as full:
        process = carrel.start("ls", stdout=full, stderr=subprocess.PIPE)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 1 and b"No space left" in err and b"Traceback" not in err


def test_a_reader_that_goes_away_is_no_drama(carrel: Program, space: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        process = carrel.start("ls", stdout=writer, stderr=subprocess.PIPE)
    finally:
        os.close(writer)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 141 and err == b""
