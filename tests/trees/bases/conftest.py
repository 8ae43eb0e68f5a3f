from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from carrel.linux import mounts
from carrel.trees.bases.store import BaseStore
from carrel.trees.removal import remove_tree
from tests.folders import mounts_below
from tests.trees.bases.helpers import write


@pytest.fixture
def store(data: Path) -> BaseStore:
    """Looks at every project twice, however fast it was."""
    return BaseStore(data, verify_after_s=0, patience_s=0)


@pytest.fixture
def project() -> Iterator[Path]:
    """A small project with a bit of everything."""
    folder = Path(tempfile.mkdtemp(prefix="carrel-project-"))
    try:
        folder.chmod(0o755)
        fill(folder)
        yield folder
    finally:
        for point in mounts_below(folder):
            mounts.detach_all(point)
        # Not by paths: those may be longer than the kernel takes.
        remove_tree(folder)


def fill(folder: Path) -> None:
    write(folder / "README", "read me\n")
    write(folder / "src/app/main.py", "print('hello')\n").chmod(0o755)
    write(folder / "src/app/util.py", "pass\n")
    write(folder / ".env", "SECRET=1\n").chmod(0o600)
    write(folder / "node_modules/left/index.js", "x")
    (folder / "empty").mkdir()
    (folder / "link").symlink_to("src/app/main.py")
    (folder / "nowhere").symlink_to("/does/not/exist")
