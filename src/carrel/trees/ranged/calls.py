"""One call to a process in a namespace with all ids of the user, and what it asks back meanwhile.

Both sides are this program, of the same user: they send each other Python's own objects.
"""

from __future__ import annotations

import os
import pickle
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from carrel.domain.errors import TreeUnavailable
from carrel.linux.processes import python

_HEAD = struct.Struct("<Q")
_MOST_FDS = 4
MODULE = "carrel.trees.ranged.work"


class SentDescriptor(NamedTuple):
    """A descriptor that goes along, and is closed here then."""

    descriptor: int


class ProcessGone(EOFError):
    """The other side ended."""


class AskedBack(BaseException):
    """What was asked back failed there, which knows why: all that is left here is to stop."""


def send(channel: socket.socket, said: tuple[Any, ...], *given: int) -> None:
    body = pickle.dumps(said)
    with suppress(BrokenPipeError, ConnectionResetError):
        socket.send_fds(channel, [_HEAD.pack(len(body))], [*given])
        channel.sendall(body)
        return
    raise ProcessGone


def receive(channel: socket.socket) -> tuple[tuple[Any, ...], list[int]]:
    head, given = b"", []
    with suppress(ConnectionResetError):
        while len(head) < _HEAD.size:
            more, fds, _, _ = socket.recv_fds(channel, _HEAD.size - len(head), _MOST_FDS)
            given += fds
            if not more:
                raise ProcessGone
            head += more
        body = bytearray()
        (size,) = _HEAD.unpack(head)
        while len(body) < size:
            piece = channel.recv(min(size - len(body), 1 << 20))
            if not piece:
                raise ProcessGone
            body += piece
        for one in given:
            os.set_inheritable(one, False)
        return pickle.loads(body), given
    raise ProcessGone


class RangeCalls:
    """Any thread. A process does one piece of work at a time, and waits a little for the next."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._lock = threading.Lock()
        self._idle: list[_Worker] = []
        self._closed = False

    def call(
        self,
        name: str,
        *arguments: Any,
        asks: Mapping[str, Callable[..., Any]] | None = None,
    ) -> Any:
        """What a method of `work.RangedWork` answers, or raises. `asks`: what it may ask back,
        which may answer with a `SentDescriptor`. Raises `TreeUnavailable` when it fails."""
        try:
            while True:
                with self._lock:
                    known = self._idle.pop() if self._idle else None
                worker = known or _Worker(self._data)
                try:
                    worker.begin(name, arguments)
                    break
                except ProcessGone:
                    worker.end()
                    if known is None:
                        raise
            return self._finish(worker, asks or {})
        except ProcessGone as error:
            raise TreeUnavailable(
                "The process that works on files of several users ended.",
                hint="Try again; `carrel doctor` says whether your range of ids works.",
            ) from error

    def _finish(self, worker: _Worker, asks: Mapping[str, Callable[..., Any]]) -> Any:
        usable = False
        try:
            kind, answer = _talk(worker.channel, asks)
            usable = True
        finally:
            with self._lock:
                usable = usable and not self._closed
                if usable:
                    self._idle.append(worker)
            if not usable:
                worker.end()
        if kind == "failed":
            raise answer
        return answer

    def close(self) -> None:
        with self._lock:
            self._closed = True
            going, self._idle = self._idle, []
        for worker in going:
            worker.end()


class _Worker:
    def __init__(self, data: Path) -> None:
        self.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        number = theirs.fileno()
        argv = [*python(MODULE), str(number), str(data)]
        nothing = subprocess.DEVNULL
        with theirs:
            self._process = subprocess.Popen(
                argv, stdin=nothing, stdout=nothing, stderr=nothing, cwd="/", pass_fds=(number,)
            )

    def begin(self, name: str, arguments: tuple[Any, ...]) -> None:
        """Raises `ProcessGone` where nothing was begun."""
        send(self.channel, (name, arguments))
        receive(self.channel)

    def end(self) -> None:
        """It ends at what it asks next, or waits for."""
        self.channel.close()
        self._process.wait()


def _talk(channel: socket.socket, asks: Mapping[str, Callable[..., Any]]) -> tuple[str, Any]:
    """Whether it is done or failed, and with what."""
    failed: BaseException | None = None
    while True:
        (kind, *said), _ = receive(channel)
        if kind == "done":
            return kind, said[0]
        if kind == "failed":
            return kind, failed if failed is not None else said[0]
        name, arguments = said
        try:
            answer = asks[name](*arguments)
        except BaseException as error:
            failed = error
            send(channel, ("failed",))
            continue
        if isinstance(answer, SentDescriptor):
            try:
                send(channel, ("given",), answer.descriptor)
            finally:
                os.close(answer.descriptor)
        else:
            send(channel, ("answer", answer))
