"""What a sandbox may touch (Landlock rules) and which system calls it may make (seccomp filters).

Of the system calls all is allowed but what attacks the kernel or administers the machine. What
stays allowed on purpose:

- ptrace and process_vm_*: debuggers are of use to agents, and namespaces (or Landlock)
  confine them to the sandbox's own processes. A tracer cannot get round the filter: the
  kernel runs it after the tracer had its say. The launcher's own processes inside are not dumpable
  and so cannot be traced; pidfd_getfd, which debuggers do without, is refused nevertheless.
- seccomp and landlock calls: they can only take more away.

No file gets a set-user-id or set-group-id bit: on the host it would run as whoever the sandbox's
files belong to there, and an ordinary user's are his own. Only systems of images have them.

Calls that programs can do without answer ENOSYS, so that they fall back: clone3 and openat2,
whose flags and mode a filter cannot see, and io_uring, whose operations it cannot see.
"""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from carrel.domain.errors import SandboxUnavailable
from carrel.domain.runtimes import Bind, Network
from carrel.linux import landlock, libc
from carrel.linux.landlock import Rules
from carrel.linux.seccomp import (
    ArgumentTest,
    FilterPolicy,
    SyscallRule,
    compile_filter,
    errno_action,
)
from carrel.runtimes.sandbox import TOOLCHAIN

# fmt: off
ETC = (
    # who and where
    "passwd", "group", "nsswitch.conf", "hosts", "host.conf", "hostname", "resolv.conf",
    "services", "protocols", "networks", "gai.conf", "shells", "localtime", "timezone",
    "locale.conf", "locale.alias", "default/locale", "os-release", "lsb-release",
    "debian_version", "alpine-release", "redhat-release", "fedora-release",
    # the loader and the choice of programs
    "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "ld-musl-x86_64.path",
    "ld-musl-aarch64.path", "ld.so.preload", "alternatives",
    # certificates, never the private keys beside them
    "ssl/certs", "ssl/openssl.cnf", "ssl/cert.pem", "ca-certificates",
    "ca-certificates.conf", "pki/tls/certs", "pki/tls/cert.pem", "pki/tls/openssl.cnf",
    "pki/ca-trust", "pki/java", "crypto-policies", "gnutls",
    # shells, terminals, editors
    "profile", "profile.d", "bash.bashrc", "bashrc", "bash_completion.d", "zsh", "inputrc",
    "terminfo", "termcap", "vim", "nanorc", "tmux.conf", "screenrc", "skel", "lesskey",
    # languages and libraries
    "python3", "perl", "fonts", "magic", "magic.mime", "mime.types", "xattr.conf",
    "ImageMagick-6", "ImageMagick-7", "R", "maven", "gtk-3.0", "xdg",
    # tools that give up when a file is there and cannot be read
    "gitconfig", "gitattributes", "wgetrc", "ssh/ssh_config", "ssh/ssh_config.d",
    # which packages are preferred, and the public keys of those who sign them
    "apt/preferences", "apt/preferences.d", "apt/trusted.gpg", "apt/trusted.gpg.d", "apt/keyrings",
)
_ETC_PATTERNS = ("python3.*", "java*", "llvm*", "emacs*", "php*")
# fmt: on

SHARED_MEMORY = "/dev/shm"
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_READ = ("/proc", "/sys/devices/system")
"""In /proc Landlock itself refuses the memory, environment, descriptors and root of
processes outside; numbers and command lines can be seen."""


@dataclass(frozen=True)
class LandlockSpec:
    """`own_user` says that no other process of the machine runs as the sandbox's user."""

    tree: Path
    home: Path
    tmp: Path
    network: Network = Network.NONE
    binds: tuple[Bind, ...] = ()
    own_user: bool = False
    hub: Path | None = None
    """The folder with the socket that leads to Carrel."""
    shared_memory: bool = False
    """What is at /dev/shm is the sandbox's own, and not the machine's."""


def etc_paths() -> list[str]:
    """The parts of /etc that programs need and that hold no secrets."""
    named = [f"/etc/{name}" for name in ETC]
    matched = [str(path) for pattern in _ETC_PATTERNS for path in Path("/etc").glob(pattern)]
    return named + sorted(matched)


