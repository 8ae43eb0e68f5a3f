"""Which git is on this machine, and what it is too old for."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import subprocess

from carrel.domain.availability import Availability
from carrel.domain.errors import LandingRefused

MERGES_SINCE = (2, 38)
"""`git merge-tree --write-tree`, by which work is merged with a branch."""
_TIMEOUT_S = 10.0


def git_version() -> tuple[int, ...]:
    """Empty when there is none, or when it does not say. It may be upgraded while we run."""
    path = shutil.which("git")
    if path is None:
        return ()
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        status = os.stat(path)
        return _version_of(path, status.st_ino, status.st_mtime_ns)
    return ()


@functools.lru_cache(maxsize=4)
def _version_of(path: str, _inode: int, _mtime_ns: int) -> tuple[int, ...]:
    done = subprocess.run(
        [path, "version"], capture_output=True, text=True, timeout=_TIMEOUT_S, check=True
    )
    found = re.search(r"\d+(?:\.\d+)+", done.stdout)
    return tuple(map(int, found[0].split("."))) if found else ()


def merging_git() -> Availability:
    """Whether it can merge what lands. Blocking, quick."""
    version, wanted = git_version(), _written(MERGES_SINCE)
    if version >= MERGES_SINCE:
        return Availability(True, shutil.which("git") or "")
    found = f"is {_written(version)}" if version else "does not say its version"
    return Availability(
        False,
        f"The git of this machine {found}, and landing needs {wanted} or later.",
        f"Install git {wanted} or later.",
    )


def expect_merging_git() -> None:
    """Raises `LandingRefused`."""
    found = merging_git()
    if not found.available:
        raise LandingRefused(
            found.reason,
            hint=f"{found.remedy} Until then: carrel export SPACE --patch | git am",
        )


def _written(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
