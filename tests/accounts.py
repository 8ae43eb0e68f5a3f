"""Running things as an ordinary user, from tests that run as root. Tests that are run again are
forked from a process that has loaded what they load."""

from __future__ import annotations

import ctypes
import functools
import multiprocessing
import os
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.folders import spread
from tests.forking import forked
from tests.load.patience import SLOWER
from tests.sampling import EXHAUSTIVE, VARIABLE

SOURCE = Path(__file__).resolve().parent.parent
PYTHON = "python"
"""As the first word of a command for `run_as`: an interpreter that the user can start."""
_PLUGINS = ("cacheprovider", "xdist", "schemathesis", "hypothesispytest", "anyio")
PLUGINS = tuple(f"-pno:{name}" for name in _PLUGINS)
"""For tests that run others: without plugins that leave something, or take long to load."""
PYTEST = (PYTHON, "-m", "pytest", "-q", *PLUGINS)
"""As the first words of a command for `run_as`."""

PROBE_TIMEOUT_S = 30.0 * SLOWER
"""An interpreter starts in a fraction of a second; the rest is for a loaded machine."""
RUN_TIMEOUT_S = 100.0 * SLOWER
"""Less than a test may take, so that its failure shows what the command had said."""

_PR_SET_DUMPABLE = 4

_PROBE = """
import sys
assert sys.version_info >= (3, 11), "Python %s is too old" % sys.version.split()[0]
import importlib.util, msgspec, psutil, zstandard
for name in ("carrel", "click", "pathspec", "pytest"):
    assert importlib.util.find_spec(name), "there is no " + name
"""
"""What is made for one Python is loaded; the rest only takes long to load."""


class Account(NamedTuple):
    uid: int
    gid: int


class Interpreter(NamedTuple):
    executable: str
    pythonpath: str


def ordinary_account() -> Account:
    """A user that no account has and no other test process uses; without root, oneself."""
    if os.geteuid() != 0:
        return Account(os.geteuid(), os.getegid())
    number = 1_800_000_000 + os.getpid()
    if not _is_mapped(number):
        number = 40_000 + os.getpid() % 20_000
    return Account(number, number)


def run_as(
    account: Account,
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | str = "/",
    timeout: float = RUN_TIMEOUT_S,
    begin: Callable[[], None] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Runs a command as `account`, in an environment of its own, and captures its output. `begin`
    is what a process with tests does before it gives up being root.

    `PYTHON` as its first word stands for an interpreter with this project and what it
    needs; where the user can start none, the test is skipped.
    """
    words = [*argv]
    full = {"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8", "HOME": "/nonexistent"}
    if words[0] == PYTHON:
        interpreter = interpreter_for(account)
        words[0] = interpreter.executable
        full["PYTHONPATH"] = interpreter.pythonpath
        full["PYTHONDONTWRITEBYTECODE"] = "1"
        if EXHAUSTIVE:
            full[VARIABLE] = "1"
    full.update(env or {})
    first = len(PYTEST)
    if words[0] == sys.executable and tuple(words[1:first]) == PYTEST[1:]:
        if "TMPDIR" in full:
            spread(full["TMPDIR"])
        return _run_tests(account, words[3:], full, cwd, timeout, begin)
    return _run(account, words, full, cwd, timeout)


@functools.cache
def interpreter_for(account: Account) -> Interpreter:
    """Ours, if the user can start it; else the system's, with our packages."""
    packages = sysconfig.get_path("platlib")
    candidates = (
        Interpreter(sys.executable, f"{SOURCE / 'src'}:{SOURCE}"),
        Interpreter("/usr/bin/python3", f"{SOURCE / 'src'}:{SOURCE}:{packages}"),
    )
    refusals = []
    for candidate in candidates:
        try:
            result = _run(
                account,
                [candidate.executable, "-c", _PROBE],
                {"PYTHONPATH": candidate.pythonpath, "PYTHONDONTWRITEBYTECODE": "1"},
                "/",
                PROBE_TIMEOUT_S,
            )
        except OSError as error:
            refusals.append(f"{candidate.executable}: {error.strerror}")
            continue
        if result.returncode == 0:
            return candidate
        last = result.stderr.strip().rpartition("\n")[2]
        refusals.append(f"{candidate.executable}: {last}")
    pytest.skip(f"uid {account.uid} cannot start Python here ({'; '.join(refusals)})")


def _run(
    account: Account,
    argv: list[str],
    env: dict[str, str],
    cwd: Path | str,
    timeout: float,
) -> subprocess.CompletedProcess[str]:
    identity: dict[str, object] = {}
    if os.geteuid() == 0:
        identity = {"user": account.uid, "group": account.gid, "extra_groups": ()}
    return subprocess.run(  # type: ignore[call-overload,no-any-return]
        argv,
        env=env,
        cwd=cwd,
        timeout=timeout,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="surrogateescape",
        check=False,
        **identity,
    )


def _run_tests(
    account: Account,
    words: list[str],
    env: dict[str, str],
    cwd: Path | str,
    timeout: float,
    begin: Callable[[], None] | None,
) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryFile() as said:
        with Connection(os.dup(said.fileno()), readable=False) as output:
            args = (account, words, env, str(cwd), output, begin)
            process = forked.Process(target=_become_tests, args=args)
            process.start()
        process.join(timeout)
        code = process.exitcode
        if code is None:
            process.kill()
            process.join()
        process.close()
        said.seek(0)
        text = said.read().decode(errors="surrogateescape")
    if code is None:
        raise subprocess.TimeoutExpired(words, timeout, text)
    return subprocess.CompletedProcess(words, code, text, "")


def _become_tests(
    account: Account,
    words: list[str],
    env: dict[str, str],
    cwd: str,
    output: Connection,
    begin: Callable[[], None] | None,
) -> None:
    """As `_run` begins a process. What they fork in turn is not root's."""
    for number in (1, 2):
        os.dup2(output.fileno(), number)
    if begin is not None:
        begin()
    os.chdir(cwd)
    if os.geteuid() == 0:
        os.setgroups(())
        os.setgid(account.gid)
        os.setuid(account.uid)
        # What it has in /proc would else stay root's, until it executes something.
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)
    os.environ.clear()
    os.environ.update(env)
    sys.dont_write_bytecode = True
    tempfile.tempdir = None
    multiprocessing.current_process()._config.pop("tempdir", None)  # type: ignore[attr-defined]
    forkserver._forkserver._forkserver_address = None  # type: ignore[attr-defined]
    forkserver._forkserver._forkserver_alive_fd = None  # type: ignore[attr-defined]
    raise SystemExit(pytest.main(["-Wignore::pytest.PytestAssertRewriteWarning", *words]))


def _is_mapped(number: int) -> bool:
    ranges = (
        map(int, line.split()) for line in Path("/proc/self/uid_map").read_text().splitlines()
    )
    return any(inside <= number < inside + count for inside, _outside, count in ranges)
