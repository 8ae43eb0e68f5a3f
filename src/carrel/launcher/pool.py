"""Children that were forked before they are needed, and wait to be told what to become.

A fork of an interpreter takes as long as all the rest of entering a sandbox; done
beforehand it costs nobody's time. And it is not we who fork: after a fork every page that we
touch is copied first, which costs more than the fork. A process that does little else makes
the children, and they are ours nevertheless.

Entering the namespaces takes most of the time of a start, so that is done beforehand too: when a
command was started, another child enters (`Standby`) and waits for its orders on a socket. It has
given up all privileges, and nobody in the sandbox can trace it or read its memory; it can be
killed or stopped from inside, and then the next command takes a fresh one.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from carrel.launcher import child, wire
from carrel.launcher.loop import LinePipe, Loop, OnExit
from carrel.launcher.messages import (
    CommandPlan,
    LauncherProblem,
    Orders,
    SandboxBase,
    failure,
    told,
)
from carrel.linux import processes
from carrel.linux.processes import remove_group

READY = 3
"""A new sandbox takes two at once, a further command one."""
LEAST = 1
"""While something is being started: forking must not compete with that for the processors."""
REFILL_S = 0.002
"""After the work that used them up, for the same reason."""


class ForkedChild:
    def __init__(self, channel: socket.socket, pid: int) -> None:
        self.channel = channel
        self.pid = pid

    def tell(self, orders: Orders, descriptors: list[int]) -> None:
        """Raises OSError when it has died meanwhile."""
        wire.send(self.channel, orders, descriptors)

    def forget(self) -> None:
        """It has all its orders; one that has none ends."""
        self.channel.close()


class ChildPool:
    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._waiting: list[ForkedChild] = []
        self._awaited: deque[socket.socket] = deque()
        """Channels of those that are being made, in order."""
        self._forker: socket.socket | None = None
        self._refilling = False
        self._refill()

    def take(self, orders: Orders, descriptors: list[int]) -> ForkedChild:
        """One that has got its first orders."""
        while self._waiting:
            forked = self._waiting.pop(0)
            try:
                forked.tell(orders, descriptors)
            except OSError:
                forked.forget()
                continue
            self._refill_soon()
            return forked
        forked = self._fork()
        forked.tell(orders, descriptors)
        self._refill_soon()
        return forked

    def _fork(self) -> ForkedChild:
        """At once, for one that cannot wait."""
        channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = self._loop.fork(lambda: child.become_waiting_child(theirs.fileno()))
        theirs.close()
        return ForkedChild(channel, pid)

    def _refill_soon(self) -> None:
        if not self._refilling:
            self._refilling = True
            self._loop.after(REFILL_S, self._refill)

    def _refill(self) -> None:
        self._refilling = False
        coming = len(self._waiting) + len(self._awaited)
        if coming < (LEAST if self._loop.urgent else READY):
            self._order()
        if len(self._waiting) + len(self._awaited) < READY:
            self._refill_soon()

    def _order(self) -> None:
        channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                socket.send_fds(self._open_forker(), [child.FORK], [theirs.fileno()])
            except OSError:
                # It is dead, or has more to do than it can: the next one is made at once.
                channel.close()
                return
        self._awaited.append(channel)

    def _open_forker(self) -> socket.socket:
        if self._forker is None:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            ours.setblocking(False)
            self._loop.fork(lambda: child.become_forker(theirs.fileno()))
            theirs.close()
            self._forker = ours
            self._loop.watch(ours.fileno(), self._on_forked)
        return self._forker

    def _on_forked(self) -> None:
        assert self._forker is not None
        try:
            answer = self._forker.recv(32)
        except BlockingIOError:
            return
        except OSError:
            answer = b""
        if not answer:
            self._lose_forker(self._forker)
            return
        channel, pid = self._awaited.popleft(), int(answer)
        if pid:
            self._waiting.append(ForkedChild(channel, pid))
        else:
            channel.close()

    def _lose_forker(self, forker: socket.socket) -> None:
        """The kernel killed it, for want of memory say. The next order makes another."""
        self._loop.unwatch(forker.fileno())
        forker.close()
        self._forker = None
        while self._awaited:
            with contextlib.suppress(OSError):
                self._awaited.popleft().close()


# Children inside a sandbox

EXECUTE_S = 2.0
"""From the orders to the execution, which takes milliseconds. One that takes longer was stopped
from inside, or has not been given a processor yet: it is looked at again after as long."""
LONGEST_S = 60.0
"""Whatever it waits for, nobody waits for it any longer."""

OnLaunched = Callable[[LauncherProblem | None], None]


Take = Callable[[Orders, list[int]], ForkedChild]
"""Gives a child that has got its first orders, as `ChildPool.take` does."""


class Standby:
    """From its fork to its execution. After that its exit is the command's."""

    def __init__(self, loop: Loop, take: Take, base: SandboxBase) -> None:
        self._loop = loop
        self.pid = 0
        self.group = _make_command_group(base["tracking"])
        """Its control group, by which all that comes of it can be found and killed."""
        self.terminal: list[int] = []
        """What the command sent back before it executed, if it was to have a terminal."""
        self._ready: list[Callable[[], None]] = []
        self._problem: LauncherProblem | None = None
        self._ended: tuple[int, Any] | None = None
        self._on_exit: OnExit | None = None
        self._launched: OnLaunched | None = None
        self._closed = False
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel.setblocking(False)
        self._status = LinePipe(loop, self._on_status, self._on_closed)
        loop.expect_children(1)
        orders: Orders = {"become": "spare", "base": {**base, "join": _joined(base, self.group)}}
        self._forked = take(orders, [self._status.write, theirs.fileno()])
        self._status.parent_side()
        theirs.close()

    def enter(self, held: dict[str, int], late: dict[str, int]) -> None:
        """Now that the namespaces exist. On its way in it puts the `late` mounts on their
        targets."""
        orders: Orders = {"enter": list(held), "late": list(late)}
        try:
            self._forked.tell(orders, [*held.values(), *late.values()])
        except OSError as error:
            self._problem = failure("ending", str(error), error.errno or 0)
        self._forked.forget()

    @property
    def problem(self) -> LauncherProblem | None:
        return self._problem

    @property
    def usable(self) -> bool:
        return not self._closed

    def when_ready(self, action: Callable[[], None]) -> None:
        """Calls `action` when it has entered, or has failed to."""
        if self.pid or self._closed:
            action()
        else:
            self._ready.append(action)

    def order(
        self, plan: CommandPlan, streams: list[int], launched: OnLaunched, on_exit: OnExit
    ) -> None:
        """It becomes the command. `launched` gets what went wrong, or None.

        Nobody else's code runs in it before it has the plan. So the streams go ahead, and ours
        are closed while nobody can keep us waiting there. A fork of a warm process has such code:
        it gets all at once, and `streams` are left to the caller."""
        self._launched, self._on_exit = launched, on_exit
        if self._closed:
            self._settle()
            return
        self._loop.after(EXECUTE_S, partial(self._look_after, LONGEST_S))
        try:
            if not plan["warm"]:
                wire.send(self._channel, {}, streams)
                wire.close_all(streams)
            wire.send(self._channel, plan, streams)
        except OSError as error:
            # It was killed from inside, and nobody has told us yet: another takes its place.
            self._problem = failure("ending", str(error))
            self.discard()

    def _look_after(self, left: float) -> None:
        """Unless we are late ourselves: it may have executed, and nobody has looked. Its last word
        is read when it is dead: what has executed is not executed again."""
        self._status.look()
        if self._closed:
            return
        if left > EXECUTE_S and self._ended is None and processes.is_waiting_its_turn(self.pid):
            self._loop.after(EXECUTE_S, partial(self._look_after, left - EXECUTE_S))
        else:
            self._kill()

    def discard(self) -> None:
        """It ends at once, or when its orders are to come from a closed socket."""
        self._kill()
        self._forked.forget()
        self._channel.close()

    def is_process(self, pid: int) -> bool:
        """Whether it is, and lives: those in the sandbox may kill it, and get its number."""
        return pid == self.pid and self._ended is None

    def _kill(self) -> None:
        if self._ended is None:
            processes.send_signal(self.pid, signal.SIGKILL)

    def _on_status(self, line: bytes) -> None:
        message = told(line, "pid")
        if "pid" in message:
            if self.pid:
                # Once is enough: what a call loads has this pipe too, and we kill that number.
                return
            self.pid = message["pid"]
            self._loop.on_exit(self.pid, self._exited)
            self._tell_ready()
        else:
            self._problem = cast(LauncherProblem, message)

    def _tell_ready(self) -> None:
        ready, self._ready = self._ready, []
        for action in ready:
            action()

    def _exited(self, status: int, usage: Any) -> None:
        self._ended = (status, usage)
        if self._on_exit is None and self.group is not None:
            remove_group(self.group)
        if self._closed and self._launched is None:
            self._tell_exit()

    def _on_closed(self) -> None:
        """It executed, or it is dead."""
        self._loop.expect_children(-1)
        self._closed = True
        self._tell_ready()
        if self._launched is not None:
            self._settle()

    def _settle(self) -> None:
        launched, self._launched = self._launched, None
        if self._problem is None and not self._executed():
            self._problem = failure("ending", "it died while it waited")
        self._channel.close()
        if launched is not None:
            launched(self._problem)
        self._tell_exit()

    def _tell_exit(self) -> None:
        if self._ended is not None and self._on_exit is not None and self._problem is None:
            on_exit, self._on_exit = self._on_exit, None
            on_exit(*self._ended)

    def _executed(self) -> bool:
        """It says so itself right before: a closed pipe alone could also be its death."""
        try:
            said, self.terminal = wire.receive_descriptors(self._channel, 16, 1)
        except OSError:
            return False
        return said == child.EXECUTING


def _make_command_group(tracking: str | None) -> str | None:
    if tracking is None:
        return None
    # A record of a command names it, and must never mean another's.
    group = f"{tracking}/command-{os.urandom(8).hex()}"
    os.mkdir(group)
    return group


def _joined(base: SandboxBase, group: str | None) -> list[str]:
    """Its own group instead of the sandbox's in the tree that tracks commands."""
    if group is None:
        return list(base["join"])
    others = [path for path in base["join"] if os.path.dirname(path) != base["tracking"]]
    return [*others, f"{group}/cgroup.procs"]
