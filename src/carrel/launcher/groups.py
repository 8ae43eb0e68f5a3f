"""Control groups by path: who is in one, ending it, removing it."""

from __future__ import annotations

import os


def group_members(group: str) -> list[int]:
    try:
        with open(f"{group}/cgroup.procs") as file:
            return [int(line) for line in file]
    except OSError:
        return []


def kill_group(group: str) -> bool:
    """At once and for all, where the kernel can (cgroup v2 since 5.14)."""
    try:
        with open(f"{group}/cgroup.kill", "w") as file:
            file.write("1")
    except OSError:
        return False
    return True


def remove_group(group: str) -> bool:
    """False while something that detached itself still lives in it."""
    try:
        os.rmdir(group)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
