"""A port for a server that can only be told one."""

from __future__ import annotations

import socket
from types import TracebackType


class Reserved:
    """The system chose it unless it is named, and nobody else is given it while this is open. A
    server that sets SO_REUSEADDR, as nearly all do, binds it all the same, for nobody listens
    here."""

    def __init__(self, port: int = 0, host: str = "127.0.0.1") -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind((host, port))
        except OSError:
            self._socket.close()
            raise
        self.port: int = self._socket.getsockname()[1]

    @classmethod
    def again(cls, port: int) -> Reserved:
        """That one where it is still to be had."""
        try:
            return cls(port)
        except OSError:
            return cls()

    def __enter__(self) -> Reserved:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Idempotent."""
        self._socket.close()
