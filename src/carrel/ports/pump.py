"""Moves bytes between pairs of connections, both ways, in a thread of its own.

A socket is read only when the other one has taken what was read before, so a slow reader slows the
writer, and a pair holds one piece at most in each direction. What one side ends, the other is told
to have ended, and may go on itself.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable

PIECE = 64 * 1024
"""Bytes that are moved at a time: all connections have their turns. The place for them is shared;
what is idle takes none."""
IN, OUT = select.EPOLLIN, select.EPOLLOUT
END_S = 5.0
"""For the thread to end: it never waits for anything else than this."""
RESET = struct.pack("=ii", 1, 0)
_UNWATCHED = -1

OnOver = Callable[["CarriedPair"], None]


class CarriedEnd:
    """One of the two sockets of a pair."""

    __slots__ = ("ended", "events", "left", "number", "other", "pair", "shut", "socket")

    def __init__(self, own: socket.socket, pair: CarriedPair) -> None:
        own.setblocking(False)
        with contextlib.suppress(OSError):
            own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = own
        self.number = own.fileno()
        self.pair = pair
        self.other = self
        self.left = b""
        """What it did not take yet. While there is some, the other end is not read."""
        self.ended = False
        """It says no more."""
        self.shut = False
        """It was told that the other says no more."""
        self.events = _UNWATCHED

    def wants(self) -> int:
        """Not watched while nothing is wanted: the kernel would tell again and again that both of
        its sides have ended."""
        reads = IN if not self.ended and not self.other.left else 0
        return reads | (OUT if self.left else 0) or _UNWATCHED


class CarriedPair:
    """Two connections, and who is told when they are over. The pump's, once it has them."""

    def __init__(self, one: socket.socket, other: socket.socket, over: OnOver) -> None:
        self.ends = (CarriedEnd(one, self), CarriedEnd(other, self))
        self.ends[0].other, self.ends[1].other = self.ends[1], self.ends[0]
        self.over = over
        self.closed = False


class ConnectionPump:
    """Its thread is there while there are connections, or have been. `over` of a pair is called
    there. For any thread."""

    def __init__(self) -> None:
        self._tasks: deque[Callable[[], None]] = deque()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._wake = -1
        self._running = False
        # Of the thread alone
        self._poll: select.epoll | None = None
        self._ends: dict[int, CarriedEnd] = {}
        self._place = memoryview(bytearray(PIECE))

    def carry(self, one: socket.socket, other: socket.socket, over: OnOver) -> CarriedPair:
        """Until both sides have ended, or one is gone, which may be before this returns; the
        sockets are ours from now on."""
        pair = CarriedPair(one, other, over)
        self._do(lambda: self._begin(pair))
        return pair

    def cut(self, pair: CarriedPair) -> None:
        """Ends it now, as a lost connection does."""
        self._do(lambda: self._close(pair, reset=True))

    def close(self) -> None:
        """All of them end."""
        with self._lock:
            thread, self._running = self._thread, False
            if thread is None:
                return
            os.eventfd_write(self._wake, 1)
        thread.join(END_S)
        with self._lock:
            self._thread = None
            os.close(self._wake)

    def _do(self, task: Callable[[], None]) -> None:
        with self._lock:
            self._tasks.append(task)
            if self._thread is None:
                self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
                self._running = True
                self._thread = threading.Thread(target=self._run, name="ports", daemon=True)
                self._thread.start()
            os.eventfd_write(self._wake, 1)

    # In the thread

    def _run(self) -> None:
        poll = self._poll = select.epoll()
        poll.register(self._wake, IN)
        try:
            while self._running:
                for number, events in poll.poll():
                    if number == self._wake:
                        os.eventfd_read(self._wake)
                    elif (end := self._ends.get(number)) is not None:
                        self._move(end, events)
                # What opens descriptors comes last, or an event may meet another's number.
                while self._tasks:
                    self._tasks.popleft()()
        finally:
            while self._tasks:
                self._tasks.popleft()()
            for end in list(self._ends.values()):
                self._close(end.pair, reset=True)
            poll.close()

    def _begin(self, pair: CarriedPair) -> None:
        for end in pair.ends:
            self._ends[end.number] = end
        try:
            self._watch(pair)
        except OSError:
            self._close(pair, reset=True)

    def _move(self, end: CarriedEnd, events: int) -> None:
        pair = end.pair
        try:
            if events & OUT and end.left:
                end.left = end.left[self._sent(end, end.left) :]
            if events & ~OUT and not end.ended and not end.other.left:
                self._read(end)
            self._pass_ends(pair)
            if pair.ends[0].shut and pair.ends[1].shut:
                self._close(pair, reset=False)
            else:
                self._watch(pair)
        except OSError:
            self._close(pair, reset=True)

    def _read(self, end: CarriedEnd) -> None:
        try:
            count = end.socket.recv_into(self._place)
        except BlockingIOError:
            return
        if not count:
            end.ended = True
            return
        piece = self._place[:count]
        sent = self._sent(end.other, piece)
        if sent < count:
            end.other.left = bytes(piece[sent:])

    @staticmethod
    def _sent(end: CarriedEnd, piece: bytes | memoryview) -> int:
        try:
            return end.socket.send(piece)
        except BlockingIOError:
            return 0

    @staticmethod
    def _pass_ends(pair: CarriedPair) -> None:
        for end in pair.ends:
            if end.other.ended and not end.left and not end.shut:
                end.shut = True
                end.socket.shutdown(socket.SHUT_WR)

    def _watch(self, pair: CarriedPair) -> None:
        assert self._poll is not None
        for end in pair.ends:
            wanted = end.wants()
            if wanted == end.events:
                continue
            if end.events == _UNWATCHED:
                self._poll.register(end.number, wanted)
            elif wanted == _UNWATCHED:
                self._poll.unregister(end.number)
            else:
                self._poll.modify(end.number, wanted)
            end.events = wanted

    def _close(self, pair: CarriedPair, *, reset: bool) -> None:
        if pair.closed:
            return
        pair.closed = True
        for end in pair.ends:
            self._ends.pop(end.number, None)
            if reset:
                with contextlib.suppress(OSError):
                    end.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            end.socket.close()
        pair.over(pair)
