"""Which git runs beside an agent, and which where the image is."""

from __future__ import annotations

from pathlib import Path

import pytest

from carrel.agents import dev_shell


def test_a_tree_below_the_home_is_not_the_agents_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A project at /home/user/p of the host is shown there too."""
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    for folder in (home / "own/sub", home / "tree/sub", elsewhere):
        folder.mkdir(parents=True)
    (home / "own/link").symlink_to(home / "tree/sub")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr(dev_shell, "TREE", str(home / "tree"))
    found = {}
    for name in ("own", "own/sub", "tree", "tree/sub", "own/link", "../elsewhere"):
        monkeypatch.chdir(home / name)
        found[name] = dev_shell.is_own(["status"])
    assert {name for name, own in found.items() if own} == {"own", "own/sub"}
    monkeypatch.chdir(home / "own")
    for words in (["-C", str(home / "tree")], ["-C", "link"], [f"--git-dir={home}/tree/.git"]):
        (home / "tree/.git").touch()
        assert not dev_shell.is_own([*words, "status"]), words
