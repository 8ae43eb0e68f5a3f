"""A difference of ten thousand files flows, at the pace of its reader: nobody holds all of it."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import psutil

from carrel.client import Space
from tests.daemon.rig import Daemon

FILES, LINES = 10_000, 80
MAKE = f"""
import os
for at in range({FILES}):
    folder = f"d{{at // 100:03}}"
    os.makedirs(folder, exist_ok=True)
    with open(f"{{folder}}/f{{at:05}}.txt", "w") as file:
        file.writelines(f"line {{line}} of file {{at}} in {{folder}}\\n" for line in range({LINES}))
"""
OF_DAEMON = 16 << 20
"""Packs and paths on their way, and what an allocator keeps; the text is more."""
OF_CLIENT = 4 << 20
HEAD = b"\n+++ b/d"


def memory(pid: int, field: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) << 10
    raise AssertionError(f"no {field} of {pid}")


def test_nobody_holds_it(space: Space, daemon: Daemon) -> None:
    assert space.run(["python3", "-c", MAKE]).code == 0
    assert len(b"".join(space.diff("d000"))) > 0
    Path(f"/proc/{daemon.pid}/clear_refs").write_text("5")
    before = memory(daemon.pid, "VmRSS")
    tracemalloc.start()
    try:
        pieces = space.diff()
        size, heads, rest = 0, 0, b""
        for number, piece in enumerate(pieces):
            if not number:
                # It waits for the reader with most of what it has to tell.
                git = [one.cmdline() for one in psutil.Process(daemon.pid).children(recursive=True)]
                assert any("diff-tree" in words for words in git)
                assert memory(daemon.pid, "VmHWM") - before < OF_DAEMON
            size += len(piece)
            rest += piece
            heads += rest.count(HEAD)
            rest = rest[-len(HEAD) + 1 :]
        assert heads == FILES and size > 1.4 * OF_DAEMON
        assert tracemalloc.get_traced_memory()[1] < OF_CLIENT
    finally:
        tracemalloc.stop()
    assert memory(daemon.pid, "VmHWM") - before < OF_DAEMON
