"""Commands: to their end, with what they wrote; and over WebSocket, with output as it comes, input,
resize and signals.

A command does not hang on its connection: a client that goes away attaches again with the offsets
that it has reached.
"""

from __future__ import annotations

import asyncio
import base64
import codecs
import contextlib
import secrets
import struct
import time
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from typing import Any, cast

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState
from uvicorn.protocols.utils import ClientDisconnected

from carrel.api import wire
from carrel.api.types.runs import (
    AttachQuery,
    ControlFrame,
    ExecBody,
    OutputQuery,
    ResizeFrame,
    RunBody,
    RunInfo,
    SignalBody,
    SignalFrame,
    SocketCommand,
    WaitQuery,
)
from carrel.domain.errors import CarrelError, DaemonUnavailable, MessageInvalid
from carrel.domain.runs import Piece, RunRecord, RunState, Stream
from carrel.interfaces.http.access import still_allowed
from carrel.interfaces.http.answers import (
    JSON,
    BrokenOff,
    answer,
    bytes_answer,
    details_of,
    encode,
    foreseen,
)
from carrel.interfaces.http.lifetime import REASON, while_wanted
from carrel.interfaces.http.operations import body_of, query_of
from carrel.interfaces.http.responses import KEEP_ALIVE_S
from carrel.interfaces.http.services import ApiContext, caller, serving
from carrel.service.runs import Input, Runs


async def execute(request: Request) -> Response:
    here, who = serving(request), caller(request)
    asked = await body_of(request, ExecBody)
    record = await _begin(request, asked)
    runs, operations = here.services.runs, here.services.operations.runs
    try:
        record = await while_wanted(request, here.closing, runs.wait(record.run_id, None))
    except DaemonUnavailable as error:
        error.details["run"] = operations.info(who, record)
        raise
    found = await tails(runs, record, asked.max_output_bytes)
    run = operations.info(who, record)
    pieces = told(runs, record, run, found, as_base64=asked.base64)
    if all(tail.data is not None for tail in found):
        return Response(b"".join([piece async for piece in pieces]), media_type=JSON)
    return StreamingResponse(pieces, media_type=JSON)


async def start(request: Request) -> Response:
    record = await _begin(request, await body_of(request, RunBody))
    return answer(serving(request).services.operations.runs.info(caller(request), record), 201)


async def _begin(request: Request, asked: RunBody) -> RunRecord:
    here = serving(request)
    begun = time.perf_counter()
    space = request.path_params["space"]
    record = await here.services.operations.runs.begin(caller(request), space, asked)
    here.metrics.exec.observe(time.perf_counter() - begun)
    return record


async def wait(request: Request) -> Response:
    here, who, run = serving(request), caller(request), request.path_params["run"]
    runs = here.services.operations.runs
    asked = query_of(request, WaitQuery)
    try:
        found = await while_wanted(request, here.closing, runs.wait(who, run, asked))
    except DaemonUnavailable:
        # As it is, and the daemon that comes next is asked again.
        found = await runs.show(who, run)
    return answer(found)


async def output(request: Request) -> Response:
    here = serving(request)
    asked = query_of(request, OutputQuery)
    # Asked before it is read: what is written in between is not the last then.
    find = here.services.operations.runs.find
    record = await find(caller(request), request.path_params["run"])
    piece, ended = await read_on(
        here.services.runs, record, asked.stream, asked.offset, asked.limit
    )
    headers = {"Carrel-Offset": str(piece.offset), "Carrel-Ended": "true" if ended else "false"}
    return bytes_answer(piece.data, headers)


# The end of what a command wrote, for answers that hold all of it

AT_ONCE = 64 * 1024
"""More than this is not kept for an answer but read again, at the pace of who asked: many of them
at once, sixfold as JSON, would be more than the machine has."""


