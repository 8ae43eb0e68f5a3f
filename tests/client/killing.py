"""A daemon that dies while a command counts."""

from __future__ import annotations

import os
import select
import signal

from carrel.daemon import places
from tests.daemon.rig import Daemon

GONE_S = 30.0
"""For a killed process to be gone, on a busy machine."""
COUNT = 60
COUNTING = f"""
i=0
while [ $i -lt {COUNT} ]; do echo $i; echo e$i >&2; i=$((i+1)); sleep 0.05; done
"""


def kill(daemon: Daemon) -> None:
    """As the kernel does when memory is short: nobody is told. Returns when all of it is
    gone; its first thread alone may be, while others hold the socket open."""
    found = places.holder(daemon.data)
    assert found is not None
    descriptor = os.pidfd_open(found.pid)
    try:
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        readable, _, _ = select.select([descriptor], [], [], GONE_S)
        assert readable
    finally:
        os.close(descriptor)
