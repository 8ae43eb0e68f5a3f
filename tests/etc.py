"""One /etc for the sandboxes of all tests: eight hundred files, which every data folder
would have made anew and removed again."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.folders import remove_folder

_shared: list[Path] = []


@contextmanager
def one_etc() -> Iterator[None]:
    """While this is open, data folders can have the same; the first that needs it fills it."""
    folder = Path(tempfile.mkdtemp(prefix="carrel-etc-"))
    try:
        folder.chmod(0o711)
        _shared.append(folder)
        yield
    finally:
        _shared.remove(folder)
        remove_folder(folder)


def share_etc(data: Path) -> None:
    """For a folder that has none yet, and whose daemon is of the user that the tests are of."""
    data.mkdir(mode=0o711, parents=True, exist_ok=True)
    if _shared and not (data / "etc").exists():
        (data / "etc").symlink_to(_shared[-1])
