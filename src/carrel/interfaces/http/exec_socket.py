"""Commands over WebSocket: output as it comes, input, resize and signals.

The command does not hang on the connection: a client that goes away attaches again with the
offsets it has reached.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
import time
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import ValidationError
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState
from uvicorn.protocols.utils import ClientDisconnected

from carrel.domain.errors import CarrelError, MessageInvalid
from carrel.domain.runs import RunRecord, Stream
from carrel.domain.runtimes import Command, Output
from carrel.interfaces.http.access import still_allowed
from carrel.interfaces.http.closing import REASON
from carrel.interfaces.http.encoding import encode
from carrel.interfaces.http.exec_frames import Control, parse_control
from carrel.interfaces.http.guard import foreseen
from carrel.interfaces.http.models.runs import SocketCommand
from carrel.interfaces.http.problems import details_of
from carrel.interfaces.http.serving import Serving, caller, serving
from carrel.interfaces.http.streams import KEEP_ALIVE_S
from carrel.interfaces.http.validation import invalid
from carrel.interfaces.http.views import View, run_view
from carrel.service.inputs import Input

FIRST_FRAME_S = 30.0
"""A client says what it wants at once; one that does not has lost its way."""
PIECE = 64 * 1024
POLICY, OUR_FAULT, RESTART = 1008, 1011, 1012
_NUMBER = {Stream.STDOUT: 1, Stream.STDERR: 2}

router = APIRouter()


@router.websocket("/v1/spaces/{space}/exec")
async def exec_socket(websocket: WebSocket, space: str) -> None:
    session = Session(websocket)
    await websocket.accept()
    async with session.problems():
        asked = await session.first_frame()
        await session.attend(await session.start(space, asked), {})


@router.websocket("/v1/runs/{run}/attach")
async def attach_socket(
    websocket: WebSocket,
    run: str,
    stdout: Annotated[int, Query(ge=0, lt=1 << 62)] = 0,
    stderr: Annotated[int, Query(ge=0, lt=1 << 62)] = 0,
) -> None:
    session = Session(websocket)
    await websocket.accept()
    async with session.problems():
        record = await session.here.run(session.caller, run)
        await session.attend(record, {Stream.STDOUT: stdout, Stream.STDERR: stderr})


class Session:
    """One client of one run."""

    def __init__(self, websocket: WebSocket) -> None:
        self.here: Serving = serving(websocket)
        self.caller = caller(websocket)
        self._socket = websocket

    # Beginning

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
        try:
            return SocketCommand.model_validate(json.loads(text))
        except ValidationError as error:
            raise invalid(error.errors(), "frame") from None
        except (ValueError, RecursionError):
            raise MessageInvalid("The first frame is no JSON.", hint="Send {argv: …}.") from None

    async def start(self, word: str, asked: SocketCommand) -> RunRecord:
        space = await self.here.services.spaces.existing(self.caller, word)
        command = Command(
            argv=tuple(asked.argv),
            env=asked.env,
            cwd=asked.cwd,
            output=Output.PTY if asked.terminal else Output.FILES,
            stdin=asked.stdin or asked.terminal,
            timeout_s=asked.timeout_s,
            pty_size=(asked.rows, asked.cols),
        )
        begun = time.perf_counter()
        runs = self.here.services.runs
        record = await runs.start(space.space_id, command, hangup=asked.hangup)
        self.here.metrics.exec.observe(time.perf_counter() - begun)
        return record

    # Both ways at once

    async def attend(self, record: RunRecord, offsets: dict[Stream, int]) -> None:
        """Until the command has ended, the client went away, or the daemon ends."""
        target = None if record.terminal else self.here.inputs.of(record.run_id)
        accepted = None if target is None else target.accepted
        await self._send({"type": "started", "run": run_view(record), "input": accepted})
        telling = asyncio.create_task(self._output(record, offsets))
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
        for result in results:
            if isinstance(result, Exception):
                raise result
        if not telling.cancelled():
            ended = await self.here.services.runs.wait(record.run_id, None)
            await self._send({"type": "exit", "run": run_view(ended)})
            await self._socket.close(1000)
        elif self.here.closing.begun:
            await self._socket.close(RESTART, REASON)

    async def _output(self, record: RunRecord, offsets: dict[Stream, int]) -> None:
        streams = [Stream.STDOUT] if record.terminal else [Stream.STDOUT, Stream.STDERR]
        async with asyncio.TaskGroup() as group:
            for stream in streams:
                group.create_task(self._follow(record, stream, offsets.get(stream, 0)))

    async def _follow(self, record: RunRecord, stream: Stream, offset: int) -> None:
        """At the client's pace: what it does not take stays in the record."""
        pieces = self.here.services.runs.follow(record, stream, offset)
        async with contextlib.aclosing(pieces):
            async for piece in pieces:
                for start in range(0, max(1, len(piece.data)), PIECE):
                    head = struct.pack("!BQ", _NUMBER[stream], piece.offset + start)
                    await self._socket.send_bytes(head + piece.data[start : start + PIECE])

    async def _input(self, record: RunRecord) -> None:
        """Returns when the client has gone."""
        target = self.here.inputs.of(record.run_id)
        while True:
            message = await self._socket.receive()
            if message["type"] == "websocket.disconnect":
                return
            data = message.get("bytes")
            if data is None:
                await self._control(record, parse_control(message["text"]))
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

    async def _control(self, record: RunRecord, control: Control) -> None:
        live = self.here.services.runs.live(record.run_id)
        if live is None:
            return
        if control.type == "signal":
            await self.here.services.runs.signal(record.run_id, control.number)
        elif control.type == "resize":
            live.run.resize(control.rows, control.cols)
        elif (target := self.here.inputs.of(record.run_id)) is not None:
            target.end()

    async def _watch_access(self, record: RunRecord) -> None:
        """A token that is revoked, or a space that leaves its reach, ends the session."""
        while True:
            await asyncio.sleep(KEEP_ALIVE_S)
            await still_allowed(self._socket.scope)
            await self.here.run(self.caller, record.run_id)

    # Telling

    async def _send(self, message: View) -> None:
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
        with contextlib.suppress(WebSocketDisconnect, ClientDisconnected, RuntimeError):
            # The members `type` of a frame and of a problem are the same: the frame's wins.
            await self._send({**details, "type": "problem"})
            await self._socket.close(code, error.code)