def rules(spec: LandlockSpec) -> Rules:
    """The rule set of one sandbox, ready to be sent to the launcher.

    A sandbox whose user is shared with other processes gets no folder of
    pseudo-terminals: those of the other processes are in it too.
    """
    read_only = [str(bind.source) for bind in spec.binds if not bind.writable]
    writable = [str(bind.source) for bind in spec.binds if bind.writable]
    ports: list[int] | None = None if spec.network is Network.OPEN else []
    device = [f"/dev/{name}" for name in _DEVICES]
    write = [str(spec.tree), str(spec.home), str(spec.tmp), *writable]
    if spec.own_user:
        device += ["/dev/ptmx", "/dev/pts"]
    if spec.shared_memory:
        write.append(SHARED_MEMORY)
    return {
        "execute": [*TOOLCHAIN, *read_only],
        "read": [*_READ, *etc_paths()],
        "write": write,
        "device": device,
        "connect": [] if spec.hub is None else [str(spec.hub)],
        "tcp_bind": ports,
        "tcp_connect": ports,
    }


def unix_sockets_allowed(spec: LandlockSpec, abi: int) -> bool:
    """Whether the sandbox may make Unix sockets: not when it could reach its user's own ones with
    them, or a service that listens to everybody. For `seccomp_policy.without_namespaces`."""
    return abi >= landlock.ABI_UNIX or (spec.own_user and not any(map(_is_open, service_sockets())))


def service_sockets() -> tuple[str, ...]:
    """Of services that would do anything for whoever may connect, whether they are there or not."""
    names = ["docker.sock", "podman/podman.sock", "containerd/containerd.sock"]
    names += ["dbus/system_bus_socket", "systemd/private"]
    names += [f"user/{os.getuid()}/bus", f"user/{os.getuid()}/podman/podman.sock"]
    return (*(f"/run/{name}" for name in names), "/var/run/docker.sock")


def _is_open(socket: str) -> bool:
    try:
        return bool(os.stat(socket).st_mode & 0o002)
    except OSError:
        return False


def uncovered(spec: LandlockSpec, abi: int) -> tuple[str, ...]:
    """What the rules and the filter together leave open or take away, in sentences."""
    gaps = landlock.uncovered(abi)
    closed: set[str] = set()
    taken = ["System V IPC and message queues are refused: the whole machine shares them."]
    if spec.network is Network.NONE:
        closed |= {landlock.TCP_OPEN, landlock.DATAGRAMS_OPEN}
        taken.append("No internet socket can be made, not even for loopback.")
    if not unix_sockets_allowed(spec, abi):
        closed |= {landlock.ABSTRACT_SOCKETS_OPEN, landlock.PATH_SOCKETS_OPEN}
        taken.append(
            "Unix sockets other than pairs are refused: the hub cannot be reached from inside."
        )
    if not spec.own_user:
        taken.append(
            "New pseudo-terminals are refused: the sandbox runs as an account that others use."
        )
    taken.append(
        "POSIX shared memory is a folder of the sandbox's own, and is refused where the launcher "
        "may not mount one."
        if spec.shared_memory
        else "POSIX shared memory is refused: the whole machine shares it."
    )
    return (*(gap for gap in gaps if gap not in closed), *taken)


def remove_shared_memory(uid: int, folder: Path) -> int:
    """Removes what a sandbox's own user left in its shared memory; answers how many."""
    removed = 0
    if not folder.is_dir():
        return 0
    with os.scandir(folder) as entries:
        found = list(entries)
    for entry in found:
        with contextlib.suppress(FileNotFoundError):
            if entry.stat(follow_symlinks=False).st_uid != uid:
                continue
            if entry.is_dir(follow_symlinks=False):
                # However deep it is. What resists goes with the sandbox's folder.
                argv = ["rm", "-rf", "--one-file-system", "--", entry.path]
                subprocess.run(argv, stderr=subprocess.DEVNULL, check=False)
            else:
                os.unlink(entry.path)
            removed += 1
    return removed


# System calls

