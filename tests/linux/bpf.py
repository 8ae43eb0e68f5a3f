"""A classic BPF machine in Python, to ask a compiled filter what it would answer."""

from __future__ import annotations

import struct
from collections.abc import Sequence

_LOAD, _AND, _RETURN, _JUMP = 0x20, 0x54, 0x06, 0x05
_EQUAL, _GREATER, _AT_LEAST = 0x15, 0x25, 0x35


def evaluate(program: bytes, arch: int, number: int, arguments: Sequence[int]) -> int:
    """The action for one system call. Fails on code that the kernel would refuse."""
    data = struct.pack("<IIQ6Q", number, arch, 0, *(*arguments, *[0] * (6 - len(arguments))))
    code = list(struct.iter_unpack("=HBBI", program))
    accumulator, at = 0, 0
    while True:
        operation, when_true, when_false, constant = code[at]
        at += 1
        if operation == _RETURN:
            return int(constant)
        if operation == _LOAD:
            assert constant % 4 == 0
            (accumulator,) = struct.unpack_from("<I", data, constant)
        elif operation == _AND:
            accumulator &= constant
        elif operation == _JUMP:
            at += constant
        else:
            holds = {
                _EQUAL: accumulator == constant,
                _GREATER: accumulator > constant,
                _AT_LEAST: accumulator >= constant,
            }[operation]
            at += when_true if holds else when_false
