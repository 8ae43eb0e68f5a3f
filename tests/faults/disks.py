"""Disks with little room on them, or none."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.launcher.disks import MOUNT_TIMEOUT_S, small_disk
from tests.volumes import volume

BLOCK = 4096
_SMALL = 24 << 20
_PIECES = (64 << 20, 1 << 20, 1 << 16)


@contextmanager
def disk(kind: str) -> Iterator[Path]:
    """One in memory, or in a file of its own. Root only."""
    with small_disk(_SMALL) if kind == "tmpfs" else volume(kind) as folder:
        yield folder


def take_room(folder: Path, *, leave_blocks: int = 0) -> None:
    """All there is: most of it at once, the rest block by block; then some is given back."""
    # Made while there is room for their names.
    with (folder / "blocks").open("wb", buffering=0) as small, (folder / "large").open("wb") as big:
        for size in _PIECES:
            while _extend(big.fileno(), size):
                pass
        with contextlib.suppress(OSError):
            while True:
                small.write(bytes(BLOCK))
        os.fsync(small.fileno())
        size = os.fstat(small.fileno()).st_size
        os.truncate(small.fileno(), max(0, size - leave_blocks * BLOCK))


def _extend(descriptor: int, size: int) -> bool:
    try:
        os.posix_fallocate(descriptor, os.fstat(descriptor).st_size, size)
    except OSError:
        return False
    return True


def make_room(folder: Path) -> None:
    for name in ("large", "blocks"):
        (folder / name).unlink(missing_ok=True)


def remount(folder: Path, options: str) -> None:
    """Looks again for a while: a file that was closed a moment ago may still count as open."""
    until = time.monotonic() + 10.0
    while True:
        try:
            _run("mount", "-o", f"remount,{options}", str(folder))
            return
        except subprocess.CalledProcessError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


def unmount(point: str) -> None:
    """Also what is in use; it goes on to be there for those who have it open."""
    _run("umount", "--lazy", "--", point)


def _run(*argv: str) -> None:
    subprocess.run(argv, check=True, capture_output=True, timeout=MOUNT_TIMEOUT_S)
