"""Landlock: a process gives up what its rules do not grant, for itself and all it starts.

Rules are a plain dictionary (`Rules`), so that they can be sent to another process. What
the kernel at hand cannot restrict (its ABI is too old) stays open; `uncovered` says what.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
from collections.abc import Iterable
from typing import TypedDict

from carrel.linux import libc, namespaces

_EXECUTE = 1 << 0
_WRITE_FILE = 1 << 1
_READ_FILE = 1 << 2
_READ_DIR = 1 << 3
_REMOVE_AND_MAKE = 0x1FF0  # remove folder and file, make each kind of entry
_REFER = 1 << 13
_TRUNCATE = 1 << 14
_IOCTL_DEV = 1 << 15
_RESOLVE_UNIX = 1 << 16

_FILE_RIGHTS = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV | _RESOLVE_UNIX
"""All that a rule on something other than a folder may grant."""

_BIND_TCP = 1 << 0
_CONNECT_TCP = 1 << 1
_SCOPE_ABSTRACT_SOCKETS = 1 << 0
_SCOPE_SIGNALS = 1 << 1

_PATH_BENEATH = 1
_NET_PORT = 2
_VERSION = 1

ABI_REFER = 2
ABI_TRUNCATE = 3
ABI_TCP = 4
ABI_IOCTL = 5
ABI_SCOPE = 6
ABI_UNIX = 9

_GONE = {errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ELOOP, errno.ENXIO}
"""A rule for such a path would grant nothing: leaving it out is the strict side."""


class Rules(TypedDict):
    """Paths by what is granted beneath them. A folder or a file; missing ones are skipped.

    `tcp_bind` and `tcp_connect` are the ports that may be used, None for all of them.
    """

    execute: list[str]
    """Read files, list folders, run programs."""
    read: list[str]
    """Read files, list folders."""
    write: list[str]
    """Everything but control of devices."""
    device: list[str]
    """Read, write and control what is there; make or remove nothing."""
    connect: list[str]
    """Reach Unix sockets there."""
    tcp_bind: list[int] | None
    tcp_connect: list[int] | None


_READ = _READ_FILE | _READ_DIR
_ALL = _EXECUTE | _WRITE_FILE | _READ | _REMOVE_AND_MAKE | _REFER | _TRUNCATE | _RESOLVE_UNIX
_DEVICE = _READ | _WRITE_FILE | _TRUNCATE | _IOCTL_DEV


def abi() -> int:
    """The kernel's version of Landlock; 0 where there is none or it is switched off."""
    try:
        return libc.syscall("landlock_create_ruleset", None, 0, _VERSION)
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM):
            return 0
        raise


def _handled_files(version: int) -> int:
    handled = _EXECUTE | _WRITE_FILE | _READ | _REMOVE_AND_MAKE
    for since, right in (
        (ABI_REFER, _REFER),
        (ABI_TRUNCATE, _TRUNCATE),
        (ABI_IOCTL, _IOCTL_DEV),
        (ABI_UNIX, _RESOLVE_UNIX),
    ):
        if version >= since:
            handled |= right
    return handled


def _handled_ports(rules: Rules, version: int) -> int:
    if version < ABI_TCP:
        return 0
    bind = _BIND_TCP if rules["tcp_bind"] is not None else 0
    connect = _CONNECT_TCP if rules["tcp_connect"] is not None else 0
    return bind | connect


def _create(rules: Rules, version: int) -> int:
    scoped = _SCOPE_ABSTRACT_SOCKETS | _SCOPE_SIGNALS if version >= ABI_SCOPE else 0
    attributes = struct.pack(
        "=QQQ", _handled_files(version), _handled_ports(rules, version), scoped
    )
    # An older kernel takes a longer structure as long as the rest of it is zero.
    return libc.syscall("landlock_create_ruleset", attributes, len(attributes), 0)


