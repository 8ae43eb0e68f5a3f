"""The sessions of the bridge: the MCP SDK's transport towards clients, a server's streams at the
other side, and messages that pass between the two as they are. `bridge.py` loads it, for it takes
its time."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator
from typing import Protocol

import anyio
import uvicorn
from anyio.abc import TaskGroup, TaskStatus
from mcp.server.streamable_http import MCP_SESSION_ID_HEADER, StreamableHTTPServerTransport
from mcp.server.transport_security import RequestBodyLimitMiddleware, TransportSecuritySettings
from mcp.shared._stream_protocols import ReadStream, WriteStream
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp.shared.message import ServerMessageMetadata, SessionMessage
from mcp_types import (
    ErrorData,
    JSONRPCError,
    JSONRPCNotification,
    JSONRPCRequest,
    RequestId,
    jsonrpc_message_adapter,
)
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

PATH = "/mcp"
MAX_BODY = 64 * 1024 * 1024
"""Bytes of a message: a file that is written is one."""
MAX_SESSIONS = 64
ANSWERS_S = 2.0
"""For the last answers of a session to be read."""
GOODBYE_S = 1
"""For connections to end when the bridge does."""
IDLE_S = 30 * 60
"""As the SDK's own sessions have it: one that nobody uses for so long ends."""
END_S, TERMINATE_S = 2.0, 2.0
"""From the end of a server's input to the signal, and from that to the kill."""
PIECE = 64 * 1024
"""Bytes of a server's output that are read at a time."""
LOCAL = ("127.0.0.1", "localhost", "[::1]")
SERVER_ENDED = -32000
INVALID = -32600
OVER = (anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError)
"""What streams raise whose other side has gone."""

ToClient = WriteStream[SessionMessage]
FromEither = ReadStream[SessionMessage | Exception]


class AnyListeners(Protocol):
    """Of `uvicorn_shim.py`."""

    def sockets(self) -> list[socket.socket]: ...

    def guard(self, app: ASGIApp) -> ASGIApp: ...


class AnyProcess(Protocol):
    """Of `bridge.py`, and so are the next."""

    process: subprocess.Popen[bytes]

    def kill(self) -> None: ...


class AnyProcesses(Protocol):
    command: list[str]

    def begin(self) -> None: ...

    def take(self) -> AnyProcess: ...


class ServerStreams:
    """Messages from and to a process, one on each line."""

    def __init__(
        self, child: AnyProcess, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._process = child.process
        self._reader = reader
        self._writer = writer

    async def send(self, passed: SessionMessage) -> None:
        text = passed.message.model_dump_json(by_alias=True, exclude_unset=True)
        try:
            self._writer.write(text.encode() + b"\n")
            await self._writer.drain()
        except OSError:
            raise anyio.BrokenResourceError from None

    async def messages(self) -> AsyncIterator[SessionMessage]:
        """Until its output ends; what is no message is passed over."""
        pieces: list[bytes] = []
        while piece := await self._reader.read(PIECE):
            *lines, rest = piece.split(b"\n")
            for line in lines:
                whole = b"".join((*pieces, line))
                pieces.clear()
                try:
                    message = jsonrpc_message_adapter.validate_json(whole, by_name=False)
                except ValueError:
                    print("carrel: a line of the server is no message", file=sys.stderr, flush=True)
                    continue
                yield SessionMessage(message)
            pieces.append(rest)

    async def stop(self) -> None:
        """As the protocol has it: the end of its input, and only then signals. What it still
        writes is read, or it might wait for that for ever."""
        self._writer.close()
        drain = asyncio.ensure_future(self._drain())
        try:
            if not await self._ends(END_S):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGTERM)
                await self._ends(TERMINATE_S)
        finally:
            drain.cancel()

    async def _drain(self) -> None:
        with contextlib.suppress(OSError):
            while await self._reader.read(PIECE):
                pass

    async def _ends(self, within_s: float) -> bool:
        """Reaped, too."""
        if self._process.poll() is not None:
            return True
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        descriptor = os.pidfd_open(self._process.pid)
        loop.add_reader(descriptor, ended.set)
        try:
            with anyio.move_on_after(within_s):
                await ended.wait()
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)
        return self._process.poll() is not None


