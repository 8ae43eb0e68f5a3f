"""The launcher's loop: connections, requests, and its own end."""

from __future__ import annotations

import math
import os
import signal
import socket
import struct
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from carrel.launcher import messages, wire
from carrel.launcher.attach import Attacher
from carrel.launcher.control import Pauses, Stops, kill_run
from carrel.launcher.loop import Loop, Timer
from carrel.launcher.messages import Answer, failure
from carrel.launcher.mounts import BareNamespaces, HeldMounts
from carrel.launcher.networks import InnerSockets
from carrel.launcher.pool import ChildPool
from carrel.launcher.recorder import Recorder
from carrel.launcher.runs import LaunchedRuns
from carrel.launcher.sandboxes import LiveSandboxes
from carrel.launcher.wire import Message
from carrel.launcher.zygotes import Zygotes
from carrel.linux.reserve import Reserve

IDLE_EXIT_S = 60.0
"""With no client, nothing running and nothing held there is nothing to be here for."""
RETIRED_EXIT_S = 0.5
"""The same, when our last client has said that it needs us no more: a session that ends waits
for us."""

Handler = Callable[[Any, list[int], Answer], None]


class BadRequest(ValueError):
    """Refused before anything was done."""

    step = "request"


class NotMounted(BadRequest):
    """Another launcher held the mount; the caller has it made again."""

    step = "unmounted"


_NAMES = ("op", "run_id", "sandbox_id")
_WITH_DESCRIPTORS = ("run", "warm", "place", "attach")
"""Requests that take some; of others nobody would close them."""


