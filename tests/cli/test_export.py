"""Exports, from the command line and from Python."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import carrel as library
from tests.cli.program import Program
from tests.cli.test_land import git

pytestmark = pytest.mark.usefixtures("tidy")


def test_export(carrel: Program, project: Path, tmp_path: Path) -> None:
    git(project, "init", "-q", "-b", "main")
    git(project, "add", "-A")
    git(project, "commit", "-q", "-m", "first")
    name = carrel.good("new", str(project)).strip()
    assert carrel("export", name).code == 2 and carrel("export", name, "--tar", "--patch").code == 2
    assert carrel("export", name, "--branch", "-o", "x").code == 2
    assert carrel("export", name, "--patch").code == 4, "nothing changed"
    carrel.good("exec", name, "--", "sh", "-c", "echo idea > idea.txt")
    patch = carrel.good("export", name, "--patch", "-m", "An idea")
    assert "Subject: [PATCH] An idea\n" in patch and "+idea\n" in patch
    target = tmp_path / "work.bundle"
    carrel.good("export", name, "--bundle", "-o", str(target))
    git(project, "fetch", "-q", str(target), f"carrel/{name}:fetched")
    assert git(project, "show", "fetched:idea.txt") == "idea"
    carrel.good("export", name, "--branch", "-m", "On a branch")
    assert git(project, "log", "-1", "--format=%s", f"carrel/{name}") == "On a branch"
    carrel.good("rm", name)
    assert carrel("export", name, "--tar", "-o", str(tmp_path / "none")).code == 3
    assert not (tmp_path / "none").exists()

    with library.Client(data=carrel.data) as client, client.space(str(project)) as space:
        space.files.write("more.txt", b"more\n")
        size = space.export("tar", tmp_path / "t.tar")
        assert (tmp_path / "t.tar").stat().st_size == size
        space.remove()
    listed = subprocess.run(["tar", "-tf", tmp_path / "t.tar"], capture_output=True, check=True)
    assert listed.stdout == b"more.txt\n"
