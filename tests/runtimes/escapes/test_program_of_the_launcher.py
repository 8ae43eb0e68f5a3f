"""A command that executes /proc/self/exe executes the program of the process that was about
to become it: the launcher's interpreter, a file of the host. Where that belongs to the
sandbox's own host user (Python in a home folder), it must not be had for writing that way,
nor be had for writing later, when nobody executes it any more.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from carrel.domain.errors import CommandError
from carrel.launcher.client import Launcher
from tests.conformance.runtime_rig import Rig
from tests.runtimes.escapes.world import PYTHON

_SECOND = """
import errno, os, sys
way = f"/proc/self/fd/{sys.argv[1]}"
try:
    os.close(os.open(way, os.O_WRONLY))
    answer = "opened"
except OSError as error:
    answer = errno.errorcode[error.errno]
print(os.readlink(way), answer)
"""
_FIRST = f"""
import os, sys
program = os.open("/proc/self/exe", os.O_RDONLY)
os.set_inheritable(program, True)
os.execv("{PYTHON}", ["python3", "-I", "-c", {_SECOND!r}, str(program)])
"""
"""Keeps a descriptor of the program, and becomes another so that it is no longer executed."""

REFUSED = {errno.errorcode[number] for number in (errno.EACCES, errno.EPERM, errno.EROFS)}
DOORS = {
    "directly": ("/proc/self/exe", "-I", "-c", _FIRST),
    "by_a_link": ("/workspace/link", "-I", "-c", _FIRST),
    "by_a_script": ("/workspace/script",),
}


@pytest.fixture
async def rig(data: Path) -> AsyncIterator[Rig]:
    """Its launcher runs on an interpreter of the user's own."""
    version = subprocess.run(
        [PYTHON, "-c", "import sys; print(sys.version_info >= (3, 11))"],
        capture_output=True,
        text=True,
        check=True,
    )
    if version.stdout.strip() != "True":
        pytest.skip("the system's Python is too old to be the launcher's")
    program = data / "python"
    shutil.copyfile(os.path.realpath(PYTHON), program)
    program.chmod(0o755)
    opened = Rig(data, "bubblewrap", Launcher(data, python=str(program)))
    try:
        yield opened
    finally:
        await opened.close()
        opened.launcher.shutdown(force=True)


@pytest.mark.parametrize("door", DOORS)
async def test_the_sandbox_refuses(rig: Rig, door: str) -> None:
    sandbox = await rig.start()
    (sandbox.spec.tree / "link").symlink_to("/proc/self/exe")
    script = sandbox.spec.tree / "script"
    script.write_text(f"#!/proc/self/exe\n{_FIRST}")
    script.chmod(0o755)
    try:
        done = await rig.run(sandbox, *DOORS[door])
    except CommandError:
        return
    if done.exit.code != 0:
        return
    reached, _space, answer = done.out.strip().rpartition(" ")
    # A nameless copy in memory, sealed, is nobody's program: to see it is no harm.
    assert reached.startswith("/memfd:") or answer in REFUSED, done.out
