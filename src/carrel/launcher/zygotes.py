"""Warm processes: each has loaded the modules of one program, and commands are forked from it.

They are children of ours that run as the user of the sandboxes which their forks enter, never
as root, and end with us. What is forked from one outlives it.
"""

from __future__ import annotations

import os
import signal
import socket
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from carrel.launcher import child
from carrel.launcher.loop import Loop, Timer
from carrel.launcher.messages import (
    Answer,
    EndZygoteRequest,
    LauncherProblem,
    NoFields,
    Orders,
    SandboxBase,
    ZygoteRequest,
    failure,
    told,
)
from carrel.launcher.pool import ChildPool, ForkedChild, Standby
from carrel.launcher.wire import close_all
from carrel.linux import processes

READY_S = 60.0
"""To load its modules: large ones take seconds, on a busy machine many."""
FORK_S = 10.0
"""A fork takes milliseconds; one that does not come in this time never will."""

_COMPARED = ("python", "preload", "load", "env", "uid", "gid")

OnMade = Callable[[ForkedChild | None], None]
OnEarly = Callable[["Standby | None", LauncherProblem], None]


class _Awaited(NamedTuple):
    channel: socket.socket
    made: OnMade
    timer: Timer

    def tell(self, pid: int) -> None:
        self.timer.cancel()
        if not pid:
            self.channel.close()
        self.made(ForkedChild(self.channel, pid) if pid else None)


class ZygoteProcess:
    def __init__(self, request: ZygoteRequest, channel: socket.socket, pid: int) -> None:
        self.request = request
        self.name: str = request["name"]
        self.channel = channel
        self.pid = pid
        self.ready = self.gone = False
        self.problem: LauncherProblem | None = None
        self.deadline: Timer | None = None
        self.waiting: list[Answer] = []
        """Who wants to know when it is ready."""
        self.awaited: deque[_Awaited] = deque()
        """Those that it is making, in order."""
        self.on_gone: list[Callable[[], None]] = []
        self.idle: Timer | None = None

    def is_as(self, request: Mapping[str, object]) -> bool:
        ours: Mapping[str, object] = self.request
        return all(ours[key] == request[key] for key in _COMPARED)