class LauncherServer:
    def __init__(
        self, listener: socket.socket, folder: str, version: str, home: int | None = None
    ) -> None:
        self._loop = Loop()
        self._listener = listener
        self._version = version
        pool = ChildPool(self._loop)
        self._sandboxes = LiveSandboxes(self._loop, pool, os.path.join(folder, "holders"))
        reserve = Reserve(os.path.join(os.path.dirname(folder), "reserve"))
        self._recorder = Recorder(self._loop, os.path.join(folder, "recordings"), reserve)
        self._zygotes = Zygotes(self._loop, pool, os.path.join(folder, "zygotes"))
        self._runs = LaunchedRuns(
            self._loop, self._sandboxes, self._recorder, self._zygotes, home, reserve
        )
        self._stops = Stops(self._loop, self._sandboxes, self._runs, self._recorder)
        self._earlier = Attacher(self._runs, self._sandboxes, self._recorder)
        self._earlier.take_up_noted()
        paused = os.path.join(folder, "pauses")
        self._pauses = Pauses(self._loop, self._sandboxes, self._runs, paused)
        self._sockets = InnerSockets(self._loop, self._sandboxes)
        self._mounts = HeldMounts(self._loop)
        self._bare = BareNamespaces(self._loop.fork)
        self._connections: set[socket.socket] = set()
        self._idle: Timer | None = None
        self._retired = False
        self._requests: dict[str, tuple[Any, Handler]] = {
            "hello": (messages.NoFields, self._hello),
            "run": (messages.RunRequest, self._run),
            "warm": (messages.WarmRequest, self._warm),
            "place": (messages.PlaceRequest, self._place),
            "sockets": (messages.SocketsRequest, self._sockets.make),
            "attach": (messages.AttachRequest, self._attach),
            "signal": (messages.SignalRequest, self._signal),
            "kill": (messages.KillRequest, self._kill),
            "close_input": (messages.CloseInputRequest, self._close_input),
            "pace": (messages.PaceRequest, self._pace),
            "stop": (messages.StopRequest, self._stop),
            "members": (messages.SandboxRequest, self._stops.members),
            "pause": (messages.PauseRequest, self._pauses.begin),
            "resume": (messages.ResumeRequest, self._resume),
            "hold": (messages.HoldRequest, self._mounts.hold),
            "open": (messages.KeyRequest, self._mounts.open),
            "release": (messages.KeyRequest, self._mounts.release),
            "held": (messages.NoFields, self._mounts.tell_keys),
            "zygote": (messages.ZygoteRequest, self._zygote),
            "zygotes": (messages.NoFields, self._zygotes.tell_all),
            "unzygote": (messages.EndZygoteRequest, self._zygotes.end),
            "shutdown": (messages.ShutdownRequest, self._shutdown),
        }
        """What each must have is looked at before it is handled."""

    def serve(self) -> None:
        signal.signal(signal.SIGTERM, lambda _number, _frame: self._end())
        self._listener.setblocking(False)
        self._loop.watch(self._listener.fileno(), self._accept)
        self._rest()
        self._loop.run()
        self._pauses.close()

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
        except (wire.PacketError, OSError):
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

        def answer(reply: messages.Reply, descriptors: list[int]) -> None:
            """A client that went away, or does not read, gets none: what happened is in files."""
            self._rest()
            if connection not in self._connections:
                return
            try:
                wire.send(connection, {"id": number, **reply}, descriptors)
            except OSError:
                self._drop(connection)

        try:
            if not all(isinstance(message.get(one, ""), str) for one in _NAMES):
                raise BadRequest("a name that is none")
            if self._pauses.hold_up(message, lambda: self._handle(connection, message, fds)):
                return
            op = message.get("op", "")
            self._retired = self._retired and op in ("hello", "shutdown")
            if op not in self._requests:
                raise BadRequest(f"unknown request {op!r}")
            if fds and op not in _WITH_DESCRIPTORS:
                raise BadRequest(f"{op} with descriptors")
            kind, handler = self._requests[op]
            missing = kind.__required_keys__ - message.keys()
            if missing:
                raise BadRequest(f"{op} without {', '.join(sorted(missing))}")
            handler(message, fds, answer)
        except Exception as error:
            step = "request"
            # Of a bad request nothing has been used yet; else its descriptors may be gone.
            if isinstance(error, BadRequest):
                step = error.step
                wire.close_all(fds)
            answer({"problem": failure(step, repr(error))}, [])

    def _rest(self) -> None:
        """Starts (again) to count the time in which nobody needs us."""
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        if not self._connections:
            patience = RETIRED_EXIT_S if self._retired else IDLE_EXIT_S
            self._idle = self._loop.after(patience, self._end_if_idle)

    def _end_if_idle(self) -> None:
        self._idle = None
        if self._busy():
            # What runs ends without telling us here.
            self._rest()
        else:
            self._end()

    def _busy(self) -> int:
        """How many things would miss us."""
        held = len(self._sandboxes) + len(self._mounts)
        return len(self._runs) + len(self._recorder) + held

    def _hello(self, _message: messages.NoFields, _fds: list[int], answer: Answer) -> None:
        reply: messages.Reply = {
            "protocol": wire.PROTOCOL,
            "version": self._version,
            "pid": os.getpid(),
        }
        reply |= {"runs": len(self._runs), "sandboxes": len(self._sandboxes)}
        reply |= {"held": len(self._mounts), "recordings": len(self._recorder)}
        answer(reply, [])

    def _warm(self, message: messages.WarmRequest, fds: list[int], answer: Answer) -> None:
        if len(fds) != len(message["holder"]["stage"]):
            raise BadRequest("a sandbox without its mounts")
        self._enter_mount(message["holder"])
        self._runs.warm(message, fds, answer)

    def _place(self, message: messages.PlaceRequest, fds: list[int], answer: Answer) -> None:
        """Not when they are in place: whoever had it warmed is told that."""
        if not fds:
            raise BadRequest("nothing to place")
        if self._sandboxes.place(message["sandbox_id"], fds):
            answer({}, [])
        else:
            wire.close_all(fds)
            answer({"problem": failure("cold", "none waits for it")}, [])

    def _run(self, message: messages.RunRequest, fds: list[int], answer: Answer) -> None:
        if message.get("until", math.inf) < time.monotonic():
            raise BadRequest("a run that nobody waits for any more")
        sandbox = message.get("holder")
        expected = 4 + bool(message["input"]) + (len(sandbox["stage"]) if sandbox else 0)
        expected += message["plan"]["given"]
        if message["plan"]["pty"] is None:
            expected += len(message["record"]["names"])
        if len(fds) != expected:
            raise BadRequest("a run without its streams")
        self._enter_mount(sandbox)
        self._runs.start(message, fds, answer)

    def _enter_mount(self, plan: messages.SandboxPlan | None) -> None:
        """A tree that is mounted in a namespace: the sandbox starts in there. Root's starts where
        little is mounted."""
        if plan is None:
            return
        if (key := plan.get("namespace")) is not None:
            entered = self._mounts.namespace(key)
            if entered is None:
                raise NotMounted(f"no mount is held for {key}")
            plan["entered"] = {"user": entered["user"], "mnt": entered["mnt"]}
        elif os.geteuid() == 0 and (kept := plan.get("kept")):
            bare = self._bare.get(kept)
            plan["entered"] = {} if bare is None else {"bare": bare}

    def _attach(self, message: messages.AttachRequest, fds: list[int], answer: Answer) -> None:
        if len(fds) != 1 + bool(message["given"]):
            raise BadRequest("to attach takes a pipe, and what is given")
        self._earlier.attach(message, fds, answer)

    def _signal(self, message: messages.SignalRequest, _fds: list[int], answer: Answer) -> None:
        answer({"sent": self._runs.signal(message["run_id"], message["signal"])}, [])

    def _kill(self, message: messages.KillRequest, _fds: list[int], answer: Answer) -> None:
        """Answered when all of it is gone; of one that is just starting not before it is known
        whether it ran at all: then its record is there, or not."""
        run = self._runs.get(message["run_id"]) or self._earlier.find(message["folder"])
        if run is None:
            answer({}, [])
            return
        run.killed = True
        self._runs.kill(run, message["reason"])
        kill = partial(kill_run, self._loop, self._runs, run, answer)
        if run.is_starting:
            run.settled.append(kill)
        else:
            kill()

    def _close_input(
        self, message: messages.CloseInputRequest, _: list[int], answer: Answer
    ) -> None:
        run = self._runs.get(message["run_id"])
        if run is not None:
            self._runs.close_input(run)
        answer({}, [])

    def _pace(self, message: messages.PaceRequest, _fds: list[int], answer: Answer) -> None:
        """How far readers have come. What is not recorded any more need not be held."""
        for run_id, stream, reader, position in message["holds"]:
            run = self._runs.get(run_id)
            recorded = self._recorder.behind(run_id) if run is None else run.recorded
            if recorded is not None:
                recorded.hold(stream, reader, position, message["lease"])
        answer({}, [])

    def _stop(self, message: messages.StopRequest, _fds: list[int], answer: Answer) -> None:
        self._earlier.take_up_all(message["runs"])
        self._pauses.end(message["sandbox_id"])
        self._stops.begin(message, answer)

    def _resume(self, message: messages.ResumeRequest, _fds: list[int], answer: Answer) -> None:
        answer({"still": self._pauses.end(message["sandbox_id"])}, [])

    def _zygote(self, message: messages.ZygoteRequest, _fds: list[int], answer: Answer) -> None:
        if os.geteuid() == 0 and not message["uid"]:
            raise BadRequest("a zygote loads what others wrote, and never as root")
        self._zygotes.start(message, answer)

    def _shutdown(self, message: messages.ShutdownRequest, _fds: list[int], answer: Answer) -> None:
        """Refused while anything runs, unless it is to run on without us. Then we end with it."""
        busy = self._busy()
        if busy and not message["force"]:
            self._retired = True
            answer({"busy": busy}, [])
            return
        answer({"busy": 0}, [])
        self._end()
