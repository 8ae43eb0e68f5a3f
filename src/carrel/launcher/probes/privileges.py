"""What the process is, and what it could become.

These come last: one that got through would change the ground of all that follow.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Sequence

from carrel.launcher.probes.attempt import (
    DENIED,
    ONLY_BUBBLEWRAP,
    Attempt,
    Refused,
    Targets,
)
from carrel.launcher.probes.numbers import syscall
from carrel.linux import libc

_WANTED = {
    "CapInh": 0,
    "CapPrm": 0,
    "CapEff": 0,
    "CapAmb": 0,
    "NoNewPrivs": 1,
    "Seccomp": 2,
}
_BOUNDING_SET = "CapBnd"
"""Which only a privileged process can empty. Where a runtime has no user namespace to be
privileged in, no-new-privileges alone sees to it that it gives nothing."""
_CAPABILITY_VERSION_3 = 0x20080522
_CAP_SYS_ADMIN = 21
_PR_SET_NO_NEW_PRIVS = 38
_NAMESPACES = {
    "mount": 0x00020000,
    "cgroup": 0x02000000,
    "uts": 0x04000000,
    "ipc": 0x08000000,
    "pid": 0x20000000,
    "net": 0x40000000,
    "time": 0x00000080,
    "user": 0x10000000,
}


def _fields(_targets: Targets) -> Sequence[str]:
    return tuple(_WANTED)


def _bounding_set(_targets: Targets) -> Sequence[str]:
    return (_BOUNDING_SET,)


def _status(_targets: Targets, field: str) -> str:
    wanted = _WANTED.get(field, 0)
    with open("/proc/self/status", encoding="utf-8") as status:
        for line in status:
            key, _colon, value = line.partition(":")
            if key == field:
                if int(value, 16) == wanted:
                    raise Refused(value.strip())
                return f"{value.strip()}, not {wanted}"
    return "the kernel does not say"


def _is_root(_targets: Targets, _subject: str) -> str:
    """By another name too: who is root outside is the owner of what the system owns."""
    ids = (*os.getresuid(), *os.getresgid())
    if 0 in ids:
        return f"ids {ids}"
    if os.stat("/usr").st_uid == os.getuid():
        return "owns /usr"
    raise Refused(f"uid {os.getuid()}")


def _no_new_privileges(_targets: Targets, _subject: str) -> str:
    libc.call("prctl", _PR_SET_NO_NEW_PRIVS, 0, 0, 0, 0)
    return "cleared"


def _set_user(_targets: Targets, _subject: str) -> str:
    os.setresuid(0, 0, 0)
    return "is root"


def _set_group(_targets: Targets, _subject: str) -> str:
    os.setresgid(0, 0, 0)
    return "is of root's group"


def _set_groups(_targets: Targets, _subject: str) -> str:
    os.setgroups([0])
    return "is of root's group"


def _take_capability(_targets: Targets, _subject: str) -> str:
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    bit = 1 << _CAP_SYS_ADMIN
    data = (ctypes.c_uint32 * 6)(bit, bit, 0, 0, 0, 0)
    syscall("capset", ctypes.byref(header), ctypes.byref(data))
    return "has CAP_SYS_ADMIN"


def _namespaces(_targets: Targets) -> Sequence[str]:
    return tuple(_NAMESPACES)


def _unshare(_targets: Targets, kind: str) -> str:
    libc.call("unshare", _NAMESPACES[kind])
    return "made"


_DENIED_OR_UNMAPPED = DENIED | {errno.EINVAL}
"""An id that the user namespace does not map is EINVAL."""

ATTEMPTS = (
    Attempt("{} of the sandbox", _status, _fields),
    Attempt("{} of the sandbox", _status, _bounding_set, runtimes=ONLY_BUBBLEWRAP),
    Attempt("be root", _is_root),
    Attempt("clear no-new-privileges", _no_new_privileges, refusals=_DENIED_OR_UNMAPPED),
    Attempt("take a capability", _take_capability),
    Attempt("become root", _set_user, refusals=_DENIED_OR_UNMAPPED),
    Attempt("become a member of root's group", _set_group, refusals=_DENIED_OR_UNMAPPED),
    Attempt("set the groups", _set_groups, refusals=_DENIED_OR_UNMAPPED),
    Attempt("make a {} namespace", _unshare, _namespaces, DENIED | {errno.EINVAL}),
)
