"""Where hooks say what the agent does."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from carrel.agents.frontends.lines import Object, decode
from carrel.agents.terminals.hook import SOCKET

MAX_DATAGRAM = 1 << 20


@asynccontextmanager
async def hearing(
    folder: Path, heard: Callable[[Object], None]
) -> AsyncIterator[Callable[[], None]]:
    """While the block runs; what it gives hears at once what has come. What is no JSON object is
    nothing: anybody in the space may write there."""
    place = folder / SOCKET
    place.unlink(missing_ok=True)
    listener = _bound(folder)
    loop = asyncio.get_running_loop()

    def read() -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                told = decode(listener.recv(MAX_DATAGRAM))
                if told is not None:
                    heard(told)

    loop.add_reader(listener, read)
    try:
        yield read
    finally:
        loop.remove_reader(listener)
        listener.close()
        place.unlink(missing_ok=True)


def _bound(folder: Path) -> socket.socket:
    """By a descriptor of the folder: its path may be too long for a socket."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    here = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        listener.bind(f"/proc/self/fd/{here}/{SOCKET}")
    except OSError:
        listener.close()
        raise
    finally:
        os.close(here)
    return listener
