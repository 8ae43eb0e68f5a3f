"""System calls that attack or administer the kernel.

Where success would harm the machine they are made so that who may is told of a mistake
(another errno than EPERM), and nothing happens; those are never tried outside.
"""

from __future__ import annotations

import ctypes
import os
import time

from tests.runtimes.escapes.inside import (
    NAMESPACE,
    ROOT,
    USER,
    Targets,
    call,
    escape,
    own_file,
    syscall,
)

READ_IMPLIES_EXEC = 0x0400000
UFFD_USER_MODE_ONLY = 1
FAN_REPORT_FID = 0x200


@escape("kernel.bpf_map", ROOT)
def bpf_map(_targets: Targets) -> str:
    wanted = (ctypes.c_uint32 * 32)(2, 4, 4, 1)
    return f"map {syscall('bpf', 0, ctypes.byref(wanted), ctypes.sizeof(wanted))}"


@escape("kernel.bpf_program", ROOT)
def bpf_program(_targets: Targets) -> str:
    """r0 = 0; exit: the smallest socket filter."""
    code = ctypes.create_string_buffer(bytes.fromhex("b700000000000000") + b"\x95" + bytes(7))
    licence = ctypes.create_string_buffer(b"GPL")
    wanted = (ctypes.c_uint64 * 16)(1 | 2 << 32, ctypes.addressof(code), ctypes.addressof(licence))
    return f"program {syscall('bpf', 5, ctypes.byref(wanted), ctypes.sizeof(wanted))}"


def perf(flags: int) -> str:
    wanted = (ctypes.c_uint64 * 16)(1 | 128 << 32, 1)
    wanted[5] = flags
    return f"counter {syscall('perf_event_open', ctypes.byref(wanted), 0, -1, -1, 0)}"


@escape("kernel.performance_counter", USER, setting=("kernel/perf_event_paranoid", ("0", "1", "2")))
def performance_counter(_targets: Targets) -> str:
    return perf(1 << 5 | 1 << 6)


@escape("kernel.performance_counter_of_the_kernel", ROOT)
def performance_counter_of_the_kernel(_targets: Targets) -> str:
    return perf(0)


@escape("kernel.page_faults", USER)
def page_faults(_targets: Targets) -> str:
    return f"userfaultfd {syscall('userfaultfd', UFFD_USER_MODE_ONLY)}"


@escape("kernel.io_uring", USER, setting=("kernel/io_uring_disabled", ("0",)))
def io_uring(_targets: Targets) -> str:
    wanted = (ctypes.c_uint32 * 32)()
    return f"ring {syscall('io_uring_setup', 1, ctypes.byref(wanted))}"


@escape("kernel.file_by_handle", ROOT)
def file_by_handle(targets: Targets) -> str:
    """The handle of a file outside, told in here: with it the kernel opens the file past
    every folder on the way."""
    handle = ctypes.create_string_buffer(bytes.fromhex(targets.canary_handle), 128)
    anchor = os.open(targets.work, os.O_RDONLY)
    found = syscall("open_by_handle_at", anchor, ctypes.byref(handle), os.O_RDONLY)
    return f"read {os.read(found, 80)!r}"


@escape("kernel.file_by_guessed_handle")
def file_by_guessed_handle(targets: Targets) -> str:
    """The root of an ext4 has inode 2: no need to be told anything."""
    handle = (ctypes.c_uint32 * 4)(8, 1, 2, 0)
    anchor = os.open(targets.work, os.O_RDONLY)
    found = syscall("open_by_handle_at", anchor, ctypes.byref(handle), os.O_RDONLY)
    return f"lists {os.listdir(found)[:3]}"


@escape("kernel.watch_all_files", ROOT)
def watch_all_files(_targets: Targets) -> str:
    return f"fanotify {syscall('fanotify_init', 0, 0)}"


@escape("kernel.watch_files", USER)
def watch_files(_targets: Targets) -> str:
    return f"fanotify {syscall('fanotify_init', FAN_REPORT_FID, 0)}"


@escape("kernel.executable_memory", USER)
def executable_memory(_targets: Targets) -> str:
    call("personality", READ_IMPLIES_EXEC)
    return "all memory is executable now"


@escape("kernel.local_descriptor_table", USER)
def local_descriptor_table(_targets: Targets) -> str:
    """A piece of x86 that many exploits started from."""
    return f"{syscall('modify_ldt', 0, ctypes.create_string_buffer(64), 64)} bytes"


@escape("kernel.log", ROOT)
def log(_targets: Targets) -> str:
    return f"{syscall('syslog', 10, None, 0)} bytes"


@escape("kernel.module")
def module(_targets: Targets) -> str:
    syscall("init_module", None, 0, b"")
    return "loaded"


@escape("kernel.module_from_a_file")
def module_from_a_file(targets: Targets) -> str:
    syscall("finit_module", os.open(own_file(targets, "module.ko"), os.O_RDONLY), b"", 0)
    return "loaded"


@escape("kernel.module_removal")
def module_removal(_targets: Targets) -> str:
    syscall("delete_module", b"carrel_no_such_module", os.O_NONBLOCK)
    return "removed"


@escape("kernel.another_kernel")
def another_kernel(_targets: Targets) -> str:
    syscall("kexec_load", 0, 1 << 20, None, 0)
    return "loaded"


@escape("kernel.another_kernel_from_a_file")
def another_kernel_from_a_file(_targets: Targets) -> str:
    syscall("kexec_file_load", -1, -1, 0, None, 0)
    return "loaded"


@escape("kernel.reboot")
def reboot(_targets: Targets) -> str:
    """Without the magic numbers."""
    syscall("reboot", 0, 0, 0, None)
    return "may reboot"


@escape("kernel.clock")
def clock(_targets: Targets) -> str:
    time.clock_settime(time.CLOCK_REALTIME, time.time())
    return "set the clock"


@escape("kernel.clock_speed")
def clock_speed(_targets: Targets) -> str:
    """ADJ_TICK with a length that no clock has."""
    wanted = (ctypes.c_uint64 * 32)(0x4000)
    syscall("adjtimex", ctypes.byref(wanted))
    return "may set the speed of the clock"


@escape("kernel.swap")
def swap(targets: Targets) -> str:
    syscall("swapon", own_file(targets, "swap").encode(), 0)
    return "swaps"


@escape("kernel.accounting")
def accounting(_targets: Targets) -> str:
    syscall("acct", b"/carrel-no-such-file")
    return "writes down every process"


@escape("kernel.quota")
def quota(_targets: Targets) -> str:
    syscall("quotactl", 0x80000300, b"/dev/carrel-no-such-disk", 0, None)
    return "switched quotas off"


@escape("kernel.input_output_ports")
def input_output_ports(_targets: Targets) -> str:
    syscall("iopl", 3)
    return "has all ports"


@escape("kernel.one_input_output_port")
def one_input_output_port(_targets: Targets) -> str:
    syscall("ioperm", 0x80, 1, 1)
    return "has a port"


@escape("kernel.host_name", NAMESPACE)
def host_name(_targets: Targets) -> str:
    call("sethostname", b"carrel-escape", 13)
    return "set"


@escape("kernel.domain_name", NAMESPACE)
def domain_name(_targets: Targets) -> str:
    call("setdomainname", b"carrel-escape", 13)
    return "set"
