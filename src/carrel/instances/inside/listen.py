"""Binds a port in the sandbox for a server that takes a socket and checks no token.

A gate stands before that port. Standard library only: `run` is called in a child of the
launcher, or it is run as

    python -I -S listen.py PORT_FILE -- COMMAND…

and becomes the command: `{fd}` in its words is the descriptor, which is also told as systemd
tells it. The file has the port, and is whole as soon as it is there.
"""

from __future__ import annotations

import _socket
import os
import signal
import sys
import warnings  # noqa: F401 - what executes a program imports it: inside, its file may be missing

BACKLOG = 512
SYSTEMD_FD = 3
"""By that convention it is always the first one after the standard streams."""


def listener() -> int:
    with_port = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
    with_port.bind(("127.0.0.1", 0))
    with_port.listen(BACKLOG)
    return with_port.detach()


def port_of(number: int) -> int:
    bound = _socket.socket(fileno=number)
    try:
        return int(bound.getsockname()[1])
    finally:
        bound.detach()


def write_port(path: str, port: int) -> None:
    new = f"{path}.new"
    with open(new, "w") as file:
        file.write(f"{port}\n")
    os.rename(new, path)


def main(words: list[str]) -> None:
    if len(words) < 3 or words[1] != "--":
        raise ValueError("usage: listen.py PORT_FILE -- COMMAND…")
    path, _, *command = words
    number = listener()
    os.set_inheritable(number, True)
    env = dict(os.environ)
    if number == SYSTEMD_FD:
        env |= {"LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid())}
    write_port(path, port_of(number))
    command = [word.replace("{fd}", str(number)) for word in command]
    # An interpreter ignores it, and what it executes would too.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    os.execvpe(command[0], command, env)


def run(words: list[str]) -> None:
    try:
        main(words)
    except (OSError, ValueError) as error:
        sys.exit(f"carrel: the server cannot be started: {error}")


if __name__ == "__main__":
    run(sys.argv[1:])
