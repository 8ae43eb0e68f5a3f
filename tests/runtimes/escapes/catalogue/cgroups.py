"""Control groups and /sys: limits, and helpers that the kernel starts as root."""

from __future__ import annotations

import errno
import os

from tests.runtimes.escapes.inside import (
    NAMESPACE,
    ROOT,
    Targets,
    call,
    escape,
    first_success,
    open_for_writing,
    own_folder,
)

ROOTS = ("/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/pids")

HIDDEN = (errno.ENOENT, errno.EROFS)


def files(name: str) -> list[str]:
    return [f"{root}/{name}" for root in ROOTS]


@escape("cgroups.release_agent", ROOT, also=HIDDEN)
def release_agent(_targets: Targets) -> str:
    """The program that the kernel starts, as root of the host, when a group is empty."""
    return first_success(open_for_writing, files("release_agent"))


@escape("cgroups.notify_on_release", ROOT, also=HIDDEN)
def notify_on_release(_targets: Targets) -> str:
    return first_success(open_for_writing, files("notify_on_release"))


@escape("cgroups.leave_ones_own", ROOT, also=HIDDEN)
def leave_ones_own(_targets: Targets) -> str:
    """Opened only: to join the root group would be to lose every limit."""
    return first_success(open_for_writing, files("cgroup.procs"))


@escape("cgroups.make_one", ROOT, also=HIDDEN)
def make_one(_targets: Targets) -> str:
    def make(path: str) -> str:
        os.mkdir(path)
        os.rmdir(path)
        return "made"

    return first_success(make, files(f"carrel-escape-{os.getpid()}"))


@escape("cgroups.mount_version_1")
def mount_version_1(targets: Targets) -> str:
    folder = own_folder(targets, "cgroup1").encode()
    call("mount", b"none", folder, b"cgroup", 0, b"memory")
    return "mounted"


@escape("cgroups.mount_version_2", NAMESPACE)
def mount_version_2(targets: Targets) -> str:
    call("mount", b"none", own_folder(targets, "cgroup2").encode(), b"cgroup2", 0, None)
    return "mounted"


@escape("cgroups.others_processes", ROOT, also=HIDDEN)
def others_processes(_targets: Targets) -> str:
    def look(path: str) -> str:
        with open(path) as file:
            return f"{len(file.readlines())} processes"

    return first_success(look, files("cgroup.procs"))


@escape("sys.helper_for_events")
def helper_for_events(_targets: Targets) -> str:
    return first_success(
        open_for_writing, ("/sys/kernel/uevent_helper", "/proc/sys/kernel/hotplug")
    )


@escape("sys.kernel_settings", ROOT)
def kernel_settings(_targets: Targets) -> str:
    names = (
        "/sys/kernel/mm/transparent_hugepage/enabled",
        "/sys/kernel/profiling",
        "/sys/power/state",
        "/sys/bus/pci/rescan",
        "/sys/module/kernel/parameters/panic",
    )
    return first_success(open_for_writing, names)


@escape("sys.tracing_and_firmware")
def tracing_and_firmware(_targets: Targets) -> str:
    folders = (
        "/sys/kernel/debug",
        "/sys/kernel/tracing",
        "/sys/firmware/efi/efivars",
        "/sys/firmware/acpi/tables",
        "/sys/fs/bpf",
        "/sys/kernel/security",
    )
    return first_success(lambda folder: f"lists {os.listdir(folder)[:3]}", folders)
