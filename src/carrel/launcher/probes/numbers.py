"""System calls that nothing but the probe makes, so that the filter can refuse them."""

from __future__ import annotations

from carrel.linux import libc

_X86_64 = {
    "ptrace": 101,
    "syslog": 103,
    "umount2": 166,
    "reboot": 169,
    "iopl": 172,
    "init_module": 175,
    "kexec_load": 246,
    "add_key": 248,
    "request_key": 249,
    "keyctl": 250,
    "perf_event_open": 298,
    "open_by_handle_at": 304,
    "process_vm_readv": 310,
    "bpf": 321,
    "userfaultfd": 323,
    "io_uring_setup": 425,
    "clone3": 435,
    "pidfd_getfd": 438,
}
_GENERIC = {
    **{name: value for name, value in _X86_64.items() if value > 400},
    "umount2": 39,
    "kexec_load": 104,
    "init_module": 105,
    "syslog": 116,
    "ptrace": 117,
    "reboot": 142,
    "add_key": 217,
    "request_key": 218,
    "keyctl": 219,
    "perf_event_open": 241,
    "open_by_handle_at": 265,
    "process_vm_readv": 270,
    "bpf": 280,
    "userfaultfd": 282,
}

NUMBERS = {**libc.NUMBERS, **(_X86_64 if libc.MACHINE == "x86_64" else _GENERIC)}


def syscall(name: str, *arguments: object) -> int:
    """A raw system call by name; raises OSError."""
    return libc.call("syscall", NUMBERS[name], *arguments)
