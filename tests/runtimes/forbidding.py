"""Runs a program on a machine as some are: one that forbids namespaces, or Landlock too.

python -m tests.runtimes.forbidding namespaces[,landlock] PROGRAM ARGUMENT…
"""

from __future__ import annotations

import errno
import os
import sys

from carrel.linux import libc
from carrel.linux.seccomp import (
    ArgumentTest,
    FilterPolicy,
    SyscallRule,
    compile_filter,
    errno_action,
    install,
)

_NAMESPACES = 0x7E020000
_DENIED = errno_action(errno.EPERM)
_ABSENT = errno_action(errno.ENOSYS)

RULES = {
    "namespaces": (
        SyscallRule("unshare", _DENIED, (ArgumentTest(0, (0,), mask=_NAMESPACES, negate=True),)),
        SyscallRule("clone", _DENIED, (ArgumentTest(0, (0,), mask=_NAMESPACES, negate=True),)),
        SyscallRule("setns", _DENIED),
        SyscallRule("clone3", _ABSENT),
    ),
    "landlock": (SyscallRule("landlock_create_ruleset", _ABSENT),),
}


def main() -> None:
    rules = tuple(rule for name in sys.argv[1].split(",") for rule in RULES[name])
    install(compile_filter(FilterPolicy(rules), libc.MACHINE))
    os.execv(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
