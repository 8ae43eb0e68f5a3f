"""Standard input and output of a server that speaks by them."""

from __future__ import annotations

import fcntl
import os

STDIN, STDOUT, STDERR = 0, 1, 2


def private_ends() -> tuple[int, int]:
    """What the client writes, and what it reads. Nothing else finds them at the standard
    places from then on: a stray print goes to standard error."""
    heard, said = (fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, STDERR + 1) for one in (STDIN, STDOUT))
    _put_in_place(os.open(os.devnull, os.O_RDONLY), STDIN)
    _put_in_place(_stray(), STDOUT)
    return heard, said


def _put_in_place(descriptor: int, place: int) -> None:
    os.dup2(descriptor, place)
    os.close(descriptor)


def _stray() -> int:
    try:
        return os.dup(STDERR)
    except OSError:
        return os.open(os.devnull, os.O_WRONLY)
