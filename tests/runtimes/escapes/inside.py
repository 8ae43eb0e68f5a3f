"""The part of every attempt that runs where it is tried.

This file and one of the catalogue are sent as source to the interpreter in the sandbox (or
outside, for comparison), so it stands alone: the standard library only, Python 3.9 on.

An attempt returns what it got. It is refused when it raises `Refused`, or OSError with an
errno that says so; any other end counts as an escape, and shows what happened.
"""

from __future__ import annotations

import base64
import ctypes
import errno
import json
import os
import platform
import signal
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

ATTEMPT_TIMEOUT_S = 5
"""A refusal takes microseconds; on a loaded machine a set-uid program may take seconds."""


@dataclass(frozen=True)
class Targets:
    """What lies outside, and (last) what there is to work with here."""

    canary: str  # a file in another space's tree, readable to all
    canary_text: str
    canary_handle: str  # hexadecimal, as name_to_handle_at gives it
    outside_folder: str  # writable to all
    exchange: str  # a file in it
    data: str  # the data folder
    planted_tmp: str  # a file in the host's /tmp
    planted_shm: str  # one in its /dev/shm
    marker: str  # in the environment, the arguments and the memory of the victim
    victim: int  # a process of the same host user; its standard input is the canary
    victim_address: int  # of the marker in its memory
    key: int  # a key that everybody may read
    tcp_port: int
    udp_port: int
    abstract: str
    unix_socket: str
    terminal: str  # the host's /dev/pts/N
    shm_key: int
    msg_key: int
    sem_key: int
    queue: str  # of POSIX messages
    work: str  # a folder that may be written in
    read_only: str  # a mount that is read-only


@dataclass(frozen=True)
class Escape:
    """`outside`: how the same attempt is shown to work without a sandbox, or None where
    that would not be safe. `setting`: a file of /proc/sys, and the values of it with which
    a machine without a sandbox lets the attempt through."""

    name: str
    act: Callable[[Targets], str]
    outside: str | None
    also: frozenset[int]
    setting: tuple[str, tuple[str, ...]] | None

    @property
    def category(self) -> str:
        return self.name.partition(".")[0]


USER = "user"  # as the sandbox's own host user, unconfined
ROOT = "root"
NAMESPACE = "namespace"  # as that user, root of throw-away namespaces

REFUSALS = frozenset(
    {
        errno.EPERM,
        errno.EACCES,
        errno.ENOENT,
        errno.ENOTDIR,
        errno.ESRCH,
        errno.EROFS,
        errno.EXDEV,
        errno.ENXIO,
        errno.ENODEV,
        errno.ENOSYS,
        errno.ECONNREFUSED,
        errno.ENETUNREACH,
        errno.EAFNOSUPPORT,
        errno.EPROTONOSUPPORT,
        errno.ESOCKTNOSUPPORT,
    }
)

DENIED = frozenset({errno.EPERM, errno.EACCES, errno.ENOSYS})
STRICT = frozenset(
    {"kernel", "mounts", "keyrings", "capabilities", "setuid", "namespaces", "ioctl", "cgroups"}
)
"""Categories in which only a plain no counts: "no such file" could be the attempt's own
mistake there."""

REGISTRY: list[Escape] = []


class Refused(Exception):
    """It came to nothing, though no system call failed."""


Act = Callable[[Targets], str]


def escape(
    name: str,
    outside: str | None = None,
    *,
    also: tuple[int, ...] = (),
    setting: tuple[str, tuple[str, ...]] | None = None,
) -> Callable[[Act], Act]:
    """`also`: further errnos that refuse this attempt."""

    def register(act: Act) -> Act:
        REGISTRY.append(Escape(name, act, outside, frozenset(also), setting))
        return act

    return register


# Helpers of the attempts

_X86_64 = {
    "rt_sigqueueinfo": 129, "modify_ldt": 154, "pivot_root": 155, "adjtimex": 159, "acct": 163,
    "swapon": 167, "reboot": 169, "iopl": 172, "ioperm": 173, "init_module": 175,
    "delete_module": 176, "quotactl": 179, "tgkill": 234, "kexec_load": 246, "add_key": 248,
    "request_key": 249, "keyctl": 250, "ioprio_set": 251, "perf_event_open": 298,
    "fanotify_init": 300, "name_to_handle_at": 303, "open_by_handle_at": 304,
    "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312, "finit_module": 313,
    "renameat2": 316, "kexec_file_load": 320, "bpf": 321, "userfaultfd": 323, "clone": 56,
    "open": 2, "creat": 85, "chmod": 90, "fchmod": 91, "mknod": 133, "openat": 257,
    "mknodat": 259, "fchmodat": 268, "ptrace": 101, "capset": 126, "syslog": 103, "linkat": 265,
}  # fmt: skip
_GENERIC = {
    "mknodat": 33, "fchmod": 52, "fchmodat": 53, "openat": 56,
    "linkat": 37, "pivot_root": 41, "quotactl": 60, "acct": 89, "capset": 91,
    "ioprio_set": 30, "kexec_load": 104, "init_module": 105, "delete_module": 106,
    "syslog": 116, "ptrace": 117, "tgkill": 131, "rt_sigqueueinfo": 138, "reboot": 142,
    "adjtimex": 171, "add_key": 217, "request_key": 218, "keyctl": 219, "clone": 220,
    "swapon": 224, "perf_event_open": 241, "fanotify_init": 262, "name_to_handle_at": 264,
    "open_by_handle_at": 265, "process_vm_readv": 270, "process_vm_writev": 271, "kcmp": 272,
    "finit_module": 273, "renameat2": 276, "bpf": 280, "userfaultfd": 282,
    "kexec_file_load": 294,
}  # fmt: skip
_EVERYWHERE = {
    "pidfd_send_signal": 424, "io_uring_setup": 425, "open_tree": 428, "move_mount": 429,
    "fsopen": 430, "fsconfig": 431, "fsmount": 432, "pidfd_open": 434, "clone3": 435,
    "openat2": 437, "pidfd_getfd": 438, "mount_setattr": 442, "fchmodat2": 452,
}  # fmt: skip
X86_64 = platform.machine() == "x86_64"
NUMBERS = {**(_X86_64 if X86_64 else _GENERIC), **_EVERYWHERE}
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.syscall.restype = ctypes.c_long


