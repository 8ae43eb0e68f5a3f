"""Control calls on terminals, files and devices."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os

from tests.runtimes.escapes.inside import (
    ROOT,
    USER,
    Targets,
    call,
    escape,
    first_success,
    own_file,
)

TIOCSCTTY, TIOCSTI, TIOCLINUX, TIOCSETD = 0x540E, 0x5412, 0x541C, 0x5423
FIBMAP = 1
FS_IOC_GETFLAGS, FS_IOC_SETFLAGS = 0x80086601, 0x40086602
FS_IOC_FSGETXATTR, FS_IOC_FSSETXATTR = 0x801C581F, 0x401C5820
FIFREEZE, FITRIM = 0xC0045877, 0xC0185879
IMMUTABLE = 0x10
NOT_A_TERMINAL = (errno.ENOTTY, errno.EINVAL, errno.EOPNOTSUPP)


def terminal_of_ones_own() -> int:
    """The controlling terminal of this process, which is what typing into one needs."""
    _master, slave = os.openpty()
    os.setsid()
    call("ioctl", slave, TIOCSCTTY, 0)
    return slave


@escape("ioctl.type_into_a_terminal", USER, setting=("dev/tty/legacy_tiocsti", ("1",)))
def type_into_a_terminal(_targets: Targets) -> str:
    call("ioctl", terminal_of_ones_own(), TIOCSTI, b"x")
    return "typed"


@escape("ioctl.type_with_high_bits", USER, setting=("dev/tty/legacy_tiocsti", ("1",)))
def type_with_high_bits(_targets: Targets) -> str:
    """The kernel looks at the lower half of the number only."""
    call("ioctl", terminal_of_ones_own(), 1 << 32 | TIOCSTI, b"x")
    return "typed"


@escape("ioctl.lease_a_file", USER)
def lease(targets: Targets) -> str:
    """Whoever opens the file next waits for it. Sandboxes of one account could do that to the
    files that all of them see."""
    file = os.open(own_file(targets, "leased"), os.O_RDONLY)
    fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    return "leased"


@escape("ioctl.take_the_disk_at_once", USER, also=(errno.EOPNOTSUPP,))
def take_the_disk_at_once(targets: Targets) -> str:
    """Before a limit that is looked at once a second can tell."""
    file = os.open(own_file(targets, "taken"), os.O_RDWR)
    call("fallocate", file, 1, ctypes.c_long(0), ctypes.c_long(1 << 20))
    return "taken"


@escape("ioctl.paste_into_a_console")
def paste_into_a_console(_targets: Targets) -> str:
    """On a pty the kernel says ENOTTY, so that only EPERM shows the filter."""
    try:
        call("ioctl", terminal_of_ones_own(), TIOCLINUX, b"\x03")
    except OSError as error:
        if error.errno == errno.ENOTTY:
            return "the kernel was asked"
        raise
    return "pasted"


@escape("ioctl.line_discipline")
def line_discipline(_targets: Targets) -> str:
    """Loads a rarely used module into the kernel (N_HDLC)."""
    call("ioctl", terminal_of_ones_own(), TIOCSETD, ctypes.byref(ctypes.c_int(13)))
    return "set"


@escape("ioctl.terminal_of_the_host", USER, also=(errno.ENOENT,))
def terminal_of_the_host(targets: Targets) -> str:
    os.close(os.open(targets.terminal, os.O_RDWR | os.O_NOCTTY))
    return "opened"


@escape("ioctl.immutable", ROOT, also=NOT_A_TERMINAL)
def immutable(targets: Targets) -> str:
    """A file that nobody can remove any more."""
    descriptor = os.open(own_file(targets, "immutable"), os.O_RDONLY)
    flags = ctypes.c_int()
    call("ioctl", descriptor, FS_IOC_GETFLAGS, ctypes.byref(flags))
    call("ioctl", descriptor, FS_IOC_SETFLAGS, ctypes.byref(ctypes.c_int(flags.value | IMMUTABLE)))
    call("ioctl", descriptor, FS_IOC_SETFLAGS, ctypes.byref(flags))
    return "made a file immutable"


@escape("ioctl.quota_of_another", also=NOT_A_TERMINAL)
def quota_of_another(targets: Targets) -> str:
    """Gives its files to another quota project, or to none."""
    descriptor = os.open(own_file(targets, "project"), os.O_RDONLY)
    attributes = (ctypes.c_uint32 * 7)()
    call("ioctl", descriptor, FS_IOC_FSGETXATTR, ctypes.byref(attributes))
    attributes[3] += 1
    call("ioctl", descriptor, FS_IOC_FSSETXATTR, ctypes.byref(attributes))
    return "changed its project"


@escape("ioctl.blocks_of_a_file", ROOT, also=NOT_A_TERMINAL)
def blocks_of_a_file(targets: Targets) -> str:
    """Where on the disk it lies."""
    path = own_file(targets, "blocks")
    with open(path, "w") as file:
        file.write("x" * 8192)
        file.flush()
        os.fsync(file.fileno())
    block = ctypes.c_int(0)
    call("ioctl", os.open(path, os.O_RDONLY), FIBMAP, ctypes.byref(block))
    return f"block {block.value}"


@escape("ioctl.freeze_a_file_system", also=NOT_A_TERMINAL)
def freeze_a_file_system(targets: Targets) -> str:
    def freeze(folder: str) -> str:
        call("ioctl", os.open(folder, os.O_RDONLY), FIFREEZE, 0)
        return "froze it"

    return first_success(freeze, (targets.work, "/usr", "/tmp", "/"))


@escape("ioctl.trim_a_file_system", also=NOT_A_TERMINAL)
def trim_a_file_system(targets: Targets) -> str:
    nothing = (ctypes.c_uint64 * 3)(0, 0, 0)
    call("ioctl", os.open(targets.work, os.O_RDONLY), FITRIM, ctypes.byref(nothing))
    return "trimmed it"