@dataclass(frozen=True)
class OutputTail:
    """The last `size` bytes of a stream, which come after `before` others that are there."""

    stream: Stream
    before: int
    size: int
    truncated: bool
    data: bytes | None
    """None when it is more than `AT_ONCE`."""


async def tails(runs: Runs, record: RunRecord, most: int) -> list[OutputTail]:
    """The last `most` bytes of both streams of a run that has ended."""
    streams = [Stream.STDOUT] if record.terminal else list(Stream)
    return await asyncio.gather(*(_tail(runs, record, stream, most) for stream in streams))


async def _tail(runs: Runs, record: RunRecord, stream: Stream, most: int) -> OutputTail:
    """An empty piece at the end says that the last bytes were dropped."""
    offset, found, kept, truncated = 0, 0, bytearray(), False
    async with contextlib.aclosing(runs.follow(record, stream, 0)) as pieces:
        async for piece in pieces:
            truncated = truncated or piece.offset > offset
            offset = piece.offset + len(piece.data)
            found += len(piece.data)
            kept += piece.data
            del kept[: max(0, len(kept) - min(most, AT_ONCE))]
    size = min(found, most)
    data = bytes(kept) if size <= AT_ONCE else None
    return OutputTail(stream, found - size, size, truncated or found > most, data)


async def told(
    runs: Runs, record: RunRecord, run: RunInfo, tails: list[OutputTail], *, as_base64: bool
) -> AsyncGenerator[bytes, None]:
    """The answer in JSON: the run, both streams, and whether some of them is missing."""
    yield b'{"run":' + encode(run)
    truncated = False
    name = b',"%s_base64":"' if as_base64 else b',"%s":"'
    for stream in Stream:
        yield name % stream.encode()
        for tail in tails:
            if tail.stream is stream:
                left = tail.size
                shown = _Base64() if as_base64 else _Text()
                async with contextlib.aclosing(_again(runs, record, tail)) as pieces:
                    async for data in pieces:
                        left -= len(data)
                        yield shown.encode(data)
                yield shown.encode(b"", final=True)
                truncated = truncated or tail.truncated or left > 0
        yield b'"'
    yield b',"truncated":%s}' % encode(truncated)


async def _again(runs: Runs, record: RunRecord, tail: OutputTail) -> AsyncGenerator[bytes, None]:
    """Less, when something that the command left running has pushed it out since."""
    if tail.data is not None:
        yield tail.data
        return
    before, left = tail.before, tail.size
    try:
        async with contextlib.aclosing(runs.follow(record, tail.stream, 0)) as pieces:
            async for piece in pieces:
                data = piece.data[before : before + left]
                before = max(0, before - len(piece.data))
                left -= len(data)
                for start in range(0, len(data), AT_ONCE):
                    yield data[start : start + AT_ONCE]
                if not left:
                    return
    except CarrelError as error:
        # It is too late to tell: the client sees that the answer is not whole.
        raise BrokenOff(str(error)) from error


