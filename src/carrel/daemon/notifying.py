"""Telling systemd, if it is what started the daemon, that it serves and that it ends."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import MutableMapping

VARIABLE = "NOTIFY_SOCKET"


class Supervisor:
    def __init__(self, env: MutableMapping[str, str]) -> None:
        """Takes the address out of the environment: it is not for the daemon's children."""
        path = env.pop(VARIABLE, "")
        # A name that begins with @ is of no file.
        self._address = f"\0{path[1:]}" if path.startswith("@") else path

    def serving(self) -> None:
        self._tell(f"READY=1\nMAINPID={os.getpid()}\n")

    def ending(self) -> None:
        self._tell("STOPPING=1\n")

    def _tell(self, state: str) -> None:
        """Whoever does not listen does not need to know."""
        if not self._address:
            return
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as own,
        ):
            own.sendto(state.encode(), self._address)
