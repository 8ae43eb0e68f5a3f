"""Puts the limits of a sandbox in force, lifts them, and says how each is enforced here."""

from __future__ import annotations

import asyncio
import math
import os
import resource
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from weakref import WeakValueDictionary

from carrel.domain.availability import Availability
from carrel.domain.errors import LimitsUnavailable
from carrel.domain.limits import LimitKind, Limits, LimitSupport
from carrel.domain.runtimes import Sandbox, SandboxSpec
from carrel.domain.trees import Owner
from carrel.linux.mounts import kernel_version
from carrel.runtimes.limits.cgroups import CgroupHandle, Cgroups
from carrel.runtimes.limits.disk import (
    TOO_DEEP,
    ProjectQuotas,
    Steps,
    Use,
    disk_use,
    quota_in_force,
    unlinked_use,
)

HOLDING_PIDS = 5
"""Bubblewrap twice, `hold`, the process that waits for the next command and the helper that
brings it in: they do not count against a sandbox's limit of processes."""

MOST_PROCESSES = 4096
"""Of a sandbox without a limit of processes, threads among them: more is a mistake or an attack. A
command that only forks, with as many as a user may have, keeps everybody from the processor for
minutes, and the daemon of the same user from starting anything."""
COUNTS_IN_NAMESPACES = (5, 14)
"""Since this kernel a process counts against the limit in its own namespace of users; before, all
processes of the user did."""

WALKS = 2
"""Through the files of sandboxes at the same time: more would slow everything down."""


class Enforcement:
    """Control groups, quotas and rlimits of all sandboxes; what works is found out once."""

    def __init__(self, cgroups: Cgroups, quotas: ProjectQuotas) -> None:
        self.cgroups = cgroups
        self._quotas = quotas
        self._groups: dict[str, CgroupHandle] = {}
        self._walks = asyncio.Semaphore(WALKS)
        self._walking: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self.folders_of: Callable[[str], Sequence[Path]] = lambda family: ()
        """The folders of all sandboxes of a family, also of those that are not up now."""
        self.watched = 0
        """Sandboxes at whose disk use somebody looks now."""

    @asynccontextmanager
    async def measuring(self, spec: SandboxSpec) -> AsyncIterator[None]:
        """While the files of a sandbox are walked through. Those of one account take turns: what
        makes a walk long makes nobody else's limit late."""
        account = spec.account or spec.family or spec.sandbox_id
        own = self._walking.get(account)
        if own is None:
            own = self._walking[account] = asyncio.Lock()
        async with own, self._walks:
            yield

    def put_in_force(self, spec: SandboxSpec) -> tuple[LimitSupport, ...]:
        """Says how each limit is enforced now; idempotent. With `strict`, raises
        `LimitsUnavailable` when one is not; then nothing is left."""
        limits = spec.limits
        support = support_for(limits, self.cgroups, spec.folder, spec.owner, quotas=self._quotas)
        _require(limits, support)
        family = spec.family if _by_groups(limits) else ""
        others = self.cgroups.family(family) - {spec.sandbox_id} if family else ()
        ours = _with_ours(limits, 1 + len(others))
        group = self.cgroups.create(spec.sandbox_id, ours, family)
        self._groups[spec.sandbox_id] = group
        by_quota = any(one.how == QUOTA for one in support) and not self.has_quota(spec)
        if limits.disk_bytes is not None and by_quota:
            self._quotas.set(spec.folder, limits.disk_bytes, beside=self._beside(spec))
        return support

    def folders(self, spec: SandboxSpec) -> Sequence[Path]:
        """All that counts for the disk limit of this sandbox."""
        return (spec.folder, *self._beside(spec))

    def _beside(self, spec: SandboxSpec) -> Sequence[Path]:
        found = self.folders_of(spec.family) if spec.family else ()
        return [folder for folder in found if folder != spec.folder]

    def group(self, sandbox: Sandbox) -> CgroupHandle:
        """Its control groups; empty where this machine has none."""
        sandbox_id = sandbox.spec.sandbox_id
        found = self._groups.get(sandbox_id)
        if found is None:
            found = self.cgroups.load(sandbox_id, sandbox.spec.family) or CgroupHandle(sandbox_id)
            self._groups[sandbox_id] = found
        return found

    def rlimits(self, spec: SandboxSpec, *, has_namespace: bool = False) -> tuple[Rlimit, ...]:
        """`has_namespace`: the sandbox has a namespace of users."""
        pids = spec.limits.pids is not None and any(
            one.kind is LimitKind.PIDS and one.enforced for one in self.cgroups.support()
        )
        own_user = spec.owner.uid != os.geteuid()
        apart = has_namespace and kernel_version() >= COUNTS_IN_NAMESPACES
        return rlimits(spec.limits, pids_by_cgroup=pids, own_user=own_user, counted_apart=apart)

    def has_quota(self, spec: SandboxSpec) -> bool:
        return quota_in_force(spec.folder)

    def disk_use(
        self,
        spec: SandboxSpec,
        pids: Iterable[int],
        until: float = math.inf,
        steps: Steps | None = None,
    ) -> Use:
        """What its folder and those of its family take, and what these processes hold of files
        without a name; what was found of it by that moment, as `disk_use` has it. A quota
        counts all of it. Blocking."""
        counted = self._quotas.usage(spec.folder) if self.has_quota(spec) else None
        if counted is not None:
            return counted
        named = disk_use(self.folders(spec), until=until, steps=steps)
        nameless = unlinked_use(pids, spec.folder, steps)
        return Use(min(named.bytes + nameless.bytes, TOO_DEEP), named.files + nameless.files)

    def lift(self, sandbox: Sandbox) -> None:
        self.cgroups.remove(self.group(sandbox))
        self._groups.pop(sandbox.spec.sandbox_id, None)
        # Others of its family may be under the same quota.
        ours = not self._beside(sandbox.spec)
        if sandbox.spec.limits.disk_bytes is not None and ours and self.has_quota(sandbox.spec):
            self._quotas.clear(sandbox.spec.folder)


