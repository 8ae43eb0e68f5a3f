"""Puts the limits of a sandbox in force, and lifts them."""

from __future__ import annotations

import os
from dataclasses import replace

from carrel.domain.errors import LimitsUnavailable
from carrel.domain.limits import LimitKind, Limits, LimitSupport
from carrel.domain.runtimes import Sandbox, SandboxSpec
from carrel.runtimes.limits.cgroups import CgroupHandle, Cgroups
from carrel.runtimes.limits.disk import ProjectQuotas, quota_in_force
from carrel.runtimes.limits.rlimits import Rlimit, rlimits
from carrel.runtimes.limits.support import QUOTA, support_for

HOLDING_PIDS = 5
"""Bubblewrap twice, `hold`, the process that waits for the next command and the helper that
brings it in: they do not count against a sandbox's limit of processes."""


class Enforcement:
    """Control groups, quotas and rlimits of all sandboxes; what works is found out once."""

    def __init__(self, cgroups: Cgroups, quotas: ProjectQuotas) -> None:
        self.cgroups = cgroups
        self._quotas = quotas
        self._groups: dict[str, CgroupHandle] = {}

    def put_in_force(self, spec: SandboxSpec) -> tuple[LimitSupport, ...]:
        """Says how each limit is enforced. With `strict`, raises `LimitsUnavailable` when one
        is not; then nothing is left."""
        limits = spec.limits
        support = support_for(limits, self.cgroups, spec.folder, spec.owner, quotas=self._quotas)
        _require(limits, support)
        group = self.cgroups.create(spec.sandbox_id, _with_ours(limits))
        self._groups[spec.sandbox_id] = group
        if limits.disk_bytes is not None and any(one.how == QUOTA for one in support):
            self._quotas.set(spec.folder, limits.disk_bytes)
        return support

    def group(self, sandbox: Sandbox) -> CgroupHandle:
        """Its control groups; empty where this machine has none."""
        sandbox_id = sandbox.spec.sandbox_id
        found = self._groups.get(sandbox_id)
        if found is None:
            found = self.cgroups.load(sandbox_id) or CgroupHandle(sandbox_id)
            self._groups[sandbox_id] = found
        return found

    def rlimits(self, spec: SandboxSpec) -> tuple[Rlimit, ...]:
        pids = any(one.kind is LimitKind.PIDS and one.enforced for one in self.cgroups.support())
        own_user = spec.owner.uid != os.geteuid()
        return rlimits(spec.limits, pids_by_cgroup=pids, own_user=own_user)

    def has_quota(self, spec: SandboxSpec) -> bool:
        return quota_in_force(spec.folder)

    def lift(self, sandbox: Sandbox) -> None:
        self.cgroups.remove(self.group(sandbox))
        self._groups.pop(sandbox.spec.sandbox_id, None)
        if sandbox.spec.limits.disk_bytes is not None and self.has_quota(sandbox.spec):
            self._quotas.clear(sandbox.spec.folder)


def _require(limits: Limits, support: tuple[LimitSupport, ...]) -> None:
    missing = [one for one in support if not one.enforced]
    if limits.strict and missing:
        reasons = "; ".join(f"{one.kind}: {one.how}" for one in missing)
        raise LimitsUnavailable(
            f"Limits cannot be enforced on this machine ({reasons}).",
            hint="Leave these limits out, or start without strict.",
            kinds=[str(one.kind) for one in missing],
        )


def _with_ours(limits: Limits) -> Limits:
    if limits.pids is None:
        return limits
    return replace(limits, pids=limits.pids + HOLDING_PIDS)
