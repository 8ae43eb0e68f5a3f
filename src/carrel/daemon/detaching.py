"""Becoming a process of its own, and keeping one's footing as one."""

from __future__ import annotations

import logging
import logging.handlers
import os
import resource
import sys
from io import TextIOWrapper
from typing import TextIO

LOG_BYTES = 10 << 20
LOG_KEPT = 3
UMASK = 0o022
"""Modes are as the code says, whatever the caller's own were."""
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class LogFile(logging.handlers.RotatingFileHandler):
    """Also what goes to the standard streams, past the loggers, stays in the newest file."""

    def __init__(self, path: str) -> None:
        super().__init__(path, maxBytes=LOG_BYTES, backupCount=LOG_KEPT, encoding="utf-8")
        self._point()

    def _open(self) -> TextIOWrapper:
        stream = super()._open()
        os.fchmod(stream.fileno(), 0o600)
        return stream

    def doRollover(self) -> None:
        super().doRollover()
        self._point()

    def _point(self) -> None:
        if self.stream is not None:
            for number in (1, 2):
                os.dup2(self.stream.fileno(), number)


def open_standard_streams() -> None:
    """A daemon that was started without them would get files as its standard error."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def leave_standard_streams() -> None:
    """What a closed terminal did not take goes nowhere; it is not to spoil the exit status."""
    streams: tuple[tuple[int, TextIO | None], ...] = ((1, sys.stdout), (2, sys.stderr))
    for number, stream in streams:
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, number)
            os.close(null)


def detach(ready: int) -> None:
    """Leaves session, terminal, folder and the caller's descriptors. The process that called
    ends here; another goes on."""
    if os.fork():
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)
    os.chdir("/")
    os.closerange(3, ready)
    os.closerange(max(3, ready + 1), _most_descriptors())


def settle() -> None:
    os.umask(UMASK)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Each connection, each command and each stream of one takes a descriptor.
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    _leave_no_core()


def _leave_no_core() -> None:
    """Keys pass through this process, and through the launcher, which inherits this. Not 0:
    with that the kernel would still hand a core to a program, where it is set up so."""
    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    limit = 1 if most == resource.RLIM_INFINITY else min(1, most)
    resource.setrlimit(resource.RLIMIT_CORE, (limit, limit))


def log_to_file(path: str) -> None:
    _configure(LogFile(path))


def log_to_stderr() -> None:
    _configure(logging.StreamHandler(sys.stderr))


def _configure(handler: logging.Handler) -> None:
    # A log that cannot be written is no reason to end.
    logging.raiseExceptions = False
    handler.setFormatter(logging.Formatter(_FORMAT))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    for name in ("uvicorn.error", "uvicorn.access", "asyncio", "websockets"):
        logging.getLogger(name).setLevel(logging.WARNING)


def _most_descriptors() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        return max((int(name) for name in os.listdir("/proc/self/fd")), default=soft) + 1
    except OSError:
        return soft
