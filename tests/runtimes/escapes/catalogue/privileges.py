"""Becoming somebody else: ids, capabilities, set-uid programs."""

from __future__ import annotations

import ctypes
import errno
import os
import select
import shutil
import subprocess

from tests.runtimes.escapes.inside import (
    NAMESPACE,
    ROOT,
    USER,
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
