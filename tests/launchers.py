"""Launchers that are forked (`tests.nursery`): hundreds would else begin an interpreter each. And
no MCP process before its first session: each daemon would else load the SDK at its first turn, for
more than a second. And isolation and overlays that are tried out once in a session: each data
folder would else try them again for its first space, which takes longer than most tests. Nor is
room kept on a disk that no test fills.

Tests of how launchers start, and of what is tried out, have none of it.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import pickle
import select
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from carrel import __version__
from carrel.domain.availability import Availability
from carrel.domain.runtimes import Proof, Runtime, Sandbox
from carrel.domain.trees import TreeMount
from carrel.interfaces.mcp import McpProcess
from carrel.launcher.client import START_S, Launcher
from carrel.linux.reserve import Reserve
from carrel.runtimes import bubblewrap, proof
from carrel.runtimes.proof import Prover
from carrel.trees.drivers.overlay import OverlayDriver

ROOT = Path(__file__).resolve().parent.parent
END_S = 20.0
"""It ends at once when it is told to; the rest is for a loaded machine."""
_PROGRAM = """
import sys
sys.path[:0] = sys.argv[1:3]
from tests.nursery import main
main(int(sys.argv[3]))
"""

_begun: list[tuple[str, subprocess.Popen[bytes]]] = []


def nursery() -> str:
    """The address of this session's, which the first who needs it begins."""
    if not _begun:
        # Nobody else's to enter: who is heard there decides what is started.
        address = os.path.join(tempfile.mkdtemp(prefix="carrel-nursery-"), "socket")
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(address)
            listener.listen()
            argv = [sys.executable, "-I", "-S", "-c", _PROGRAM, str(ROOT / "src"), str(ROOT)]
            process = subprocess.Popen(
                [*argv, str(listener.fileno())],
                stdin=subprocess.PIPE,
                pass_fds=(listener.fileno(),),
                cwd="/",
                env={"PATH": "/usr/bin:/bin"},
            )
        _begun.append((address, process))
    return _begun[0][0]


def end_nursery() -> None:
    while _begun:
        address, process = _begun.pop()
        with process:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                shutil.rmtree(os.path.dirname(address))


@contextlib.contextmanager
def forked_launchers(*, tried: bool = True) -> Iterator[None]:
    """Those that this process starts meanwhile are. `tried`: what held once holds."""
    with pytest.MonkeyPatch.context() as patch:
        _patch(patch, nursery(), tried)
        yield


def fork_launchers(address: str) -> None:
    """For the rest of this process's life: it was started by one that has a nursery."""
    _patch(pytest.MonkeyPatch(), address, tried=True)


def _patch(patch: pytest.MonkeyPatch, address: str, tried: bool) -> None:
    patch.setattr(Launcher, "_start", functools.partialmethod(_start, address))
    patch.setattr(McpProcess, "expect", _expect_nothing)
    if tried:
        # Beside the nursery's socket: for all daemons of the session, and no others.
        folder = Path(os.path.dirname(address))
        patch.setattr(Prover, "try_out", functools.partialmethod(_try_out, folder))
        patch.setattr(Prover, "require", functools.partialmethod(_require, folder))
        patch.setattr(OverlayDriver, "probe", functools.partialmethod(_probe, folder))
        patch.setattr(Reserve, "take_back", _take_back)


def _expect_nothing(self: McpProcess) -> None:
    """Its first session starts it."""


def _start(launcher: Launcher, address: str) -> None:
    folder = launcher._folder.resolve()
    done, ready = os.pipe2(os.O_CLOEXEC)
    try:
        message = json.dumps([str(folder), __version__]).encode()
        with (
            open(folder / "log", "ab") as log,
            socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection,
        ):
            connection.settimeout(START_S)
            connection.connect(address)
            socket.send_fds(connection, [message], [ready, log.fileno()])
    finally:
        os.close(ready)
    try:
        select.select([done], [], [], START_S)
    finally:
        os.close(done)


# What was tried out. Nothing is kept of what did not hold.

_real_try_out, _real_require, _real_probe = Prover.try_out, Prover.require, OverlayDriver.probe
_real_take_back = Reserve.take_back


async def _try_out(prover: Prover, folder: Path, runtime: Runtime) -> Proof:
    stamp = bubblewrap._stamp("bwrap")
    note = _note(folder, "tried", runtime.name, prover._shown, stamp)
    if note.exists():
        found: Proof = pickle.loads(note.read_bytes())
    else:
        found = await _real_try_out(prover, runtime)
        _write(note, found)
    return found


async def _require(
    prover: Prover,
    folder: Path,
    runtime: Runtime,
    sandbox: Sandbox,
    tree: TreeMount,
    stamp: object = None,
) -> None:
    configuration = (*proof._configuration(sandbox), stamp)
    note = _note(folder, "proven", *configuration)
    if note.exists():
        prover._proven.add(configuration)
    else:
        await _real_require(prover, runtime, sandbox, tree, stamp)
        _write(note, None)


def _probe(driver: OverlayDriver, folder: Path) -> Availability:
    """On one file system."""
    driver._data.mkdir(mode=0o711, parents=True, exist_ok=True)
    place = os.stat(driver._data).st_dev
    note = _note(folder, "overlay", place, driver._host is None)
    found: Availability
    if note.exists():
        found, driver._maps_ids = pickle.loads(note.read_bytes())
    elif (found := _real_probe(driver)).available:
        _write(note, (found, driver._maps_ids))
    return found


def _take_back(reserve: Reserve) -> None:
    above = os.path.dirname(reserve._folder)
    if os.stat(above).st_dev == os.stat(tempfile.gettempdir()).st_dev:
        os.makedirs(reserve._folder, mode=0o700, exist_ok=True)
    else:
        _real_take_back(reserve)


def _note(folder: Path, *key: object) -> Path:
    return folder / hashlib.sha256(repr(key).encode()).hexdigest()


def _write(note: Path, found: Any) -> None:
    """At once: daemons of one session do this side by side."""
    part = note.with_name(f"{note.name}.{os.getpid()}")
    part.write_bytes(pickle.dumps(found))
    part.rename(note)