class Zygotes:
    def __init__(self, loop: Loop, pool: ChildPool, folder: str) -> None:
        self._loop = loop
        self._pool = pool
        self._folder = folder
        self._zygotes: dict[str, ZygoteProcess] = {}
        os.makedirs(folder, mode=0o700, exist_ok=True)

    def start(self, request: ZygoteRequest, answer: Answer) -> None:
        """Answers when it is ready, or why it is not. Another of that name is replaced."""
        known = self._zygotes.get(request["name"])
        if known is not None and not known.is_as(request):
            self._end(known, lambda: self.start(request, answer))
        elif known is not None and known.ready:
            known.request = request
            self._used(known)
            answer({"pid": known.pid}, [])
        else:
            try:
                zygote = known or self._begin(request)
            except OSError as error:
                answer({"problem": _problem(str(error), error.errno or 0)}, [])
                return
            zygote.waiting.append(answer)

    def fork(self, name: str, made: OnMade) -> None:
        """Calls `made` with a child that waits for its orders, or with None."""
        zygote = self._zygotes.get(name)
        if zygote is None or not zygote.ready:
            made(None)
            return
        channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                socket.send_fds(zygote.channel, [child.FORK], [theirs.fileno()])
            except OSError:
                channel.close()
                made(None)
                return
        self._used(zygote)
        timer = self._loop.after(FORK_S, lambda: self._end(zygote, lambda: None))
        zygote.awaited.append(_Awaited(channel, made, timer))

    def tell_all(self, _request: NoFields, _fds: list[int], answer: Answer) -> None:
        found = [
            {"name": one.name, "pid": one.pid, "state": "ready" if one.ready else "starting"}
            for one in self._zygotes.values()
        ]
        answer({"zygotes": found}, [])

    def end(self, request: EndZygoteRequest, _fds: list[int], answer: Answer) -> None:
        """Answers when it is gone; idempotent."""
        zygote = self._zygotes.get(request["name"])
        if zygote is None:
            answer({}, [])
        else:
            self._end(zygote, lambda: answer({}, []))

    def _begin(self, request: ZygoteRequest) -> ZygoteProcess:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        descriptors = [theirs.detach()]
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
            log = os.path.join(self._folder, f"{request['name']}.log")
            descriptors.append(os.open(log, flags, 0o600))
            orders: Orders = {"become": "zygote", "plan": request}
            forked = self._pool.take(orders, descriptors)
        except OSError:
            ours.close()
            raise
        finally:
            close_all(descriptors)
        forked.forget()
        zygote = self._zygotes[request["name"]] = ZygoteProcess(request, ours, forked.pid)
        self._loop.watch(ours.fileno(), lambda: self._readable(zygote))
        self._loop.on_exit(zygote.pid, lambda _status, _usage: self._gone(zygote))
        zygote.deadline = self._loop.after(READY_S, lambda: self._too_late(zygote))
        return zygote

    def _too_late(self, zygote: ZygoteProcess) -> None:
        zygote.problem = zygote.problem or _problem(f"not ready after {READY_S:.0f} s")
        self._end(zygote, lambda: None)

    def _end(self, zygote: ZygoteProcess, gone: Callable[[], None]) -> None:
        zygote.on_gone.append(gone)
        if not zygote.gone:
            processes.send_signal(zygote.pid, signal.SIGKILL)

    def _readable(self, zygote: ZygoteProcess) -> None:
        try:
            said = zygote.channel.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            said = b""
        if not said:
            # Its exit is told soon.
            self._loop.unwatch(zygote.channel.fileno())
            zygote.channel.close()
            self._end(zygote, lambda: None)
        elif said.startswith(b"{"):
            self._on_state(zygote, told(said, "ready"))
        elif zygote.awaited:
            zygote.awaited.popleft().tell(int(said))

    def _on_state(self, zygote: ZygoteProcess, message: dict[str, Any]) -> None:
        if "ready" not in message:
            zygote.problem = _problem(message["text"], message["errno"])
            return
        zygote.ready = True
        self._rest(zygote)
        self._used(zygote)
        waiting, zygote.waiting = zygote.waiting, []
        for answer in waiting:
            answer({"pid": zygote.pid}, [])

    def _used(self, zygote: ZygoteProcess) -> None:
        """One that nobody forks from any more goes, whether or not who wanted it still lives."""
        if zygote.idle is not None:
            zygote.idle.cancel()
        seconds = zygote.request.get("idle", 0.0)
        zygote.idle = self._loop.after(seconds, lambda: self._bored(zygote)) if seconds else None

    def _bored(self, zygote: ZygoteProcess) -> None:
        zygote.idle = None
        self._end(zygote, lambda: None)

    def _rest(self, zygote: ZygoteProcess) -> None:
        for timer in (zygote.deadline, zygote.idle):
            if timer is not None:
                timer.cancel()
        zygote.deadline = zygote.idle = None

    def _gone(self, zygote: ZygoteProcess) -> None:
        zygote.gone = True
        self._rest(zygote)
        if zygote.channel.fileno() >= 0:
            # Its last words may not have been read yet.
            self._readable(zygote)
        if zygote.channel.fileno() >= 0:
            self._loop.unwatch(zygote.channel.fileno())
            zygote.channel.close()
        if self._zygotes.get(zygote.name) is zygote:
            del self._zygotes[zygote.name]
        for awaited in zygote.awaited:
            awaited.tell(0)
        for answer in zygote.waiting:
            answer({"problem": zygote.problem or _problem("it died")}, [])
        for action in zygote.on_gone:
            action()


def _problem(text: str, number: int = 0) -> LauncherProblem:
    return failure("zygote", text, number)


class EarlyFork:
    """A child that is made while its sandbox is still being set up, and is in its groups by
    then: neither waits for the other."""

    def __init__(self, loop: Loop, zygotes: Zygotes, name: str, base: SandboxBase) -> None:
        """`base` is that of its sandbox."""
        self._loop = loop
        self._base = base
        self._is_made = False
        self._standby: Standby | None = None
        self._problem = _problem(f"{name} is not there")
        self._then: OnEarly | None = None
        zygotes.fork(name, self._made)

    def _made(self, forked: ForkedChild | None) -> None:
        self._is_made = True
        if forked is not None:
            try:
                self._standby = Standby(self._loop, partial(_order_forked, forked), self._base)
            except OSError as error:
                forked.forget()
                self._problem = _problem(str(error), error.errno or 0)
        if self._then is not None:
            self.take(self._then)

    def take(self, then: OnEarly) -> None:
        """Calls it with the child, or with None and why; now, or when it is known."""
        self._then = then
        if self._is_made:
            standby, self._standby = self._standby, None
            then(standby, self._problem)

    def drop(self) -> None:
        """Nobody needs it."""
        self.take(lambda standby, _: standby.discard() if standby is not None else None)


def _order_forked(forked: ForkedChild, orders: Orders, descriptors: list[int]) -> ForkedChild:
    """In the place of `ChildPool.take`. The launcher does what a zygote's child may not."""
    base = orders["base"]
    for path in base["join"]:
        with open(path, "w") as file:
            file.write(str(forked.pid))
    forked.tell({**orders, "base": {**base, "join": []}}, descriptors)
    return forked
