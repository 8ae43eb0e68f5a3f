"""The assembler against a direct reading of the policy, and against the kernel."""

from __future__ import annotations

import errno
import mmap
import platform
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carrel.linux.libc import HIGHEST, NUMBERS
from carrel.linux.seccomp import (
    ALLOW,
    AUDIT_ARCH,
    ArgumentTest,
    FilterPolicy,
    SyscallRule,
    compile_filter,
    errno_action,
)
from carrel.runtimes.policy import DEFAULT
from tests.linux.bpf import evaluate
from tests.linux.confined import Confinement

ABSENT = errno_action(errno.ENOSYS)
REFUSED = errno_action(errno.EPERM)
MACHINES = sorted(NUMBERS)


def expected(policy: FilterPolicy, machine: str, number: int, arguments: list[int]) -> int:
    """What the policy says, read plainly."""
    if machine == "x86_64" and number >= 0x40000000:
        return policy.foreign
    if number > HIGHEST:
        return policy.unknown
    for rule in policy.rules:
        if NUMBERS[machine].get(rule.syscall) != number:
            continue
        if all(
            ((arguments[test.argument] & test.mask) in test.values) is not test.negate
            for test in rule.when
        ):
            return rule.action
    return policy.default


_values = st.integers(0, 15)
_tests = st.builds(
    ArgumentTest,
    argument=st.integers(0, 5),
    values=st.lists(_values, min_size=1, max_size=6).map(tuple),
    mask=st.sampled_from([0xFFFFFFFF, 0xF, 0x3]),
    negate=st.booleans(),
)
_names = sorted(set(NUMBERS["x86_64"]) | set(NUMBERS["aarch64"]))
_rules = st.builds(
    SyscallRule,
    syscall=st.sampled_from(_names),
    action=st.integers(1, 4000).map(errno_action),
    when=st.lists(_tests, max_size=3).map(tuple),
)
_policies = st.lists(_rules, max_size=60).map(lambda rules: FilterPolicy(tuple(rules)))


@pytest.mark.parametrize("machine", MACHINES)
@given(
    policy=_policies,
    calls=st.lists(
        st.tuples(
            st.sampled_from(_names) | st.integers(0, 0xFFFFFFFF),
            st.lists(_values | st.integers(0, 2**64 - 1), min_size=6, max_size=6),
        ),
        min_size=1,
        max_size=20,
    ),
)
@settings(max_examples=150, deadline=None)
def test_compiled_code_says_what_the_policy_says(
    machine: str, policy: FilterPolicy, calls: list[tuple[str | int, list[int]]]
) -> None:
    program = compile_filter(policy, machine)
    for call, arguments in calls:
        number = NUMBERS[machine].get(call, 0) if isinstance(call, str) else call
        found = evaluate(program, AUDIT_ARCH[machine], number, arguments)
        assert found == expected(policy, machine, number, arguments)
        assert evaluate(program, 0x40000003, number, arguments) == policy.foreign


def test_jumps_beyond_255_instructions() -> None:
    values = tuple(range(200))
    rules = tuple(
        SyscallRule(
            "ioctl", errno_action(1 + place), (ArgumentTest(0, values), ArgumentTest(1, (place,)))
        )
        for place in range(4)
    )
    policy = FilterPolicy(rules + tuple(SyscallRule(name, REFUSED) for name in NUMBERS["x86_64"]))
    program = compile_filter(policy, "x86_64")
    assert len(program) // 8 > 3 * 255
    for first in (0, 7, 199, 200, 5000):
        for second in range(6):
            arguments = [first, second, 0, 0, 0, 0]
            found = evaluate(program, AUDIT_ARCH["x86_64"], 16, arguments)
            assert found == expected(policy, "x86_64", 16, arguments)


def test_an_empty_policy_allows() -> None:
    program = compile_filter(FilterPolicy(()), "aarch64")
    assert evaluate(program, AUDIT_ARCH["aarch64"], 64, []) == ALLOW
    assert evaluate(program, AUDIT_ARCH["x86_64"], 64, []) == ABSENT


