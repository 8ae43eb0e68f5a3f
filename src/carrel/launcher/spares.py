"""A process that stands ready inside a sandbox, to become its next command.

Entering the namespaces takes most of the time of a start, so it is done beforehand: when a
command was started, another child enters and waits for its orders on a socket. It has given
up all privileges, and nobody in the sandbox can trace it or read its memory; it can be
killed or stopped from inside, and then the next command takes a fresh one.
"""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Callable
from typing import Any, Protocol

from carrel.launcher import child, wire
from carrel.launcher.groups import remove_group
from carrel.launcher.lines import LinePipe
from carrel.launcher.loop import Loop, OnExit
from carrel.launcher.recruits import Recruit
from carrel.linux import processes

EXECUTE_S = 2.0
"""From the orders to the execution; one that takes longer was stopped from inside."""

Problem = dict[str, Any]
OnLaunched = Callable[[Problem | None], None]


class Source(Protocol):
    """Of children that wait for their orders."""

    def take(self, orders: dict[str, Any], descriptors: list[int]) -> Recruit: ...


class Spare:
    """From its fork to its execution. After that its exit is the command's."""

    def __init__(self, loop: Loop, recruits: Source, base: dict[str, Any]) -> None:
        self._loop = loop
        self.pid = 0
        self.group = _make_group(base["tracking"])
        """Its control group, by which all that comes of it can be found and killed."""
        self.terminal: list[int] = []
        """What the command sent back before it executed, if it was to have a terminal."""
        self._ready: list[Callable[[], None]] = []
        self._problem: Problem | None = None
        self._ended: tuple[int, Any] | None = None
        self._on_exit: OnExit | None = None
        self._launched: OnLaunched | None = None
        self._closed = False
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel.setblocking(False)
        status = LinePipe(loop, self._on_status, self._on_closed)
        loop.expect_children(1)
        orders = {"become": "spare", "base": {**base, "join": _joined(base, self.group)}}
        self._recruit = recruits.take(orders, [status.write, theirs.fileno()])
        status.parent_side()
        theirs.close()

    def enter(self, held: dict[str, int], late: dict[str, int]) -> None:
        """Now that the namespaces exist. On its way in it puts the `late` mounts on their
        targets."""
        orders = {"enter": list(held), "late": list(late)}
        try:
            self._recruit.tell(orders, [*held.values(), *late.values()])
        except OSError as error:
            self._problem = {"step": "ending", "errno": error.errno or 0, "text": str(error)}
        self._recruit.forget()

    @property
    def problem(self) -> Problem | None:
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
        self, plan: dict[str, Any], streams: list[int], launched: OnLaunched, on_exit: OnExit
    ) -> None:
        """It becomes the command. `launched` gets what went wrong, or None."""
        self._launched, self._on_exit = launched, on_exit
        if self._closed:
            self._settle()
            return
        self._loop.after(EXECUTE_S, self._too_late)
        try:
            wire.send(self._channel, plan, streams)
        except OSError as error:
            # It was killed from inside, and nobody has told us yet: another takes its place.
            self._problem = {"step": "ending", "errno": 0, "text": str(error)}
            self.discard()

    def _too_late(self) -> None:
        if not self._closed:
            self.discard()

    def discard(self) -> None:
        """It ends at once, or when its orders are to come from a closed socket."""
        if self.pid:
            processes.send_signal(self.pid, signal.SIGKILL)
        self._recruit.forget()
        self._channel.close()

    def _on_status(self, line: bytes) -> None:
        message = json.loads(line)
        if "pid" in message:
            self.pid = message["pid"]
            self._loop.on_exit(self.pid, self._exited)
            self._tell_ready()
        else:
            self._problem = message

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
            self._problem = {"step": "ending", "errno": 0, "text": "it died while it waited"}
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


def _make_group(tracking: str | None) -> str | None:
    if tracking is None:
        return None
    # A record of a command names it, and must never mean another's.
    group = f"{tracking}/command-{os.urandom(8).hex()}"
    os.mkdir(group)
    return group


def _joined(base: dict[str, Any], group: str | None) -> list[str]:
    """Its own group instead of the sandbox's in the tree that tracks commands."""
    if group is None:
        return list(base["join"])
    others = [path for path in base["join"] if os.path.dirname(path) != base["tracking"]]
    return [*others, f"{group}/cgroup.procs"]
