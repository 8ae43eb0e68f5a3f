"""Which system calls a sandbox may not make, and with what answer.

All is allowed but what attacks the kernel or administers the machine. What stays allowed
on purpose:

- ptrace and process_vm_*: debuggers are of use to agents, and namespaces (or Landlock)
  confine them to the sandbox's own processes. A tracer cannot get round the filter: the
  kernel runs it after the tracer had its say.
- seccomp and landlock calls: they can only take more away.

Calls that programs can do without answer ENOSYS, so that they fall back: clone3, whose
flags a filter cannot see, and io_uring, whose operations it cannot see.
"""

from __future__ import annotations

import errno

from carrel.domain.errors import SandboxUnavailable
from carrel.domain.runtimes import Network
from carrel.linux import libc
from carrel.linux.seccomp import FilterPolicy, Rule, Test, compile_filter, errno_action

_REFUSED = errno_action(errno.EPERM)
_ABSENT = errno_action(errno.ENOSYS)
_NO_FAMILY = errno_action(errno.EAFNOSUPPORT)
_NO_TYPE = errno_action(errno.ESOCKTNOSUPPORT)
_NO_PROTOCOL = errno_action(errno.EPROTONOSUPPORT)
_NO_SOCKET = errno_action(errno.EACCES)

# fmt: off
_MOUNTS = (
    "mount", "umount2", "pivot_root", "chroot", "move_mount", "open_tree", "open_tree_attr",
    "fsopen", "fsconfig", "fsmount", "fspick", "mount_setattr", "open_by_handle_at",
)
_KERNEL = (
    "kexec_load", "kexec_file_load", "init_module", "finit_module", "delete_module",
    "create_module", "get_kernel_syms", "query_module", "bpf", "perf_event_open",
    "userfaultfd", "fanotify_init", "keyctl", "add_key", "request_key", "syslog", "setns",
)
_MACHINE = (
    "reboot", "swapon", "swapoff", "settimeofday", "clock_settime", "adjtimex",
    "clock_adjtime", "acct", "quotactl", "quotactl_fd", "iopl", "ioperm", "vhangup",
    "sethostname", "setdomainname",
)
_OBSOLETE = ("lookup_dcookie", "nfsservctl", "uselib", "modify_ldt", "sysfs", "ustat")
_HIDDEN = ("clone3", "io_uring_setup", "io_uring_enter", "io_uring_register")
_SYSTEM_V = (
    "shmget", "shmat", "shmctl", "semget", "semop", "semctl", "semtimedop",
    "msgget", "msgsnd", "msgrcv", "msgctl", "mq_open", "mq_unlink",
)
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


def _common() -> tuple[Rule, ...]:
    return (
        *(Rule(name, _REFUSED) for name in (*_MOUNTS, *_KERNEL, *_MACHINE, *_OBSOLETE)),
        *(Rule(name, _ABSENT) for name in _HIDDEN),
        Rule("file_setattr", _REFUSED),  # as FS_IOC_FSSETXATTR
        Rule("clone", _REFUSED, (Test(0, (0,), mask=_CLONE_NEW, negate=True),)),
        Rule("unshare", _REFUSED, (Test(0, (0,), mask=_CLONE_NEW | _CLONE_NEWTIME, negate=True),)),
        Rule("personality", _REFUSED, (Test(0, _PERSONALITIES, negate=True),)),
        Rule("ioctl", _REFUSED, (Test(1, (*_TTY_ATTACKS, *_QUOTA_ESCAPES)),)),
        Rule("socketpair", _NO_FAMILY, (Test(_FAMILY, (AF_UNIX,), negate=True),)),
    )


def _sockets() -> tuple[Rule, ...]:
    internet = Test(_FAMILY, (AF_INET, AF_INET6))
    known = (AF_UNIX, AF_INET, AF_INET6, AF_NETLINK)
    types = Test(_TYPE, (_STREAM, _DATAGRAM, _RAW), mask=_TYPE_MASK, negate=True)
    return (
        Rule("socket", _NO_FAMILY, (Test(_FAMILY, known, negate=True),)),
        Rule("socket", _NO_TYPE, (internet, types)),
        Rule("socket", _NO_PROTOCOL, (internet, Test(_PROTOCOL, _INTERNET_PROTOCOLS, negate=True))),
        Rule(
            "socket",
            _NO_PROTOCOL,
            (Test(_FAMILY, (AF_NETLINK,)), Test(_PROTOCOL, _NETLINK_PROTOCOLS, negate=True)),
        ),
    )


def _no_set_ids() -> tuple[Rule, ...]:
    """No file that runs as whom it belongs to. openat2 keeps the mode where a filter cannot see
    it, and programs do without."""
    chmods = (("chmod", 1), ("fchmod", 1), ("fchmodat", 2), ("fchmodat2", 2))
    makes = (("mknod", 1), ("mknodat", 2), ("creat", 1))
    opens = (("open", 1), ("openat", 2))
    return (
        *(Rule(name, _REFUSED, (_sets_id(mode),)) for name, mode in (*chmods, *makes)),
        *(
            Rule(name, _REFUSED, (Test(flags, (bit,), mask=bit), _sets_id(flags + 1)))
            for name, flags in opens
            for bit in (_O_CREAT, _O_TMPFILE)
        ),
        Rule("openat2", _ABSENT),
    )


def _sets_id(argument: int) -> Test:
    return Test(argument, (0,), mask=_SET_IDS, negate=True)


DEFAULT = FilterPolicy(_common() + _sockets())
"""For sandboxes with namespaces of their own."""
ON_THE_HOST = FilterPolicy(_common() + _sockets() + _no_set_ids())
"""… whose tree is a folder of the host itself: what is made there is there for everybody, as
whoever the folder belongs to."""


def without_namespaces(
    network: Network, *, unix_sockets: bool, on_the_host: bool = False
) -> FilterPolicy:
    """For Landlock, which leaves gaps that namespaces would close.

    System V IPC and message queues are gone, as they belong to the whole machine. With
    network `none` no internet socket can be made: Landlock knows bind and connect of TCP
    only, and lets UDP, multipath TCP, TCP fast open and listening without bind pass.

    Without `unix_sockets` none can be made but pairs. Before ABI 9 Landlock does not say
    who may connect to one that lies in the file system (Docker's, an SSH agent's), so a
    sandbox that runs as its user's own account must not have them.
    """
    rules = _common() + tuple(Rule(name, _ABSENT) for name in _SYSTEM_V)
    if on_the_host:
        rules += _no_set_ids()
    if network is Network.NONE:
        rules += (Rule("socket", _NO_SOCKET, (Test(_FAMILY, (AF_INET, AF_INET6)),)),)
    if not unix_sockets:
        rules += (
            Rule("socket", _NO_SOCKET, (Test(_FAMILY, (AF_UNIX,)),)),
            # A datagram pair can be connected anew, to a socket outside.
            Rule("socketpair", _NO_SOCKET, (Test(_TYPE, (_DATAGRAM, _RAW), mask=_TYPE_MASK),)),
        )
    return FilterPolicy(rules + _sockets())


def program(policy: FilterPolicy) -> bytes:
    """The compiled filter for this machine; made once. `SandboxUnavailable`."""
    try:
        return compile_filter(policy, libc.MACHINE)
    except ValueError as error:
        raise SandboxUnavailable(
            str(error), hint="Filters exist for x86_64 and aarch64."
        ) from error
