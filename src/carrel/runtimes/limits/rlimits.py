"""Limits that belong to a process and what it starts: file size, open files, core dumps."""

from __future__ import annotations

import resource
from collections.abc import Callable

from carrel.domain.limits import Limits

Rlimit = tuple[int, int, int]
"""Resource, soft limit, hard limit: the arguments of `resource.setrlimit`."""
NO_CORE = 1
"""Bytes. Memory has keys in it, so nothing of it is to be written. No file can be so small, and
where the kernel hands cores to a program of the host it does so with a limit of 0, but not with
this one."""


def rlimits(
    limits: Limits,
    *,
    pids_by_cgroup: bool,
    own_user: bool = False,
    current: Callable[[int], tuple[int, int]] = resource.getrlimit,
) -> tuple[Rlimit, ...]:
    """What a command is to set for itself before it starts.

    The number of processes is limited here only where no cgroup does it, and only for a
    user of the sandbox's own: the kernel counts all processes of the user. A hard limit
    is never raised: without CAP_SYS_RESOURCE that fails.
    """
    wanted: list[tuple[int, int]] = [(resource.RLIMIT_CORE, NO_CORE)]
    if limits.file_bytes is not None:
        wanted.append((resource.RLIMIT_FSIZE, limits.file_bytes))
    if limits.open_files is not None:
        wanted.append((resource.RLIMIT_NOFILE, limits.open_files))
    if limits.pids is not None and own_user and not pids_by_cgroup:
        wanted.append((resource.RLIMIT_NPROC, limits.pids))
    return tuple((which, *_pair(value, current(which)[1])) for which, value in wanted)


def _pair(value: int, ceiling: int) -> tuple[int, int]:
    bound = value if ceiling == resource.RLIM_INFINITY else min(value, ceiling)
    return bound, bound
