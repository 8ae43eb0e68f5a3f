"""Running tests in another kernel, for what the machine's own was built without.

Debian's `user-mode-linux` is a kernel that runs as a program: with cgroup v2 alone, and
with quotas on xfs and ext4. It sees the machine's files, read-only, and starts in about
two seconds.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.accounts import PLUGINS
from tests.load.patience import SLOWER_VARIABLE

SOURCE = Path(__file__).resolve().parents[2]
TIMEOUT_S = 240.0
"""It is some ten times slower than the machine; a whole file of tests takes half a minute."""

_MODULES = ("drivers/block/loop.ko", "fs/quota/quota_tree.ko", "fs/quota/quota_v2.ko")

_INIT = """#!/bin/sh
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t tmpfs -o mode=755 tmpfs /run
mount -t tmpfs -o mode=755 tmpfs /mnt
mount -t devtmpfs dev /dev 2>/dev/null
mount -t cgroup2 cgroup /sys/fs/cgroup
mkdir -p -m 755 /run/tmp
export TMPDIR=/run/tmp PYTHONDONTWRITEBYTECODE=1 HYPOTHESIS_STORAGE_DIRECTORY=/run/hypothesis
export {slower}=4 PATH={path} PYTHONPATH={source}/src LC_ALL=C.UTF-8
ip link set lo up
cd {source}
{python} - {modules} <<'END'
import ctypes, os, sys
for path in sys.argv[1:]:
    with open(path, "rb") as file:
        ctypes.CDLL(None).syscall(313, file.fileno(), b"", 0)  # finit_module on x86_64
END
{command}
echo "status=$?"
echo o > /proc/sysrq-trigger
while :; do read nothing < /proc/kmsg; done
"""


def run_tests(folder: Path, tests: Sequence[str]) -> str:
    """Runs tests there and answers what pytest said; fails when one of them did. Skips
    when there is no such kernel to run."""
    kernel = shutil.which("linux.uml")
    if kernel is None:
        pytest.skip("needs another kernel: apt-get install user-mode-linux")
    modules = sorted((Path(kernel).parents[1] / "lib/uml/modules").glob("*/kernel"))
    paths = [str(modules[-1] / name) for name in _MODULES] if modules else []
    command = [sys.executable, "-m", "pytest", *PLUGINS, "-q", "-rs", "--color=no"]
    command += tests
    init = folder / "init"
    init.write_text(
        _INIT.format(
            slower=SLOWER_VARIABLE,
            path=shlex.quote(os.environ.get("PATH", os.defpath)),
            source=shlex.quote(str(SOURCE)),
            python=shlex.quote(sys.executable),
            modules=shlex.join(paths),
            command=shlex.join(command),
        )
    )
    init.chmod(0o755)
    output = _boot(kernel, folder, init)
    assert "status=0" in output, output
    return output


def _boot(kernel: str, folder: Path, init: Path) -> str:
    arguments = [
        kernel,
        "mem=768M",
        "root=/dev/root",
        "rootfstype=hostfs",
        "rootflags=/",
        "ro",
        "quiet",
        f"init={init}",
        f"uml_dir={folder}/",
        "con=null",
        "con0=null,fd:1",
    ]
    with subprocess.Popen(
        arguments,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, "TMPDIR": "/dev/shm"},
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=TIMEOUT_S)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return output
