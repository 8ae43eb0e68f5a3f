"""A lock between processes and threads that a crash cannot leave behind."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from carrel.domain.errors import GitTimeout

_RETRY_S = 0.02
"""flock cannot wait with a limit, so it is asked again; nobody notices this delay."""


@contextmanager
def locked(path: Path, *, shared: bool = False, timeout_s: float) -> Iterator[None]:
    """Holds the lock file at `path`. Raises `GitTimeout` when others hold it too long."""
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    deadline = time.monotonic() + timeout_s
    handle = -1
    try:
        while True:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            if _take(handle, kind, deadline) and _is_still_at(handle, path):
                break
            os.close(handle)
            handle = -1
        yield
    finally:
        if handle >= 0:
            os.close(handle)


def _take(handle: int, kind: int, deadline: float) -> bool:
    while True:
        try:
            fcntl.flock(handle, kind | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise GitTimeout(
                    "Another fetch of the same repository did not finish in time.",
                    hint="Try again, or allow more time.",
                ) from None
            time.sleep(_RETRY_S)


def _is_still_at(handle: int, path: Path) -> bool:
    """Whoever held it before may have removed the file, and with it the lock's meaning."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False
