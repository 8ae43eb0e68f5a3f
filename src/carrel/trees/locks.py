"""File locks between threads and processes, which a crash cannot leave behind."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from carrel.domain.errors import GitTimeout, TreeUnavailable
from carrel.linux.descriptors import Descriptor

_POLL_S = 0.02
"""flock with a time limit does not exist; this is how often it is tried."""
_STALLED_S = 1800.0
"""A builder shows life ten times a second. Only a server that git waits for, or a disk
that hangs, keeps it silent; for so long, waiting on makes no sense."""


def try_lock(path: Path, *, shared: bool = False) -> int | None:
    """The descriptor of the lock, if nobody has it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        # Whoever had the lock may have removed the file, and with it the lock's meaning.
        if os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(descriptor)):
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


@dataclass(frozen=True)
class HeldLock:
    """A lock that is ours. `waited`: somebody else had it first."""

    descriptor: int
    waited: bool

    def alive(self) -> None:
        """A sign of life for those who wait."""
        os.utime(self.descriptor)


@contextlib.contextmanager
def build_lock(path: Path, on_wait: Callable[[], None] = lambda: None) -> Iterator[HeldLock]:
    """One builder of a project at a time. The file is gone afterwards. `on_wait` is called
    now and then.

    Raises `TreeUnavailable` when whoever has the lock shows no life any more.
    """
    waited = False
    while (descriptor := try_lock(path)) is None:
        waited = True
        on_wait()
        if _silent_for(path) > _STALLED_S:
            raise TreeUnavailable(
                "Another process is building a base of this project and hangs.",
                hint="End that process, and try again.",
            )
        time.sleep(_POLL_S)
    with Descriptor(descriptor):
        try:
            yield HeldLock(descriptor, waited)
        finally:
            path.unlink(missing_ok=True)


def _silent_for(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


@contextlib.contextmanager
def fetch_lock(path: Path, *, shared: bool = False, timeout_s: float) -> Iterator[None]:
    """One fetch of a repository at a time, or any number of readers. The file stays.

    Raises `GitTimeout` when others hold the lock too long.
    """
    deadline = time.monotonic() + timeout_s
    while (descriptor := try_lock(path, shared=shared)) is None:
        if time.monotonic() >= deadline:
            raise GitTimeout(
                "Another fetch of the same repository did not finish in time.",
                hint="Try again, or allow more time.",
            )
        time.sleep(_POLL_S)
    with Descriptor(descriptor):
        yield
