"""Sockets: the host's services, its network, and families that reach the kernel or beyond."""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
from collections.abc import Sequence

from carrel.launcher.probes.attempt import (
    NO_NETWORK,
    ONLY_BUBBLEWRAP,
    UNREACHABLE,
    ProbeAttempt,
    ProbeRefused,
    Targets,
    number,
    once,
    text,
)

_CONNECT_TIMEOUT_MS = 50
"""A listener on this machine answers at once."""
_SILENT_ADDRESS = ("192.0.2.1", 9)
"""Of a range that nobody has: connecting a UDP socket to it looks for a route and sends
nothing."""

# By number, as Python may be built without some of the names.
_FAMILIES = {
    "AF_PACKET": (17, socket.SOCK_RAW),
    "AF_ALG": (38, socket.SOCK_SEQPACKET),
    "AF_VSOCK": (40, socket.SOCK_STREAM),
    "AF_KEY": (15, socket.SOCK_RAW),
    "AF_XDP": (44, socket.SOCK_RAW),
    "AF_TIPC": (30, socket.SOCK_SEQPACKET),
    "AF_RDS": (21, socket.SOCK_SEQPACKET),
    "AF_BLUETOOTH": (31, socket.SOCK_RAW),
    "AF_CAN": (29, socket.SOCK_RAW),
}
_ICMP = 1
_RTM_NEWLINK = 16
_REQUEST_ACK_CREATE = 0x1 | 0x4 | 0x400
_NLMSG_ERROR = 2


def _connect(client: socket.socket, address: str | bytes | tuple[str, int]) -> str:
    """Waits, for a bounded time, until the answer is known."""
    client.setblocking(False)
    code = client.connect_ex(address)
    if code == errno.EINPROGRESS:
        poll = select.poll()
        poll.register(client, select.POLLOUT)
        if not poll.poll(_CONNECT_TIMEOUT_MS):
            return "on its way: neither connected nor refused"
        code = client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if code:
        raise OSError(code, os.strerror(code))
    return "connected"


def _loopback(targets: Targets, _subject: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as client:
        return _connect(client, ("127.0.0.1", number(targets, "host_loopback_port")))


def _abstract(targets: Targets, _subject: str) -> str:
    name = text(targets, "abstract_socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        return _connect(client, b"\0" + os.fsencode(name.lstrip("\0@")))


def _unix(_targets: Targets, path: str) -> str:
    if not path:
        raise ProbeRefused("absent")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        return _connect(client, path)


def _unix_sockets(targets: Targets) -> Sequence[str]:
    """A host without such services has none: the attempt is then listed as absent."""
    value = targets.get("unix_sockets")
    return [str(path) for path in value] if isinstance(value, (list, tuple)) and value else [""]


def _route(_targets: Targets, _subject: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.connect(_SILENT_ADDRESS)
        return f"a route from {client.getsockname()[0]}"


def _interfaces(_targets: Targets, _subject: str) -> str:
    others = [name for _index, name in socket.if_nameindex() if name != "lo"]
    if others:
        return f"sees {', '.join(others)}"
    raise ProbeRefused("only loopback")


def _families(_targets: Targets) -> Sequence[str]:
    return tuple(_FAMILIES)


def _family(_targets: Targets, name: str) -> str:
    family, kind = _FAMILIES[name]
    with socket.socket(family, kind):
        return "opened"


def _raw(_targets: Targets, _subject: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, _ICMP):
        return "opened"


def _new_link(_targets: Targets, _subject: str) -> str:
    """Asks the kernel for a network interface, without saying which kind: who may not, is
    refused before that is looked at."""
    body = struct.pack("=BxHiII", 0, 0, 0, 0, 0)
    head = struct.pack("=IHHII", 16 + len(body), _RTM_NEWLINK, _REQUEST_ACK_CREATE, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as link:
        link.setblocking(False)
        link.sendto(head + body, (0, 0))
        answer = link.recv(4096)
    kind, code = struct.unpack_from("=4xH10xi", answer)
    if kind == _NLMSG_ERROR and code:
        raise OSError(-code, os.strerror(-code))
    return "made an interface"


def _require_port(targets: Targets) -> Sequence[str]:
    number(targets, "host_loopback_port")
    return ("",)


def _require_name(targets: Targets) -> Sequence[str]:
    text(targets, "abstract_socket")
    return ("",)


_LOOPBACK = "connect to the host's loopback"

ATTEMPTS = (
    ProbeAttempt(_LOOPBACK, _loopback, _require_port, UNREACHABLE, networks=NO_NETWORK),
    ProbeAttempt("find a route to the network", _route, once, UNREACHABLE, networks=NO_NETWORK),
    ProbeAttempt(
        "see the host's interfaces", _interfaces, once, UNREACHABLE, ONLY_BUBBLEWRAP, NO_NETWORK
    ),
    ProbeAttempt(
        "connect to an abstract socket of the host", _abstract, _require_name, UNREACHABLE
    ),
    ProbeAttempt("connect to the socket {}", _unix, _unix_sockets, UNREACHABLE),
    ProbeAttempt("open a socket of {}", _family, _families, UNREACHABLE),
    ProbeAttempt("open a raw socket", _raw, once, UNREACHABLE),
    ProbeAttempt("make a network interface", _new_link, once, UNREACHABLE),
)
