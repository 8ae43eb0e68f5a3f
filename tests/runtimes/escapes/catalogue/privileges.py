"""Becoming somebody else: ids, capabilities, set-uid programs."""

from __future__ import annotations

import ctypes
import errno
import os
import select
import shutil
import signal
import stat
import subprocess
from typing import Any

from tests.runtimes.escapes.inside import (
    NAMESPACE,
    NUMBERS,
    ROOT,
    USER,
    X86_64,
    Refused,
    Targets,
    call,
    escape,
    own_file,
    own_folder,
    syscall,
)

CAP_SYS_ADMIN = 21
VERSION_3 = 0x20080522
PR_SET_SECCOMP, PR_CAPBSET_READ, PR_SET_SECUREBITS = 22, 23, 28
PR_GET_NO_NEW_PRIVS, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 39, 38, 47
PROMPT_S = 3
UNMAPPED = (errno.EINVAL,)
NOT_HERE = (errno.ENOSYS,)
NO_YAMA = ("kernel/yama/ptrace_scope", ("0", "1"))


@escape("setuid.root_by_call", NAMESPACE, also=UNMAPPED)
def root_by_call(_targets: Targets) -> str:
    os.setresuid(0, 0, 0)
    return "is root"


@escape("setuid.root_group_by_call", NAMESPACE, also=UNMAPPED)
def root_group_by_call(_targets: Targets) -> str:
    os.setresgid(0, 0, 0)
    return "is of root's group"


@escape("setuid.groups_by_call", ROOT, also=UNMAPPED)
def groups_by_call(_targets: Targets) -> str:
    os.setgroups([0, 4, 6, 27])
    return "is of root's groups"


@escape("setuid.another_user_of_the_host", ROOT, also=UNMAPPED)
def another_user_of_the_host(_targets: Targets) -> str:
    os.setresuid(33, 33, 33)
    return "is another user"


@escape("setuid.program", USER)
def program(_targets: Targets) -> str:
    """`su` waits for a password; meanwhile its rights can be looked at."""
    with subprocess.Popen(
        ["su", "root"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        assert process.stdout is not None
        select.select([process.stdout], [], [], PROMPT_S)
        try:
            with open(f"/proc/{process.pid}/status") as file:
                ids = next(line for line in file if line.startswith("Uid")).split()[1:]
        finally:
            process.kill()
    if "0" in ids:
        return f"su runs with the ids {ids}"
    raise Refused(f"su runs with the ids {ids}")


@escape("setuid.ones_own_program")
def ones_own_program(targets: Targets) -> str:
    """A file that one made set-uid oneself gives nothing, whoever executes it."""
    path = f"{targets.work}/id"
    shutil.copy("/usr/bin/id", path)
    os.chmod(path, 0o6755)
    found = subprocess.run([path, "-u"], capture_output=True, text=True, check=True).stdout
    os.unlink(path)
    if int(found) != os.getuid():
        return f"became {found}"
    raise Refused(f"still {found.strip()}")


SET_ID = 0o6755
CWD = -100


def given(targets: Targets, name: str, *arguments: Any) -> str:
    """Whether a file of one's own has the bits now: on the host it would run as its owner."""
    path = f"{targets.work}/set-id-{name}"
    words = [path.encode() if one is ... else one for one in arguments]
    if name.startswith(("chmod", "fchmod")):
        with open(path, "w"):
            pass
    try:
        syscall(name.partition("-")[0], *words)
        return f"{os.stat(path).st_mode & 0o6000:o}"
    finally:
        if os.path.exists(path):
            os.unlink(path)


@escape("setuid.bits_by_chmod", USER, also=NOT_HERE)
def bits_by_chmod(targets: Targets) -> str:
    return given(targets, "chmod", ..., SET_ID)


@escape("setuid.bits_by_fchmodat", USER)
def bits_by_fchmodat(targets: Targets) -> str:
    return given(targets, "fchmodat", CWD, ..., SET_ID)


@escape("setuid.bits_by_fchmodat2", USER)
def bits_by_fchmodat2(targets: Targets) -> str:
    return given(targets, "fchmodat2", CWD, ..., SET_ID, 0)


@escape("setuid.bits_by_fchmod_of_what_was_kept_open", USER)
def bits_by_fchmod(targets: Targets) -> str:
    """Of a file without a name, which a link gives it later."""
    descriptor = os.open(targets.work, os.O_TMPFILE | os.O_WRONLY, 0o755)
    syscall("fchmod", descriptor, SET_ID)
    return f"{os.fstat(descriptor).st_mode & 0o6000:o}"


@escape("setuid.bits_by_creat", USER, also=NOT_HERE)
def bits_by_creat(targets: Targets) -> str:
    return given(targets, "creat", ..., SET_ID)


@escape("setuid.bits_by_open", USER, also=NOT_HERE)
def bits_by_open(targets: Targets) -> str:
    return given(targets, "open", ..., os.O_CREAT | os.O_WRONLY, SET_ID)


@escape("setuid.bits_by_openat", USER)
def bits_by_openat(targets: Targets) -> str:
    return given(targets, "openat", CWD, ..., os.O_CREAT | os.O_EXCL | os.O_RDWR, SET_ID)


@escape("setuid.bits_of_a_file_without_a_name", USER)
def bits_of_a_file_without_a_name(targets: Targets) -> str:
    flags = os.O_TMPFILE | os.O_WRONLY
    descriptor = syscall("openat", CWD, targets.work.encode(), flags, SET_ID)
    return f"{os.fstat(descriptor).st_mode & 0o6000:o}"


@escape("setuid.bits_by_openat2", USER)
def bits_by_openat2(targets: Targets) -> str:
    how = (ctypes.c_uint64 * 3)(os.O_CREAT | os.O_WRONLY, SET_ID, 0)
    return given(targets, "openat2", CWD, ..., ctypes.byref(how), ctypes.sizeof(how))


@escape("setuid.bits_by_mknod", USER, also=NOT_HERE)
def bits_by_mknod(targets: Targets) -> str:
    return given(targets, "mknod", ..., stat.S_IFREG | SET_ID, 0)


@escape("setuid.bits_by_mknodat", USER)
def bits_by_mknodat(targets: Targets) -> str:
    return given(targets, "mknodat", CWD, ..., stat.S_IFREG | SET_ID, 0)


@escape("setuid.bits_of_a_folder", also=())
def bits_of_a_folder(targets: Targets) -> str:
    """The kernel ignores them in mkdir, so the filter need not look."""
    path = f"{targets.work}/set-id-folder"
    os.mkdir(path, 0o6755)
    mode = os.stat(path).st_mode
    os.rmdir(path)
    if mode & 0o6000:
        return f"{mode:o}"
    raise Refused("the kernel ignores them")


@escape("setuid.bits_by_ptrace_of_a_child", USER, setting=NO_YAMA)
def bits_by_ptrace(targets: Targets) -> str:
    """A tracer changes the argument after the filter was asked, if it was asked too early."""
    path = own_file(targets, "traced")
    if not X86_64:
        raise Refused("written for one machine")
    child = os.fork()
    if child == 0:
        try:
            call("ptrace", 0, 0, None, None)
            os.kill(os.getpid(), signal.SIGSTOP)
            syscall("chmod", path.encode(), 0o755)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    changed = False
    while True:
        call("ptrace", 24, child, None, None)  # PTRACE_SYSCALL
        _pid, status = os.waitpid(child, 0)
        if os.WIFEXITED(status) or os.WIFSIGNALED(status):
            break
        registers = (ctypes.c_ulonglong * 27)()
        call("ptrace", 12, child, None, ctypes.byref(registers))  # PTRACE_GETREGS
        number, second = 15, 13  # orig_rax, rsi
        if registers[number] == NUMBERS["chmod"] and not changed:
            registers[second], changed = SET_ID, True
            call("ptrace", 13, child, None, ctypes.byref(registers))  # PTRACE_SETREGS
    mode = os.stat(path).st_mode & 0o6000
    if mode:
        return f"{mode:o}"
    raise Refused("the filter was asked afterwards")


@escape("setuid.mount_program", NAMESPACE)
def mount_program(targets: Targets) -> str:
    folder = own_folder(targets, "mount-program")
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "none", folder], capture_output=True, text=True, check=False
    )
    if done.returncode == 0:
        return "mounted"
    raise Refused(done.stderr.strip().rpartition(":")[2].strip())


