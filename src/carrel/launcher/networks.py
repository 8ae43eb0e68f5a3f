"""The networks of pods: sandboxes that belong together reach each other on one loopback.

A network is there as long as one of its sandboxes is. None of them owns it, so no code in there has
any right over it; and since the root of an image is nobody in it either, ports below 1024 are free
for all.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable

from carrel.launcher import wire
from carrel.linux import namespaces
from carrel.linux.sockets import bring_up_loopback

MAKE_S = 5.0
"""It takes a millisecond."""
_FREE_PORTS = "/proc/sys/net/ipv4/ip_unprivileged_port_start"


class PodNetworks:
    def __init__(self, fork: Callable[[Callable[[], None]], int]) -> None:
        self._fork = fork
        self._held: dict[str, int] = {}

    def get(self, pod: str, known: int | None, user: int | None) -> int:
        """A descriptor, which stays ours. `known`: the network of a sandbox that is up. `user`: the
        namespace in which an ordinary user may make one. Raises OSError."""
        if pod not in self._held:
            self._held[pod] = self._make(user) if known is None else os.dup(known)
        return self._held[pod]

    def release(self, pod: str) -> None:
        """When its last sandbox has gone."""
        held = self._held.pop(pod, None)
        if held is not None:
            os.close(held)

    def _make(self, user: int | None) -> int:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with ours:
            self._fork(lambda: _be_network(user, theirs))
            theirs.close()
            ours.settimeout(MAKE_S)
            received = wire.receive_descriptors(ours, 1, 1)[1]
            if not received:
                raise OSError("no network could be made")
            return received[0]


def _be_network(user: int | None, channel: socket.socket) -> None:
    if user is not None:
        namespaces.setns(user, namespaces.CLONE_NEWUSER)
    namespaces.unshare(namespaces.CLONE_NEWNET)
    bring_up_loopback()
    with contextlib.suppress(OSError):
        # Where that is read-only, they are root's, as on any machine.
        port = os.open(_FREE_PORTS, os.O_WRONLY | os.O_CLOEXEC)
        os.write(port, b"0")
    network = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    socket.send_fds(channel, [b"."], [network])
    os._exit(0)
