"""What the login shell is asked, and what start files may do meanwhile."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from carrel.environments import login_shell
from carrel.environments.login_shell import LoginShell, PersonAccount, is_same, watched
from carrel.linux import processes

BASH = "/bin/bash"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / ".profile").write_text(". ~/.bashrc\n")
    return folder


def asked(home: Path, shell: str = BASH) -> LoginShell:
    account = PersonAccount("ada", home, shell)
    return LoginShell(account, ("NVM_DIR", "UNSET"), home / "cache" / "shell.json")


def started(home: Path) -> int:
    """How often start files were read."""
    return len((home / "count").read_text())


def test_it_is_asked_once_until_a_start_file_changes(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NVM_DIR", "/of/the/daemon")
    script = "printf x >> ~/count\necho garbage; echo PATH=/garbage\nset -u\n"
    script += 'export NVM_DIR="$HOME/.nvm"\nPATH="$HOME/bin:$PATH"\n'
    (home / ".bashrc").write_text(script)
    said = asked(home).variables()
    assert said["NVM_DIR"] == f"{home}/.nvm" and "UNSET" not in said
    assert said["PATH"].split(":")[0] == f"{home}/bin"
    again = asked(home)
    assert again.known() == again.variables() == said and started(home) == 1
    (home / ".bashrc").write_text(f"{script}NVM_DIR=/other\n")
    assert again.variables()["NVM_DIR"] == "/other" and started(home) == 2
    (home / ".bash_profile").write_text("NVM_DIR=/third\n")
    assert again.variables()["NVM_DIR"] == "/third" and started(home) == 2


@pytest.mark.parametrize(
    ("script", "answers"),
    [
        ("sleep 1000", False),
        ("exec sleep 1000", False),
        ("exit 3", False),
        ("kill -9 $$", False),
        ("while :; do echo garbage; done", False),
        ("PATH=$(printf '%10000000s' x)", False),
        ("export BIG=$(printf '%10000000s' x)", True),
        ("yes | head -c 10000000", True),
        ("read answer; stty -a; tmux", True),
        ("(setsid sleep 1000 &) ; (trap '' HUP TERM; sleep 1000 &)", True),
    ],
)
def test_start_files_cannot_hold_it_up_nor_leave_anything(
    home: Path, script: str, answers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # For a loaded machine, where there is an answer to wait for.
    monkeypatch.setattr(login_shell, "ANSWER_S", 60.0 if answers else 1.0)
    made: list[str] = []
    real = login_shell._end_others

    def noted(end: str) -> None:
        made.append(end)
        real(end)

    monkeypatch.setattr(login_shell, "_end_others", noted)
    (home / ".bashrc").write_text(f"NVM_DIR=/here\n{script}\n")
    said = asked(home).variables()
    assert (said.get("NVM_DIR") == "/here") == answers
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    (end,) = made
    left = processes.having_variable(pids, login_shell.MARK, end)
    assert [pid for pid in left if processes.is_running(pid)] == []


def test_a_shell_that_is_none_is_not_asked(home: Path) -> None:
    for shell in ("", "/nonexistent/bash"):
        assert asked(home, shell).variables() == {}


def test_what_is_in_the_cache_is_taken_for_no_answer(home: Path) -> None:
    (home / ".bashrc").write_text("NVM_DIR=/here\n")
    cache = home / "cache" / "shell.json"
    cache.parent.mkdir()
    for content in ("", "[]", '{"said": 1}', '{"said": {"PATH": 1}, "question": []}', "\0"):
        cache.write_text(content)
        assert asked(home).variables()["NVM_DIR"] == "/here"


def test_somebody_elses_home_is_not_ones_own(tmp_path: Path) -> None:
    """Root with HOME of another user would run that one's start files."""
    found = PersonAccount.own({"HOME": str(tmp_path)})
    assert found is not None and found.home == tmp_path
    if os.geteuid() == 0:
        os.chown(tmp_path, 12345, 12345)
        found = PersonAccount.own({"HOME": str(tmp_path)})
        assert found is None or found.home != tmp_path


def test_a_home_into_which_others_write_is_nobodys_own(tmp_path: Path) -> None:
    for mode in (0o777, 0o1777, 0o757):
        tmp_path.chmod(mode)
        found = PersonAccount.own({"HOME": str(tmp_path)})
        assert found is None or found.home != tmp_path
    tmp_path.chmod(0o775)
    own = PersonAccount.own({"HOME": str(tmp_path)})
    assert own and own.home == tmp_path, "a group of one's own"
    if os.geteuid() == 0:
        os.chown(tmp_path, 0, 12345)
        found = PersonAccount.own({"HOME": str(tmp_path)})
        assert found is None or found.home != tmp_path


@pytest.mark.parametrize("name", [".bash_profile", ".zshenv", ".config/fish/conf.d", ".config"])
@pytest.mark.parametrize("how", ["owner", "mode"])
def test_start_files_of_others_are_not_run(home: Path, name: str, how: str) -> None:
    (home / ".bashrc").write_text("printf x >> ~/count\n")
    assert asked(home).variables() and started(home) == 1
    theirs = home / name
    theirs.parent.mkdir(parents=True, exist_ok=True)
    theirs.touch()
    if how == "mode":
        theirs.chmod(0o757)
    elif os.geteuid() == 0:
        os.chown(theirs, 12345, 12345)
    else:
        pytest.skip("only root gives files away")
    (home / ".bashrc").write_text("printf yy >> ~/count\n")
    assert not asked(home).variables() and started(home) == 1


def test_what_is_watched(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("x")
    paths = [str(tmp_path / name) for name in ("there", "a/b/c", "sdk/go*")]
    for change in (
        lambda: (tmp_path / "there").write_text("xx"),
        lambda: (tmp_path / "a").mkdir(),
        lambda: (tmp_path / "a" / "b").mkdir(),
        lambda: (tmp_path / "there").unlink(),
    ):
        before = watched(paths)
        assert is_same(before)
        change()
        assert not is_same(before)
