"""The process that serves `carrel mcp`: a fork for each session, with the SDK loaded already.

The daemon starts it with the first session that it expects, and sends it each connection that
came through a socket for MCP, with what is known of who comes through there. The next fork is
made before it is needed, and has done once what every client begins with. A session is a
process of its own: one that is attacked, or busy, is no other's concern. It ends with its
connection, and outlives the daemon, as the agent does that it serves; it connects to the hub
again by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import logging
import os
import resource
import signal
import socket
import struct
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from types import FrameType

import anyio
import mcp_types as types
import msgspec
from mcp.shared._context_streams import (
    ContextReceiveStream,
    ContextSendStream,
    create_context_streams,
)
from mcp.shared.message import SessionMessage

from carrel import __version__
from carrel.client.aio_hub import AsyncHub
from carrel.domain.hub import HUB_SOCKET, McpSession
from carrel.linux.descriptors import is_readable
from carrel.linux.namespaces import set_dumpable, set_no_new_privileges
from carrel.mcp.hub import ToolHub
from carrel.mcp.server import NAME, CarrelServer

MOST = 16
"""Sessions of one space at a time. An agent has one, and one for each of its own helpers."""
MOST_OF_ACCOUNT = 128
"""Sessions of all spaces of one account."""
MESSAGE_BYTES = 64 * 1024
LONGEST = 4 << 20
"""Of a line: several times what the hub takes of one message."""
MORE_BYTES = 256 << 20
"""Of memory that one session may take beside what all share."""
CALM_S = 0.2
"""After a session began: to make the next one ready takes as much of a processor as its handshake
does, and is not to compete with that."""
LAST_S = 2.0
"""For answers after the end of the input. Questions to people wait in the log, not here."""
OF_ITSELF = "/proc/self/cwd"
"""A session is in the folder of its hub's socket. This name stays short, and leads there also
for a user who may not pass through the folders above."""

_Streams = tuple[
    ContextReceiveStream[SessionMessage | Exception], ContextSendStream[SessionMessage]
]


def main() -> None:
    """Serves what comes on standard input, which is a socket, until the daemon closes it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    # Only this process has the daemon's socket: its end is to be noticed.
    os.dup2(null, 0)
    hubs = {inside: ToolHub(inside=inside) for inside in (True, False)}
    servers = {inside: CarrelServer(hub) for inside, hub in hubs.items()}
    for server in servers.values():
        asyncio.run(_rehearse(server))
    living: dict[int, McpSession] = {}
    signal.signal(signal.SIGCHLD, functools.partial(_reap, living))
    # What is here is shared with all sessions, unless somebody counts references in it.
    gc.collect()
    gc.freeze()

    def become(line: socket.socket, *, rehearse: bool = True) -> None:
        control.close()
        if rehearse:
            asyncio.run(_rehearse(servers[True]))
        data, descriptors, _, _ = socket.recv_fds(line, MESSAGE_BYTES, 1)
        line.close()
        if descriptors:
            session = msgspec.json.decode(data, type=McpSession)
            connection = socket.socket(fileno=descriptors[0])
            _serve_alone(session, connection, servers[session.inside], hubs[session.inside])

    spare = SpareSession.fork(become)
    while True:
        if spare is None and not is_readable(control.fileno(), CALM_S):
            spare = SpareSession.fork(become)
        data, descriptors, _, _ = socket.recv_fds(control, MESSAGE_BYTES, 1)
        if not descriptors:
            return
        session = msgspec.json.decode(data, type=McpSession)
        with socket.socket(fileno=descriptors[0]) as connection:
            # Nobody is taken out of those who live while they are counted.
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
            if _has_room(session, living.values()):
                for _ in "ab":
                    if spare is not None and spare.give(data, connection):
                        living[spare.pid] = session
                        _join(session, spare.pid)
                        break
                    # It has died, or is not there yet: somebody waits, and does it for real.
                    spare = SpareSession.fork(functools.partial(become, rehearse=False))
                spare = None
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])


