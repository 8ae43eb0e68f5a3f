"""Records are read by several threads from the first moment on."""

from __future__ import annotations

import subprocess
import sys

import pytest

READS = """\
import sys, threading
from carrel.api import wire
from carrel.api.types.spaces import NewSpace
from carrel.domain.spaces import Space
from carrel.store import writes

space = (
    '{"space_id": "a", "name": "b", "state": "ready", "project": {"kind": "empty"},'
    ' "created_at": 1, "updated_at": 1, "active_at": 1, "owner": {"uid": 1, "gid": 2}}'
)
body = b'{"project": {"kind": "empty"}, "network": "none", "limits": {"pids": 7}}'
wire.prepare(NewSpace)
sys.setswitchinterval(1e-6)
together = threading.Barrier(4)

def read(work):
    together.wait()
    for _ in range(20):
        work()

works = [lambda: writes.load(Space, space), lambda: wire.from_json(body, NewSpace)] * 2
threads = [threading.Thread(target=read, args=(work,)) for work in works]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


@pytest.mark.parametrize("attempt", range(5))
def test_threads_that_read_at_once(attempt: int) -> None:
    """Of ten processes one crashed (SIGSEGV) when readers were made as they were needed."""
    done = subprocess.run([sys.executable, "-c", READS], capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")
