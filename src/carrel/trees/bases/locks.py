"""One builder of a project at a time, among threads and among processes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from carrel.domain.errors import TreeUnavailable

_POLL_S = 0.02
"""flock with a time limit does not exist; this is how often it is tried."""
_STALLED_S = 1800.0
"""A builder shows life ten times a second. Only a server that git waits for, or a disk
that hangs, keeps it silent; for so long, waiting on makes no sense."""


@dataclass(frozen=True)
class Held:
    """A lock that is ours. `waited`: somebody else had it first."""

    descriptor: int
    waited: bool

    def alive(self) -> None:
        """A sign of life for those who wait."""
        os.utime(self.descriptor)


@contextlib.contextmanager
def hold(path: Path, on_wait: Callable[[], None] = lambda: None) -> Iterator[Held]:
    """Holds the lock; its file is gone afterwards. `on_wait` is called now and then.

    Raises `TreeUnavailable` when whoever has it shows no life any more.
    """
    descriptor, waited = _acquire(path, on_wait)
    try:
        yield Held(descriptor, waited)
    finally:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        os.close(descriptor)


def try_hold(path: Path) -> int | None:
    """The descriptor of the lock, if nobody has it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_at(path, descriptor):
            return descriptor
    except BlockingIOError:
        pass
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def _acquire(path: Path, on_wait: Callable[[], None]) -> tuple[int, bool]:
    waited = False
    while True:
        descriptor = try_hold(path)
        if descriptor is not None:
            return descriptor, waited
        waited = True
        on_wait()
        if _silent_for(path) > _STALLED_S:
            raise TreeUnavailable(
                "Another process is building a base of this project and hangs.",
                hint="End that process, and try again.",
            )
        time.sleep(_POLL_S)


def _is_at(path: Path, descriptor: int) -> bool:
    """False when whoever had the lock removed the file meanwhile."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _silent_for(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return 0.0