class SpareSession:
    """A process that is ready for the next session."""

    def __init__(self, pid: int, line: socket.socket) -> None:
        self.pid = pid
        self._line = line

    @classmethod
    def fork(cls, become: Callable[[socket.socket], None]) -> SpareSession | None:
        """None where there can be no more processes now."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                pid = os.fork()
            except OSError as error:
                ours.close()
                logging.getLogger(__name__).error("no process for a session: %s", error)
                return None
            if pid:
                return cls(pid, ours)
            try:
                ours.close()
                become(theirs)
            except Exception:
                logging.getLogger(__name__).exception("no process is ready for a session")
            finally:
                os._exit(1)

    def give(self, data: bytes, connection: socket.socket) -> bool:
        """The session that it is for. False when it has died."""
        try:
            with self._line as line:
                socket.send_fds(line, [data], [connection.fileno()])
        except OSError:
            return False
        return True


def _has_room(session: McpSession, living: Iterable[McpSession]) -> bool:
    """The owner of the machine has no space, and no limit."""
    of_account = [one for one in living if one.account == session.account]
    of_space = [one for one in of_account if one.name == session.name]
    few = len(of_space) < MOST and len(of_account) < MOST_OF_ACCOUNT
    return few or not session.inside


REHEARSAL = (
    {
        "id": 0,
        "method": "initialize",
        "params": {
            "protocolVersion": types.LATEST_PROTOCOL_VERSION,
            "capabilities": {},
            "clientInfo": {"name": NAME, "version": __version__},
        },
    },
    {"method": "notifications/initialized"},
    {"id": 1, "method": "tools/list"},
)


async def _rehearse(server: CarrelServer) -> None:
    """How every client begins, once before there is any: libraries load and build much at the
    first use."""
    ours, theirs = socket.socketpair()
    with ours:
        for message in REHEARSAL:
            ours.sendall(msgspec.json.encode({"jsonrpc": "2.0", **message}) + b"\n")
        ours.shutdown(socket.SHUT_WR)
        async with _lines(theirs) as (heard, said):
            await server.serve(heard, said)


def _reap(living: dict[int, McpSession], _number: int, _frame: FrameType | None) -> None:
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        living.pop(pid, None)


def _serve_alone(
    session: McpSession, connection: socket.socket, server: CarrelServer, hub: ToolHub
) -> None:
    """Serves this session, and ends the process."""
    status = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
        _confine(session)
        if session.inside:
            # The daemon's log is not for what a space can have said, however often it likes.
            os.dup2(0, 2)
        asyncio.run(_serve(connection, server, hub, session.inside))
        status = 0
    except Exception:
        logging.getLogger(__name__).exception("a session of %s ended", session.name)
    finally:
        sys.stderr.flush()
        os._exit(status)


def _join(session: McpSession, pid: int) -> None:
    """Puts a session under the limits of its space. It has begun meanwhile: the kernel takes its
    time. One that cannot be limited is ended."""
    try:
        for path in session.join:
            with open(path, "w") as file:
                file.write(str(pid))
    except ProcessLookupError:
        # It is over already; nobody else can have its number before we have heard of that.
        return
    except OSError as error:
        logging.getLogger(__name__).error("no limits for a session of %s: %s", session.name, error)
        os.kill(pid, signal.SIGKILL)


def _confine(session: McpSession) -> None:
    """Of a space: as its user, with a limit of memory."""
    os.chdir(session.folder)
    if session.uid is not None and session.gid is not None and os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(session.gid, session.gid, session.gid)
        os.setresuid(session.uid, session.uid, session.uid)
    set_dumpable(False)
    set_no_new_privileges()
    if session.inside:
        resource.setrlimit(resource.RLIMIT_DATA, (_data_bytes() + MORE_BYTES,) * 2)


def _data_bytes() -> int:
    """What counts for `RLIMIT_DATA` already."""
    with open("/proc/self/status") as file:
        found = next(line for line in file if line.startswith("VmData:"))
    return int(found.split()[1]) * 1024


async def _serve(
    connection: socket.socket, server: CarrelServer, hub: ToolHub, inside: bool
) -> None:
    open_hub = functools.partial(
        AsyncHub,
        socket=f"{OF_ITSELF}/{HUB_SOCKET}",
        name=NAME,
        kind="agent" if inside else "app",
    )
    async with hub.connected(open_hub), _lines(connection) as (heard, said):
        if inside:
            _end_after(connection)
        await server.serve(heard, said)


def _end_after(connection: socket.socket) -> None:
    """Ends this process when that of its client has ended. Its end of the connection can be in
    other hands then, or in a message that nobody reads: it would keep us for good."""
    pid, _, _ = struct.unpack(
        "3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    )
    if not pid:
        # It is in a namespace that we do not see.
        return
    loop = asyncio.get_running_loop()
    try:
        client = os.pidfd_open(pid)
    except ProcessLookupError:
        loop.call_later(LAST_S, os._exit, 0)
        return

    def ended() -> None:
        loop.remove_reader(client)
        loop.call_later(LAST_S, os._exit, 0)

    loop.add_reader(client, ended)


@contextlib.asynccontextmanager
async def _lines(connection: socket.socket) -> AsyncIterator[_Streams]:
    """Messages that come and go as lines. Who sends a line that is too long is cut off."""
    reader, writer = await asyncio.open_unix_connection(sock=connection, limit=LONGEST)
    coming, heard = create_context_streams[SessionMessage | Exception](0)
    said, going = create_context_streams[SessionMessage](0)
    asked: set[int | str] = set()
    answered = asyncio.Event()

    async def receive() -> None:
        async with coming:
            with contextlib.suppress(ValueError, OSError, anyio.BrokenResourceError):
                while line := await reader.readline():
                    message = _message(line)
                    if isinstance(message, SessionMessage):
                        asked.update(_ids(message, types.JSONRPCRequest))
                    await coming.send(message)
            # The end of what comes ends all, but for what is answered in a moment.
            with anyio.move_on_after(LAST_S):
                while asked:
                    answered.clear()
                    await answered.wait()

    async def send() -> None:
        async with going:
            with contextlib.suppress(OSError):
                async for message in going:
                    text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                    writer.write(text.encode("utf-8", "replace") + b"\n")
                    await writer.drain()
                    asked.difference_update(
                        _ids(message, types.JSONRPCResponse, types.JSONRPCError)
                    )
                    answered.set()
            asked.clear()
            answered.set()

    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(receive)
            tasks.start_soon(send)
            yield heard, said
    finally:
        writer.close()


def _ids(message: SessionMessage, *kinds: type) -> list[int | str]:
    id = getattr(message.message, "id", None)
    return [id] if isinstance(message.message, kinds) and id is not None else []


def _message(line: bytes) -> SessionMessage | Exception:
    try:
        text = line.decode("utf-8", "replace")
        return SessionMessage(types.jsonrpc_message_adapter.validate_json(text, by_name=False))
    except Exception as error:
        return error