_REFUSED = errno_action(errno.EPERM)
_ABSENT = errno_action(errno.ENOSYS)
_NO_FAMILY = errno_action(errno.EAFNOSUPPORT)
_NO_TYPE = errno_action(errno.ESOCKTNOSUPPORT)
_NO_PROTOCOL = errno_action(errno.EPROTONOSUPPORT)
_NO_SOCKET = errno_action(errno.EACCES)
_NOT_SUPPORTED = errno_action(errno.EOPNOTSUPP)
_WITHOUT_EFFECT = errno_action(0)
"""The call answers that it was done."""

# fmt: off
_MOUNTS = (
    "mount", "umount2", "pivot_root", "chroot", "move_mount", "open_tree", "open_tree_attr",
    "fsopen", "fsconfig", "fsmount", "fspick", "mount_setattr", "open_by_handle_at",
)
_KERNEL = (
    "kexec_load", "kexec_file_load", "init_module", "finit_module", "delete_module",
    "create_module", "get_kernel_syms", "query_module", "bpf", "perf_event_open",
    "userfaultfd", "fanotify_init", "keyctl", "add_key", "request_key", "syslog", "setns",
    "pidfd_getfd",
)
_MACHINE = (
    "reboot", "swapon", "swapoff", "settimeofday", "clock_settime", "adjtimex",
    "clock_adjtime", "acct", "quotactl", "quotactl_fd", "iopl", "ioperm", "vhangup",
    "sethostname", "setdomainname",
)
_OBSOLETE = ("lookup_dcookie", "nfsservctl", "uselib", "modify_ldt", "sysfs", "ustat")
_HIDDEN = ("clone3", "openat2", "io_uring_setup", "io_uring_enter", "io_uring_register")
_SYSTEM_V = (
    "shmget", "shmat", "shmctl", "semget", "semop", "semctl", "semtimedop",
    "msgget", "msgsnd", "msgrcv", "msgctl", "mq_open", "mq_unlink",
)
_SCHEDULING = ("affinity", "attr", "param", "scheduler")
# fmt: on

