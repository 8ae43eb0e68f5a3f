"""Forbidden reads and writes, by every kind of path, and files that would run as their owner."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Sequence

from carrel.launcher.probes.attempt import (
    HIDDEN,
    NoTarget,
    ProbeAttempt,
    ProbeRefused,
    Targets,
    number,
    scratch,
    texts,
)
from carrel.linux import libc
from carrel.linux.libc import AT_FDCWD, syscall

_OPEN = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_UP = "../" * 40
"""Above the root from any folder, in one path."""

_SECRETS = ("/etc/shadow", "/etc/gshadow", "/etc/ssh/ssh_host_ed25519_key", "/proc/kcore")
_SYSTEM_FOLDERS = ("/", "/usr", "/usr/bin", "/etc", "/sys", "/proc/sys")
_KERNEL_FILES = (
    "/etc/passwd",
    "/proc/sysrq-trigger",
    "/proc/sys/kernel/core_pattern",
    "/proc/sys/kernel/modprobe",
    "/proc/sys/vm/drop_caches",
    "/proc/sys/fs/binfmt_misc/register",
    "/sys/kernel/uevent_helper",
    "/sys/fs/cgroup/release_agent",
    "/sys/fs/cgroup/cgroup.procs",
)


def _forbidden(targets: Targets) -> Sequence[str]:
    return texts(targets, "forbidden_paths")


def _secrets(targets: Targets) -> Sequence[str]:
    return _of_the_host(targets, _SECRETS)


def _system_folders(targets: Targets) -> Sequence[str]:
    return _of_the_host(targets, _SYSTEM_FOLDERS)


def _kernel_files(targets: Targets) -> Sequence[str]:
    return _of_the_host(targets, _KERNEL_FILES)


def _of_the_host(targets: Targets, paths: Sequence[str]) -> Sequence[str]:
    """The system of an image is the sandbox's own."""
    if not targets.get("own_root"):
        return paths
    return [path for path in paths if path.startswith("/proc/")]


def _outside_doors(targets: Targets) -> Sequence[str]:
    """Where /proc would show another root: its first process, and one known outside."""
    pids = ("1", str(number(targets, "host_pid")))
    return [f"/proc/{pid}/{door}" for pid in pids for door in ("root", "cwd")]


def _look(targets: Targets, path: str, way: str) -> str:
    """What is to be seen of the file or folder `path`, gone to by `way`; touches nothing."""
    descriptor = os.open(way, _OPEN)
    try:
        on_the_way = _on_the_way(targets, path)
        with os.scandir(descriptor) as entries:
            seen = next((one.name for one in entries if one.name not in on_the_way), "")
        if on_the_way and not seen:
            raise ProbeRefused("nothing but what is shown by design")
        return f"listed: {seen or 'empty'}"
    except NotADirectoryError:
        return f"read {len(os.read(descriptor, 64))} bytes"
    finally:
        os.close(descriptor)


def _on_the_way(targets: Targets, folder: str) -> set[str]:
    """The entries of a folder that lead to what the sandbox shows at its own path."""
    prefix = folder.rstrip("/") + "/"
    shown = targets.get("shown")
    paths = [str(path) for path in shown] if isinstance(shown, (list, tuple)) else []
    return {path[len(prefix) :].split("/")[0] for path in paths if path.startswith(prefix)}


def _read(targets: Targets, path: str) -> str:
    return _look(targets, path, path)


def _read_own_root(targets: Targets, path: str) -> str:
    return _look(targets, path, "/proc/self/root" + path)


def _read_above(targets: Targets, path: str) -> str:
    return _look(targets, path, "/proc/self/cwd/" + _UP + path.lstrip("/"))


def _read_door(targets: Targets, door: str) -> str:
    """All that is forbidden, seen from another process's root or working folder."""
    refusal: OSError | ProbeRefused | None = None
    for path in texts(targets, "forbidden_paths"):
        for way in (door + path, f"{door}/{_UP}{path.lstrip('/')}"):
            try:
                return f"{way}: {_look(targets, path, way)}"
            except ProbeRefused as by_design:
                refusal = by_design
            except OSError as error:
                if error.errno not in HIDDEN:
                    raise
                refusal = error
    if refusal is None:
        raise NoTarget("'forbidden_paths' was not given")
    raise refusal


def _check_own(targets: Targets, path: str) -> None:
    """What leads to something shown may lie in the sandbox's own scratch folder: there it may
    write, and what is below the same path of the host is looked for by other attempts."""
    own = scratch(targets)
    if not path.startswith(f"{own}/") or not _on_the_way(targets, path):
        return
    if os.stat(path).st_dev == os.stat(own).st_dev and not os.path.ismount(path):
        raise ProbeRefused("only the sandbox's own folder, on the way to what is shown")


