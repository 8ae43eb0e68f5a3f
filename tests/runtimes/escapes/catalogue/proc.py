"""/proc: the windows it opens into other processes and into the kernel."""

from __future__ import annotations

import os
import struct

from tests.runtimes.escapes.inside import (
    REFUSALS,
    ROOT,
    USER,
    Refused,
    Targets,
    escape,
    first_success,
    open_for_writing,
    pids,
    read,
)

PAGE = 4096
KERNEL_SETTINGS = (
    "kernel/core_pattern",
    "kernel/modprobe",
    "kernel/hotplug",
    "kernel/poweroff_cmd",
    "kernel/sysrq",
    "kernel/hostname",
    "kernel/randomize_va_space",
    "vm/drop_caches",
    "vm/overcommit_memory",
    "fs/suid_dumpable",
    "fs/binfmt_misc/register",
    "user/max_user_namespaces",
)
KERNEL_FILES = (
    "/proc/mtrr",
    "/proc/irq/default_smp_affinity",
    "/proc/bus/pci/00/00.0",
    "/proc/acpi/wakeup",
    "/proc/scsi/scsi",
    "/proc/fs/nfsd/threads",
    "/proc/dynamic_debug/control",
    "/proc/timer_stats",
)


@escape("proc.root_of_the_first_process")
def root_of_the_first_process(targets: Targets) -> str:
    return read("/proc/1/root" + targets.canary)


@escape("proc.working_folder_of_the_first_process")
def working_folder_of_the_first_process(targets: Targets) -> str:
    return read("/proc/1/cwd/" + "../" * 60 + targets.canary.lstrip("/"))


@escape("proc.root_of_any_process", USER)
def root_of_any_process(targets: Targets) -> str:
    ways = [f"/proc/{pid}/{door}" for pid in pids() for door in ("root", "cwd")]
    return first_success(lambda way: read(way + "/" + "../" * 60 + targets.canary), ways)


@escape("proc.root_of_a_process_outside", USER)
def root_of_a_process_outside(targets: Targets) -> str:
    return read(f"/proc/{targets.victim}/root{targets.canary}")


@escape("proc.descriptor_of_a_process_outside", USER)
def descriptor_of_a_process_outside(targets: Targets) -> str:
    return read(f"/proc/{targets.victim}/fd/0")


@escape("proc.descriptors_of_any_process", USER)
def descriptors_of_any_process(targets: Targets) -> str:
    """A folder or a file of the host that somebody in here has open."""

    standard = {os.readlink(f"/proc/self/fd/{number}") for number in (0, 1, 2)}

    def look(way: str) -> str:
        found = os.readlink(way)
        if found in standard:
            raise Refused("where output goes")
        if found.startswith(targets.data):
            return f"{found}: {read(way)}"
        above = f"{way}/{'../' * 60}{targets.canary.lstrip('/')}"
        return read(above)

    def all_of(pid: int) -> str:
        folder = f"/proc/{pid}/fd"
        return first_success(look, [f"{folder}/{name}" for name in os.listdir(folder)])

    return first_success(all_of, pids())


@escape("proc.environment_of_a_process_outside", USER)
def environment_of_a_process_outside(targets: Targets) -> str:
    return read(f"/proc/{targets.victim}/environ")


@escape("proc.environment_of_any_process", USER)
def environment_of_any_process(targets: Targets) -> str:
    return find_marker(targets, "environ")


@escape("proc.arguments_of_any_process", USER)
def arguments_of_any_process(targets: Targets) -> str:
    return find_marker(targets, "cmdline")


def find_marker(targets: Targets, window: str) -> str:
    marker = targets.marker.encode()
    seen = 0
    for pid in pids():
        if pid == os.getpid():
            continue
        try:
            with open(f"/proc/{pid}/{window}", "rb") as file:
                content = file.read()
        except OSError as error:
            if error.errno not in REFUSALS:
                raise
            continue
        seen += 1
        if marker in content:
            return f"in /proc/{pid}/{window}"
    raise Refused(f"in none of {seen}")


@escape("proc.memory_of_a_process_outside", USER, setting=("kernel/yama/ptrace_scope", ("0",)))
def memory_of_a_process_outside(targets: Targets) -> str:
    with open(f"/proc/{targets.victim}/mem", "rb", buffering=0) as memory:
        memory.seek(targets.victim_address)
        return f"read {memory.read(len(targets.marker))!r}"