def _grant(ruleset: int, path: str, rights: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in _GONE:
            return
        raise
    try:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            rights &= _FILE_RIGHTS
        if rights:
            rule = struct.pack("=Qi", rights, fd)
            libc.syscall("landlock_add_rule", ruleset, _PATH_BENEATH, rule, 0)
    finally:
        os.close(fd)


def _grant_ports(ruleset: int, ports: Iterable[int] | None, right: int) -> None:
    for port in ports or ():
        rule = struct.pack("=QQ", right, port)
        libc.syscall("landlock_add_rule", ruleset, _NET_PORT, rule, 0)


def restrict(rules: Rules, version: int | None = None) -> int:
    """Applies the rules to this thread and all that it starts, with no-new-privs.

    Answers the ABI that was applied; `version` asks for an older one than the kernel's.
    Raises OSError, ENOSYS where there is no Landlock. What was open before stays open.
    """
    version = min(version, abi()) if version is not None else abi()
    if version < 1:
        raise OSError(errno.ENOSYS, "landlock: not available in this kernel")
    ruleset = _create(rules, version)
    try:
        handled = _handled_files(version)
        for paths, rights in (
            (rules["execute"], _READ | _EXECUTE),
            (rules["read"], _READ),
            (rules["write"], _ALL),
            (rules["device"], _DEVICE),
            (rules["connect"], _RESOLVE_UNIX),
        ):
            for path in paths:
                _grant(ruleset, path, rights & handled)
        if version >= ABI_TCP:
            _grant_ports(ruleset, rules["tcp_bind"], _BIND_TCP)
            _grant_ports(ruleset, rules["tcp_connect"], _CONNECT_TCP)
        namespaces.set_no_new_privileges()
        libc.syscall("landlock_restrict_self", ruleset, 0)
    finally:
        os.close(ruleset)
    return version


def scope_abstract_sockets() -> None:
    """Restricts nothing but abstract Unix sockets: those made outside this process and what
    it starts are out of reach. For sandboxes that share the host's network, whose names
    these sockets have. Needs ABI 6 and no-new-privs; raises OSError."""
    attributes = struct.pack("=QQQ", 0, 0, _SCOPE_ABSTRACT_SOCKETS)
    ruleset = libc.syscall("landlock_create_ruleset", attributes, len(attributes), 0)
    try:
        libc.syscall("landlock_restrict_self", ruleset, 0)
    finally:
        os.close(ruleset)


ABSTRACT_SOCKETS_OPEN = "Abstract Unix sockets outside can be connected to (ABI 6 closes this)."
PATH_SOCKETS_OPEN = (
    "Unix sockets in the file system that the user may write can be connected to "
    "(ABI 9 closes this)."
)
TCP_OPEN = "TCP is not restricted (ABI 4 closes this)."
DATAGRAMS_OPEN = "UDP, multipath TCP, TCP fast open and listening without bind."

_CLOSED_SINCE = (
    (ABI_REFER, "Nothing can be moved or linked between folders, not even within the tree."),
    (
        ABI_TRUNCATE,
        "A file outside that the user may write can be cut to nothing (ABI 3 closes this).",
    ),
    (ABI_TCP, TCP_OPEN),
    (ABI_IOCTL, "A device that is open can be controlled (ABI 5 closes this)."),
    (ABI_SCOPE, "Signals reach the user's other processes (ABI 6 closes this)."),
    (ABI_SCOPE, ABSTRACT_SOCKETS_OPEN),
    (ABI_UNIX, PATH_SOCKETS_OPEN),
)
_NEVER_CLOSED = (
    DATAGRAMS_OPEN,
    "Names, sizes, modes and times of files outside can be seen (stat).",
    "Modes, owners, times and attributes of the user's own files outside can be changed.",
    "Other processes can be seen, with their command lines.",
)


def uncovered(version: int) -> tuple[str, ...]:
    """What `restrict` leaves open at this ABI, in sentences."""
    if version < 1:
        return ("There is no Landlock: nothing is confined.",)
    return (*(gap for since, gap in _CLOSED_SINCE if version < since), *_NEVER_CLOSED)