class _Text:
    """What is no UTF-8 is replaced."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def encode(self, data: bytes, *, final: bool = False) -> bytes:
        return encode(self._decoder.decode(data, final))[1:-1]


class _Base64:
    def __init__(self) -> None:
        self._rest = b""

    def encode(self, data: bytes, *, final: bool = False) -> bytes:
        data = self._rest + data
        whole = len(data) if final else len(data) - len(data) % 3
        self._rest = data[whole:]
        return base64.b64encode(data[:whole])


async def read_on(
    runs: Runs, record: RunRecord, stream: Stream, offset: int, limit: int
) -> tuple[Piece, bool]:
    """A piece, and whether it is the last of a run whose `record` said that it has ended."""
    piece = await runs.read(record, stream, offset, limit)
    if record.state not in (RunState.ENDED, RunState.FAILED):
        return piece, False
    if not piece.data:
        return piece, True
    after = await runs.read(record, stream, piece.offset + len(piece.data), 1)
    return piece, not after.data


# The WebSocket

FIRST_FRAME_S = 30.0
"""A client says what it wants at once; one that does not has lost its way."""
PIECE = 256 * 1024
GOODBYE, POLICY, OUR_FAULT, RESTART = 1000, 1008, 1011, 1012
_CONTROL = cast("type[ControlFrame]", ControlFrame)
for _kind in (SocketCommand, AttachQuery, _CONTROL):
    wire.prepare(_kind)
_NUMBER = {Stream.STDOUT: 1, Stream.STDERR: 2}


async def exec_socket(websocket: WebSocket) -> None:
    session = RunSession(websocket)
    await websocket.accept()
    async with session.problems():
        asked = await session.first_frame()
        session.name(asked.reader)
        await session.attend(await session.start(websocket.path_params["space"], asked), {})


async def attach_socket(websocket: WebSocket) -> None:
    asked = query_of(websocket, AttachQuery)
    session = RunSession(websocket)
    session.name(asked.reader, hold=asked.hold)
    await websocket.accept()
    async with session.problems():
        record = await session.runs.find(session.caller, websocket.path_params["run"])
        await session.attend(record, {Stream.STDOUT: asked.stdout, Stream.STDERR: asked.stderr})


class RunSession:
    """One client of one run."""

    def __init__(self, websocket: WebSocket) -> None:
        self.here: ApiContext = serving(websocket)
        self.runs = self.here.services.operations.runs
        self.caller = caller(websocket)
        self._socket = websocket
        self._reader = ""
        """By this name the command waits for us; empty: it does not."""
        self._comes_back = False

    # Beginning

    def name(self, reader: str, *, hold: bool = True) -> None:
        """A client without a name of its own cannot be known again."""
        self._comes_back = bool(reader)
        self._reader = (reader or secrets.token_hex(8)) if hold else ""
        if self._reader:
            # As with a pipe: however long it does not read, it is waited for.
            self._socket.scope["state"]["be_patient"]()

    async def first_frame(self) -> SocketCommand:
        try:
            async with asyncio.timeout(FIRST_FRAME_S):
                message = await self._socket.receive()
        except TimeoutError:
            raise MessageInvalid("No command came.", hint="Send it in the first frame.") from None
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code", 1005))
        text = message.get("text")
        if text is None:
            raise MessageInvalid("The first frame is the command.", hint="Send it as text.")
        return wire.from_json(text.encode(), SocketCommand, "frame")

    async def start(self, word: str, asked: SocketCommand) -> RunRecord:
        begun = time.perf_counter()
        record = await self.runs.begin_attached(self.caller, word, asked, self._reader)
        self.here.metrics.exec.observe(time.perf_counter() - begun)
        return record

    # Both ways at once

    async def attend(self, record: RunRecord, offsets: dict[Stream, int]) -> None:
        """Until the command has ended, the client went away, or the daemon ends."""
        target = None if record.terminal else self.runs.inputs.of(record.run_id)
        accepted = None if target is None else target.accepted
        started = {"type": "started", "run": self.runs.info(self.caller, record), "input": accepted}
        await self._send({**started, "unenforced": self.here.services.runs.unenforced(record)})
        telling = asyncio.create_task(self._tell(record, offsets))
        others = [
            asyncio.create_task(self._input(record)),
            asyncio.create_task(self._acknowledge(target)),
            asyncio.create_task(self._watch_access(record)),
            asyncio.create_task(self.here.closing.wait()),
        ]
        tasks = [telling, *others]
        try:
            with self.here.services.hangups.watching(record):
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            if self._reader and not self._comes_back:
                self.here.services.runs.let_go(record.run_id, self._reader)
        for result in results:
            if isinstance(result, Exception):
                raise result
        if telling.cancelled() and self.here.closing.begun:
            await self._socket.close(RESTART, REASON)

    async def _tell(self, record: RunRecord, offsets: dict[Stream, int]) -> None:
        """All of it, also how it ended: however long the client does not read."""
        await self._output(record, offsets)
        ended = await self.here.services.runs.wait(record.run_id, None)
        await self._send({"type": "exit", "run": self.runs.info(self.caller, ended)})
        await self._socket.close(1000)

    async def _output(self, record: RunRecord, offsets: dict[Stream, int]) -> None:
        streams = [Stream.STDOUT] if record.terminal else [Stream.STDOUT, Stream.STDERR]
        async with asyncio.TaskGroup() as group:
            for stream in streams:
                group.create_task(self._follow(record, stream, offsets.get(stream, 0)))

    async def _follow(self, record: RunRecord, stream: Stream, offset: int) -> None:
        """At the client's pace: what it does not take stays in the record."""
        pieces = self.here.services.runs.follow(record, stream, offset, self._reader)
        async with contextlib.aclosing(pieces):
            async for piece in pieces:
                for start in range(0, max(1, len(piece.data)), PIECE):
                    head = struct.pack("!BQ", _NUMBER[stream], piece.offset + start)
                    await self._socket.send_bytes(head + piece.data[start : start + PIECE])

    async def _input(self, record: RunRecord) -> None:
        """Returns when the client has gone."""
        target = self.runs.inputs.of(record.run_id)
        while True:
            message = await self._socket.receive()
            if message["type"] == "websocket.disconnect":
                self._comes_back = self._comes_back and message.get("code") != GOODBYE
                return
            data = message.get("bytes")
            if data is None:
                text = message["text"].encode()
                await self._control(record, wire.from_json(text, _CONTROL, "frame"))
            elif target is not None:
                await target.put(data)
            elif not (record.stdin or record.terminal):
                raise MessageInvalid(
                    "The command has no standard input.", hint="Ask for it with stdin: true."
                )

    async def _acknowledge(self, target: Input | None) -> None:
        """What the command has of its input stays with it, whatever becomes of the daemon."""
        if target is None:
            await asyncio.Event().wait()
            return
        async with contextlib.aclosing(target.given()) as told:
            async for count in told:
                await self._send({"type": "input", "bytes": count})

    async def _control(self, record: RunRecord, control: ControlFrame) -> None:
        live = self.here.services.runs.live(record.run_id)
        if live is None:
            return
        if isinstance(control, SignalFrame):
            asked = SignalBody(signal=control.signal)
            await self.runs.signal(self.caller, record.run_id, asked)
        elif isinstance(control, ResizeFrame):
            live.run.resize(control.rows, control.cols)
        elif (target := self.runs.inputs.of(record.run_id)) is not None:
            target.end()

    async def _watch_access(self, record: RunRecord) -> None:
        """A token that is revoked, or a space that leaves its reach, ends the session."""
        while True:
            await asyncio.sleep(KEEP_ALIVE_S)
            await still_allowed(self._socket.scope)
            await self.runs.find(self.caller, record.run_id)

    # Telling

    async def _send(self, message: dict[str, Any]) -> None:
        await self._socket.send_text(encode(message).decode())

    @contextlib.asynccontextmanager
    async def problems(self) -> AsyncIterator[None]:
        """What goes wrong is told in a frame, and then the connection ends."""
        try:
            yield
        except (WebSocketDisconnect, ClientDisconnected):
            return
        except Exception as error:
            problem = foreseen(error, f"WS {self._socket.scope['path']}")
            await self._fail(problem)

    async def _fail(self, error: CarrelError) -> None:
        if self._socket.application_state is not WebSocketState.CONNECTED:
            return
        details = details_of(error)
        code = OUR_FAULT if details["status"] == 500 else POLICY
        self._socket.scope["state"]["be_patient"](False)
        with contextlib.suppress(WebSocketDisconnect, ClientDisconnected, RuntimeError):
            # The members `type` of a frame and of a problem are the same: the frame's wins.
            await self._send({**details, "type": "problem"})
            await self._socket.close(code, error.code)