def _write(targets: Targets, path: str) -> str:
    """Opens a file for writing without writing; makes an entry in a folder and removes it."""
    _check_own(targets, path)
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC))
    except IsADirectoryError:
        return _make_in(path)
    return "opened for writing"


def _make_in(folder: str) -> str:
    entry = f"{folder}/.carrel-probe-{os.getpid()}"
    os.close(os.open(entry, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    os.unlink(entry)
    return "made a file"


def _own_file(targets: Targets, purpose: str) -> str:
    """A file that the sandbox may have; without one an attempt would prove nothing."""
    path = f"{scratch(targets)}/.carrel-probe-{purpose}-{os.getpid()}"
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise NoTarget(f"{scratch(targets)!r} cannot be written ({error})") from None
    return path


def _link_in(targets: Targets, path: str) -> str:
    """A hard link to what is forbidden, in the sandbox's own folder."""
    link = _own_file(targets, "link")
    os.unlink(link)
    os.link(path, link, follow_symlinks=False)
    os.unlink(link)
    return "linked"


def _move_out(targets: Targets, folder: str) -> str:
    """The sandbox's own file, renamed into what is forbidden."""
    _check_own(targets, folder)
    here = _own_file(targets, "move")
    there = f"{folder}/{os.path.basename(here)}"
    try:
        os.rename(here, there)
    except OSError:
        os.unlink(here)
        raise
    os.unlink(there)
    return "moved out"


_SET_ID = 0o4755
_SET_ID_WAYS = (
    "chmod", "fchmod", "fchmodat", "fchmodat2", "open", "openat", "O_TMPFILE", "openat2",
    "creat", "mknod", "mknodat",
)  # fmt: skip


def _set_id_ways(_targets: Targets) -> Sequence[str]:
    return _SET_ID_WAYS


def _set_id(targets: Targets, way: str) -> str:
    """On the host such a file runs as whoever the sandbox's files belong to."""
    path = _own_file(targets, "set-id")
    try:
        _give_set_id(way, scratch(targets), path)
        return "given"
    finally:
        os.unlink(path)


def _give_set_id(way: str, folder: str, path: str) -> None:
    call = "openat" if way == "O_TMPFILE" else way
    if call not in libc.HERE:
        raise OSError(errno.ENOSYS, "no such call on this machine")
    here, flags = os.fsencode(path), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
    how = (ctypes.c_uint64 * 3)(flags, _SET_ID, 0)
    kept = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    if way not in ("chmod", "fchmod", "fchmodat", "fchmodat2"):
        os.unlink(path)
    arguments: dict[str, tuple[object, ...]] = {
        "chmod": (here, _SET_ID),
        "fchmod": (kept, _SET_ID),
        "fchmodat": (AT_FDCWD, here, _SET_ID),
        "fchmodat2": (AT_FDCWD, here, _SET_ID, 0),
        "open": (here, flags, _SET_ID),
        "openat": (AT_FDCWD, here, flags, _SET_ID),
        "O_TMPFILE": (AT_FDCWD, os.fsencode(folder), os.O_TMPFILE | os.O_WRONLY, _SET_ID),
        "openat2": (AT_FDCWD, here, ctypes.byref(how), ctypes.sizeof(how)),
        "creat": (here, _SET_ID),
        "mknod": (here, stat.S_IFREG | _SET_ID, 0),
        "mknodat": (AT_FDCWD, here, stat.S_IFREG | _SET_ID, 0),
    }
    try:
        syscall(call, *arguments[way])
    finally:
        os.close(kept)
        if not os.path.exists(path):
            os.close(os.open(path, flags, 0o600))


ATTEMPTS = (
    ProbeAttempt("read {}", _read, _forbidden, HIDDEN),
    ProbeAttempt("read {} through /proc/self/root", _read_own_root, _forbidden, HIDDEN),
    ProbeAttempt("read {} through ..", _read_above, _forbidden, HIDDEN),
    ProbeAttempt("read what is forbidden through {}", _read_door, _outside_doors, HIDDEN),
    ProbeAttempt("read {}", _read, _secrets, HIDDEN),
    ProbeAttempt("write {}", _write, _forbidden, HIDDEN),
    ProbeAttempt("write in {}", _write, _system_folders, HIDDEN),
    ProbeAttempt("open {} for writing", _write, _kernel_files, HIDDEN),
    ProbeAttempt("hard link {} into the sandbox", _link_in, _forbidden, HIDDEN),
    ProbeAttempt("move a file out to {}", _move_out, _forbidden, HIDDEN),
    ProbeAttempt("give a file a set-id bit by {}", _set_id, _set_id_ways, own_ids=False),
)
