"""Where the daemon's own files are. Imported by every client: cheap."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from typing import NamedTuple

from carrel.domain.errors import DaemonRunning, DaemonUnavailable
from carrel.linux.processes import is_alive, python, start_time

Folder = str | os.PathLike[str]

FOLDER = "daemon"
SOCKET = "socket"
LOCK = "lock"
LOG = "log"
ADDRESS = "address"
ENDING = "ending"
UTF8 = ("-X", "utf8")
"""Whatever the language of the terminal that starts it: names of files stay what they are."""
MAX_ADDRESS = 107
"""Bytes that fit into the address of a Unix socket."""


def folder(data: Folder) -> str:
    return os.path.join(os.fspath(data), FOLDER)


def socket(data: Folder) -> str:
    return os.path.join(folder(data), SOCKET)


def lock(data: Folder) -> str:
    return os.path.join(folder(data), LOCK)


def log(data: Folder) -> str:
    return os.path.join(folder(data), LOG)


def address(data: Folder) -> str:
    """A file: where the daemon listens on TCP, if it does."""
    return os.path.join(folder(data), ADDRESS)


def ending(data: Folder) -> str:
    """A file: what a daemon that was told to end still does; written again while it does."""
    return os.path.join(folder(data), ENDING)


def command(data: Folder) -> list[str]:
    """The words that become the daemon."""
    return [*python("carrel.daemon", *UTF8), "--data", os.path.abspath(data)]


def told_logout(data: Folder) -> str:
    """A file: its user has been told what a logout ends."""
    return os.path.join(folder(data), "told-logout")


def scope(data: Folder) -> str:
    """The name of the unit of systemd's that the daemon and all that it starts are in."""
    import hashlib

    name = hashlib.sha256(os.fsencode(os.path.realpath(data))).hexdigest()
    return f"carrel-{name[:12]}.scope"


def make_folder(data: Folder) -> str:
    """Nobody else's: what is in it is the daemon's and its user's. `DaemonUnavailable` where it is
    another account's, and then nothing in it was touched."""
    os.makedirs(data, mode=0o711 if os.geteuid() == 0 else 0o700, exist_ok=True)
    check_own(data)
    path = folder(data)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(descriptor).st_uid != os.geteuid():
            raise _not_ours(data, path)
        os.fchmod(descriptor, 0o700)
    finally:
        os.close(descriptor)
    return path


def check_own(data: Folder) -> None:
    """Whoever else could put something into the data folder, or another in its place, would have
    the daemon write where it likes, and answer for it. `DaemonUnavailable`."""
    real = os.path.realpath(data)
    if os.path.exists(real) and os.stat(real).st_uid != os.geteuid():
        raise _not_ours(data, real)
    place, below = real, ""
    while place != below:
        with contextlib.suppress(FileNotFoundError):
            if not _keeps_others_out(os.stat(place)):
                raise _not_ours(data, place)
        place, below = os.path.dirname(place), place


def _keeps_others_out(found: os.stat_result) -> bool:
    """Nobody but this user and root renames what is in it. Who has a namespace of users without
    root in it cannot know whose the folders above are."""
    known = found.st_uid in (0, os.geteuid()) or not _is_mapped(found.st_uid)
    own_group = found.st_gid == os.getegid() and not found.st_mode & stat.S_IWOTH
    writable = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return known and (not writable or own_group or bool(found.st_mode & stat.S_ISVTX))


def _is_mapped(uid: int) -> bool:
    with open("/proc/self/uid_map") as lines:
        spans = [tuple(map(int, line.split())) for line in lines]
    return any(first <= uid < first + count for first, _, count in spans)


def _not_ours(data: Folder, path: str) -> DaemonUnavailable:
    what = f"The data folder {os.fspath(data)} is not safe"
    return DaemonUnavailable(
        f"{what}: another account owns {path}, or can write there.",
        hint="Choose a folder of your own (--data, CARREL_DATA), or mend its owner and mode.",
    )


# One daemon per data folder.
#
# The lock is a file that the daemon keeps locked for as long as it lives; the kernel lets go
# of it however the daemon ends. In the file stands which process that is.

PROBED_S = 1.0
"""Whoever asks who has the lock holds it for a moment; a daemon that starts waits that out."""
_STEP_S = 0.01


class Holder(NamedTuple):
    """A process; the time at which it started tells it from a later one with its number."""

    pid: int
    started: int


@contextlib.contextmanager
def held(data: Folder) -> Iterator[None]:
    """Raises `DaemonRunning`, which names the other one, and `DaemonUnavailable`."""
    try:
        make_folder(data)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(lock(data), flags, 0o600)
    except OSError as error:
        raise DaemonUnavailable(
            f"The data folder {os.fspath(data)} cannot be used: {error.strerror}.",
            hint="Let this user write there, or set CARREL_DATA to another folder.",
        ) from error
    try:
        if not _lock(descriptor):
            raise running(data, read(descriptor))
        own = f"{os.getpid()} {start_time(os.getpid()) or 0}\n".encode()
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, own, 0)
        yield
        os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def holder(data: Folder) -> Holder | None:
    """The daemon of a data folder, if one runs. What another account says of that is not heard: it
    could name any process, which is then ended."""
    try:
        descriptor = os.open(lock(data), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        if os.fstat(descriptor).st_uid not in (0, os.geteuid()):
            return None
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        found = read(descriptor)
        return found if found is not None and is_alive(*found) else None
    finally:
        os.close(descriptor)
    return None


def running(data: Folder, other: Holder | None) -> DaemonRunning:
    who = "Another daemon" if other is None else f"A daemon (process {other.pid})"
    return DaemonRunning(
        f"{who} uses the data folder {os.fspath(data)}.",
        hint="Stop it with `carrel down`, or choose another data folder with --data.",
        pid=None if other is None else other.pid,
    )


def read(descriptor: int) -> Holder | None:
    """What stands in the lock; None while it is being written."""
    words = os.pread(descriptor, 100, 0).split()
    if len(words) != 2 or not (words[0].isdigit() and words[1].isdigit()):
        return None
    return Holder(int(words[0]), int(words[1]))


def _lock(descriptor: int) -> bool:
    until = time.monotonic() + PROBED_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            other = read(descriptor)
            alive = other is not None and is_alive(*other)
            if alive or time.monotonic() > until:
                return False
            time.sleep(_STEP_S)