@escape("setuid.nosuid_everywhere")
def nosuid_everywhere(_targets: Targets) -> str:
    """Two walls: no-new-privileges, and in case of need the mounts."""
    if call("prctl", PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) != 1:
        return "no-new-privileges is not set"
    open_mounts = []
    with open("/proc/self/mountinfo") as file:
        for line in file:
            fields = line.split()
            if "nosuid" not in fields[5].split(","):
                open_mounts.append(fields[4])
    if open_mounts:
        return f"set-uid programs count on {open_mounts}"
    raise Refused("every mount is nosuid")


@escape("capabilities.file", NAMESPACE)
def capability_of_a_file(targets: Targets) -> str:
    value = bytes.fromhex("0100000200002000000000000000000000000000")
    os.setxattr(own_file(targets, "capable"), "security.capability", value)
    return "gave a file a capability"


@escape("capabilities.take", ROOT)
def take(_targets: Targets) -> str:
    header = (ctypes.c_uint32 * 2)(VERSION_3, 0)
    bit = 1 << CAP_SYS_ADMIN
    data = (ctypes.c_uint32 * 6)(bit, bit, 0)
    syscall("capset", ctypes.byref(header), ctypes.byref(data))
    return "has CAP_SYS_ADMIN"


@escape("capabilities.ambient")
def ambient(_targets: Targets) -> str:
    call("prctl", PR_CAP_AMBIENT, 2, CAP_SYS_ADMIN, 0, 0)
    return "raised"


@escape("capabilities.bounding_set", USER)
def bounding_set(_targets: Targets) -> str:
    held = [bit for bit in range(41) if call("prctl", PR_CAPBSET_READ, bit, 0, 0, 0)]
    if held:
        return f"can get {len(held)}"
    raise Refused("empty")


@escape("capabilities.secure_bits", NAMESPACE)
def secure_bits(_targets: Targets) -> str:
    call("prctl", PR_SET_SECUREBITS, 0, 0, 0, 0)
    return "cleared"


@escape("capabilities.new_privileges", also=(errno.EINVAL,))
def new_privileges(_targets: Targets) -> str:
    call("prctl", PR_SET_NO_NEW_PRIVS, 0, 0, 0, 0)
    return "cleared"


@escape("capabilities.filter_off", also=(errno.EINVAL,))
def filter_off(_targets: Targets) -> str:
    call("prctl", PR_SET_SECCOMP, 0, 0, 0, 0)
    return "switched off"


@escape("capabilities.groups_of_the_host")
def groups_of_the_host(_targets: Targets) -> str:
    """Run as root, nobody's supplementary groups come along."""
    known = [group for group in os.getgroups() if group not in (os.getgid(), 65534)]
    if known:
        return f"groups {os.getgroups()}"
    raise Refused("none")