_CLONE_NEW = 0x7E020000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET."""
_CLONE_NEWTIME = 0x80
"""For unshare only: in clone these bits are the signal."""

_TTY_ATTACKS = (
    0x5412,  # TIOCSTI types into a terminal
    0x541C,  # TIOCLINUX pastes into a console
    0x5423,  # TIOCSETD loads line disciplines
)
_QUOTA_ESCAPES = (
    0x401C5820,  # FS_IOC_FSSETXATTR moves a file to another quota project
    0x40086602,  # FS_IOC_SETFLAGS stops a folder from handing its project on
)

_SUBVOLUMES = (
    0x50009401,  # BTRFS_IOC_SNAP_CREATE
    0x5000940E,  # BTRFS_IOC_SUBVOL_CREATE
    0x50009417,  # BTRFS_IOC_SNAP_CREATE_V2
    0x50009418,  # BTRFS_IOC_SUBVOL_CREATE_V2
    0x4008941A,  # BTRFS_IOC_SUBVOL_SETFLAGS
)
"""Of btrfs, which anybody may make in his own folders: one that is read-only cannot be emptied,
so the space could not be removed, and each snapshot shows all files once more."""

_RESERVATIONS = (
    0x40305828,  # FS_IOC_RESVSP
    0x4030582A,  # FS_IOC_RESVSP64
    0x40305839,  # FS_IOC_ZERO_RANGE
)
_MAKES_ROOM = 0x2 | 0x8
"""FALLOC_FL_PUNCH_HOLE and FALLOC_FL_COLLAPSE_RANGE, which take nothing of the disk. Other modes of
fallocate take all of it in a moment, where a limit is only looked at once a second. They fail as on
a file system that has none of it: the C library then writes zeros."""

_LEASES = (
    1024,  # F_SETLEASE
    1040,  # F_SETDELEG
)
"""Whoever has one on a file makes others wait when they open it, 45 seconds each time. It takes to
be the file's owner, as an ordinary user's sandboxes are of all that is shown to each of them."""

_SOL_SOCKET, _SO_LINGER = 1, 13
"""With it the last who closes a connection waits for its reader, for years if it says so. That may
be whoever is sent the connection by a Unix socket: the daemon, for all spaces at once, also when it
asked for no descriptors. Programs set it to reset a connection, and do not look what comes of it.
"""

_PERSONALITIES = (
    0x0,  # PER_LINUX
    0x8,  # PER_LINUX32, for setarch
    0x20000,  # UNAME26
    0x20008,
    0x40000,  # ADDR_NO_RANDOMIZE, for debuggers
    0xFFFFFFFF,  # only asks
)

_SET_IDS = 0o6000
_O_CREAT, _O_TMPFILE = 0o100, 0o20000000

AF_UNIX, AF_INET, AF_INET6, AF_NETLINK = 1, 2, 10, 16
_FAMILY, _TYPE, _PROTOCOL = 0, 1, 2
_TYPE_MASK = 0xF
_STREAM, _DATAGRAM, _RAW = 1, 2, 3
_INTERNET_PROTOCOLS = (
    0,
    1,  # ICMP
    6,  # TCP
    17,  # UDP
    58,  # ICMPv6
    255,  # RAW, which needs a capability
    262,  # MPTCP, which Go listens with
)
"""Others (SCTP, DCCP, SMC…) would load rarely tested modules."""
_NETLINK_PROTOCOLS = (
    0,  # ROUTE, for getifaddrs
    4,  # SOCK_DIAG, for ss
    15,  # KOBJECT_UEVENT, for libudev
)


def _common(*, set_ids: bool = False) -> tuple[SyscallRule, ...]:
    return (
        *(SyscallRule(name, _REFUSED) for name in (*_MOUNTS, *_KERNEL, *_MACHINE, *_OBSOLETE)),
        *(SyscallRule(name, _ABSENT) for name in _HIDDEN),
        *(() if set_ids else _no_set_ids()),
        SyscallRule("file_setattr", _REFUSED),  # as FS_IOC_FSSETXATTR
        SyscallRule("clone", _REFUSED, (ArgumentTest(0, (0,), mask=_CLONE_NEW, negate=True),)),
        SyscallRule(
            "unshare",
            _REFUSED,
            (ArgumentTest(0, (0,), mask=_CLONE_NEW | _CLONE_NEWTIME, negate=True),),
        ),
        SyscallRule("personality", _REFUSED, (ArgumentTest(0, _PERSONALITIES, negate=True),)),
        SyscallRule(
            "ioctl", _REFUSED, (ArgumentTest(1, (*_TTY_ATTACKS, *_QUOTA_ESCAPES, *_SUBVOLUMES)),)
        ),
        SyscallRule("ioctl", _NOT_SUPPORTED, (ArgumentTest(1, _RESERVATIONS),)),
        SyscallRule("fallocate", _NOT_SUPPORTED, (ArgumentTest(1, (0,), mask=_MAKES_ROOM),)),
        SyscallRule("fcntl", _REFUSED, (ArgumentTest(1, _LEASES),)),
        SyscallRule(
            "setsockopt",
            _WITHOUT_EFFECT,
            (ArgumentTest(1, (_SOL_SOCKET,)), ArgumentTest(2, (_SO_LINGER,))),
        ),
        SyscallRule("socketpair", _NO_FAMILY, (ArgumentTest(_FAMILY, (AF_UNIX,), negate=True),)),
    )


def _sockets() -> tuple[SyscallRule, ...]:
    internet = ArgumentTest(_FAMILY, (AF_INET, AF_INET6))
    known = (AF_UNIX, AF_INET, AF_INET6, AF_NETLINK)
    types = ArgumentTest(_TYPE, (_STREAM, _DATAGRAM, _RAW), mask=_TYPE_MASK, negate=True)
    return (
        SyscallRule("socket", _NO_FAMILY, (ArgumentTest(_FAMILY, known, negate=True),)),
        SyscallRule("socket", _NO_TYPE, (internet, types)),
        SyscallRule(
            "socket",
            _NO_PROTOCOL,
            (internet, ArgumentTest(_PROTOCOL, _INTERNET_PROTOCOLS, negate=True)),
        ),
        SyscallRule(
            "socket",
            _NO_PROTOCOL,
            (
                ArgumentTest(_FAMILY, (AF_NETLINK,)),
                ArgumentTest(_PROTOCOL, _NETLINK_PROTOCOLS, negate=True),
            ),
        ),
    )


def _no_set_ids() -> tuple[SyscallRule, ...]:
    """All calls that take a whole mode. mkdir is not among them: the kernel ignores these bits
    there."""
    chmods = (("chmod", 1), ("fchmod", 1), ("fchmodat", 2), ("fchmodat2", 2))
    makes = (("mknod", 1), ("mknodat", 2), ("creat", 1))
    opens = (("open", 1), ("openat", 2))
    return (
        *(SyscallRule(name, _REFUSED, (_sets_id(mode),)) for name, mode in (*chmods, *makes)),
        *(
            SyscallRule(
                name, _REFUSED, (ArgumentTest(flags, (bit,), mask=bit), _sets_id(flags + 1))
            )
            for name, flags in opens
            for bit in (_O_CREAT, _O_TMPFILE)
        ),
    )


def _sets_id(argument: int) -> ArgumentTest:
    return ArgumentTest(argument, (0,), mask=_SET_IDS, negate=True)


DEFAULT = FilterPolicy(_common() + _sockets())
"""For sandboxes with namespaces of their own."""
SYSTEM = FilterPolicy(_common(set_ids=True) + _sockets())
"""For those with an image and ids of their own: packages have such files. They belong to ids that
nobody on the host has, and nobody else may pass through the folders that they are in."""


def _no_others() -> tuple[SyscallRule, ...]:
    """Calls that the kernel allows among processes of one account, and of which Landlock knows
    nothing: a limit of CPU time ends a process as a signal does. What is 0 is the caller."""
    by_number = ("prlimit64", *(f"sched_set{what}" for what in _SCHEDULING))
    everybody = (("setpriority", 2), ("ioprio_set", 3))
    return (
        *(SyscallRule(name, _REFUSED, (ArgumentTest(0, (0,), negate=True),)) for name in by_number),
        *(
            SyscallRule(name, _REFUSED, (ArgumentTest(1, (0,), negate=True),))
            for name, _ in everybody
        ),
        *(
            SyscallRule(name, _REFUSED, (ArgumentTest(0, (account,)),))
            for name, account in everybody
        ),
    )


def without_namespaces(
    network: Network, *, unix_sockets: bool, own_user: bool = True
) -> FilterPolicy:
    """For Landlock, which leaves gaps that namespaces would close.

    System V IPC and message queues are gone, as they belong to the whole machine. With
    network `none` no internet socket can be made: Landlock knows bind and connect of TCP
    only, and lets UDP, multipath TCP, TCP fast open and listening without bind pass.

    Without `unix_sockets` none can be made but pairs. Before ABI 9 Landlock does not say
    who may connect to one that lies in the file system (Docker's, an SSH agent's), so a
    sandbox that runs as its user's own account must not have them. One that is not its
    `own_user` sets no limits, priorities or processors of others.
    """
    rules = _common() + tuple(SyscallRule(name, _ABSENT) for name in _SYSTEM_V)
    if network is Network.NONE:
        rules += (SyscallRule("socket", _NO_SOCKET, (ArgumentTest(_FAMILY, (AF_INET, AF_INET6)),)),)
    if not unix_sockets:
        rules += (
            SyscallRule("socket", _NO_SOCKET, (ArgumentTest(_FAMILY, (AF_UNIX,)),)),
            # A datagram pair can be connected anew, to a socket outside.
            SyscallRule(
                "socketpair", _NO_SOCKET, (ArgumentTest(_TYPE, (_DATAGRAM, _RAW), mask=_TYPE_MASK),)
            ),
        )
    if not own_user:
        rules += _no_others()
    return FilterPolicy(rules + _sockets())


def program(policy: FilterPolicy) -> bytes:
    """The compiled filter for this machine; made once. `SandboxUnavailable`."""
    try:
        return compile_filter(policy, libc.MACHINE)
    except ValueError as error:
        raise SandboxUnavailable(
            str(error), hint="Filters exist for x86_64 and aarch64."
        ) from error
