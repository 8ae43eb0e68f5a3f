"""A listening TCP socket that can do nothing else, for whoever else gets it."""

from __future__ import annotations

import ctypes
import socket
import struct

_SO_ATTACH_FILTER = 26
_SO_LOCK_FILTER = 44

_FLAGS_BYTE = 13
_SYN_AND_ACK = 0x12
_PROGRAM = (
    (0x30, 0, 0, _FLAGS_BYTE),  # load the byte
    (0x54, 0, 0, _SYN_AND_ACK),  # and
    (0x15, 0, 1, _SYN_AND_ACK),  # equal? else skip one
    (0x06, 0, 0, 0),  # drop
    (0x06, 0, 0, 0xFFFFFFFF),  # take
)


def only_listens(listener: socket.socket) -> None:
    """Neither it nor a connection that it accepted can be connected to anything any more.

    A socket belongs to the network in which it was made, so in a sandbox with another one it
    would be a way out: shut down, or disconnected, it may connect anew. Here the answer to
    that, the only segment with both flags, never arrives. Nobody without rights over the
    machine's network can take the filter off, and accepted connections inherit it. Newer
    kernels let only those put one on, too: `PermissionError`.
    """
    code = b"".join(struct.pack("HBBI", *line) for line in _PROGRAM)
    memory = ctypes.create_string_buffer(code)
    filter_ = struct.pack("@HP", len(_PROGRAM), ctypes.addressof(memory))
    listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, filter_)
    listener.setsockopt(socket.SOL_SOCKET, _SO_LOCK_FILTER, 1)
