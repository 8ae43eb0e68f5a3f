"""File systems of other kinds in files of their own, for as long as a test needs them."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.folders import remove_folder

MAKE_TIMEOUT_S = 60.0
"""Making a small file system takes a second; the rest is for a loaded machine."""
_SIZE = 400 << 20
"""Sparse. The least that mkfs.xfs takes is 300 MiB."""
_MAKE = {
    "btrfs": ("mkfs.btrfs", "--quiet", "--nodiscard"),
    "xfs": ("mkfs.xfs", "-q", "-K", "-m", "reflink=1"),
}


@contextlib.contextmanager
def volume(kind: str) -> Iterator[Path]:
    """A folder on a new file system of this kind; root only. The loop device goes away
    with the mount."""
    folder = Path(tempfile.mkdtemp(prefix=f"carrel-{kind}-"))
    try:
        folder.chmod(0o711)
        image, point = folder / "image", folder / "mounted"
        with image.open("wb") as file:
            os.truncate(file.fileno(), _SIZE)
        point.mkdir()
        _run(*_MAKE[kind], str(image))
        _run("mount", "-o", "loop", str(image), str(point))
        point.chmod(0o711)
        yield point
    finally:
        remove_folder(folder)


def _run(*argv: str) -> None:
    subprocess.run(argv, check=True, capture_output=True, timeout=MAKE_TIMEOUT_S)
