"""Mounts: making, changing and removing them, and changing the root."""

from __future__ import annotations

import ctypes
import errno
import os

from tests.runtimes.escapes.inside import (
    NAMESPACE,
    Targets,
    call,
    create,
    escape,
    own_folder,
    read,
    syscall,
)

MS_RDONLY, MS_REMOUNT, MS_BIND, MS_MOVE, MS_REC = 0x1, 0x20, 0x1000, 0x2000, 0x4000
MS_SHARED = 1 << 20
MNT_DETACH = 2
AT_FDCWD = -100
OPEN_TREE_CLONE = 1
FSCONFIG_CMD_CREATE = 6
MOVE_MOUNT_F_EMPTY_PATH = 4
MOUNT_ATTR_RDONLY = 1


def mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    words = [source.encode(), target.encode(), kind and kind.encode()]
    call("mount", *words, flags, options.encode() or None)


@escape("mounts.bind", NAMESPACE)
def bind(targets: Targets) -> str:
    folder = own_folder(targets, "bind")
    mount("/", folder, None, MS_BIND | MS_REC)
    return f"bound the root: {os.listdir(folder)[:2]}"


@escape("mounts.writable_again", NAMESPACE)
def writable_again(targets: Targets) -> str:
    mount("none", targets.read_only, None, MS_REMOUNT | MS_BIND)
    return create(targets.read_only + "/carrel-escape")


@escape("mounts.tmpfs", NAMESPACE)
def tmpfs(targets: Targets) -> str:
    mount("none", own_folder(targets, "tmpfs"), "tmpfs", 0)
    return "mounted a tmpfs"


@escape("mounts.proc", NAMESPACE)
def proc(targets: Targets) -> str:
    mount("proc", own_folder(targets, "proc"), "proc", 0)
    return "mounted another /proc"


@escape("mounts.sysfs", NAMESPACE)
def sysfs(targets: Targets) -> str:
    mount("sysfs", own_folder(targets, "sysfs"), "sysfs", 0)
    return "mounted a /sys"


@escape("mounts.terminals", NAMESPACE)
def terminals(targets: Targets) -> str:
    mount("devpts", own_folder(targets, "devpts"), "devpts", 0)
    return "mounted terminals"


@escape("mounts.overlay", NAMESPACE)
def overlay(targets: Targets) -> str:
    """With layers of its own on a tmpfs, as an overlay does not take another for a layer."""
    top = own_folder(targets, "overlay")
    mount("none", top, "tmpfs", 0)
    for name in ("lower", "upper", "work", "merged"):
        os.mkdir(f"{top}/{name}")
    options = f"lowerdir={top}/lower,upperdir={top}/upper,workdir={top}/work,userxattr"
    mount("none", f"{top}/merged", "overlay", 0, options)
    return "mounted an overlay"


@escape("mounts.disk")
def disk(targets: Targets) -> str:
    """The host's own disk, by the number that /proc/partitions tells."""
    with open("/proc/partitions") as file:
        name = file.read().split()[7]
    mount(f"/dev/{name}", own_folder(targets, "disk"), "ext4", MS_RDONLY)
    return "mounted the disk"


@escape("mounts.open_file_system", NAMESPACE)
def open_file_system(_targets: Targets) -> str:
    system = syscall("fsopen", b"tmpfs", 0)
    syscall("fsconfig", system, FSCONFIG_CMD_CREATE, None, None, 0)
    return f"made a mount: {syscall('fsmount', system, 0, 0)}"


@escape("mounts.clone_and_attach", NAMESPACE)
def clone_and_attach(targets: Targets) -> str:
    tree = syscall("open_tree", AT_FDCWD, b"/proc", OPEN_TREE_CLONE)
    target = own_folder(targets, "attached").encode()
    syscall("move_mount", tree, b"", AT_FDCWD, target, MOVE_MOUNT_F_EMPTY_PATH)
    return "attached a clone"


@escape("mounts.move", NAMESPACE)
def move(targets: Targets) -> str:
    target = own_folder(targets, "moved-mount").encode()
    syscall("move_mount", AT_FDCWD, targets.read_only.encode(), AT_FDCWD, target, 0)
    return "moved a mount away"


@escape("mounts.attributes", NAMESPACE)
def attributes(targets: Targets) -> str:
    """mount_setattr: clears "read-only"."""
    wanted = (ctypes.c_uint64 * 4)(0, MOUNT_ATTR_RDONLY)
    path = targets.read_only.encode()
    syscall("mount_setattr", AT_FDCWD, path, 0, ctypes.byref(wanted), ctypes.sizeof(wanted))
    return create(targets.read_only + "/carrel-escape")


@escape("mounts.unmount", NAMESPACE)
def unmount(targets: Targets) -> str:
    """What a mount covers would come to light."""
    call("umount2", targets.read_only.encode(), MNT_DETACH)
    return "unmounted"


@escape("mounts.propagation", NAMESPACE)
def propagation(targets: Targets) -> str:
    mount("none", targets.read_only, None, MS_SHARED)
    return "made a mount shared"


@escape("mounts.new_root", NAMESPACE, also=(errno.EINVAL,))
def new_root(targets: Targets) -> str:
    folder = own_folder(targets, "root")
    if os.geteuid() == 0:
        mount("none", folder, "tmpfs", 0)
    os.makedirs(f"{folder}/old", exist_ok=True)
    syscall("pivot_root", folder.encode(), f"{folder}/old".encode())
    return f"has another root: {os.listdir('/')}"


@escape("mounts.double_chroot", NAMESPACE)
def double_chroot(targets: Targets) -> str:
    """The classic: leave a chroot by making another while being outside of it."""
    folder = own_folder(targets, "jail")
    os.chroot(folder)
    for _ in range(60):
        os.chdir("..")
    os.chroot(".")
    return read(targets.canary)
