"""A listening TCP socket of loopback that can do nothing else, for whoever else gets it; the
loopback of a new network; and whether a Unix socket still has another end."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import functools
import os
import socket
import struct

_SO_ATTACH_FILTER = 26
_SO_LOCK_FILTER = 44
_LOOPBACK = b"lo"
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 1

_TARGET = 0xFFF00000 + 16  # SKF_NET_OFF: from the head of IP, where it has the address
_TARGET_PORT = 2
_FLAGS_BYTE = 13
_SYN_AND_ACK = 0x12


def bring_up_loopback() -> None:
    """Of the network that we are in, for who has made it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        wanted = struct.pack("16sH14x", _LOOPBACK, _IFF_UP)
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, wanted)


def only_listens(listener: socket.socket) -> None:
    """Neither it nor a connection that it accepted can be connected to anything any more, or
    be reached at another address than it has now.

    A socket belongs to the network in which it was made, so in a sandbox with another one it
    would be a way out: shut down, or disconnected, it may connect anew, or listen elsewhere.
    Here the answer to the one, the only segment with both flags, never arrives, nor does who
    comes to the other. What the question itself says (the first segment may have data) does not
    leave the machine, for it is bound to the device. Nobody without rights over the machine's
    network can take either off, and accepted connections inherit both. Newer kernels let only
    those put a filter on, too: `PermissionError`.
    """
    program = _program(*listener.getsockname())
    code = b"".join(struct.pack("HBBI", *line) for line in program)
    memory = ctypes.create_string_buffer(code)
    filter_ = struct.pack("@HP", len(program), ctypes.addressof(memory))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, _LOOPBACK)
    listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, filter_)
    listener.setsockopt(socket.SOL_SOCKET, _SO_LOCK_FILTER, 1)


def _program(host: str, port: int) -> tuple[tuple[int, int, int, int], ...]:
    """For an address of IPv4."""
    (address,) = struct.unpack("!I", socket.inet_aton(host))
    return (
        (0x20, 0, 0, _TARGET),  # load the word
        (0x15, 0, 5, address),  # equal? else drop
        (0x28, 0, 0, _TARGET_PORT),  # load the half of one
        (0x15, 0, 3, port),  # equal? else drop
        (0x30, 0, 0, _FLAGS_BYTE),  # load the byte
        (0x54, 0, 0, _SYN_AND_ACK),  # and
        (0x15, 0, 1, _SYN_AND_ACK),  # equal? else take
        (0x06, 0, 0, 0),  # drop
        (0x06, 0, 0, 0xFFFFFFFF),  # take
    )


# As linux/sock_diag.h and linux/unix_diag.h have it.
_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, _NLMSG_ERROR = 20, 1, 2
_EVERY_STATE, _ANY_COOKIE = 0xFFFFFFFF, (0xFFFFFFFF, 0xFFFFFFFF)
_UDIAG_SHOW_PEER, _UNIX_DIAG_PEER = 4, 2
_HEAD = struct.Struct("=IHHII")
_ABOUT = 16


def has_other_end(inode: int) -> bool:
    """Whether a Unix socket of our network still has its other end, or nobody can tell. Not when
    the socket itself is gone."""
    return not _kernel_tells() or _peer(inode) != 0


@functools.cache
def _kernel_tells() -> bool:
    """It may have no module for this: then it says of every socket that there is none."""
    one, other = socket.socketpair()
    with one, other:
        inode = os.fstat(one.fileno()).st_ino
        return _peer(inode) == os.fstat(other.fileno()).st_ino


def _peer(inode: int) -> int | None:
    """The inode of the other end; 0: there is none. None: the kernel does not say."""
    wanted = struct.pack(
        "=BBHIII2I", socket.AF_UNIX, 0, 0, _EVERY_STATE, inode, _UDIAG_SHOW_PEER, *_ANY_COOKIE
    )
    head = _HEAD.pack(_HEAD.size + len(wanted), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 1, 0)
    try:
        with socket.socket(
            socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG
        ) as asking:
            asking.bind((0, 0))
            asking.send(head + wanted)
            answer = asking.recv(8192, socket.MSG_DONTWAIT)
    except OSError:
        return None
    _, kind, *_ = _HEAD.unpack_from(answer)
    if kind == _NLMSG_ERROR:
        (code,) = struct.unpack_from("=i", answer, _HEAD.size)
        return 0 if -code == errno.ENOENT else None
    at = _HEAD.size + _ABOUT
    while at + 4 <= len(answer):
        length, name = struct.unpack_from("=HH", answer, at)
        if name == _UNIX_DIAG_PEER:
            return int(struct.unpack_from("=I", answer, at + 4)[0])
        at += (max(length, 4) + 3) & ~3
    return 0