@escape("proc.memory_map_of_a_process_outside", USER)
def memory_map_of_a_process_outside(targets: Targets) -> str:
    return read(f"/proc/{targets.victim}/maps")


@escape("proc.program_of_any_process")
def program_of_any_process(_targets: Targets) -> str:
    """The file that a process executes, opened through /proc, is the host's own: whoever
    may write it owns whoever starts it next. ETXTBSY would mean that he may."""
    return first_success(open_for_writing, [f"/proc/{pid}/exe" for pid in pids()])


@escape("proc.memory_of_the_first_process")
def memory_of_the_first_process(targets: Targets) -> str:
    """The launcher's memory must not be in it, nor a copy of its environment."""
    marker = targets.marker.encode()
    with open("/proc/1/maps") as maps, open("/proc/1/mem", "rb", buffering=0) as memory:
        for line in maps:
            start, end = (int(word, 16) for word in line.split()[0].split("-"))
            if " rw" in line and end - start < 1 << 24:
                memory.seek(start)
                if marker in memory.read(end - start):
                    return f"the marker is in {line.strip()}"
    raise Refused("not in its memory")


@escape("proc.kernel_memory")
def kernel_memory(_targets: Targets) -> str:
    return first_success(read, ("/proc/kcore", "/proc/kmem", "/dev/mem", "/proc/vmcore"))


@escape("proc.kernel_log", ROOT)
def kernel_log(_targets: Targets) -> str:
    os.close(os.open("/proc/kmsg", os.O_RDONLY | os.O_NONBLOCK))
    return "opened /proc/kmsg"


@escape("proc.kernel_addresses", ROOT, setting=("kernel/kptr_restrict", ("0", "1")))
def kernel_addresses(_targets: Targets) -> str:
    with open("/proc/kallsyms") as file:
        address = int(file.readline().split()[0], 16)
        address |= int(file.readline().split()[0], 16)
    if address:
        return f"{address:x}"
    raise Refused("all zero")


@escape("proc.physical_addresses", ROOT)
def physical_addresses(_targets: Targets) -> str:
    """Of one's own pages, which helps in attacks on memory chips."""
    descriptor = os.open("/proc/self/pagemap", os.O_RDONLY)
    with open("/proc/self/maps") as maps:
        stack = next(line for line in maps if "[stack]" in line)
    top = int(stack.split()[0].split("-")[1], 16) - PAGE
    (entry,) = struct.unpack("Q", os.pread(descriptor, 8, top // PAGE * 8))
    if entry & (1 << 55) - 1:
        return f"frame {entry & (1 << 55) - 1:x}"
    raise Refused("no frame numbers")


@escape("proc.keys_of_others", USER)
def keys_of_others(targets: Targets) -> str:
    with open("/proc/keys") as file:
        if targets.marker in file.read():
            return "sees a key of the host"
    raise Refused("none of them")


@escape("proc.sysrq")
def sysrq(_targets: Targets) -> str:
    return open_for_writing("/proc/sysrq-trigger")


@escape("proc.kernel_settings", ROOT)
def kernel_settings(_targets: Targets) -> str:
    return first_success(open_for_writing, [f"/proc/sys/{name}" for name in KERNEL_SETTINGS])


@escape("proc.kernel_files")
def kernel_files(_targets: Targets) -> str:
    return first_success(open_for_writing, KERNEL_FILES)


@escape("proc.id_maps")
def id_maps(_targets: Targets) -> str:
    for name in ("uid_map", "gid_map"):
        with open(f"/proc/self/{name}", "w") as file:
            file.write("0 0 4294967295")
    return "mapped all ids"


@escape("proc.protection_from_running_out_of_memory")
def out_of_memory(_targets: Targets) -> str:
    with open("/proc/self/oom_score_adj", "r+") as file:
        now = int(file.read())
        file.seek(0)
        file.write("-1000")
    return f"lowered from {now}"


@escape("proc.sockets_of_the_host", USER)
def sockets_of_the_host(targets: Targets) -> str:
    with open("/proc/net/unix") as file:
        if targets.abstract in file.read():
            return "sees a socket of the host"
    raise Refused("none of them")