def test_what_cannot_be_compiled() -> None:
    with pytest.raises(ValueError, match="vax"):
        compile_filter(DEFAULT, "vax")
    with pytest.raises(ValueError, match="no_such_call"):
        compile_filter(FilterPolicy((SyscallRule("no_such_call", REFUSED),)), "x86_64")
    endless = SyscallRule("ioctl", REFUSED, (ArgumentTest(0, tuple(range(5000))),))
    with pytest.raises(ValueError, match="instructions"):
        compile_filter(FilterPolicy((endless,)), "x86_64")


def test_compiled_once() -> None:
    assert compile_filter(DEFAULT, "x86_64") is compile_filter(DEFAULT, "x86_64")


@pytest.mark.parametrize(
    ("machine", "header"),
    [
        ("x86_64", "/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
        ("aarch64", "/usr/include/asm-generic/unistd.h"),
    ],
)
def test_numbers_are_those_of_the_kernels_headers(machine: str, header: str) -> None:
    if not Path(header).exists():
        pytest.skip("the kernel's headers are not installed")
    text = Path(header).read_text()
    known = {name: int(number) for name, number in re.findall(r"__NR_(\w+)\s+(\d+)", text)}
    shared = NUMBERS[machine].keys() & known.keys()
    assert len(shared) > 50
    assert {name: known[name] for name in shared} == {
        name: NUMBERS[machine][name] for name in shared
    }


_CALL = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *(ctypes.c_long(one) for one in arguments))
    return ctypes.get_errno() if result == -1 else 0
"""


def test_the_kernel_takes_it_and_does_as_it_says() -> None:
    getppid = {"x86_64": 110, "aarch64": 173}[platform.machine()]
    policy = FilterPolicy(
        (
            SyscallRule(
                "keyctl", errno_action(77), (ArgumentTest(0, (5, 6)), ArgumentTest(1, (0,), mask=2))
            ),
            SyscallRule("keyctl", errno_action(78), (ArgumentTest(0, (5,)),)),
        )
    )
    keyctl = NUMBERS[platform.machine()]["keyctl"]
    answer = Confinement(program=compile_filter(policy)).python(
        f"""{_CALL}
answer = [call({keyctl}, 5, 1), call({keyctl}, 6, 4), call({keyctl}, 5, 3),
          call({keyctl}, 5 + (1 << 32), 0), call({getppid}),
          call({HIGHEST + 1}), call(5000), call(-1)]
"""
    )
    absent = errno.ENOSYS
    assert answer == [77, 77, 78, 77, 0, absent, absent, absent]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="x86_64 has other ways to call")
def test_other_ways_into_the_kernel_are_closed() -> None:
    """The x32 numbers, and the 32-bit calls through int 0x80."""
    code = f"""{_CALL}
import mmap
page = mmap.mmap(-1, {mmap.PAGESIZE}, prot=7)
page.write(bytes.fromhex("b814000000cd80c3"))  # mov eax, 20 (getpid); int 0x80; ret
enter = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
answer = [call(39 | 0x40000000), enter()]
"""
    plain = Confinement().python(code)
    assert plain[1] > 0 or plain[1] == -errno.ENOSYS  # by how the kernel was built
    filtered = Confinement(program=compile_filter(FilterPolicy(()), "x86_64")).python(code)
    assert filtered == [errno.ENOSYS, -errno.ENOSYS]


def test_children_inherit_it_and_cannot_take_it_off() -> None:
    program = compile_filter(FilterPolicy((SyscallRule("chroot", errno_action(99)),)))
    code = """
import subprocess
seccomp.install(bytes.fromhex(seccomp.compile_filter(seccomp.FilterPolicy(())).hex()))
child = "import os\\ntry: os.chroot('/')\\nexcept OSError as error: print(error.errno)"
answer = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True).stdout
"""
    assert Confinement(program=program).python(code).strip() == "99"
