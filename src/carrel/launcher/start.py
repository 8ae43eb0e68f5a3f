"""Becoming a process of its own: `python -I -S -c "…; main(FOLDER, READY_FD)"`."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import sys

from carrel.launcher.server import LauncherServer
from carrel.linux import mounts, namespaces
from carrel.linux.files import sealed_copy


def main(folder: str, ready: int, version: str) -> None:
    """Returns at once in the process that called; the launcher goes on in another that has
    neither its session nor its parent. `ready` is closed when the socket listens, or when
    another launcher has the folder already."""
    _execute_a_sealed_copy()
    if os.fork():
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    os.chdir(folder)
    lock = os.open("lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os._exit(0)
    _redirect()
    namespaces.become_subreaper()
    namespaces.join_new_keyring()
    home = _lean_mounts(os.path.dirname(folder)) if os.geteuid() == 0 else None
    # After a change of the mount namespace the working folder is still the same one.
    server = LauncherServer(_listen(), folder, version, home)
    # Always the same length: a reader at any instant finds the number before or this one.
    os.pwrite(lock, f"{os.getpid():>10}\n".encode(), 0)
    os.close(ready)
    server.serve()
    os.unlink("socket")
    # A thread that waits in the kernel keeps the process, and is not to keep the next launcher out.
    fcntl.flock(lock, fcntl.LOCK_UN)
    sys.exit(0)


def _execute_a_sealed_copy() -> None:
    """A command that executes /proc/self/exe gets the program of the launcher, a file of the
    host. Where it is the user's own, a sandbox could write it that way once no launcher runs
    it; so it runs from a nameless copy that nobody can change. Root's is not the sandbox's
    user's."""
    if os.geteuid() == 0 or os.readlink("/proc/self/exe").startswith("/memfd:"):
        return
    os.execve(sealed_copy("/proc/self/exe", "carrel-launcher"), sys.orig_argv, os.environ)


def _redirect() -> None:
    null = os.open("/dev/null", os.O_RDWR)
    log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for number, descriptor in enumerate((null, null, log)):
        os.dup2(descriptor, number)
    os.close(null)
    os.close(log)


def _listen() -> socket.socket:
    """A relative name: the path of a data folder can be longer than a socket's may be."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink("socket")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    old = os.umask(0o177)
    try:
        listener.bind("socket")
    finally:
        os.umask(old)
    listener.listen(128)
    return listener


def _lean_mounts(data: str) -> int | None:
    """A mount namespace of our own without the trees that are mounted in the data folder:
    every sandbox starts as a copy of it, and should not cost more the more trees there are.
    Trees come in as detached mounts. Gives back the one that we were in: a command without
    namespaces goes there, for it sees a tree where it is mounted."""
    home = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    try:
        namespaces.unshare(namespaces.CLONE_NEWNS)
    except PermissionError:
        # A container without the right: then no sandbox has namespaces either.
        os.close(home)
        return None
    namespaces.set_propagation(namespaces.MS_PRIVATE)
    above = os.path.join(data, "spaces") + "/"
    for target in mounts.mount_points():
        if target.startswith(above) and target.endswith("/project"):
            mounts.detach_all(target)
    return home
