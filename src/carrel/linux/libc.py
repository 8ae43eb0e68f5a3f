"""The one door to the C library: system calls that Python has no function for."""

from __future__ import annotations

import ctypes
import os

AT_FDCWD = -100
AT_EMPTY_PATH = 0x1000

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
# Holds the interpreter's lock during the call: for raw clone, where the child
# must find the lock as its own.
_libc_locked = ctypes.PyDLL(None, use_errno=True)
_libc_locked.syscall.restype = ctypes.c_long

HIGHEST = 469
"""file_setattr, the last call of Linux 6.18. What is newer has not been looked at, so a
filter answers that the kernel does not have it; programs cope with that."""

_SAME = {
    "pidfd_send_signal": 424,
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "pidfd_open": 434,
    "clone3": 435,
    "close_range": 436,
    "openat2": 437,
    "pidfd_getfd": 438,
    "mount_setattr": 442,
    "quotactl_fd": 443,
    "landlock_create_ruleset": 444,
    "landlock_add_rule": 445,
    "landlock_restrict_self": 446,
    "fchmodat2": 452,
    "open_tree_attr": 467,
    "file_setattr": 469,
}
"""Calls that came after 5.1 have the same number everywhere."""

_EACH = {
    "ioctl": (16, 29),
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "setsockopt": (54, 208),
    "clone": (56, 220),
    "semget": (64, 190),
    "semop": (65, 193),
    "semctl": (66, 191),
    "msgget": (68, 186),
    "msgsnd": (69, 189),
    "msgrcv": (70, 188),
    "msgctl": (71, 187),
    "fcntl": (72, 25),
    "fchmod": (91, 52),
    "ptrace": (101, 117),
    "syslog": (103, 116),
    "capget": (125, 90),
    "capset": (126, 91),
    "personality": (135, 92),
    "setpriority": (141, 140),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "vhangup": (153, 58),
    "pivot_root": (155, 41),
    "adjtimex": (159, 171),
    "chroot": (161, 51),
    "acct": (163, 89),
    "settimeofday": (164, 170),
    "mount": (165, 40),
    "umount2": (166, 39),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "init_module": (175, 105),
    "delete_module": (176, 106),
    "quotactl": (179, 60),
    "nfsservctl": (180, 42),
    "sched_setaffinity": (203, 122),
    "lookup_dcookie": (212, 18),
    "semtimedop": (220, 192),
    "clock_settime": (227, 112),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    "kexec_load": (246, 104),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "ioprio_set": (251, 30),
    "openat": (257, 56),
    "mknodat": (259, 33),
    "fchmodat": (268, 53),
    "unshare": (272, 97),
    "perf_event_open": (298, 241),
    "fallocate": (285, 47),
    "kcmp": (312, 272),
    "fanotify_init": (300, 262),
    "prlimit64": (302, 261),
    "open_by_handle_at": (304, 265),
    "clock_adjtime": (305, 266),
    "setns": (308, 268),
    "process_vm_readv": (310, 270),
    "finit_module": (313, 273),
    "sched_setattr": (314, 274),
    "seccomp": (317, 277),
    "kexec_file_load": (320, 294),
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
}
"""On x86_64 and on aarch64."""

_X86_64_ONLY = {
    "open": 2,
    "creat": 85,
    "chmod": 90,
    "mknod": 133,
    "uselib": 134,
    "ustat": 136,
    "sysfs": 139,
    "modify_ldt": 154,
    "iopl": 172,
    "ioperm": 173,
    "create_module": 174,
    "get_kernel_syms": 177,
    "query_module": 178,
}

NUMBERS = {
    "x86_64": {**_SAME, **{name: pair[0] for name, pair in _EACH.items()}, **_X86_64_ONLY},
    "aarch64": {**_SAME, **{name: pair[1] for name, pair in _EACH.items()}},
}
"""Of the system calls that we make and that filters name, by architecture."""
MACHINE = os.uname().machine
HERE = NUMBERS.get(MACHINE, NUMBERS["aarch64"])
"""Here; other architectures (riscv64) have aarch64's."""


def fail(what: str) -> OSError:
    """The error that `errno` holds, naming the call."""
    number = ctypes.get_errno()
    return OSError(number, f"{what}: {os.strerror(number)}")


def _converted(arguments: tuple[object, ...]) -> list[object]:
    return [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]


def syscall(name: str, *arguments: object) -> int:
    """A raw system call by name; raises OSError."""
    result: int = _libc.syscall(ctypes.c_long(HERE[name]), *_converted(arguments))
    if result < 0:
        raise fail(name)
    return result


def syscall_locked(name: str, *arguments: object) -> int:
    """As `syscall`, without letting go of the interpreter's lock."""
    result: int = _libc_locked.syscall(ctypes.c_long(HERE[name]), *_converted(arguments))
    if result < 0:
        raise fail(name)
    return result


def give_back_memory() -> None:
    """What was freed goes back to the kernel, where the C library keeps it otherwise."""
    trim = getattr(_libc, "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))


def call(name: str, *arguments: object) -> int:
    """A function of the C library that answers -1 on failure; raises OSError."""
    result: int = getattr(_libc, name)(*_converted(arguments))
    if result < 0:
        raise fail(name)
    return result
