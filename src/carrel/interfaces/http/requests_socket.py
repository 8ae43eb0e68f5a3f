"""Requests over WebSocket: many on one connection, each heard from any point to its outcome."""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any
from weakref import WeakValueDictionary

from fastapi import APIRouter
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState
from uvicorn.protocols.utils import ClientDisconnected

from carrel.domain.errors import Capacity, CarrelError
from carrel.domain.ids import new_id
from carrel.domain.requests import FrameKind
from carrel.interfaces.http.access import still_allowed
from carrel.interfaces.http.closing import REASON
from carrel.interfaces.http.encoding import encode
from carrel.interfaces.http.guard import foreseen
from carrel.interfaces.http.request_frames import (
    AnswerFrame,
    CancelFrame,
    ClientFrame,
    DoneFrame,
    GenerateFrame,
    ResumeFrame,
    content_of,
    frame_of,
    refusal,
)
from carrel.interfaces.http.request_parts import answer_of, asked_of, frame_view
from carrel.interfaces.http.serving import Serving, caller, serving
from carrel.interfaces.http.streams import KEEP_ALIVE_S
from carrel.interfaces.http.views import View

MOST_FOLLOWED = 200
"""Requests that one connection hears of at the same time."""
MOST_AT_WORK = 2 * MOST_FOLLOWED
"""Frames that are being seen to."""
MOST_TOLD = 1000
"""Outcomes of which is known that this client has heard them."""
ONLY_OUTCOME = 1 << 62
Heard = tuple[str, int]
"""The request that is to be heard of now, and from where on; or nothing."""
SendUntilRead = Callable[[str], Awaitable[bool]]
POLICY, RESTART = 1008, 1012
_GONE = (WebSocketDisconnect, ClientDisconnected)

router = APIRouter()


@router.websocket("/v1/requests")
async def requests_socket(websocket: WebSocket) -> None:
    await websocket.accept()
    await Session(websocket).attend()


