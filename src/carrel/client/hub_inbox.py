"""What was heard and not yet asked for: bounded by bytes, and cheap for each message."""

from __future__ import annotations

from collections import deque

from carrel.client.hub_messages import HubMessage

HIGH = 4 << 20
"""Bytes after which nothing more is read, as long as nobody waits for an answer."""
LOW = 1 << 20
"""… and reading goes on below that."""
MOST = 64 << 20
"""Bytes after which more is thrown away: what is kept is replayed later."""


class Inbox:
    """Bytes are counted by the pieces in which they came: `size` is without the piece that is
    being taken out."""

    def __init__(self) -> None:
        self.size = 0
        self._current: list[HubMessage] = []
        self._more: deque[tuple[list[HubMessage], int]] = deque()

    def __bool__(self) -> bool:
        return bool(self._current or self._more)

    def put(self, messages: list[HubMessage], size: int) -> None:
        if messages:
            self._more.append((messages, size))
            self.size += size

    def take(self) -> HubMessage | None:
        if not self._current and not self._turn():
            return None
        return self._current.pop()

    def take_all(self) -> list[HubMessage]:
        """Those that came together."""
        if not self._current and not self._turn():
            return []
        messages, self._current = self._current, []
        messages.reverse()
        return messages

    def _turn(self) -> bool:
        if not self._more:
            return False
        self._current, size = self._more.popleft()
        self._current.reverse()
        self.size -= size
        return True
