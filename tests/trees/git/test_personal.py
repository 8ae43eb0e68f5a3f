"""What of a person's git settings is in a space."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from carrel.trees.git.personal import IGNORED, SETTINGS, PersonalGit

CONFIG = """
[user]
    name = "Ada \\"A\\" Lovelace"
    email = ada@example.org
    signingKey = ABCDEF
[init]
    defaultBranch = trunk
[alias]
    co = checkout
    evil = !sh -c 'rm -rf ~'
    spaced = "  !id"
[color "diff"]
    meta = yellow bold
[core]
    editor = evil-editor
    pager = evil-pager
    fsmonitor = evil
    hooksPath = /evil
    sshCommand = evil
    excludesFile = ~/ignored
[credential]
    helper = store
[include]
    path = ~/more
[url "https://token@example.org/"]
    insteadOf = https://example.org/
[http]
    extraHeader = "Authorization: secret"
[commit]
    gpgSign = true
[diff]
    external = evil
[pull]
    rebase = true
"""


def as_git_reads(tmp_path: Path, content: bytes) -> dict[str, str]:
    (tmp_path / "read").write_bytes(content)
    listed = ["git", "config", "--file", str(tmp_path / "read"), "-z", "--list"]
    said = subprocess.run(listed, check=True, capture_output=True, text=True, timeout=30).stdout
    return dict(row.split("\n", 1) for row in said.split("\0") if row)


def test_only_what_names_and_shows(tmp_path: Path) -> None:
    (tmp_path / ".gitconfig").write_text(CONFIG)
    (tmp_path / "more").write_text("[user]\n\tname = somebody else\n")
    (tmp_path / "ignored").write_text("*.swp\n")
    files = PersonalGit({"HOME": str(tmp_path)}).files(owner=True)
    assert as_git_reads(tmp_path, files[SETTINGS]) == {
        "user.name": 'Ada "A" Lovelace',
        "user.email": "ada@example.org",
        "init.defaultbranch": "trunk",
        "alias.co": "checkout",
        "color.diff.meta": "yellow bold",
        "pull.rebase": "true",
    }
    assert files[IGNORED] == b"*.swp\n"


def test_others_get_nothing_of_it(tmp_path: Path) -> None:
    (tmp_path / ".gitconfig").write_text(CONFIG)
    (tmp_path / "ignored").write_text("*.swp\n")
    files = PersonalGit({"HOME": str(tmp_path)}).files(owner=False)
    assert list(files) == [SETTINGS] and b"Ada" not in files[SETTINGS]
    assert set(as_git_reads(tmp_path, files[SETTINGS])) == {"user.name", "user.email"}


@pytest.mark.parametrize("name", ["nothing", "folder", "fifo", "huge", "garbage"])
def test_a_name_there_is_whatever_the_file_is(tmp_path: Path, name: str) -> None:
    path = tmp_path / ".gitconfig"
    if name == "folder":
        path.mkdir()
    elif name == "fifo":
        subprocess.run(["mkfifo", str(path)], check=True, timeout=30)
    elif name == "huge":
        path.write_bytes(b"[user]\n\tname = x\n" + bytes(1 << 20))
    elif name == "garbage":
        path.write_bytes(b"\xff\xfe[[[=\0")
    found = as_git_reads(tmp_path, PersonalGit({"HOME": str(tmp_path)}).files(owner=True)[SETTINGS])
    assert found["user.name"] and found["user.email"].endswith("@localhost")


def test_git_is_told_elsewhere(tmp_path: Path) -> None:
    """By the variables that git itself obeys."""
    (tmp_path / ".gitconfig").write_text(CONFIG)
    (tmp_path / "git").mkdir()
    (tmp_path / "git" / "config").write_text("[user]\n\tname = Xavier\n\temail = x@d\n")
    (tmp_path / "git" / "ignore").write_text("*.o\n")
    xdg = {"HOME": str(tmp_path / "none"), "XDG_CONFIG_HOME": str(tmp_path)}
    files = PersonalGit(xdg).files(owner=True)
    assert as_git_reads(tmp_path, files[SETTINGS])["user.name"] == "Xavier"
    assert files[IGNORED] == b"*.o\n"
    env = {"HOME": str(tmp_path), "GIT_CONFIG_GLOBAL": "/dev/null"}
    assert b"Ada" not in PersonalGit(env).files(owner=True)[SETTINGS]