class Session:
    """One client. What it asks for goes on without it."""

    def __init__(self, websocket: WebSocket) -> None:
        here: Serving = serving(websocket)
        self._requests = here.services.requests
        self._closing = here.closing
        self._background = here.background
        self._caller = caller(websocket)
        self._socket = websocket
        self._id = new_id("cn")
        self._tasks: set[asyncio.Task[None]] = set()
        self._following: dict[str, asyncio.Task[Any]] = {}
        self._told: OrderedDict[str, None] = OrderedDict()
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._tied: set[asyncio.Task[Heard]] = set()
        """What asks for something that ends with this connection, and is not followed yet."""

    async def attend(self) -> None:
        """Until the client has gone, its token is no longer good, or the daemon ends."""
        ways = [
            asyncio.create_task(self._read()),
            asyncio.create_task(self._watch_access()),
            asyncio.create_task(self._closing.wait()),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            tasks = [*ways, *self._tasks]
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            for doing in self._tied:
                self._background.spawn(self._came_and_went(doing))
        failures = [one for one in results[: len(ways)] if isinstance(one, Exception)]
        await self._end(failures[0] if failures else None)

    async def _end(self, failure: Exception | None) -> None:
        if self._socket.application_state is not WebSocketState.CONNECTED:
            return
        with contextlib.suppress(*_GONE):
            if failure is not None and not isinstance(failure, _GONE):
                error = foreseen(failure, "WS /v1/requests")
                await self._send(refusal(error, {}))
                await self._socket.close(POLICY, error.code)
            elif self._closing.begun:
                await self._socket.close(RESTART, REASON)

    async def _watch_access(self) -> None:
        while True:
            await asyncio.sleep(KEEP_ALIVE_S)
            await still_allowed(self._socket.scope)

    # What comes

    async def _read(self) -> None:
        """Returns when the client has gone."""
        while True:
            message = await self._socket.receive()
            if message["type"] == "websocket.disconnect":
                return
            content: dict[str, Any] = {}
            try:
                content = content_of(message.get("text"))
                frame = frame_of(content)
                self._make_room(frame)
            except CarrelError as error:
                await self._send(refusal(error, content))
                continue
            self._spawn(self._see_to(self._begin(frame), frame, content))

    def _begin(self, frame: ClientFrame) -> asyncio.Task[Heard]:
        """What is said is done, also when who said it leaves at once."""
        doing: asyncio.Task[Heard] = self._background.spawn(self._in_turn(frame))
        if isinstance(frame, GenerateFrame) and frame.tied:
            self._tied.add(doing)
        doing.add_done_callback(self._done)
        return doing

    def _done(self, doing: asyncio.Task[Heard]) -> None:
        # Nobody else may ask for it any more.
        if doing.cancelled() or doing.exception() is not None:
            self._tied.discard(doing)

    def _make_room(self, frame: ClientFrame) -> None:
        follows = isinstance(frame, GenerateFrame | ResumeFrame)
        full = follows and len(self._tasks) >= MOST_FOLLOWED
        if full or len(self._tasks) >= MOST_AT_WORK:
            raise Capacity(
                f"{len(self._tasks)} requests are heard on this connection already.",
                hint="Wait for one of them, or use another connection.",
            )

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _see_to(
        self, doing: asyncio.Task[Heard], frame: ClientFrame, content: dict[str, Any]
    ) -> None:
        try:
            key, after = await asyncio.shield(doing)
            if key:
                await self._follow(key, after, doing)
        except _GONE:
            # The reader sees it too, and ends the session.
            return
        except Exception as error:
            problem = foreseen(error, f"the frame {frame.type}")
            with contextlib.suppress(*_GONE):
                await self._send(refusal(problem, content))

    async def _in_turn(self, frame: ClientFrame) -> Heard:
        async with self._turn(frame.request_id):
            return await self._do(frame)

    def _turn(self, word: str) -> asyncio.Lock:
        """What is said of one request is done in the order in which it was said."""
        lock = self._turns.get(word) if word else None
        if lock is None:
            lock = asyncio.Lock()
            if word:
                self._turns[word] = lock
        return lock

    async def _do(self, frame: ClientFrame) -> Heard:
        requests, who = self._requests, self._caller
        if isinstance(frame, GenerateFrame):
            return (await requests.submit(who, asked_of(frame), self._id)).key, 0
        key = (await requests.get(who, frame.request_id)).key
        if isinstance(frame, CancelFrame):
            await requests.cancel(who, key)
            known = key in self._following or key in self._told
            return ("" if known else key), ONLY_OUTCOME
        if isinstance(frame, AnswerFrame):
            await requests.answer(who, key, answer_of(frame))
            return "", 0
        if isinstance(frame, DoneFrame):
            await requests.done(who, key)
            return "", 0
        return key, frame.after

    async def _came_and_went(self, doing: asyncio.Task[Heard]) -> None:
        """The connection of one that is tied to it went before it could be followed."""
        with contextlib.suppress(CarrelError, TimeoutError):
            key, _ = await doing
            frames = self._requests.follow(self._caller, key)
            async with contextlib.aclosing(frames), asyncio.timeout(0):
                await anext(frames)

    # What is told

    async def _follow(self, key: str, after: int, doing: asyncio.Task[Heard]) -> None:
        """At the client's pace. One that is followed already is from here on followed from
        there."""
        own = asyncio.current_task()
        assert own is not None
        earlier, self._following[key] = self._following.get(key), own
        if earlier is not None:
            # After the first step of this one, so that somebody is there all the time.
            asyncio.get_running_loop().call_soon(earlier.cancel)
        try:
            frames = self._requests.follow(self._caller, key, after)
            async with contextlib.aclosing(frames):
                async for frame in frames:
                    self._tied.discard(doing)
                    if frame.kind in (FrameKind.RESULT, FrameKind.ERROR):
                        await self._tell_outcome(key, frame_view(frame))
                    else:
                        await self._send(frame_view(frame))
        finally:
            if self._following.get(key) is own:
                del self._following[key]

    async def _tell_outcome(self, key: str, message: View) -> None:
        """What was sent may still be lost: who has read it is said to have it."""
        self._told[key] = None
        if len(self._told) > MOST_TOLD:
            self._told.popitem(last=False)
        send: SendUntilRead = self._socket.scope["state"]["send_until_read"]
        if await send(encode(message).decode()):
            # Also when the client leaves now.
            noting = self._background.spawn(self._requests.delivered(self._caller, key))
            await asyncio.shield(noting)

    async def _send(self, message: View) -> None:
        try:
            await self._socket.send_text(encode(message).decode())
        except RuntimeError:
            # It was closed meanwhile, from one side or the other.
            raise ClientDisconnected from None
