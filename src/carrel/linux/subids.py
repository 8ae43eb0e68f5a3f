"""The further ids of an ordinary user: lines in /etc/subuid and /etc/subgid, and user namespaces
that have them.

In such a namespace the user is itself, and the range has the numbers that it has on the host; only
groups that begin elsewhere than users are shown where those begin, so that one number is enough to
name both. Whoever is in there may do with files of all these ids what root may with all.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
from typing import NamedTuple

from carrel.linux import namespaces
from carrel.linux.ids import RANGE, note_range

USERS, GROUPS = "/etc/subuid", "/etc/subgid"
PROGRAMS = ("newuidmap", "newgidmap")


class SubIds(NamedTuple):
    """The first of the ids, which `RANGE` of them are the user's."""

    uid: int
    gid: int


def granted() -> SubIds | None:
    """What the machine gives to this user, and has the programs for; None for root."""
    found = listed()
    return found if found is not None and all(map(program, PROGRAMS)) else None


def listed() -> SubIds | None:
    """What the files say; None for root, and where there are too few."""
    uid, gid = _first(USERS), _first(GROUPS)
    return None if uid is None or gid is None or os.geteuid() == 0 else SubIds(uid, gid)


def _first(file: str) -> int | None:
    names = {str(os.geteuid())}
    with contextlib.suppress(KeyError):
        names.add(pwd.getpwuid(os.geteuid()).pw_name)
    with contextlib.suppress(OSError, UnicodeDecodeError), open(file, encoding="utf-8") as lines:
        for line in lines:
            name, _, rest = line.strip().partition(":")
            first, _, count = rest.partition(":")
            if name not in names or not first.isdecimal() or not count.isdecimal():
                continue
            # Numbers below are an image's own.
            if int(first) >= RANGE and int(count) >= RANGE:
                return int(first)
    return None


def program(name: str) -> str | None:
    for folder in (*os.environ.get("PATH", os.defpath).split(":"), "/usr/bin"):
        path = os.path.join(folder, name)
        if os.access(path, os.X_OK):
            return path
    return None


def enter() -> SubIds:
    """Makes such a namespace and enters it, for good. For processes with one thread, and without
    children that they wait for. Raises OSError."""
    found = granted()
    if found is None:
        raise OSError("this user has no range of ids")
    uid, gid, pid = os.geteuid(), os.getegid(), os.getpid()
    wait, go = os.pipe2(os.O_CLOEXEC)
    # They are set-user-id programs, and so can do nothing from in there.
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(go)
            if os.read(wait, 1):
                _write_maps(pid, (("uid", uid, found.uid), ("gid", gid, found.gid)), found.uid)
                code = 0
        finally:
            os._exit(code)
    os.close(wait)
    try:
        namespaces.unshare(namespaces.CLONE_NEWUSER)
        os.write(go, b"x")
    finally:
        os.close(go)
        _, status = os.waitpid(child, 0)
    if status:
        raise OSError("newuidmap or newgidmap refused the range of /etc/subuid or /etc/subgid")
    note_range()
    return found


def _write_maps(pid: int, ids: tuple[tuple[str, int, int], ...], shown: int) -> None:
    # Whoever made us may ignore it, and then nobody could be waited for.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for kind, own, first in ids:
        path = program(f"new{kind}map")
        if path is None:
            raise FileNotFoundError(f"new{kind}map is gone")
        lines = [own, own, 1, shown, first, RANGE]
        child = os.fork()
        if child == 0:
            try:
                os.execve(path, [path, str(pid), *map(str, lines)], {"PATH": os.defpath})
            finally:
                os._exit(1)
        if os.waitpid(child, 0)[1]:
            raise OSError(f"{path} failed")
