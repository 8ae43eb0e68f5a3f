"""What kind of file system a device number stands for."""

from __future__ import annotations

import os

_PSEUDO = frozenset(
    {
        "autofs",
        "binder",
        "binfmt_misc",
        "bpf",
        "cgroup",
        "cgroup2",
        "configfs",
        "debugfs",
        "devpts",
        "efivarfs",
        "fusectl",
        "hugetlbfs",
        "mqueue",
        "nsfs",
        "proc",
        "pstore",
        "rpc_pipefs",
        "securityfs",
        "selinuxfs",
        "smackfs",
        "sysfs",
        "tracefs",
    }
)
"""Views of the kernel: not files that somebody has, and often without an end."""


def pseudo_file_system(device: int) -> str | None:
    """The type of a mounted file system that holds no files, such as `proc`; None for
    real ones, and for devices that the mount table does not name."""
    wanted = f"{os.major(device)}:{os.minor(device)}".encode()
    try:
        with open("/proc/self/mountinfo", "rb") as lines:
            for line in lines:
                fields = line.split(b" ")
                if fields[2] == wanted:
                    kind = fields[fields.index(b"-", 6) + 1].decode()
                    return kind if kind in _PSEUDO else None
    except FileNotFoundError:
        pass
    return None
