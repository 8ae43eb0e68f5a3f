"""What a sandbox may use at most, enforced by whatever this machine has for it."""

from carrel.runtimes.limits.cgroups import CgroupHandle, Cgroups
from carrel.runtimes.limits.disk import DiskWatch, ProjectQuotas, disk_bytes, quota_in_force
from carrel.runtimes.limits.rlimits import rlimits
from carrel.runtimes.limits.support import QUOTA, support_for

__all__ = [
    "QUOTA",
    "CgroupHandle",
    "Cgroups",
    "DiskWatch",
    "ProjectQuotas",
    "disk_bytes",
    "quota_in_force",
    "rlimits",
    "support_for",
]