def _require(limits: Limits, support: tuple[LimitSupport, ...]) -> None:
    missing = [one for one in support if not one.enforced]
    if limits.strict and missing:
        reasons = "; ".join(f"{one.kind}: {one.how}" for one in missing)
        raise LimitsUnavailable(
            f"Limits cannot be enforced on this machine ({reasons}).",
            hint="Leave these limits out, or leave out --strict.",
            kinds=[str(one.kind) for one in missing],
        )


def _by_groups(limits: Limits) -> bool:
    return (limits.memory_bytes, limits.cpus, limits.pids) != (None, None, None)


def _with_ours(limits: Limits, sandboxes: int) -> Limits:
    if limits.pids is None:
        return limits
    return replace(limits, pids=limits.pids + HOLDING_PIDS * sandboxes)


# How each limit is enforced here, or why it is not

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
        ours = current(resource.RLIMIT_NOFILE)[1]
        how = _rlimit(limits.open_files, ours if own_user else ours // 2)
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
    how = f"watched, the more often the less room is left, since {quota.reason}"
    return LimitSupport(LimitKind.DISK, True, how)


def _rlimit(wanted: int, ceiling: int) -> str:
    if ceiling == resource.RLIM_INFINITY or wanted <= ceiling:
        return "rlimit"
    return f"rlimit, at {ceiling}, the most that this machine lets us set"


# Limits of a process and what it starts: file size, open files, core dumps

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
    counted_apart: bool = False,
    current: Callable[[int], tuple[int, int]] = resource.getrlimit,
) -> tuple[Rlimit, ...]:
    """What a command is to set for itself before it starts.

    The number of processes is limited here only where no cgroup does it, and only where the kernel
    counts those of the sandbox alone: it has a user of its own, or they are `counted_apart`. A hard
    limit is never raised: without CAP_SYS_RESOURCE that fails.

    Without a user of its own a sandbox may have half of the open files that we may have. The
    kernel counts the descriptors of a user that are on their way through sockets, and whoever
    may have no more open sends none: sandboxes could keep us and the launcher from it. So it is
    with signals that wait, without which nobody else of the user has a timer.
    """
    wanted: list[tuple[int, int]] = [(resource.RLIMIT_CORE, NO_CORE)]
    if limits.file_bytes is not None:
        wanted.append((resource.RLIMIT_FSIZE, limits.file_bytes))
    for which, asked in (
        (resource.RLIMIT_NOFILE, limits.open_files),
        (resource.RLIMIT_SIGPENDING, None),
    ):
        share = asked if own_user else _share(asked, current(which)[1])
        if share is not None:
            wanted.append((which, share))
    if (own_user or counted_apart) and not pids_by_cgroup:
        most = MOST_PROCESSES if limits.pids is None else limits.pids
        wanted.append((resource.RLIMIT_NPROC, most if own_user else most + HOLDING_PIDS))
    return tuple((which, *_pair(value, current(which)[1])) for which, value in wanted)


def _share(asked: int | None, ours: int) -> int | None:
    """Half of ours at most."""
    if ours == resource.RLIM_INFINITY:
        return asked
    return ours // 2 if asked is None else min(asked, ours // 2)


def _pair(value: int, ceiling: int) -> tuple[int, int]:
    bound = value if ceiling == resource.RLIM_INFINITY else min(value, ceiling)
    return bound, bound
