"""Standard input and output of a server that takes over from `front`."""

from __future__ import annotations

import io
import os

from anyio import AsyncFile, wrap_file

from carrel.mcp.ends import private_ends
from carrel.mcp.front import Begun


def take_over(begun: Begun) -> tuple[AsyncFile[str], AsyncFile[str]]:
    """What the client writes, and what it reads."""
    heard, said = private_ends()
    return wrap_file(_hearing(begun.first, heard)), wrap_file(_Said(said, begun))


def _hearing(first: bytes, descriptor: int) -> io.TextIOWrapper:
    heard = io.BufferedReader(_Heard(first, descriptor))
    return io.TextIOWrapper(heard, encoding="utf-8", errors="replace")


class _Heard(io.RawIOBase):
    """What was read already, then what comes."""

    def __init__(self, first: bytes, descriptor: int) -> None:
        self._first = memoryview(first)
        self._descriptor = descriptor

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        if not self._first:
            return os.readv(self._descriptor, [buffer])
        count = min(len(buffer), len(self._first))
        buffer[:count], self._first = self._first[:count], self._first[count:]
        return count


class _Said(io.TextIOWrapper):
    """Without the answer that the client has already. The SDK writes a message at a time."""

    def __init__(self, descriptor: int, begun: Begun) -> None:
        super().__init__(os.fdopen(descriptor, "wb", closefd=False), encoding="utf-8")
        self._unsaid = f'"id":"{begun.unsaid}"' if begun.unsaid else ""

    def write(self, text: str) -> int:
        if self._unsaid and self._unsaid in text:
            self._unsaid = ""
            return len(text)
        return super().write(text)
