"""Makes one connection the standard input and output of a server that speaks on these.

Nobody stands between the two then. Standard library only: `run` is called in a child of the
launcher, or it is run as

    python -I -S stdio.py --fd N [--wait SECONDS] -- COMMAND…

where N is a Unix socket that listens, and becomes the command once a client has come. Standard
error stays.
"""

from __future__ import annotations

import _socket
import os
import select
import signal
import sys
import warnings  # noqa: F401 - what executes a program imports it: inside, its file may be missing

WAIT_S = 60.0
"""For the client, which comes as soon as it was told where to."""


def accepted(number: int, wait_s: float) -> int:
    """The only connection: who comes later is refused."""
    listener = _socket.socket(fileno=number)
    poll = select.poll()
    poll.register(number, select.POLLIN)
    if not poll.poll(wait_s * 1000):
        raise TimeoutError(f"nobody came in {wait_s:g} s")
    listener.setblocking(True)
    connection: int = listener._accept()[0]  # type: ignore[attr-defined]
    listener.close()
    return connection


def main(words: list[str]) -> None:
    split = words.index("--")
    given = {"--wait": str(WAIT_S)} | dict(zip(words[:split:2], words[1:split:2], strict=True))
    command = words[split + 1 :]
    if not command or given.keys() != {"--fd", "--wait"}:
        raise ValueError("usage: stdio.py --fd N [--wait SECONDS] -- COMMAND…")
    connection = accepted(int(given["--fd"]), float(given["--wait"]))
    for stream in (0, 1):
        os.dup2(connection, stream)
    # An interpreter ignores it, and what it executes would too.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    os.execvp(command[0], command)


def run(words: list[str]) -> None:
    try:
        main(words)
    except (OSError, ValueError) as error:
        sys.exit(f"carrel: the server cannot be started: {error}")


if __name__ == "__main__":
    run(sys.argv[1:])
