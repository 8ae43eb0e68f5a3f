"""The socket by which `carrel ssh-proxy` and the listener bring a connection: one message with the
name of the host and the connection, one answer; then it is the space's. The listener also asks
without a connection, whether a key opens a space.

Only the daemon's user and root get in. No byte of the connection passes through here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import struct
from pathlib import Path

import msgspec

from carrel.domain.errors import CarrelError, MessageInvalid
from carrel.domain.ssh import SshArrival
from carrel.service.ssh_listener import SshListener

SOCKET = "ssh"
"""Beside the daemon's own."""
MOST_BYTES = 32_768
"""A public key may have 16."""
ASK_S = 10.0
"""From the connection to the message."""
MOST_OPEN = 256
"""That have not been answered yet."""
BACKLOG = 256
_log = logging.getLogger("carrel")


class SshRequest(msgspec.Struct):
    host: str
    key: str = ""
    """With which somebody comes to the listener, in base64; empty: it is the owner."""
    origin: str = ""
    """Who came to the listener."""
    open: bool = True
    """Whether there is a connection; else it is asked whether the key opens the space."""


class SshSocket:
    def __init__(self, listener: SshListener) -> None:
        self._sshd = listener
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener: socket.socket | None = None
        self._path: Path | None = None

    def open(self, folder: Path) -> None:
        """Makes the socket; one that is there is of a daemon that was killed."""
        path = self._path = folder / SOCKET
        path.unlink(missing_ok=True)
        above = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        listener = self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            # The path may be longer than an address.
            listener.bind(f"/proc/self/fd/{above}/{SOCKET}")
            path.chmod(0o600)
            listener.listen(BACKLOG)
            listener.setblocking(False)
        finally:
            os.close(above)
        asyncio.get_running_loop().add_reader(listener, self._accept)

    def close(self) -> None:
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._listener = None
        if self._path is not None:
            self._path.unlink(missing_ok=True)
        for task in self._tasks:
            task.cancel()

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        connection.setblocking(False)
        client, uid, _ = struct.unpack(
            "3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        )
        if uid not in (os.geteuid(), 0) or len(self._tasks) >= MOST_OPEN:
            connection.close()
            return
        task = asyncio.get_running_loop().create_task(self._serve(connection, client))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, connection: socket.socket, client: int) -> None:
        with connection:
            try:
                async with asyncio.timeout(ASK_S):
                    asked, given = await _receive(connection)
            except (OSError, TimeoutError, EOFError):
                return
            except CarrelError as error:
                answer = _refusal(error)
            else:
                with given or contextlib.nullcontext():
                    answer = await self._answer(asked, given, client)
            with contextlib.suppress(OSError):
                connection.send(msgspec.json.encode(answer))

    async def _answer(
        self, asked: SshRequest, given: socket.socket | None, client: int
    ) -> dict[str, object]:
        try:
            if given is None:
                return {"ok": await self._sshd.opens(asked.host, asked.key)}
            arrival = SshArrival(asked.host, client, asked.key, asked.origin)
            session, agent = await self._sshd.begin(arrival, given.fileno())
        except CarrelError as error:
            return _refusal(error)
        except Exception:
            _log.exception("a connection by ssh")
            return {"ok": False, "message": "It went wrong.", "hint": "Look at the log."}
        return {"ok": True, "space": session.space_id, "agent": agent}


def _refusal(error: CarrelError) -> dict[str, object]:
    return {"ok": False, "message": error.message, "hint": error.hint}


async def _receive(connection: socket.socket) -> tuple[SshRequest, socket.socket | None]:
    """Raises `EOFError` for what is no message of ours, `MessageInvalid`."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(connection, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(connection)
    body, found, _, _ = socket.recv_fds(connection, MOST_BYTES, 4, socket.MSG_CMSG_CLOEXEC)
    with contextlib.ExitStack() as stack:
        for one in found:
            stack.callback(os.close, one)
        if len(found) > 1:
            raise EOFError
        try:
            asked = msgspec.json.decode(body, type=SshRequest)
        except msgspec.MsgspecError:
            if not found:
                raise EOFError from None
            raise MessageInvalid("This is no request.", hint="Use carrel ssh-proxy.") from None
        if asked.open is not bool(found):
            raise EOFError
        if not found:
            return asked, None
        given = socket.socket(fileno=found[0])
        # What is no socket has been closed by now, with the others.
        stack.pop_all()
    return asked, given
