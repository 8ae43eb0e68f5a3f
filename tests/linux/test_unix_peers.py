"""Whether a Unix socket still has another end, as the kernel tells."""

from __future__ import annotations

import os
import socket

from carrel.linux.sockets import has_other_end


def test_ends_of_a_pair() -> None:
    one, other = socket.socketpair()
    inode = os.fstat(one.fileno()).st_ino
    kept = socket.socket(fileno=os.dup(other.fileno()))
    assert has_other_end(inode)
    other.close()
    assert has_other_end(inode)
    kept.close()
    assert not has_other_end(inode)
    one.close()
    assert not has_other_end(inode)
