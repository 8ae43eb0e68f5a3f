"""One recorded stream: bytes come from a pipe or a terminal and go to the end of a file.

Offsets in the file count all bytes that ever came. So that it stays small nevertheless, its
beginning is punched out from time to time. What cannot be written, for want of disk, is
dropped and becomes a hole as well. Holes are whole blocks: a reader never meets zeros that
the command did not write.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import struct
import termios
from typing import Protocol

from carrel.linux import sparse

STEP_BYTES = 1 << 20
"""The beginning is given up in steps of this: each one costs a change of the file system."""
LEAST_BLOCK = 4096
"""A page: nothing that has holes tells them in smaller units."""
USUAL_PIPE = 1 << 16
LARGE_PIPE = 1 << 18
"""For a command that fills the usual one: it waits for us less often."""
READ_BYTES = 1 << 16
"""More than a terminal ever has at once."""


class Source(Protocol):
    """Where bytes come from. `move` and `drop` answer 0 at the end, and raise
    `BlockingIOError` when there is nothing now."""

    descriptor: int

    def move(self, file: int, offset: int, most: int) -> int: ...

    def drop(self, most: int) -> int: ...

    def waiting(self) -> int:
        """So much, about, could be taken right now."""
        ...

    def closed(self) -> bool:
        """Nothing waits, and nothing will come."""
        ...


class PipeSource:
    """Bytes go from the pipe to the file inside the kernel."""

    def __init__(self, descriptor: int, sink: int) -> None:
        self.descriptor = descriptor
        self._sink = sink
        self._grown = False

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
        poll = select.poll()
        poll.register(self.descriptor, select.POLLIN)
        return [event for _, event in poll.poll(0)] == [select.POLLHUP]


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


class KeptStream:
    """`total` bytes came, `dropped` of them could not be written. The file is there already
    and is opened when there is something to write."""

    def __init__(self, source: Source, path: str, keep: int) -> None:
        self.source = source
        self.total = 0
        self.dropped = 0
        self._path = path
        self._keep = keep
        self._file = -1
        self._begin = 0
        """Before it is nothing any more."""
        self._behind = False
        """The last bytes were dropped, so the next ones begin a block."""

    def resume(self) -> None:
        """An earlier launcher has written the file up to its end."""
        self._open()
        self.total = os.fstat(self._file).st_size
        first = sparse.next_data(self._file, 0)
        self._begin = self.total if first is None else first

    def take(self, most: int) -> int:
        """Once; answers as a `Source` does. Raises OSError when the source is broken."""
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
        except OSError:
            return self._drop(most)
        self._behind = False
        self.total += moved
        return moved

    def take_all(self) -> bool:
        """What is there right now, and not what comes meanwhile. True at the end."""
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
        until -= until % self._block()
        if until <= self._begin:
            return True
        try:
            punched = sparse.punch_hole(self._open(), self._begin, until - self._begin)
        except OSError:
            return False
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
