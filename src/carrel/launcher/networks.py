"""The networks of pods: sandboxes that belong together reach each other on one loopback.

A network is there as long as one of its sandboxes is. None of them owns it, so no code in there has
any right over it; and since the root of an image is nobody in it either, ports below 1024 are free
for all.

And sockets in the network of a sandbox, for who connects to its servers from outside. A socket
keeps the network that it was made in, wherever it goes. So a child enters the network, makes a few,
sends them back and ends; it never comes near the sandbox's processes.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from carrel.launcher import wire
from carrel.launcher.loop import Loop, Timer
from carrel.launcher.messages import Answer, Orders, SocketsRequest, failure
from carrel.launcher.pool import ForkedChild
from carrel.linux import namespaces
from carrel.linux.sockets import bring_up_loopback

if TYPE_CHECKING:
    from carrel.launcher.sandboxes import LiveSandboxes

MAKE_S = 5.0
"""It takes a millisecond; a child that has not answered by then has no machine to run on."""
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


class InnerSockets:
    def __init__(self, loop: Loop, sandboxes: LiveSandboxes) -> None:
        self._loop = loop
        self._sandboxes = sandboxes

    def make(self, request: SocketsRequest, _fds: list[int], answer: Answer) -> None:
        """Answers with a TCP socket for each of the families that the kernel has, in order."""
        sandbox = self._sandboxes.get(request["sandbox_id"])
        if sandbox is None or not sandbox.live:
            answer({"problem": failure("cold", "it is not set up")}, [])
            return
        if "net" not in sandbox.namespaces:
            answer({"problem": failure("network", "it has no network of its own")}, [])
            return
        families = request["families"][: wire.MOST_DESCRIPTORS]
        orders: Orders = {"become": "sockets", "plan": {"families": families}}
        entered = [sandbox.namespaces["net"]]
        try:
            forked = self._sandboxes.pool.take(orders, entered)
        except OSError as error:
            answer({"problem": failure("fork", str(error), error.errno or 0)}, [])
            return
        _Making(self._loop, forked, len(families), answer)


class _Making:
    def __init__(self, loop: Loop, forked: ForkedChild, count: int, answer: Answer) -> None:
        self._loop = loop
        self._forked = forked
        self._count = count
        self._answer = answer
        self._deadline: Timer = loop.after(MAKE_S, self._end)
        forked.channel.setblocking(False)
        loop.watch(forked.channel.fileno(), self._end)

    def _end(self) -> None:
        """It has answered, or died, or its time is over."""
        self._deadline.cancel()
        self._loop.unwatch(self._forked.channel.fileno())
        try:
            said, made = wire.receive_descriptors(self._forked.channel, 256, self._count)
        except OSError:
            said, made = b"", []
        self._forked.forget()
        if made:
            self._answer({}, made)
        else:
            text = said.decode(errors="replace") or "its child did not answer"
            self._answer({"problem": failure("network", text)}, [])
        wire.close_all(made)
