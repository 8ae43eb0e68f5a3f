"""Git runs within its time, asks nothing, obeys nobody else, and dies whole."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from carrel.domain.errors import GitFailed, GitTimeout
from carrel.trees.git import process
from carrel.trees.git.process import redact, run_git, run_git_remote
from tests.trees.git.repositories import git, make_repository

GONE_WITHIN_S = 10.0
"""A killed process vanishes at once; the rest is for a loaded machine."""


def is_gone(pid: int) -> bool:
    """Gone, or a zombie that its new parent will reap."""
    deadline = time.monotonic() + GONE_WITHIN_S
    gone = threading.Event()
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state in "ZX":
            return True
        gone.wait(0.01)
    return False


def test_gives_what_git_printed(tmp_path: Path) -> None:
    assert run_git(["version"], timeout_s=10).startswith(b"git version")
    blob = run_git(["hash-object", "--stdin"], cwd=tmp_path, timeout_s=10, input=b"x" * 1_000_000)
    assert len(blob.strip()) == 40


def test_failure_has_gits_words_and_no_credentials(tmp_path: Path) -> None:
    url = "https://me:secret@127.0.0.1:1/x"
    with pytest.raises(GitFailed) as failure:
        run_git_remote(["ls-remote", url], cwd=tmp_path, timeout_s=20)
    assert "git ls-remote failed" in str(failure.value)
    assert "secret" not in str(failure.value)
    assert "127.0.0.1" in str(failure.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://u:p@h/x", "https://h/x"),
        ("to 'ssh://u@h/x' and http://t@k", "to 'ssh://h/x' and http://k"),
        ("https://u:p%2F@q@h/x", "https://h/x"),
        ("git@h:x, mail a@b", "git@h:x, mail a@b"),
    ],
)
def test_redaction(text: str, expected: str) -> None:
    assert redact(text) == expected


def test_timeout_ends_the_whole_group(tmp_path: Path) -> None:
    """An alias in a repository of ours stands for a helper that hangs."""
    repository = make_repository(tmp_path / "r")
    script = f"!echo $$ > {tmp_path}/pid; sleep 100 & echo $! > {tmp_path}/child; wait"
    git(repository, "config", "alias.hang", script)
    with pytest.raises(GitTimeout) as failure:
        run_git(["hang"], cwd=repository, timeout_s=1)
    assert "1 seconds" in str(failure.value)
    for name in ("pid", "child"):
        assert is_gone(int((tmp_path / name).read_text()))


def test_interruption_ends_the_whole_group(tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "r")
    script = f"!sleep 100 & echo $! > {tmp_path}/child; echo started >&2; wait"
    git(repository, "config", "alias.hang", script)

    def interrupt(_line: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_git(["hang"], cwd=repository, timeout_s=30, on_line=interrupt)
    assert is_gone(int((tmp_path / "child").read_text()))


def test_a_helper_that_stays_does_not_hold_us(tmp_path: Path) -> None:
    """As ssh's shared connections do, with our pipes in their hands."""
    repository = make_repository(tmp_path / "r")
    script = f"!sleep 100 & echo $! > {tmp_path}/child; echo done"
    git(repository, "config", "alias.leave", script)
    started = time.monotonic()
    try:
        assert run_git(["leave"], cwd=repository, timeout_s=50) == b"done\n"
        assert time.monotonic() - started < 40
    finally:
        os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)


def test_lines_come_one_by_one(tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "r")
    git(repository, "config", "alias.say", "!printf 'a\\rb\\nc' >&2")
    lines: list[str] = []
    run_git(["say"], cwd=repository, timeout_s=10, on_line=lines.append)
    assert lines == ["a", "b", "c"]


def test_the_environment_of_the_caller_does_not_lead_astray(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = make_repository(tmp_path / "r")
    other = make_repository(tmp_path / "other")
    settings = tmp_path / "settings"
    settings.write_text("[core]\n\tpager = false\n[my]\n\tname = outside\n")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(other))
    monkeypatch.setenv("GIT_INDEX_FILE", str(other / "index"))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(settings))
    monkeypatch.setenv("GIT_CONFIG_PARAMETERS", "'my.name'='outside'")
    shown = run_git(["rev-parse", "--show-toplevel"], cwd=repository, timeout_s=10)
    assert os.fsdecode(shown.strip()) == str(repository)
    with pytest.raises(GitFailed):
        run_git(["config", "my.name"], cwd=repository, timeout_s=10)
    assert run_git_remote(["config", "my.name"], cwd=repository, timeout_s=10) == b"outside\n"


def test_ssh_never_asks_but_the_users_own_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = make_repository(tmp_path / "r")
    git(repository, "config", "alias.ssh", "!echo $GIT_SSH_COMMAND")

    def used() -> bytes:
        return run_git_remote(["ssh"], cwd=repository, timeout_s=10)

    assert b"BatchMode=yes" in used()
    settings = tmp_path / "settings"
    settings.write_text("[core]\n\tsshCommand = my-ssh\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(settings))
    assert used() == b"\n"
    monkeypatch.setenv("GIT_SSH_COMMAND", "their-ssh")
    assert used() == b"their-ssh\n"


def test_hooks_and_monitors_do_not_run(tmp_path: Path) -> None:
    repository = make_repository(tmp_path / "r")
    canary = tmp_path / "canary"
    git(repository, "config", "core.fsmonitor", f"touch {canary};")
    hook = repository / ".git/hooks/post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {canary}\n")
    hook.chmod(0o755)
    run_git(["checkout", "-q", "HEAD~1"], cwd=repository, timeout_s=10)
    run_git(["status"], cwd=repository, timeout_s=10)
    assert not canary.exists()
    git(repository, "status")
    assert canary.exists(), "the trap does not work, so the test says nothing"


def test_no_git_and_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(GitFailed, match="no such folder"):
        run_git(["version"], cwd=tmp_path / "missing", timeout_s=10)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(GitFailed, match="not installed"):
        run_git(["version"], timeout_s=10)


def test_memory_of_git_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads a list of borrowed objects whole, which may be of any size and take no room."""
    make_repository(tmp_path / "project")
    git_folder = tmp_path / "project" / ".git"
    with (git_folder / "objects/info/alternates").open("wb") as file:
        file.truncate(1 << 30)
    monkeypatch.setattr(process, "MOST_MEMORY", 64 << 20)
    monkeypatch.setattr(os, "sysconf", lambda _name: 1)
    words = (f"--git-dir={git_folder}", "cat-file", "-e", "1" * 40)
    with pytest.raises(GitFailed, match=r"(?i)memory|alloc"):
        run_git(words, timeout_s=60.0)
