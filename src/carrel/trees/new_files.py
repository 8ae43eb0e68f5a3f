"""Making many small files in folders that are open, here or in a second process.

The kernel does most of the work of making a file, and two threads of Python that ask it for
little things in turn are no faster than one. So a large archive has a second process, which knows
nothing but open folders and what to make in them: it resolves no path, and has the rights of the
files' owner only. It is this file, run by its path, with nothing imported that takes time.
"""

from __future__ import annotations

import _socket
import contextlib
import errno
import marshal
import os
import struct
import sys
from collections import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

NewFile = tuple[str, bytes, int, int]
"""Its name, all of its bytes, its mode, and its time in nanoseconds."""
Made = tuple[int, int]
"""How many of the files are done, and the number of the error that the next one made: 0 where it is
not new, or may not be made so."""

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NOT_NEW = (errno.EEXIST, errno.EACCES, errno.EPERM)
_HEAD = struct.Struct("=I?")
"""Of a lot: its bytes, and whether it is made though one before it was not."""
_MADE = struct.Struct("=II")
_DESCRIPTOR = struct.Struct("=i")
_AHEAD, _AHEAD_BYTES = 8, 1 << 20
"""Lots that may wait for the second process, and what they take together on the disk: so much more
may be on its way when somebody looks whether there is room."""


def make_new(folder: int, files: Sequence[NewFile], done: int, *, umask: bool) -> Made:
    """Makes those from `done` on, up to the first that cannot be; nothing is left of that one.
    Without an `umask` in this thread, a file has its mode at once."""
    for number in range(done, len(files)):
        name, data, mode, mtime_ns = files[number]
        try:
            target = os.open(name, _NEW, 0o600 if umask else mode, dir_fd=folder)
            try:
                if umask:
                    os.fchmod(target, mode)
                while data:
                    data = data[os.write(target, data) :]
                os.utime(target, ns=(mtime_ns, mtime_ns))
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(name, dir_fd=folder)
                raise
            finally:
                os.close(target)
        except OSError as error:
            return number, 0 if error.errno in _NOT_NEW else error.errno or errno.EIO
    return len(files), 0


class SecondProcess:
    """Lots of files, each of one folder, that are made in the order in which they were given. After
    one that could not be made whole none of the lots that wait is begun, so that the order holds
    for whoever makes the rest. Raises `OSError` when the process is gone."""

    def __init__(self, owner: tuple[int, int] | None) -> None:
        """`owner`: for root, the user and group whose files they are to be."""
        import subprocess

        ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM)
        words = [sys.executable, "-I", "-S", "-X", "utf8", __file__, *map(str, owner or ())]
        try:
            self._process = subprocess.Popen(
                words, stdin=theirs.fileno(), stdout=subprocess.DEVNULL, cwd="/"
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self._socket = ours
        self._waiting: deque[tuple[int, int]] = deque()
        """Of each lot that was given its files, and what they take."""
        self._stopped = False

    def has_room(self, size: int) -> bool:
        """For a lot that takes so much."""
        if self._stopped or len(self._waiting) >= _AHEAD:
            return not self._waiting
        return sum((one for _, one in self._waiting), size) <= _AHEAD_BYTES or not self._waiting

    def give(self, folder: int, files: Sequence[NewFile], size: int) -> None:
        """The descriptor stays the caller's."""
        content = marshal.dumps(list(files))
        resumes = self._stopped and not self._waiting
        self._stopped = self._stopped and not resumes
        message = _HEAD.pack(len(content), resumes) + content
        passed = (_socket.SOL_SOCKET, _socket.SCM_RIGHTS, _DESCRIPTOR.pack(folder))
        sent = self._socket.sendmsg([message], [passed])
        self._socket.sendall(message[sent:])
        self._waiting.append((len(files), size))

    def take(self, *, wait: bool) -> Made | None:
        """What became of the lot that was given first; None when that is not known yet."""
        with contextlib.suppress(BlockingIOError):
            said = self._socket.recv(_MADE.size, 0 if wait else _socket.MSG_DONTWAIT)
            if len(said) < _MADE.size:
                raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
            count, _ = self._waiting.popleft()
            done, error = _MADE.unpack(said)
            self._stopped = self._stopped or done < count
            return done, error
        return None

    def close(self) -> None:
        """At once. Whoever wants the lots that wait has taken them."""
        self._socket.close()
        self._process.kill()
        self._process.wait()


# The second process


def _serve(owner: list[int]) -> None:
    if owner:
        uid, gid = owner
        os.setgroups([])
        os.setegid(gid)
        os.seteuid(uid)
    os.umask(0)
    stream = _socket.socket(fileno=0)
    stopped = False
    while True:
        head, passed, _flags, _from = stream.recvmsg(_HEAD.size, _socket.CMSG_SPACE(4))
        if not head:
            return
        size, resumes = _HEAD.unpack(head + _exactly(stream, _HEAD.size - len(head)))
        files = marshal.loads(_exactly(stream, size))
        (folder,) = _DESCRIPTOR.unpack(passed[0][2])
        stopped = stopped and not resumes
        made = (0, 0) if stopped else make_new(folder, files, 0, umask=False)
        os.close(folder)
        stopped = made[0] < len(files)
        stream.sendall(_MADE.pack(*made))


def _exactly(stream: _socket.socket, size: int) -> bytes:
    content = bytearray()
    while len(content) < size:
        piece = stream.recv(size - len(content))
        if not piece:
            sys.exit(0)
        content += piece
    return bytes(content)


if __name__ == "__main__":
    with contextlib.suppress(OSError):
        _serve([int(word) for word in sys.argv[1:]])
