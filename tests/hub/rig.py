"""A hub in this process, on real sockets of both kinds, with clients that speak plain JSON."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import socket
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol, cast

from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send
from websockets.asyncio.client import ClientConnection, unix_connect
from websockets.exceptions import ConnectionClosed

from carrel.daemon.server import DaemonServer
from carrel.domain.access import LOCAL, Caller, ScopeKind
from carrel.domain.access import Scope as Reach
from carrel.domain.hub import Sync
from carrel.domain.trees import Owner
from carrel.hub.hub import HubServer, Options
from carrel.interfaces.http import hub_socket
from carrel.interfaces.http.lifetime import Shutdown
from carrel.interfaces.hub.sockets import HubListener
from carrel.interfaces.mcp import McpProcess
from carrel.store.messages import open_log

WAIT_S = 30.0
"""For what takes milliseconds on a quiet machine."""
TRANSPORTS = ("unix", "websocket")
SPACE, OTHER = "sp_aaaaaaaaaaaa", "sp_bbbbbbbbbbbb"
Envelope = dict[str, Any]
NOTE = "buffer_custom_note"


class KnownSpaces:
    """Two spaces with labels; implements `carrel.hub.access.Spaces`."""

    def __init__(self) -> None:
        self.labels = {SPACE: {"team": "blue"}, OTHER: {"team": "red"}}

    def exists(self, space_id: str) -> bool:
        return space_id in self.labels

    def visible(self, caller: Caller, space_id: str) -> bool:
        if caller.scope.kind is ScopeKind.ADMIN:
            return space_id in self.labels or not space_id
        if caller.scope.kind is ScopeKind.SPACE:
            return space_id == caller.scope.value
        key, _, value = caller.scope.value.partition("=")
        return self.labels.get(space_id, {}).get(key) == value

    def may_agree(self, caller: Caller, space_id: str) -> bool:
        return caller.scope.kind is ScopeKind.ADMIN

    def account(self, space_id: str) -> str:
        return space_id


class Ended(Exception):
    """The hub has ended the connection."""


class Wire(Protocol):
    async def send(self, data: bytes) -> None: ...

    async def receive(self) -> bytes:
        """Raises `Ended`."""
        ...

    async def close(self) -> None: ...

    def stop_reading(self) -> None:
        """Also by what reads ahead."""
        ...


class LineWire:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def send(self, data: bytes) -> None:
        await self.send_raw(data + b"\n")

    async def send_raw(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def receive(self) -> bytes:
        try:
            line = await self._reader.readline()
        except ConnectionError:
            raise Ended from None
        if not line.endswith(b"\n"):
            raise Ended
        return line

    async def close(self) -> None:
        self._writer.close()

    def stop_reading(self) -> None:
        cast(asyncio.ReadTransport, self._writer.transport).pause_reading()


class FrameWire:
    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._silent = False

    async def send(self, data: bytes) -> None:
        """What is no text goes as a binary frame."""
        frame: str | bytes = data
        with contextlib.suppress(UnicodeDecodeError):
            frame = data.decode()
        await self._connection.send(frame)

    async def receive(self) -> bytes:
        try:
            frame = await self._connection.recv()
        except ConnectionClosed:
            raise Ended from None
        assert isinstance(frame, str), "envelopes are text"
        return frame.encode()

    async def close(self) -> None:
        if self._silent:
            # It would not hear that the other side has closed, too, and wait for that.
            self._connection.transport.abort()
        await self._connection.close()

    def stop_reading(self) -> None:
        self._silent = True
        self._connection.transport.pause_reading()


class Peer:
    """One client. What comes is looked at in order; heartbeats are passed over."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self._ids = itertools.count(1)
        self._kept: list[Envelope] = []

    async def send(self, type: str, payload: Any = None, **fields: Any) -> str:
        """Gives the id."""
        fields.setdefault("id", f"m{next(self._ids)}")
        envelope = {"type": type, "payload": {} if payload is None else payload, **fields}
        await self.wire.send(json.dumps(envelope).encode())
        return str(fields["id"])

    async def receive(self) -> Envelope:
        if self._kept:
            return self._kept.pop(0)
        return await self._next()

    async def _next(self) -> Envelope:
        async with asyncio.timeout(WAIT_S):
            while True:
                found: Envelope = json.loads(await self.wire.receive())
                if found["type"] != "heartbeat":
                    return found

    async def answer(self, number: str) -> Envelope:
        """The answer to what was sent under that id; other messages wait."""
        for found in self._kept:
            if found.get("reply_to") == number:
                self._kept.remove(found)
                return found
        while True:
            found = await self._next()
            if found.get("reply_to") == number:
                return found
            self._kept.append(found)

    async def ask(self, type: str, payload: Any = None, **fields: Any) -> Any:
        """The data of a success."""
        found = await self.answer(await self.send(type, payload, **fields))
        assert found["type"] == "response", found
        assert found["payload"]["status"] == "success", found
        return found["payload"]["data"]

    async def refused(self, type: str, payload: Any = None, **fields: Any) -> Envelope:
        """The payload of an error."""
        found = await self.answer(await self.send(type, payload, **fields))
        assert found["type"] == "error", found
        payload = found["payload"]
        assert payload["original_id"] == found["reply_to"]
        return dict(payload)

    async def nothing_more(self) -> None:
        """Whatever was on its way is here before the answer to this."""
        await self.ask("system_status")
        assert self._kept == []

    async def nothing_more_but_answers(self, count: int) -> None:
        for _ in range(count):
            assert (await self.receive())["type"] == "response"

    async def ended(self) -> list[Envelope]:
        """All that came before the hub ended the connection."""
        found, self._kept = self._kept, []
        while True:
            try:
                found.append(await self._next())
            except Ended:
                return found

    async def close(self) -> None:
        await self.wire.close()


