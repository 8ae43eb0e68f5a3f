"""For every limit that is asked for: how it is enforced here, or why it is not."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from pathlib import Path

from carrel.domain.availability import Availability
from carrel.domain.limits import LimitKind, Limits, LimitSupport
from carrel.domain.trees import Owner
from carrel.runtimes.limits.cgroups import Cgroups
from carrel.runtimes.limits.disk import PERIOD_S, ProjectQuotas

QUOTA = "project quota"
"""What `LimitSupport.how` says of the disk when `ProjectQuotas.set` will do."""


def support_for(
    limits: Limits,
    cgroups: Cgroups,
    folder: Path,
    owner: Owner | None = None,
    *,
    quotas: ProjectQuotas | None = None,
    current: Callable[[int], tuple[int, int]] = resource.getrlimit,
) -> tuple[LimitSupport, ...]:
    """One answer for each limit that is set. `folder` is what the disk limit is for.

    `owner` is the user of the sandbox. When that is another than ours, it runs nothing
    else: its processes can be counted without a cgroup, and a quota be tried as it.
    """
    groups = {support.kind: support for support in cgroups.support()}
    own_user = owner is not None and owner.uid != os.geteuid()
    found: list[LimitSupport] = []
    if limits.memory_bytes is not None:
        found.append(_by_group(LimitKind.MEMORY, groups))
    if limits.cpus is not None:
        found.append(_by_group(LimitKind.CPU, groups))
    if limits.pids is not None:
        found.append(_processes(groups, own_user))
    if limits.disk_bytes is not None:
        known = _quota(folder, owner if own_user else None, quotas or ProjectQuotas())
        found.append(_disk(known))
    if limits.file_bytes is not None:
        how = _rlimit(limits.file_bytes, current(resource.RLIMIT_FSIZE)[1])
        found.append(LimitSupport(LimitKind.FILE_SIZE, True, how))
    if limits.open_files is not None:
        how = _rlimit(limits.open_files, current(resource.RLIMIT_NOFILE)[1])
        found.append(LimitSupport(LimitKind.OPEN_FILES, True, how))
    if limits.wall_seconds is not None:
        found.append(LimitSupport(LimitKind.WALL_TIME, True, "by a timer"))
    return tuple(found)


def _quota(folder: Path, owner: Owner | None, quotas: ProjectQuotas) -> Availability:
    if owner is None:
        return Availability(False, "a quota is for sandboxes with a user of their own")
    return quotas.available(folder, owner)


def _by_group(kind: LimitKind, groups: dict[LimitKind, LimitSupport]) -> LimitSupport:
    return groups.get(kind) or LimitSupport(kind, False, "there are no control groups")


def _processes(groups: dict[LimitKind, LimitSupport], own_user: bool) -> LimitSupport:
    support = _by_group(LimitKind.PIDS, groups)
    if support.enforced or not own_user:
        return support
    return LimitSupport(LimitKind.PIDS, True, "rlimit on the sandbox's own user")


def _disk(quota: Availability) -> LimitSupport:
    """Watching counts as enforced: the sandbox is stopped, if a moment later."""
    if quota.available:
        return LimitSupport(LimitKind.DISK, True, QUOTA)
    how = f"watched every {PERIOD_S:g} s, since {quota.reason}"
    return LimitSupport(LimitKind.DISK, True, how)


def _rlimit(wanted: int, ceiling: int) -> str:
    if ceiling == resource.RLIM_INFINITY or wanted <= ceiling:
        return "rlimit"
    return f"rlimit, at {ceiling}, the most that this machine lets us set"
