"""Tree drivers and a service, as other tests have them; and a project with git."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.service.conftest import services
from tests.trees.conftest import any_rig, copy_rig, driver_place, tree_launcher

__all__ = ["any_rig", "copy_rig", "driver_place", "services", "tree_launcher"]


class Repository:
    """A person's own repository, used with git as a person does."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def git(self, *words: str) -> str:
        settings = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org")
        done = subprocess.run(
            ["git", *settings, *words], cwd=self.path, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    def write(self, **files: str) -> None:
        for name, text in files.items():
            place = self.path / name.replace("__", "/").replace("_", ".")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)

    def commit(self, message: str, **files: str) -> str:
        self.write(**files)
        self.git("add", "-A")
        self.git("commit", "-q", "-m", message)
        return self.git("rev-parse", "HEAD")

    def state(self) -> tuple[str, str, str, str]:
        """All that landing must leave alone: the checkout, the index, where HEAD is."""
        return (
            self.git("status", "--porcelain=v2", "--branch", "--ignored"),
            self.git("ls-files", "-s"),
            self.git("symbolic-ref", "-q", "HEAD"),
            self.git("stash", "list"),
        )


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    made = Repository(tmp_path / "greet")
    made.path.mkdir()
    made.git("init", "-q", "-b", "main")
    lines = "".join(f"line {number}\n" for number in range(20))
    made.commit("first", a_txt=lines, src__b_py="print(1)\n", _gitignore="*.log\n", old_txt="old\n")
    return made
