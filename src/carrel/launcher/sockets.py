"""Sockets in the network of a sandbox, for who connects to its servers from outside.

A socket keeps the network that it was made in, wherever it goes. So a child enters the network,
makes a few, sends them back and ends; it never comes near the sandbox's processes.
"""

from __future__ import annotations

from carrel.launcher import wire
from carrel.launcher.loop import Loop, Timer
from carrel.launcher.messages import Answer, Orders, SocketsRequest, failure
from carrel.launcher.pool import ForkedChild
from carrel.launcher.sandboxes import LiveSandboxes

MADE_S = 5.0
"""A child takes a millisecond; one that has not answered by then has no machine to run on."""


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
        self._deadline: Timer = loop.after(MADE_S, self._end)
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
