"""Server-sent events, as they come off the wire: bytes in, events out."""

from __future__ import annotations

MAX_EVENT = 16 * 1024 * 1024
"""The largest is a record of a space or a long list of changes; beyond that something is wrong."""


class ServerEvent:
    """One event. `id` is the last one that was given, with it or before it."""

    __slots__ = ("data", "id", "type")

    def __init__(self, type: str, data: str, id: str) -> None:
        self.type = type
        self.data = data
        self.id = id


class EventParser:
    """After the WHATWG's rules: any line ending, comments ignored, an event that the end of
    the stream cuts off is no event."""

    def __init__(self, last_id: str = "") -> None:
        self.last_id = last_id
        """Where to begin again: of the last event that came as a whole."""
        self.retry_s: float | None = None
        """How long the server asks to wait before one comes back."""
        self._buffer = bytearray()
        self._id = last_id
        self._type = ""
        self._data: list[str] = []
        self._size = 0
        self._begun = False

    def receive(self, data: bytes) -> list[ServerEvent]:
        """Raises `ValueError` for one that is larger than `MAX_EVENT`."""
        self._buffer += data
        found = []
        for line in self._lines():
            event = self._line(line)
            if event is not None:
                found.append(event)
        if self._size + len(self._buffer) > MAX_EVENT:
            raise ValueError("An event is too large.")
        return found

    def _lines(self) -> list[str]:
        """The complete ones. A final CR waits: an LF that belongs to it may follow."""
        buffer = self._buffer
        end = max(buffer.rfind(b"\n"), buffer.rfind(b"\r", 0, max(0, len(buffer) - 1)))
        if end < 0:
            return []
        text = bytes(buffer[: end + 1]).decode("utf-8", "replace")
        del buffer[: end + 1]
        if not self._begun:
            self._begun = True
            text = text.removeprefix("\ufeff")
        return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")[:-1]

    def _line(self, line: str) -> ServerEvent | None:
        if not line:
            return self._dispatch()
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
            # With its line's end: empty ones are kept, too.
            self._size += len(value) + 1
        elif name == "event":
            self._type = value
        elif name == "id" and "\0" not in value:
            self._id = value
        elif name == "retry" and value.isascii() and value.isdigit():
            self.retry_s = int(value) / 1000
        return None

    def _dispatch(self) -> ServerEvent | None:
        data, kind = self._data, self._type
        self._data, self._type, self._size = [], "", 0
        self.last_id = self._id
        if not data:
            return None
        return ServerEvent(kind or "message", "\n".join(data), self.last_id)
