"""The files of the controllers, by their names in version 2 and in version 1."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from carrel.domain.limits import Limits
from carrel.linux import cgroupfs

_PERIOD_US = 100_000
_LEAST_QUOTA_US = 1_000
"""The kernel takes no smaller share of a period."""


def _limit_memory(group: Path, limits: Limits) -> None:
    """With swap: a sandbox that is over its limit must not push others into it."""
    if limits.memory_bytes is None:
        return
    value = str(limits.memory_bytes)
    if (group / "memory.max").exists():
        cgroupfs.write(group, "memory.max", value)
        if (group / "memory.swap.max").exists():
            cgroupfs.write(group, "memory.swap.max", "0")
        return
    both = "memory.memsw.limit_in_bytes"
    if (group / both).exists() and _lowers(group, both, limits.memory_bytes):
        # The kernel keeps memory at or below memory and swap together at all times.
        cgroupfs.write(group, "memory.limit_in_bytes", value)
        cgroupfs.write(group, both, value)
        return
    if (group / both).exists():
        cgroupfs.write(group, both, value)
    else:
        cgroupfs.write(group, "memory.swappiness", "0")
    cgroupfs.write(group, "memory.limit_in_bytes", value)


def _lowers(group: Path, name: str, value: int) -> bool:
    current = cgroupfs.read_number(group, name)
    return current is None or value <= current


def _limit_cpu(group: Path, limits: Limits) -> None:
    if limits.cpus is None:
        return
    quota = max(_LEAST_QUOTA_US, round(limits.cpus * _PERIOD_US))
    if (group / "cpu.max").exists():
        cgroupfs.write(group, "cpu.max", f"{quota} {_PERIOD_US}")
    else:
        cgroupfs.write(group, "cpu.cfs_period_us", str(_PERIOD_US))
        cgroupfs.write(group, "cpu.cfs_quota_us", str(quota))


def _limit_pids(group: Path, limits: Limits) -> None:
    if limits.pids is not None:
        cgroupfs.write(group, "pids.max", str(limits.pids))


LIMITERS: dict[str, Callable[[Path, Limits], None]] = {
    "memory": _limit_memory,
    "cpu": _limit_cpu,
    "pids": _limit_pids,
}


def first(folder: Path | None, *names: str) -> int | None:
    """The first of the files that is there and holds a number."""
    if folder is None:
        return None
    values = (cgroupfs.read_number(folder, name) for name in names)
    return next((value for value in values if value is not None), None)


def count(folder: Path | None, key: str, *names: str) -> int | None:
    """The entry `key` in the first of the files that has one."""
    if folder is None:
        return None
    counts = (cgroupfs.read_table(folder, name).get(key) for name in names)
    return next((count for count in counts if count is not None), None)


def cpu_seconds(folder: Path | None) -> float | None:
    if folder is None:
        return None
    usec = cgroupfs.read_table(folder, "cpu.stat").get("usage_usec")
    if usec is not None:
        return usec / 1e6
    nanoseconds = cgroupfs.read_number(folder, "cpuacct.usage")
    return nanoseconds / 1e9 if nanoseconds is not None else None
