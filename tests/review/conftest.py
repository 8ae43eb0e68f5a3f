"""Tree drivers and a service, as other tests have them; and a project with git."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from carrel.app.service import Services
from carrel.domain.access import LOCAL
from carrel.domain.landing import Landing, LandRequest
from carrel.domain.spaces import Space
from tests.folders import remove_folder
from tests.service.conftest import services
from tests.service.rig import run
from tests.trees.conftest import any_rig, copy_rig, driver_place, tree_launcher

__all__ = ["any_rig", "copy_rig", "driver_place", "services", "tree_launcher"]


WORK = (
    "sed -i 's/line 3/agent 3/' a.txt; echo new > new.txt; rm old.txt; chmod +x src/b.py;"
    " ln -s a.txt link; echo noise > x.log; git mv src/b.py src/c.py 2> /dev/null || :"
)


class Died(BaseException):
    """As a process that is killed: nothing that comes after is done."""


async def land(services: Services, space: Space, **asked: Any) -> Landing:
    return (await services.landings.land(LOCAL, space.space_id, LandRequest(**asked)))[0]


async def work(services: Services, space: Space, script: str) -> None:
    record, said = await run(services, space, script)
    assert record.exit is not None and record.exit.code == 0, said


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
def passable() -> Iterator[Path]:
    """A folder that other users can pass through. Pytest's own are closed by each session that
    begins, so they cannot be opened for one test."""
    folder = Path(tempfile.mkdtemp(prefix="carrel-project-"))
    try:
        folder.chmod(0o711)
        yield folder
    finally:
        remove_folder(folder)


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    made = Repository(tmp_path / "greet")
    made.path.mkdir()
    made.git("init", "-q", "-b", "main")
    lines = "".join(f"line {number}\n" for number in range(20))
    made.commit("first", a_txt=lines, src__b_py="print(1)\n", _gitignore="*.log\n", old_txt="old\n")
    return made
