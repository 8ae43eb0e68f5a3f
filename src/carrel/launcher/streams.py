"""One recorded stream: bytes go from a pipe or a terminal to a file that stays small.

Offsets in a file count all bytes that ever came. So that it stays small nevertheless, its
beginning is punched out from time to time, but nothing that a reader holds: when the file is as
large as it may be, no more is taken until the reader has caught up, so the pipe fills. What cannot
be written, for want of disk, is dropped and becomes a hole as well; while somebody reads, only
after some time. Holes are whole blocks: a reader never meets zeros that the command did not
write.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import math
import os
import select
import struct
import termios
import time
from typing import Protocol

from carrel.linux import files
from carrel.linux.reserve import Reserve

TURN_BYTES = 1 << 20
"""Of one stream in one turn of the loop, so that a command which floods its output keeps
nobody waiting."""
STEP_BYTES = 1 << 20
"""The beginning is given up in steps of this: each one costs a change of the file system."""
ON_ITS_WAY_BYTES = 12 << 20
"""What a reader was sent may be lost with its connection, and then it asks for it again: more
than the buffers of two sockets hold."""
NO_HOLES_BYTES = 1 << 30
"""Where the file system knows no holes, a file that somebody reads grows up to this."""
NO_ROOM_S = 30.0
"""So long a command waits for room on the disk while somebody reads its output; then what it
writes is dropped, and counted."""
LEAST_BLOCK = 4096
"""A page: nothing that has holes tells them in smaller units."""
USUAL_PIPE = 1 << 16
LARGE_PIPE = TURN_BYTES
"""For a command that fills the usual one: it waits for us less often. The kernel lets everybody
have as much."""
READ_BYTES = 1 << 16
"""More than a terminal ever has at once."""


class StreamSource(Protocol):
    """Where bytes come from. `move` and `drop` answer 0 at the end, and raise
    `BlockingIOError` when there is nothing now."""

    descriptor: int

    def move(self, file: int, offset: int, most: int) -> int: ...

    def drop(self, most: int) -> int: ...

    def waiting(self) -> int:
        """So much, about, could be taken right now."""
        ...

    def closed(self) -> bool:
        """Nothing waits, and nothing will come: nobody can keep it locked either. To ask takes no
        lock."""
        ...


class PipeSource:
    """Bytes go from the pipe to the file inside the kernel."""

    def __init__(self, descriptor: int, sink: int) -> None:
        self.descriptor = descriptor
        self._sink = sink
        self._grown = False
        self._closed = False

    def move(self, file: int, offset: int, most: int) -> int:
        moved = os.splice(
            self.descriptor, file, most, offset_dst=offset, flags=os.SPLICE_F_NONBLOCK
        )
        if moved >= USUAL_PIPE and not self._grown:
            self._grown = True
            # The user may have no right to more: then it stays as it is.
            with contextlib.suppress(OSError):
                fcntl.fcntl(self.descriptor, fcntl.F_SETPIPE_SZ, LARGE_PIPE)
        return moved

    def drop(self, most: int) -> int:
        return os.splice(self.descriptor, self._sink, most, flags=os.SPLICE_F_NONBLOCK)

    def waiting(self) -> int:
        answer = fcntl.ioctl(self.descriptor, termios.FIONREAD, bytes(4))
        return int(struct.unpack("i", answer)[0])

    def closed(self) -> bool:
        if not self._closed:
            poll = select.poll()
            poll.register(self.descriptor, select.POLLIN)
            self._closed = [event for _, event in poll.poll(0)] == [select.POLLHUP]
        return self._closed


class TerminalSource:
    """The master's side, which nobody else may read."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._read = b""

    def _fill(self, most: int) -> None:
        if self._read:
            return
        try:
            self._read = os.read(self.descriptor, min(most, READ_BYTES))
        except OSError as error:
            # So says a terminal that nobody has open on the other side.
            if error.errno != errno.EIO:
                raise

    def move(self, file: int, offset: int, most: int) -> int:
        self._fill(most)
        moved = os.pwrite(file, self._read, offset)
        self._read = self._read[moved:]
        return moved

    def drop(self, most: int) -> int:
        self._fill(most)
        dropped = min(most, len(self._read))
        self._read = self._read[dropped:]
        return dropped

    def waiting(self) -> int:
        """The kernel does not count what is on its way through the line discipline."""
        return LARGE_PIPE

    def closed(self) -> bool:
        return False


class NoRoom(Exception):
    """Nothing can be written now, and nothing was taken."""