class _Admitted:
    """Says who calls, as the API's own access does."""

    def __init__(self, app: ASGIApp, rig: HubRig) -> None:
        self._app, self._rig = app, rig

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = scope["query_string"].decode()
        await self._app({**scope, "carrel.caller": self._rig.callers[name]}, receive, send)


class HubRig:
    def __init__(self, folder: Path, hub: HubServer, transport: str, spaces: KnownSpaces) -> None:
        self.folder = folder
        self.hub = hub
        self.spaces = spaces
        self.transport = transport
        self.callers = {"local": LOCAL, "inside": _bound_to(SPACE), "other": _bound_to(OTHER)}
        self.callers["blue"] = Caller("tk_blue", Reach(ScopeKind.LABEL, "team=blue"))
        self._stack = AsyncExitStack()

    async def connect(self, who: str = "local") -> Peer:
        wire = await (self._line(who) if self.transport == "unix" else self._frame(who))
        self._stack.push_async_callback(wire.close)
        return Peer(wire)

    async def _line(self, who: str) -> Wire:
        path = self.folder / who / "hub.sock"
        return LineWire(*await asyncio.open_unix_connection(path, limit=1 << 25))

    async def _frame(self, who: str) -> Wire:
        connection = await unix_connect(
            str(self.folder / "api"), f"ws://carrel/v1/hub?{who}", max_size=None, ping_interval=None
        )
        return FrameWire(connection)

    async def join(
        self,
        kind: str = "app",
        who: str = "local",
        *,
        types: tuple[str, ...] = (),
        spaces: tuple[str, ...] = (),
        **fields: Any,
    ) -> Peer:
        """A client that has registered."""
        peer = await self.connect(who)
        subscriptions = {"types": types, "spaces": spaces}
        await peer.ask("client_register", {"kind": kind, "subscriptions": subscriptions, **fields})
        return peer

    async def agent(self, **options: Any) -> Peer:
        """One that answers what agents are asked."""
        options.setdefault("capabilities", ["agent_command", "agent_interrupt"])
        return await self.join("agent", "inside", **options)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        listening = HubListener(self.hub, McpProcess(("false",)))
        closing = Shutdown()
        async with self._stack:
            if self.transport == "unix":
                self._listen(listening)
            else:
                server = DaemonServer(self._api(closing), closing)
                await server.open((self._bind(),))
                self._stack.push_async_callback(server.close)
            yield
        listening.close_all()

    def _listen(self, listening: HubListener) -> None:
        for who, caller in self.callers.items():
            folder = self.folder / who
            folder.mkdir(exist_ok=True)
            if caller.scope.kind is ScopeKind.SPACE:
                listening.open_space(folder, caller.scope.value, Owner(0, 0))
            elif caller is LOCAL:
                listening.open_local(folder)

    def _api(self, closing: Shutdown) -> ASGIApp:
        api = Starlette(routes=[WebSocketRoute("/v1/hub", hub_socket.hub_socket)])
        api.state.serving = SimpleNamespace(services=SimpleNamespace(hub=self.hub), closing=closing)
        return _Admitted(api, self)

    def _bind(self) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        path = self.folder / "api"
        path.unlink(missing_ok=True)
        listener.bind(str(path))
        listener.setblocking(False)
        return listener


def _bound_to(space_id: str) -> Caller:
    return Caller(f"space:{space_id}", Reach(ScopeKind.SPACE, space_id))


@asynccontextmanager
async def open_rig(
    data: Path, transport: str, options: Options | None = None
) -> AsyncIterator[HubRig]:
    """`data` may be used again: then it is the hub of a daemon that was started again."""
    with tempfile.TemporaryDirectory(prefix="carrel-hub-") as sockets:
        async with open_log(data / "hub.db", sync=Sync.PROCESS) as log:
            spaces = KnownSpaces()
            hub = HubServer(log, spaces, options or Options(sync=Sync.PROCESS))
            await hub.open()
            rig = HubRig(Path(sockets), hub, transport, spaces)
            try:
                async with rig.serving():
                    yield rig
            finally:
                await hub.close()


def options(**changes: Any) -> Options:
    """As they are usually, but for these."""
    return Options(sync=Sync.PROCESS, **changes)


async def note(peer: Peer, number: int, space: str = SPACE) -> int:
    """Publishes a number, and gives the one that the hub gave it."""
    return int((await peer.ask(NOTE, {"number": number}, space=space))["seq"])


def numbers(envelopes: list[Envelope]) -> list[int]:
    return [one["payload"]["number"] for one in envelopes]


async def hear(peer: Peer, count: int) -> list[Envelope]:
    return [await peer.receive() for _ in range(count)]
