"""The end of a session: everything in it is told to end at once, and nothing begins anew.

So does systemd when a person logs out and the daemon was started from a shell: it signals every
process of the session's scope once, and waits for the scope to be empty.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from carrel.linux import cgroupfs
from tests.accounts import Account, interpreter_for
from tests.sampling import beyond

TREE = Path("/sys/fs/cgroup/systemd")
"""Carrel puts sandboxes into groups of other trees, and here nobody leaves the scope."""
EMPTY_S = 30.0
"""An end takes a second or two; a launcher that idles would stay for a minute."""
SOON_S = 60.0


class Scope:
    """A control group, for a command and all that comes of it."""

    def __init__(self, folder: Path, data: Path, account: Account | None) -> None:
        self.folder = folder
        self._data = data
        self._account = account

    def run(self, *words: str) -> str:
        env = {"PATH": os.defpath, "CARREL_DATA": str(self._data), "HOME": "/nonexistent"}
        argv = [sys.executable, "-m", "carrel.cli.main", *words]
        if self._account is not None:
            found = interpreter_for(self._account)
            argv[0], env["PYTHONPATH"] = found.executable, found.pythonpath

        def join() -> None:
            cgroupfs.write(self.folder, cgroupfs.PROCS, str(os.getpid()))
            if self._account is not None:
                os.setgroups([])
                os.setresgid(*[self._account.gid] * 3)
                os.setresuid(*[self._account.uid] * 3)

        done = subprocess.run(
            argv, env=env, preexec_fn=join, capture_output=True, text=True, timeout=SOON_S
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def members(self) -> list[int]:
        return sorted(cgroupfs.members(self.folder))


@pytest.fixture(params=["root", "ordinary user"])
def scope(request: pytest.FixtureRequest, data: Path, ordinary_user: Account) -> Iterator[Scope]:
    if os.geteuid() != 0 or not (TREE / cgroupfs.PROCS).exists():
        pytest.skip("needs root, and a tree of control groups that only names sessions")
    account = None
    if request.param == "ordinary user":
        account = ordinary_user
        os.chown(data, account.uid, account.gid)
    folder = TREE / f"carrel-test-{secrets.token_hex(4)}.scope"
    folder.mkdir()
    try:
        yield Scope(folder, data, account)
    finally:
        cgroupfs.kill(folder)
        cgroupfs.remove(folder)


def _launcher(data: Path) -> int:
    return int((data / "launcher" / "lock").read_text())


def _launcher_first(data: Path, members: list[int]) -> list[int]:
    launcher = _launcher(data)
    return [launcher, *(pid for pid in members if pid != launcher)]


ORDERS: dict[str, Callable[[Path, list[int]], list[int]]] = {
    "in the order of their numbers": lambda _data, members: members,
    "the launcher first": _launcher_first,
}


BY_NUMBER, LAUNCHER_FIRST = ORDERS


@pytest.mark.parametrize(
    ("scope", "order"),
    [
        ("root", BY_NUMBER),
        ("ordinary user", LAUNCHER_FIRST),
        *beyond(("root", LAUNCHER_FIRST), ("ordinary user", BY_NUMBER)),
    ],
    indirect=["scope"],
)
def test_nothing_begins_when_all_is_told_to_end(scope: Scope, data: Path, order: str) -> None:
    scope.run("new", "--empty", "--name", "desk")
    scope.run("exec", "--detach", "desk", "--", "sleep", "1000")
    for pid in ORDERS[order](data, scope.members()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    assert cgroupfs.wait_empty(scope.folder, EMPTY_S), _named(scope.members())


def test_one_that_was_begun_too_late_goes_with_the_daemon(scope: Scope, data: Path) -> None:
    """The daemon hears of its launcher's end before it is itself told to end, and starts
    another, to know how the command ended."""
    scope.run("new", "--empty", "--name", "desk")
    run = scope.run("exec", "--detach", "desk", "--", "sleep", "1000")
    first = _launcher(data)
    os.kill(first, signal.SIGTERM)
    deadline = time.monotonic() + SOON_S
    while _launcher(data) == first:
        assert time.monotonic() < deadline
        scope.run("run", "show", run)
    for pid in scope.members():
        if pid != _launcher(data):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
    assert cgroupfs.wait_empty(scope.folder, EMPTY_S), _named(scope.members())


def _named(members: list[int]) -> list[str]:
    return [
        Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode() for pid in members
    ]
