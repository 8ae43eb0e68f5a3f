"""The launcher's loop: connections, requests, and its own end."""

from __future__ import annotations

import math
import os
import signal
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

from carrel.launcher import wire
from carrel.launcher.earlier import Earlier
from carrel.launcher.holders import Holders
from carrel.launcher.kills import Kill
from carrel.launcher.loop import Loop, Timer
from carrel.launcher.mounts import HeldMounts
from carrel.launcher.recorder import Recorder
from carrel.launcher.recruits import Recruits
from carrel.launcher.runs import Runs
from carrel.launcher.stops import Stops
from carrel.launcher.wire import Answer, Message
from carrel.launcher.zygotes import Zygotes

IDLE_EXIT_S = 60.0
"""With no client, nothing running and nothing held there is nothing to be here for."""

_ZYGOTE = {"name", "python", "preload", "load", "env", "uid", "gid"}
_REQUIRED = {"sandbox_id", "run_id", "folder", "linger", "record", "input", "plan"}

Handler = Callable[[Message, list[int], Answer], None]


class BadRequest(ValueError):
    """Refused before anything was done."""


class Server:
    def __init__(
        self, listener: socket.socket, folder: str, version: str, home: int | None = None
    ) -> None:
        self._loop = Loop()
        self._listener = listener
        self._version = version
        recruits = Recruits(self._loop)
        self._holders = Holders(self._loop, recruits, os.path.join(folder, "holders"))
        self._recorder = Recorder(self._loop, os.path.join(folder, "recordings"))
        self._zygotes = Zygotes(self._loop, recruits, os.path.join(folder, "zygotes"))
        self._runs = Runs(self._loop, self._holders, self._recorder, self._zygotes, home)
        self._stops = Stops(self._loop, self._holders, self._runs, self._recorder)
        self._earlier = Earlier(self._runs, self._holders, self._recorder)
        self._earlier.take_up_noted()
        self._mounts = HeldMounts(self._loop)
        self._connections: set[socket.socket] = set()
        self._idle: Timer | None = None
        self._handlers: dict[str, Handler] = {
            "hello": self._hello,
            "run": self._run,
            "warm": self._warm,
            "place": self._place,
            "attach": self._attach,
            "signal": self._signal,
            "kill": self._kill,
            "close_input": self._close_input,
            "stop": self._stop,
            "hold": lambda message, _fds, answer: self._mounts.hold(message, answer),
            "open": lambda message, _fds, answer: self._mounts.open(message, answer),
            "release": lambda message, _fds, answer: self._mounts.release(message, answer),
            "held": lambda _message, _fds, answer: answer({"keys": self._mounts.keys()}, []),
            "zygote": self._zygote,
            "zygotes": lambda _message, _fds, answer: answer({"zygotes": self._zygotes.list()}, []),
            "unzygote": lambda message, _fds, answer: self._zygotes.end(message["name"], answer),
            "shutdown": self._shutdown,
        }

    def serve(self) -> None:
        signal.signal(signal.SIGTERM, lambda _number, _frame: self._end())
        self._listener.setblocking(False)
        self._loop.watch(self._listener.fileno(), self._accept)
        self._rest()
        self._loop.run()

    def _end(self) -> None:
        self._loop.running = False

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:
            return
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        _pid, uid, _gid = struct.unpack("3i", credentials)
        if uid not in (os.geteuid(), 0):
            connection.close()
            return
        connection.setblocking(False)
        self._connections.add(connection)
        self._loop.watch(connection.fileno(), lambda: self._readable(connection))

    def _readable(self, connection: socket.socket) -> None:
        try:
            received = wire.receive(connection)
        except BlockingIOError:
            return
        except (wire.WireError, OSError):
            received = None
        if received is None:
            self._drop(connection)
            return
        message, descriptors = received
        self._handle(connection, message, descriptors)

    def _drop(self, connection: socket.socket) -> None:
        if connection not in self._connections:
            return
        self._connections.discard(connection)
        self._loop.unwatch(connection.fileno())
        connection.close()
        self._rest()

    def _handle(self, connection: socket.socket, message: Message, fds: list[int]) -> None:
        number = message.get("id", 0)

        def answer(reply: dict[str, Any], descriptors: list[int]) -> None:
            """A client that went away, or does not read, gets none: what happened is in files."""
            self._rest()
            if connection not in self._connections:
                return
            try:
                wire.send(connection, {"id": number, **reply}, descriptors)
            except OSError:
                self._drop(connection)

        handler = self._handlers.get(message.get("op", ""))
        try:
            if handler is None:
                raise BadRequest(f"unknown request {message.get('op')!r}")
            handler(message, fds, answer)
        except Exception as error:
            # Of a bad request nothing has been used yet; else its descriptors may be gone.
            if isinstance(error, BadRequest):
                wire.close_all(fds)
            answer({"problem": {"step": "request", "errno": 0, "text": repr(error)}}, [])

    def _rest(self) -> None:
        """Starts (again) to count the time in which nobody needs us."""
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        if not self._connections:
            self._idle = self._loop.after(IDLE_EXIT_S, self._end_if_idle)

    def _end_if_idle(self) -> None:
        self._idle = None
        if self._busy():
            # What runs ends without telling us here.
            self._rest()
        else:
            self._end()

    def _busy(self) -> int:
        """How many things would miss us."""
        held = len(self._holders) + len(self._mounts)
        return len(self._runs) + len(self._recorder) + held

    def _hello(self, _message: Message, _fds: list[int], answer: Answer) -> None:
        reply = {"protocol": wire.PROTOCOL, "version": self._version, "pid": os.getpid()}
        counts = {"runs": len(self._runs), "sandboxes": len(self._holders)}
        counts |= {"held": len(self._mounts), "recordings": len(self._recorder)}
        answer({**reply, **counts}, [])

    def _warm(self, message: Message, fds: list[int], answer: Answer) -> None:
        if not message.keys() >= {"sandbox_id", "holder", "linger"}:
            raise BadRequest("a sandbox without its holder")
        self._enter_mount(message["holder"])
        self._runs.warm(message, fds, answer)

    def _place(self, message: Message, fds: list[int], answer: Answer) -> None:
        """Not when they are in place: whoever had it warmed is told that."""
        if "sandbox_id" not in message or not fds:
            raise BadRequest("nothing to place")
        if self._holders.place(message["sandbox_id"], fds):
            answer({}, [])
        else:
            wire.close_all(fds)
            answer({"problem": {"step": "cold", "errno": 0, "text": "none waits for it"}}, [])

    def _run(self, message: Message, fds: list[int], answer: Answer) -> None:
        if not message.keys() >= _REQUIRED:
            raise BadRequest("a run without its plan")
        if message.get("until", math.inf) < time.monotonic():
            raise BadRequest("a run that nobody waits for any more")
        holder = message.get("holder")
        expected = 4 + bool(message["input"]) + (len(holder["stage"]) if holder else 0)
        expected += message["plan"]["given"]
        if message["plan"]["pty"] is None:
            expected += len(message["record"]["names"])
        if len(fds) != expected:
            raise BadRequest("a run without its streams")
        self._enter_mount(holder)
        self._runs.start(message, fds, answer)

    def _enter_mount(self, holder: Message | None) -> None:
        """A tree that is mounted in a namespace: the sandbox starts in there."""
        if holder is not None and holder.get("namespace") is not None:
            entered = self._mounts.namespace(holder["namespace"])
            if entered is None:
                raise BadRequest(f"no mount is held for {holder['namespace']}")
            holder["entered"] = {"user": entered["user"], "mnt": entered["mnt"]}

    def _attach(self, message: Message, fds: list[int], answer: Answer) -> None:
        if not {"run_id", "folder", "given"} <= message.keys():
            raise BadRequest("to attach takes a run and its folder")
        if len(fds) != 1 + bool(message["given"]):
            raise BadRequest("to attach takes a pipe, and what is given")
        self._earlier.attach(message, fds, answer)

    def _signal(self, message: Message, _fds: list[int], answer: Answer) -> None:
        answer({"sent": self._runs.signal(message["run_id"], message["signal"])}, [])

    def _kill(self, message: Message, _fds: list[int], answer: Answer) -> None:
        """Answered when all of it is gone; of one that is just starting not before it is known
        whether it ran at all: then its record is there, or not."""
        run = self._runs.get(message["run_id"]) or self._earlier.find(message["folder"])
        if run is None:
            answer({}, [])
            return
        run.killed = True
        self._runs.kill(run, message["reason"])
        kill = Kill(self._loop, self._runs, run, answer)
        if run.answer is not None:
            run.settled.append(kill.begin)
        else:
            kill.begin()

    def _close_input(self, message: Message, _fds: list[int], answer: Answer) -> None:
        run = self._runs.get(message["run_id"])
        if run is not None:
            run.close_input()
        answer({}, [])

    def _stop(self, message: Message, _fds: list[int], answer: Answer) -> None:
        self._earlier.take_up_all(message["runs"])
        self._stops.begin(message, answer)

    def _zygote(self, message: Message, _fds: list[int], answer: Answer) -> None:
        if not message.keys() >= _ZYGOTE:
            raise BadRequest("a zygote without its program")
        if os.geteuid() == 0 and not message["uid"]:
            raise BadRequest("a zygote loads what others wrote, and never as root")
        self._zygotes.start(message, answer)

    def _shutdown(self, message: Message, _fds: list[int], answer: Answer) -> None:
        """Refused while anything runs, unless it is to run on without us."""
        busy = self._busy()
        if busy and not message["force"]:
            answer({"busy": busy}, [])
            return
        answer({"busy": 0}, [])
        self._end()