_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class KeptStream:
    """`total` bytes came, `dropped` of them could not be written. The file is there already
    and is opened when there is something to write."""

    def __init__(
        self, source: StreamSource, path: str, keep: int, reserve: Reserve | None = None
    ) -> None:
        self.source = source
        self._reserve = reserve
        """Asked once: whoever fills the disk gets no more of it by this."""
        self.total = 0
        self.dropped = 0
        self.held: int | None = None
        """How far the slowest reader has come; None: nobody reads."""
        self._path = path
        self._keep = keep
        self._file = -1
        self._begin = 0
        """Before it is nothing any more."""
        self._behind = False
        """The last bytes were dropped, so the next ones begin a block."""
        self._no_room_since: float | None = None

    @property
    def full(self) -> bool:
        """No more is to be taken before the slowest reader has caught up."""
        return self.held is not None and self.total - self.held >= self._keep + STEP_BYTES

    def resume(self) -> None:
        """An earlier launcher has written the file up to its end."""
        self._open()
        self.total = os.fstat(self._file).st_size
        first = files.next_data(self._file, 0)
        self._begin = self.total if first is None else first

    def take(self, most: int) -> int:
        """Once; answers as a `StreamSource` does. Raises OSError when the source is broken, and
        `NoRoom` for a while when somebody reads."""
        if self._file < 0 and not self.source.waiting():
            # Most commands have nothing to say on one of their streams.
            if self.source.closed():
                return 0
            raise BlockingIOError
        if not self._has_room():
            return self._drop(most)
        if self._behind and (gap := -self.total % self._block()):
            return self._drop(min(gap, most))
        try:
            moved = self.source.move(self._open(), self.total, most)
        except BlockingIOError:
            raise
        except OSError as error:
            if error.errno in _NO_ROOM and self._given_room():
                return self.take(most)
            if self._may_wait():
                raise NoRoom from None
            return self._drop(most)
        self._behind = False
        self._no_room_since = None
        self.total += moved
        return moved

    def _given_room(self) -> bool:
        """Others took what was free when the command began, but a little is kept for it."""
        reserve, self._reserve = self._reserve, None
        return reserve is not None and reserve.give_up()

    def _may_wait(self) -> bool:
        """For room. What the reader has by now is given up for it."""
        if self.held is None:
            return False
        with contextlib.suppress(OSError):
            self._punch(self.held)
        now = time.monotonic()
        if self._no_room_since is None:
            self._no_room_since = now
        return now - self._no_room_since < NO_ROOM_S

    def take_all(self) -> bool:
        """What is there right now, and not what comes meanwhile. True at the end."""
        # Nobody waits for room any more.
        self._no_room_since = -math.inf
        left = self.source.waiting()
        while True:
            try:
                # Once more than there is: that tells the end from a pause.
                moved = self.take(max(left, 1))
            except BlockingIOError:
                return False
            if moved == 0 or left <= 0:
                return moved == 0
            left -= moved

    def mark_end(self) -> None:
        """The size of the file says how much came, also when the last of it was dropped: that
        takes no room, as the note of the end does."""
        if self._behind:
            with contextlib.suppress(OSError):
                os.ftruncate(self._open(), self.total)

    def _open(self) -> int:
        if self._file < 0:
            flags = os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW
            self._file = os.open(self._path, flags)
        return self._file

    def _block(self) -> int:
        """Holes begin and end with one."""
        if self._file < 0:
            return LEAST_BLOCK
        return max(LEAST_BLOCK, os.fstat(self._file).st_blksize)

    def _has_room(self) -> bool:
        """Perhaps after the oldest part was given up."""
        if self.total - self._begin <= self._keep + STEP_BYTES:
            return True
        until = self.total - self._keep
        if self.held is not None:
            until = min(until, self.held - ON_ITS_WAY_BYTES)
        try:
            punched = self._punch(until)
        except OSError:
            punched = False
        return punched or (self.held is not None and self.total - self._begin < NO_HOLES_BYTES)

    def _punch(self, until: int) -> bool:
        """Gives up what is before; False where the file system cannot. Raises OSError."""
        until -= until % self._block()
        if until <= self._begin:
            return True
        punched = files.punch_hole(self._open(), self._begin, until - self._begin)
        if punched:
            self._begin = until
        return punched

    def _drop(self, most: int) -> int:
        dropped = self.source.drop(most)
        if dropped and not self._behind:
            self._cut()
        self.total += dropped
        self.dropped += dropped
        return dropped

    def _cut(self) -> None:
        """To whole blocks, since the rest of the last one would read as zeros."""
        self._behind = True
        rest = self.total % self._block()
        if self._file >= 0 and rest:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self.total - rest)
                self.dropped += rest

    def close(self) -> None:
        os.close(self.source.descriptor)
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
