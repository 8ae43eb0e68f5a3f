"""Device nodes, made and found."""

from __future__ import annotations

import os
import stat

from tests.runtimes.escapes.inside import (
    ROOT,
    Refused,
    Targets,
    escape,
    first_success,
    read,
)

READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def disks() -> list[tuple[int, int, str]]:
    with open("/proc/partitions") as file:
        rows = [line.split() for line in file.readlines()[2:]]
    return [(int(row[0]), int(row[1]), row[3]) for row in rows if len(row) == 4]


def opened(path: str) -> str:
    os.close(os.open(path, READ))
    return "opened"


def make_and_read(path: str, kind: int, number: int) -> str:
    os.mknod(path, kind | 0o600, number)
    try:
        return read(path)[:20]
    finally:
        os.unlink(path)


@escape("devices.make_a_disk")
def make_a_disk(targets: Targets) -> str:
    major, minor, _name = disks()[0]
    number = os.makedev(major, minor)
    folders = (targets.work, "/tmp", "/dev/shm", "/dev")
    return first_success(
        lambda folder: make_and_read(f"{folder}/carrel-disk", stat.S_IFBLK, number), folders
    )


@escape("devices.make_a_character_device", ROOT)
def make_a_character_device(targets: Targets) -> str:
    """/dev/zero: harmless, and yet only for those who could make /dev/mem."""
    number = os.makedev(1, 5)
    return make_and_read(f"{targets.work}/carrel-zero", stat.S_IFCHR, number)


@escape("devices.disk")
def disk(_targets: Targets) -> str:
    return first_success(lambda one: read(f"/dev/{one[2]}")[:20], disks())


@escape("devices.disk_by_descriptor_folder")
def disk_by_descriptor_folder(_targets: Targets) -> str:
    """/dev/disk, /dev/block and /dev/mapper hold further names of them."""
    folders = ("/dev/disk", "/dev/block", "/dev/mapper", "/dev/bus", "/sys/block")
    return first_success(lambda folder: f"lists {os.listdir(folder)[:3]}", folders)


@escape("devices.kernel_memory")
def kernel_memory(_targets: Targets) -> str:
    return first_success(opened, ("/dev/mem", "/dev/kmem", "/dev/port", "/dev/cpu/0/msr"))


@escape("devices.kernel_log", ROOT)
def kernel_log(_targets: Targets) -> str:
    return opened("/dev/kmsg")


@escape("devices.file_systems_in_user_space", ROOT)
def file_systems_in_user_space(_targets: Targets) -> str:
    return opened("/dev/fuse")


@escape("devices.loop", ROOT)
def loop(_targets: Targets) -> str:
    return first_success(opened, ("/dev/loop-control", "/dev/loop0"))


@escape("devices.network_tunnel", ROOT)
def network_tunnel(_targets: Targets) -> str:
    return opened("/dev/net/tun")


@escape("devices.virtual_machines")
def virtual_machines(_targets: Targets) -> str:
    return first_success(
        opened, ("/dev/kvm", "/dev/vhost-net", "/dev/vhost-vsock", "/dev/vfio/vfio")
    )


@escape("devices.consoles")
def consoles(_targets: Targets) -> str:
    """bubblewrap shows /dev/console only when the command has a terminal of its own."""
    names = ("tty0", "tty1", "vcs", "vcsa", "console", "ttyS0", "hvc0")
    return first_success(opened, [f"/dev/{name}" for name in names])


@escape("devices.input_and_graphics")
def input_and_graphics(_targets: Targets) -> str:
    names = ("input/event0", "uinput", "dri/card0", "fb0", "snd/controlC0", "video0", "nvidia0")
    return first_success(opened, [f"/dev/{name}" for name in names])


@escape("devices.terminals_of_the_host", ROOT)
def terminals_of_the_host(_targets: Targets) -> str:
    found = [name for name in os.listdir("/dev/pts") if name != "ptmx"]
    if found:
        return f"sees {found}"
    raise Refused("none but its own")