@contextlib.asynccontextmanager
async def streams_of(child: AnyProcess) -> AsyncIterator[ServerStreams]:
    """The process is gone afterwards, with all that came of it."""
    streams: ServerStreams | None = None
    read: asyncio.ReadTransport | None = None
    try:
        loop, process = asyncio.get_running_loop(), child.process
        reader = asyncio.StreamReader()
        read, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), process.stdout
        )
        write, protocol = await loop.connect_write_pipe(
            asyncio.streams.FlowControlMixin, process.stdin
        )
        streams = ServerStreams(child, reader, asyncio.StreamWriter(write, protocol, None, loop))
        yield streams
    finally:
        with anyio.CancelScope(shield=True):
            if streams is not None:
                await streams.stop()
            await anyio.to_thread.run_sync(child.kill)
            if read is not None:
                read.close()


class BridgeSession:
    """Between one client and its process: which requests of the client are not answered yet."""

    def __init__(self, to_client: ToClient) -> None:
        self._to_client = to_client
        self._open: dict[RequestId, SessionMessage] = {}

    async def to_server(self, source: FromEither, first: SessionMessage, to: ServerStreams) -> None:
        """Until the client goes."""
        await self.pass_on(first, to)
        with contextlib.suppress(*OVER):
            async for message in source:
                if isinstance(message, SessionMessage):
                    await self.pass_on(message, to)

    async def pass_on(self, passed: SessionMessage, to: ServerStreams) -> None:
        self.note(passed)
        with contextlib.suppress(*OVER):
            await to.send(SessionMessage(passed.message))
        message = passed.message
        if isinstance(message, JSONRPCNotification) and message.method == "notifications/cancelled":
            await self._unanswered((message.params or {}).get("requestId"))

    def note(self, passed: SessionMessage) -> None:
        if isinstance(passed.message, JSONRPCRequest):
            self._open[passed.message.id] = passed

    async def _unanswered(self, number: object) -> None:
        """What was cancelled is not answered, and its response ends all the same."""
        passed = self._open.pop(number, None) if isinstance(number, str | int) else None
        metadata = passed.metadata if passed is not None else None
        if isinstance(metadata, ServerMessageMetadata) and metadata.on_request_unanswered:
            await metadata.on_request_unanswered()

    async def to_client(self, source: ServerStreams) -> None:
        async for passed in source.messages():
            message, metadata = passed.message, None
            if isinstance(message, JSONRPCRequest | JSONRPCNotification):
                metadata = ServerMessageMetadata(related_request_id=self._related(message))
            elif message.id is not None:
                self._open.pop(message.id, None)
            await self._to_client.send(SessionMessage(message, metadata))

    def _related(self, message: JSONRPCRequest | JSONRPCNotification) -> RequestId | None:
        """On whose response it goes. On streams it is not said, but for progress; and clients
        need not listen elsewhere while they wait for an answer."""
        token = (message.params or {}).get("progressToken")
        if token is not None:
            for number, passed in self._open.items():
                if progress_token(passed) == token:
                    return number
        return next(reversed(self._open), None)

    async def until_it_ends(self, source: ServerStreams, rest: anyio.CancelScope) -> None:
        with contextlib.suppress(*OVER):
            await self.to_client(source)
            await self.end("The server has ended.")
        rest.cancel()

    async def end(self, why: str) -> None:
        for number in list(self._open):
            del self._open[number]
            error = ErrorData(code=SERVER_ENDED, message=why)
            answer = JSONRPCError(jsonrpc="2.0", id=number, error=error)
            await self._to_client.send(SessionMessage(answer))


def progress_token(passed: SessionMessage) -> object:
    message = passed.message
    params = message.params if isinstance(message, JSONRPCRequest) else None
    meta = (params or {}).get("_meta")
    return meta.get("progressToken") if isinstance(meta, dict) else None


class SessionTransport:
    """Where a session is reached, and who waits there for an answer."""

    def __init__(self, transport: StreamableHTTPServerTransport) -> None:
        self.transport = transport
        self._posts = 0
        self._quiet = anyio.Event()

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "POST":
            await self.transport.handle_request(scope, receive, send)
            return
        self._posts += 1
        try:
            await self.transport.handle_request(scope, receive, send)
        finally:
            self._posts -= 1
            if not self._posts:
                self._quiet.set()
                self._quiet = anyio.Event()

    async def close(self) -> None:
        """What was answered is on its way still, and would be lost."""
        with anyio.CancelScope(shield=True):
            with anyio.move_on_after(ANSWERS_S):
                while self._posts:
                    await self._quiet.wait()
            await self.transport.terminate()


