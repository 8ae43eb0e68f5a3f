"""The process that launchers are forked from: it has loaded what they load, and nothing else,
for a launcher that were large would fork slowly."""

from __future__ import annotations

import json
import os
import select
import socket
import traceback

from carrel.launcher import start

_MESSAGE_BYTES = 1 << 14
"""More than two paths have room for."""


def main(number: int) -> None:
    """Serves who comes to this socket, until the standard input ends; then its folder goes,
    however the one who had it made has ended."""
    # As every launcher of an ordinary user does, which is done once for all of them here.
    start._execute_a_sealed_copy()
    listener = socket.socket(fileno=number)
    while number in select.select([0, number], [], [])[0]:
        connection, _address = listener.accept()
        with connection:
            message, descriptors, _flags, _ = socket.recv_fds(connection, _MESSAGE_BYTES, 2)
        if not message:
            continue
        child = os.fork()
        if child == 0:
            listener.close()
            _become(message, *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        os.waitpid(child, 0)
    folder = os.path.dirname(listener.getsockname())
    for name in os.listdir(folder):
        os.unlink(os.path.join(folder, name))
    os.rmdir(folder)


def _become(message: bytes, ready: int, log: int) -> None:
    """Never returns: here and in the launcher itself, which is a child of this one."""
    code = 1
    try:
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        folder, version = json.loads(message)
        start.main(folder, ready, version)
        code = 0
    except SystemExit:
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)
