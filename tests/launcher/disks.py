"""Small file systems in memory, for as long as a test needs them; root only."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.folders import remove_folder

MOUNT_TIMEOUT_S = 20.0
"""It takes a millisecond; the rest is for a loaded machine."""

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")


@contextlib.contextmanager
def disk(kind: str, options: str = "") -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="carrel-disk-"))
    try:
        argv = ["mount", "-t", kind, "-o", f"mode=711{options}", "carrel-test", str(folder)]
        subprocess.run(argv, check=True, capture_output=True, timeout=MOUNT_TIMEOUT_S)
        yield folder
    finally:
        remove_folder(folder)


@contextlib.contextmanager
def small_disk(size: int) -> Iterator[Path]:
    with disk("tmpfs", f",size={size}") as folder:
        yield folder


def fill(folder: Path) -> Path:
    """A file that takes all the room that is left."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    return ballast
