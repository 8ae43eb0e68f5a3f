"""Seccomp filters: a small assembler from a plain policy to classic BPF.

A compiled filter is an array of `struct sock_filter`, as `bwrap --seccomp FD` reads it
and as `install` loads it. It looks at the architecture first, then at the number of the
system call, then at the arguments that the policy names:

    foreign architecture           -> policy.foreign
    x32 number (x86_64 only)       -> policy.foreign
    number above all known ones    -> policy.unknown
    a rule matches                 -> the rule's action (the first one that matches)
    otherwise                      -> policy.default

Code is put together from fragments that each end in a return on every way through, so
that a fragment can stand anywhere and only forward jumps over a whole fragment exist.
"""

from __future__ import annotations

import ctypes
import errno
import struct
from functools import lru_cache
from typing import NamedTuple

from carrel.linux import libc, namespaces
from carrel.linux.libc import HIGHEST, NUMBERS

ALLOW = 0x7FFF0000
_ERRNO = 0x00050000

AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32_BIT = 0x40000000

_NUMBER_AT = 0
_ARCH_AT = 4
_ARGUMENTS_AT = 16

_LOAD = 0x20  # BPF_LD | BPF_W | BPF_ABS
_AND = 0x54  # BPF_ALU | BPF_AND | BPF_K
_JUMP = 0x05  # BPF_JMP | BPF_JA
_IF_EQUAL = 0x15
_IF_GREATER = 0x25
_IF_AT_LEAST = 0x35
_RETURN = 0x06

_SHORT_JUMP = 255
"""A conditional jump has eight bits for its distance."""
MAX_INSTRUCTIONS = 4096
"""The kernel's own bound (BPF_MAXINSNS)."""

_ALL_BITS = 0xFFFFFFFF
_SECCOMP_SET_MODE_FILTER = 1

Instruction = tuple[int, int, int, int]
"""Operation, distance when true, distance when false, constant."""


def errno_action(number: int) -> int:
    """The action that makes a call fail with this errno."""
    return _ERRNO | number


class ArgumentTest(NamedTuple):
    """True when the low 32 bits of an argument, masked, are one of `values` (or, with
    `negate`, none of them). 32 bits are all that the kernel looks at in every argument
    that the policies here test."""

    argument: int
    values: tuple[int, ...]
    mask: int = _ALL_BITS
    negate: bool = False


class SyscallRule(NamedTuple):
    """`action` for a call for which every test holds."""

    syscall: str
    action: int
    when: tuple[ArgumentTest, ...] = ()


class FilterPolicy(NamedTuple):
    """Rules in order; several for one call are tried one after the other."""

    rules: tuple[SyscallRule, ...]
    default: int = ALLOW
    unknown: int = _ERRNO | errno.ENOSYS
    foreign: int = _ERRNO | errno.ENOSYS


def _return(action: int) -> list[Instruction]:
    return [(_RETURN, 0, 0, action)]


def _any(
    operation: int,
    constants: tuple[int, ...],
    then: list[Instruction],
    otherwise: list[Instruction],
) -> list[Instruction]:
    """Runs `then` when the comparison holds for one of the constants; `otherwise` stands
    first in memory."""
    count, distance = len(constants), len(otherwise)
    if count - 1 + distance <= _SHORT_JUMP:
        hop: list[Instruction] = []
    else:  # the comparisons jump to a long jump, and the last one falls past it
        hop = [(_JUMP, 0, 0, 1), (_JUMP, 0, 0, distance)]
        distance = 1
    compare = [
        (operation, count - 1 - place + distance, 0, constant)
        for place, constant in enumerate(constants)
    ]
    return compare + hop + otherwise + then


def _branch(
    operation: int, constant: int, then: list[Instruction], otherwise: list[Instruction]
) -> list[Instruction]:
    return _any(operation, (constant,), then, otherwise)


def _tests(
    tests: tuple[ArgumentTest, ...], then: list[Instruction], otherwise: list[Instruction]
) -> list[Instruction]:
    """`then` when all tests hold. `otherwise` is repeated for each way to it."""
    if not tests:
        return then
    test = tests[0]
    matched = _tests(tests[1:], then, otherwise)
    found, missed = (otherwise, matched) if test.negate else (matched, otherwise)
    body = _any(_IF_EQUAL, test.values, found, missed)
    # The low half comes first: both architectures are little-endian.
    head: list[Instruction] = [(_LOAD, 0, 0, _ARGUMENTS_AT + 8 * test.argument)]
    if test.mask != _ALL_BITS:
        head.append((_AND, 0, 0, test.mask))
    return head + body


def _chain(rules: list[SyscallRule], default: int) -> list[Instruction]:
    """The rules of one system call."""
    code = _return(default)
    for rule in reversed(rules):
        code = _tests(rule.when, _return(rule.action), code)
    return code


def _search(bodies: list[tuple[int, list[Instruction]]], default: int) -> list[Instruction]:
    """Binary search for the number, which is in the accumulator."""
    if len(bodies) == 1:
        number, body = bodies[0]
        return _branch(_IF_EQUAL, number, body, _return(default))
    middle = len(bodies) // 2
    return _branch(
        _IF_AT_LEAST,
        bodies[middle][0],
        _search(bodies[middle:], default),
        _search(bodies[:middle], default),
    )


def _by_number(policy: FilterPolicy, machine: str) -> dict[int, list[SyscallRule]]:
    table = NUMBERS[machine]
    grouped: dict[int, list[SyscallRule]] = {}
    for rule in policy.rules:
        if not any(rule.syscall in known for known in NUMBERS.values()):
            raise ValueError(f"The filter names an unknown system call: {rule.syscall}.")
        number = table.get(rule.syscall)
        if number is not None:  # some calls exist on one architecture only
            grouped.setdefault(number, []).append(rule)
    return grouped


@lru_cache(maxsize=32)
def compile_filter(policy: FilterPolicy, machine: str = libc.MACHINE) -> bytes:
    """The BPF program of a policy. Raises ValueError for a machine or a system call that
    is not in the tables, and for a policy that does not fit in a filter."""
    if machine not in NUMBERS:
        raise ValueError(f"There is no table of system calls for the architecture {machine}.")
    grouped = _by_number(policy, machine)
    bodies = [(number, _chain(grouped[number], policy.default)) for number in sorted(grouped)]
    code = _search(bodies, policy.default) if bodies else _return(policy.default)
    code = _branch(_IF_GREATER, HIGHEST, _return(policy.unknown), code)
    if machine == "x86_64":
        code = _branch(_IF_AT_LEAST, _X32_BIT, _return(policy.foreign), code)
    code = [(_LOAD, 0, 0, _NUMBER_AT), *code]
    native = _branch(_IF_EQUAL, AUDIT_ARCH[machine], code, _return(policy.foreign))
    program = [(_LOAD, 0, 0, _ARCH_AT), *native]
    if len(program) > MAX_INSTRUCTIONS:
        raise ValueError(f"The filter has {len(program)} instructions, more than the kernel takes.")
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def install(program: bytes) -> None:
    """Loads a compiled filter for this thread and all that it starts. Raises OSError."""
    buffer = ctypes.create_string_buffer(program, len(program))
    header = _Program(len(program) // 8, ctypes.cast(buffer, ctypes.c_void_p))
    namespaces.set_no_new_privileges()
    libc.syscall("seccomp", _SECCOMP_SET_MODE_FILTER, 0, ctypes.byref(header))