class Bridge:
    def __init__(self, children: AnyProcesses) -> None:
        self._children = children
        self._sessions: dict[str, SessionTransport] = {}
        self._tasks: TaskGroup | None = None
        self._ending = False
        names = [f"{host}:*" for host in LOCAL]
        self._security = TransportSecuritySettings(
            allowed_hosts=names, allowed_origins=[f"http://{name}" for name in names]
        )

    @contextlib.asynccontextmanager
    async def run(self, _: Starlette) -> AsyncIterator[None]:
        async with anyio.create_task_group() as self._tasks:
            yield
            self._tasks.cancel_scope.cancel()

    async def close(self) -> None:
        self._ending = True
        for place in list(self._sessions.values()):
            await place.transport.terminate()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Request(scope).headers
        version = headers.get(MCP_PROTOCOL_VERSION_HEADER)
        known = headers.get(MCP_SESSION_ID_HEADER)
        if version is not None and version not in HANDSHAKE_PROTOCOL_VERSIONS:
            answer = refusal(400, f"Unsupported protocol version: {version[:40]}")
        elif known is None and len(self._sessions) >= MAX_SESSIONS:
            answer = refusal(503, "Too many open sessions")
        elif known is not None and known not in self._sessions:
            answer = refusal(404, "Session not found")
        elif known is None:
            await self._begin(scope, receive, send)
            return
        else:
            await self._sessions[known].handle(scope, receive, send)
            return
        await answer(scope, receive, send)

    async def _begin(self, scope: Scope, receive: Receive, send: Send) -> None:
        """What is no handshake is refused by the transport, and nothing remains of it."""
        assert self._tasks is not None
        transport = StreamableHTTPServerTransport(
            uuid.uuid4().hex,
            security_settings=self._security,
            idle_timeout=IDLE_S,
        )
        place = SessionTransport(transport)
        began = False

        async def watch(message: Message) -> None:
            nonlocal began
            began = began or message.get("status", 500) < 400
            await send(message)

        await self._tasks.start(self._session, place)
        try:
            await place.handle(scope, receive, watch)
        finally:
            if not began:
                with anyio.CancelScope(shield=True):
                    await transport.terminate()

    async def _session(
        self, place: SessionTransport, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        transport = place.transport
        name = transport.mcp_session_id or ""
        self._sessions[name] = place
        try:
            async with transport.connect() as (source, to_client):
                task_status.started()
                with transport.idle_scope or anyio.CancelScope():
                    await self._serve(source, to_client)
                await place.close()
        except Exception as error:  # the others go on
            print(f"carrel: a session of the bridge ended: {error!r}", file=sys.stderr, flush=True)
        finally:
            del self._sessions[name]

    async def _serve(self, source: FromEither, to_client: ToClient) -> None:
        """The process is taken for the first message, which is a handshake."""
        session = BridgeSession(to_client)
        try:
            first = await source.receive()
        except OVER:
            return
        assert isinstance(first, SessionMessage)
        try:
            child = self._children.take()
        except OSError as error:
            session.note(first)
            word = self._children.command[0]
            await session.end(f"The server cannot be started: {word}: {error.strerror}")
            return
        async with streams_of(child) as streams, anyio.create_task_group() as both:
            both.start_soon(session.until_it_ends, streams, both.cancel_scope)
            await session.to_server(source, first, streams)
            if not self._ending:
                # Before this one is waited for, which may take its time.
                self._children.begin()
            both.cancel_scope.cancel()


class BridgeServer(uvicorn.Server):
    """Ends the sessions first: clients listen for as long as these last."""

    def __init__(self, config: uvicorn.Config, bridge: Bridge) -> None:
        super().__init__(config)
        self._bridge = bridge

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._bridge.close()
        await super().shutdown(sockets)


def refusal(status: int, message: str) -> JSONResponse:
    error = ErrorData(code=INVALID, message=message)
    body = JSONRPCError(jsonrpc="2.0", id=None, error=error)
    return JSONResponse(body.model_dump(mode="json", by_alias=True, exclude_unset=True), status)


def serve(children: AnyProcesses, listeners: AnyListeners) -> None:
    bridge = Bridge(children)
    app = Starlette(
        routes=[Route(PATH, RequestBodyLimitMiddleware(bridge, MAX_BODY))], lifespan=bridge.run
    )
    config = uvicorn.Config(
        listeners.guard(app),
        log_config=None,
        access_log=False,
        ws="none",
        # What else uvicorn would take has to be loaded first, and is not quicker on pipes.
        loop="asyncio",
        timeout_graceful_shutdown=GOODBYE_S,
    )
    BridgeServer(config, bridge).run(listeners.sockets())
