"""Server-sent events, from the bytes that come."""

from __future__ import annotations

from dataclasses import dataclass

MAX_EVENT = 16 << 20


@dataclass(frozen=True)
class Event:
    type: str
    data: str


class Events:
    """Feed it; what is whole comes out. Ends of lines are of any of the three kinds."""

    def __init__(self) -> None:
        self._rest = ""
        self._type = ""
        self._data: list[str] = []
        self._partial = b""

    def feed(self, piece: bytes) -> list[Event]:
        text, self._partial = _whole(self._partial + piece)
        self._rest += text.replace("\r\n", "\n").replace("\r", "\n")
        if len(self._rest) > MAX_EVENT:
            raise ValueError("an event is too long")
        *lines, self._rest = self._rest.split("\n")
        found = []
        for line in lines:
            if event := self._line(line):
                found.append(event)
        return found

    def _line(self, line: str) -> Event | None:
        if not line:
            event = Event(self._type or "message", "\n".join(self._data)) if self._data else None
            self._type, self._data = "", []
            return event
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            self._type = value
        elif name == "data":
            self._data.append(value)
        return None


def _whole(data: bytes) -> tuple[str, bytes]:
    """Without the beginning of a character, or of an end of a line, whose rest is to come."""
    end = len(data)
    if data.endswith(b"\r"):
        end -= 1
    for back in range(1, min(4, end) + 1):
        byte = data[end - back]
        if byte & 0xC0 != 0x80:
            length = 1 if byte < 0x80 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            if length > back:
                end -= back
            break
    return data[:end].decode("utf-8", "replace"), data[end:]