def call(name: str, *arguments: Any) -> int:
    """A function of the C library."""
    words = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    result = int(getattr(LIBC, name)(*words))
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def syscall(name: str, *arguments: Any) -> int:
    if name not in NUMBERS:
        raise OSError(errno.ENOSYS, "no such call on this machine")
    return call("syscall", NUMBERS[name], *arguments)


def read(path: str) -> str:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        return f"read {os.read(descriptor, 4096)[:80]!r}"
    finally:
        os.close(descriptor)


def open_for_writing(path: str) -> str:
    """Without writing anything."""
    os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC))
    return f"opened {path} for writing"


def create(path: str) -> str:
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    os.unlink(path)
    return f"made {path}"


def own_file(targets: Targets, name: str) -> str:
    path = f"{targets.work}/{name}"
    with open(path, "w") as file:
        file.write("mine")
    return path


def own_folder(targets: Targets, name: str) -> str:
    path = f"{targets.work}/{name}"
    os.makedirs(path, exist_ok=True)
    return path


def first_success(act: Callable[[Any], str], subjects: Iterable[Any]) -> str:
    """What the first one gave that was not refused; raises the last refusal."""
    last: Exception = Refused("nothing to try")
    for subject in subjects:
        try:
            return f"{subject}: {act(subject)}"
        except Refused as error:
            last = error
        except OSError as error:
            if error.errno not in REFUSALS:
                raise
            last = error
    raise last


def pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


# Judging

_CLONE_ALL = 0x10000000 | 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x40000000
_CLONE_NEWPID = 0x20000000
_MS_BIND, _MS_REC, _MS_PRIVATE, _MS_REMOUNT, _MS_RDONLY = 0x1000, 0x4000, 1 << 18, 0x20, 1


def judge(one: Escape, targets: Targets) -> dict[str, object]:
    try:
        return {"refused": False, "detail": one.act(targets)}
    except Refused as nothing:
        return {"refused": True, "detail": str(nothing)}
    except OSError as error:
        code = errno.errorcode.get(error.errno or 0, str(error.errno))
        refusals = DENIED if one.category in STRICT else REFUSALS
        refused = error.errno in refusals or error.errno in one.also
        return {"refused": refused, "detail": code if refused else f"{code}: {error}"}
    except BaseException as error:
        return {"refused": False, "detail": f"{type(error).__name__}: {error}"}


def enter_throw_away(targets: Targets) -> None:
    """Root of new namespaces, in which mounts and the like disturb nobody."""
    uid, gid = os.getuid(), os.getgid()
    call("unshare", _CLONE_ALL)
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    call("mount", None, b"/", None, _MS_REC | _MS_PRIVATE, None)
    folder = targets.read_only.encode()
    os.makedirs(folder, exist_ok=True)
    call("mount", folder, folder, None, _MS_BIND, None)
    call("mount", None, folder, None, _MS_REMOUNT | _MS_BIND | _MS_RDONLY, None)
    call("unshare", _CLONE_NEWPID)


def in_child(work: Callable[[], dict[str, object]]) -> dict[str, object]:
    """In a process of its own, as an attempt that gets through may change the process."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(ATTEMPT_TIMEOUT_S)
        os.write(writer, json.dumps(work()).encode())
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as file:
        answer = file.read()
    _, status = os.waitpid(child, 0)
    if answer:
        result: dict[str, object] = json.loads(answer)
        return result
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    return {"refused": number == signal.SIGSYS, "detail": f"ended with status {status}"}


def attempt(one: Escape, targets: Targets, throw_away: bool) -> dict[str, object]:
    def prepared() -> dict[str, object]:
        os.chdir(targets.work)
        if not throw_away:
            return judge(one, targets)
        enter_throw_away(targets)
        return in_child(lambda: judge(one, targets))

    return in_child(prepared)


def main(names: list[str], targets: bytes, throw_away: bool) -> None:
    """One JSON line for each attempt. `targets` is not in plain text: the program is itself an
    argument of a process in the sandbox, and the marker must not be found there."""
    known = Targets(**json.loads(base64.b64decode(targets)))
    for one in REGISTRY:
        if one.name in names:
            print(json.dumps({"name": one.name, **attempt(one, known, throw_away)}), flush=True)
