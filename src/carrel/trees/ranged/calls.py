"""One call to a process in a namespace with all ids of the user, and what it asks back meanwhile.

Both sides are this program, of the same user: they send each other Python's own objects.
"""

from __future__ import annotations

import os
import pickle
import socket
import struct
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from carrel.domain.errors import TreeUnavailable
from carrel.linux.processes import python

_HEAD = struct.Struct("<Q")
_MOST_FDS = 4
MODULE = "carrel.trees.ranged.work"


class Given(NamedTuple):
    """A descriptor that goes along, and is closed here then."""

    descriptor: int


class Gone(EOFError):
    """The other side ended."""


class AskedBack(BaseException):
    """What was asked back failed there, which knows why: all that is left here is to stop."""


def send(channel: socket.socket, said: tuple[Any, ...], *given: int) -> None:
    body = pickle.dumps(said)
    with suppress(BrokenPipeError, ConnectionResetError):
        socket.send_fds(channel, [_HEAD.pack(len(body))], [*given])
        channel.sendall(body)
        return
    raise Gone


def receive(channel: socket.socket) -> tuple[tuple[Any, ...], list[int]]:
    head, given = b"", []
    with suppress(ConnectionResetError):
        while len(head) < _HEAD.size:
            more, fds, _, _ = socket.recv_fds(channel, _HEAD.size - len(head), _MOST_FDS)
            given += fds
            if not more:
                raise Gone
            head += more
        body = bytearray()
        (size,) = _HEAD.unpack(head)
        while len(body) < size:
            piece = channel.recv(min(size - len(body), 1 << 20))
            if not piece:
                raise Gone
            body += piece
        for one in given:
            os.set_inheritable(one, False)
        return pickle.loads(body), given
    raise Gone


class RangeCalls:
    """Any thread."""

    def __init__(self, data: Path) -> None:
        self._data = data

    def call(
        self,
        name: str,
        *arguments: Any,
        asks: Mapping[str, Callable[..., Any]] | None = None,
    ) -> Any:
        """What a method of `work.Work` answers, or raises. `asks`: what it may ask back, which may
        answer with a descriptor (`Given`). Raises `TreeUnavailable` when the process fails."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        number = theirs.fileno()
        argv = [*python(MODULE), str(number), str(self._data)]
        nothing = subprocess.DEVNULL
        with ours, theirs:
            process = subprocess.Popen(
                argv, stdin=nothing, stdout=nothing, stderr=nothing, cwd="/", pass_fds=(number,)
            )
            theirs.close()
            try:
                send(ours, (name, arguments))
                return _talk(ours, asks or {})
            except Gone as error:
                raise TreeUnavailable(
                    "The process that works on files of several users ended.",
                    hint="Try again; `carrel doctor` says whether your range of ids works.",
                ) from error
            finally:
                ours.close()  # It ends at what it asks next.
                process.wait()


def _talk(channel: socket.socket, asks: Mapping[str, Callable[..., Any]]) -> Any:
    failed: BaseException | None = None
    while True:
        (kind, *said), _ = receive(channel)
        if kind == "done":
            return said[0]
        if kind == "failed":
            raise failed if failed is not None else said[0]
        name, arguments = said
        try:
            answer = asks[name](*arguments)
        except BaseException as error:
            failed = error
            send(channel, ("failed",))
            continue
        if isinstance(answer, Given):
            try:
                send(channel, ("given",), answer.descriptor)
            finally:
                os.close(answer.descriptor)
        else:
            send(channel, ("answer", answer))
