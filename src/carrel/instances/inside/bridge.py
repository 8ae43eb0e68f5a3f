"""Offers a server that speaks on its standard streams over streamable HTTP, at /mcp.

The MCP SDK's own transports stand at both sides, and messages pass between them as they are. Each
session has a server process of its own, which ends with it. It is run by Carrel's interpreter as

    python -I bridge.py --fd N [--inside PORT_FILE] -- COMMAND…

with the doors and the token of `uvicorn_shim.py`. The stateless protocol of 2026-07-28 is refused
in the way that has clients begin with a handshake: a process on streams needs one.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import socket
import sys
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import uvicorn
from anyio.abc import TaskGroup, TaskStatus
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.server.streamable_http import MCP_SESSION_ID_HEADER, StreamableHTTPServerTransport
from mcp.server.streamable_http_manager import DEFAULT_SESSION_IDLE_TIMEOUT
from mcp.server.transport_security import RequestBodyLimitMiddleware, TransportSecuritySettings
from mcp.shared._stream_protocols import ReadStream, WriteStream
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp.shared.message import ServerMessageMetadata, SessionMessage
from mcp_types import ErrorData, JSONRPCError, JSONRPCNotification, JSONRPCRequest, RequestId
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

if TYPE_CHECKING:
    from carrel.instances.inside import uvicorn_shim as shim
else:  # by its file: the package may not be shown in the sandbox
    _SPEC = importlib.util.spec_from_file_location(
        "uvicorn_shim", Path(__file__).with_name("uvicorn_shim.py")
    )
    shim = importlib.util.module_from_spec(_SPEC)
    _SPEC.loader.exec_module(shim)

PATH = "/mcp"
MARK = "CARREL_BRIDGE_SESSION"
"""In the environment of a session's processes, so that those who went away from their parent
are found too."""
MAX_BODY = 64 * 1024 * 1024
"""Bytes of a message: a file that is written is one."""
MAX_SESSIONS = 64
ANSWERS_S = 2.0
"""For the last answers of a session to be read."""
GOODBYE_S = 1
"""For connections to end when the bridge does."""
KILL_S = 5.0
"""For killed processes to be gone; only what hangs in the kernel takes longer."""
LOCAL = ("127.0.0.1", "localhost", "[::1]")
SERVER_ENDED = -32000
INVALID = -32600
OVER = (anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError)
"""What streams raise whose other side has gone."""

ToServer = WriteStream[SessionMessage]
ToClient = WriteStream[SessionMessage]
FromEither = ReadStream[SessionMessage | Exception]


class Session:
    """Between one client and its process: which requests of the client are not answered yet."""

    def __init__(self, to_client: ToClient) -> None:
        self._to_client = to_client
        self._open: dict[RequestId, SessionMessage] = {}

    async def to_server(self, source: FromEither, first: SessionMessage, to: ToServer) -> None:
        """Until the client goes."""
        await self.pass_on(first, to)
        with contextlib.suppress(*OVER):
            async for message in source:
                if isinstance(message, SessionMessage):
                    await self.pass_on(message, to)

    async def pass_on(self, passed: SessionMessage, to: ToServer) -> None:
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

    async def to_client(self, source: FromEither) -> None:
        async for passed in source:
            if not isinstance(passed, SessionMessage):
                continue
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

    async def until_it_ends(self, source: FromEither, rest: anyio.CancelScope) -> None:
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


class Place:
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
    def __init__(self, command: list[str]) -> None:
        self._command = command
        self._sessions: dict[str, Place] = {}
        self._tasks: TaskGroup | None = None
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
            idle_timeout=DEFAULT_SESSION_IDLE_TIMEOUT,
        )
        place = Place(transport)
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
        self, place: Place, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        transport = place.transport
        name = transport.mcp_session_id or ""
        self._sessions[name] = place
        try:
            async with transport.connect() as (source, to_client):
                task_status.started()
                with transport.idle_scope or anyio.CancelScope():
                    await self._serve(name, source, to_client)
                await place.close()
        except Exception as error:  # the others go on
            print(f"carrel: a session of the bridge ended: {error!r}", file=sys.stderr, flush=True)
        finally:
            del self._sessions[name]
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(end_marked, name)

    async def _serve(self, name: str, source: FromEither, to_client: ToClient) -> None:
        """The process is started for the first message, which is a handshake."""
        session = Session(to_client)
        try:
            first = await source.receive()
        except OVER:
            return
        assert isinstance(first, SessionMessage)
        word, *words = self._command
        server = StdioServerParameters(command=word, args=words, env={**os.environ, MARK: name})
        try:
            async with stdio_client(server) as streams, anyio.create_task_group() as both:
                both.start_soon(session.until_it_ends, streams[0], both.cancel_scope)
                await session.to_server(source, first, streams[1])
                both.cancel_scope.cancel()
        except OSError as error:
            session.note(first)
            await session.end(f"The server cannot be started: {word}: {error.strerror}")


class Server(uvicorn.Server):
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


def end_marked(name: str) -> None:
    """Until there is none: one may have begun another while it was looked for."""
    wanted = f"{MARK}={name}".encode()
    until = time.monotonic() + KILL_S
    while found := [pid for pid in processes() if has(pid, wanted)]:
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > until:
            return
        time.sleep(0.001)


def processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def has(pid: int, wanted: bytes) -> bool:
    """What has ended, and is not reaped yet, has no environment."""
    try:
        return wanted in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def main(words: list[str]) -> None:
    token = os.environ.pop(shim.TOKEN, "")
    given, command = shim.options(words)
    doors = shim.Doors(shim.given_fds(given), token, given.get("--inside", ""))
    bridge = Bridge(command)
    app = Starlette(
        routes=[Route(PATH, RequestBodyLimitMiddleware(bridge, MAX_BODY))], lifespan=bridge.run
    )
    config = uvicorn.Config(
        doors.guard(app), log_config=None, access_log=False, timeout_graceful_shutdown=GOODBYE_S
    )
    Server(config, bridge).run(doors.sockets())


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except shim.Wrong as error:
        sys.exit(f"carrel: the bridge cannot be started: {error}")
