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
_MEMORY = "/dev/shm"
_PLENTY = 8 << 30
"""For as many volumes as all workers could fill at once."""
_MAKE = {
    "btrfs": ("mkfs.btrfs", "--quiet", "--nodiscard"),
    "ext4": ("mkfs.ext4", "-q", "-m", "10", "-E", "nodiscard"),
    "xfs": ("mkfs.xfs", "-q", "-K", "-m", "reflink=1"),
}


@contextlib.contextmanager
def volume(kind: str) -> Iterator[Path]:
    """A folder on a new file system of this kind; root only. The loop device goes away
    with the mount."""
    folder = Path(tempfile.mkdtemp(prefix=f"carrel-{kind}-"))
    try:
        folder.chmod(0o711)
        point = folder / "mounted"
        point.mkdir()
        with tempfile.NamedTemporaryFile(prefix=f"carrel-{kind}-", dir=_image_folder()) as file:
            os.truncate(file.fileno(), _SIZE)
            _mount(kind, file.name, point)
        point.chmod(0o711)
        yield point
    finally:
        remove_folder(folder)


def _image_folder() -> str | None:
    """In memory where there is plenty: what is left in a volume would else be written to the
    disk when it is unmounted."""
    try:
        found = os.statvfs(_MEMORY)
    except OSError:
        return None
    return _MEMORY if found.f_bavail * found.f_frsize > _PLENTY else None


def _mount(kind: str, image: str, point: Path) -> None:
    _run(*_MAKE[kind], image)
    _run("mount", "-o", "loop", image, str(point))


def _run(*argv: str) -> None:
    subprocess.run(argv, check=True, capture_output=True, timeout=MAKE_TIMEOUT_S)
