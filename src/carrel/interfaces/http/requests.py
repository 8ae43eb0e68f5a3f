"""Requests: over HTTP what needs more of it than a row says, and over WebSocket, many on one
connection, each heard from any point to its outcome.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any
from urllib.parse import unquote_to_bytes
from weakref import WeakValueDictionary

from starlette.background import BackgroundTask
from starlette.requests import Request as Http
from starlette.responses import Response
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState
from uvicorn.protocols.utils import ClientDisconnected

from carrel.api import wire
from carrel.api.types.requests import (
    AnswerFrame,
    CancelFrame,
    ClientFrame,
    DiffQuery,
    DoneFrame,
    FollowQuery,
    GenerateFrame,
    MadeArchiveQuery,
    NewRequest,
    RequestWaitQuery,
    ResumeFrame,
)
from carrel.domain.access import Caller
from carrel.domain.errors import Capacity, CarrelError, MessageInvalid
from carrel.domain.ids import new_id
from carrel.domain.nesting import MAX_DEPTH, is_too_deep
from carrel.domain.requests import Frame, FrameKind, Request
from carrel.interfaces.http.access import still_allowed
from carrel.interfaces.http.answers import View, answer, concealed, encode, foreseen
from carrel.interfaces.http.events import start_of
from carrel.interfaces.http.lifetime import REASON, while_wanted
from carrel.interfaces.http.operations import body_of, key_of, query_of
from carrel.interfaces.http.responses import (
    KEEP_ALIVE_S,
    ByteStream,
    EventStream,
    HeldResponse,
    Told,
    begin,
    begun,
    comment,
    file_answer,
    told,
)
from carrel.interfaces.http.services import ApiContext, caller, serving
from carrel.service.operations.requests import answer_of, generate
from carrel.service.requests.view import number

ONLY_OUTCOME = 1 << 62
MAX_KEY = 128
DIFF = "text/x-diff"
GZIP = "application/gzip"
_OUTCOMES = (FrameKind.RESULT, FrameKind.ERROR)


async def submit(request: Http) -> Response:
    """`Idempotency-Key` is a `request_id`."""
    key = key_of(request, MAX_KEY)
    new = await body_of(request, NewRequest)
    requests = serving(request).services.operations.requests
    return answer(await requests.submit(caller(request), new, key), 202)


async def show(request: Http) -> Response:
    """Who asked for it and reads it here when it has ended has its outcome, unless another
    connection is there to hear it."""
    here, who = serving(request), caller(request)
    wait_s = query_of(request, RequestWaitQuery).wait
    requests = here.services.requests
    found = await requests.get(who, request.path_params["request_id"])
    if wait_s and not found.ended:
        found = await while_wanted(request, here.closing, _ended(here, who, found, wait_s))
    requests.noticed(who, found)
    async with contextlib.AsyncExitStack() as turn:
        if found.ended:
            await turn.enter_async_context(here.outcomes.of(who.account))
        response = answer(await here.services.operations.requests.info(who, found))
        if _is_delivery(who, found) and not requests.followed(found):
            response.background = BackgroundTask(requests.delivered, who, found.key)
        return HeldResponse(response, turn.pop_all())


async def _ended(here: ApiContext, who: Caller, request: Request, wait_s: float) -> Request:
    requests = here.services.requests
    frames = requests.follow(who, request.key, ONLY_OUTCOME)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(wait_s), contextlib.aclosing(frames):
            async for frame in frames:
                if frame.kind in _OUTCOMES:
                    break
    return await requests.get(who, request.key)


def _is_delivery(who: Caller, request: Request) -> bool:
    mine = who.name == request.caller
    return mine and request.ended and request.delivered_at is None


async def follow(request: Http) -> Response:
    """The frames of the WebSocket, one an event, ending with the outcome."""
    here, who = serving(request), caller(request)
    last = request.headers.get("Last-Event-ID")
    start = start_of(last, query_of(request, FollowQuery).after) or 0
    found = await here.services.requests.get(who, request.path_params["request_id"])
    if last and found.ended and start >= number(found.seq):
        # Browsers would come back for ever.
        return Response(status_code=204)
    return EventStream(_frames(here, who, found.key, start), here.closing)


async def _frames(here: ApiContext, who: Caller, key: str, after: int) -> Told:
    requests = here.services.requests
    yield comment("listening")
    async with contextlib.aclosing(requests.follow(who, key, after)) as frames:
        async for frame in frames:
            yield told(str(frame.kind), frame_view(frame), frame.seq or None)
            if frame.kind in _OUTCOMES:
                await requests.delivered(who, key)


def frame_view(frame: Frame) -> View:
    said: View = {"type": str(frame.kind), "request_id": frame.request_id}
    if frame.seq:
        said["seq"] = frame.seq
    return {**said, **frame.data}


# What they have made: file by file, as one archive, and version against version


async def fetch(request: Http) -> Response:
    """One file of the workspace, or a `Range` of it. Bytes that are no UTF-8 are
    percent-encoded as they are."""
    here = serving(request)
    wanted, name = request.headers.get("Range"), request.path_params["request_id"]
    file = await here.services.requests.open(caller(request), name, _path(request))
    return await file_answer(asyncio.to_thread(begin, file, wanted), here.background)


def _path(request: Http) -> str:
    """As it stands in the request: the usual decoding would replace what is no UTF-8."""
    raw: bytes = request.scope["raw_path"].partition(b"?")[0]
    words = raw.split(b"/", 5)
    if len(words) < 6:
        # Some slash of the route was encoded.
        raise MessageInvalid("The path names no file.", hint="Write /files/PATH.", field="path")
    return unquote_to_bytes(words[5]).decode("utf-8", "surrogateescape")


async def read_archive(request: Http) -> Response:
    """What was added and modified; with `all` everything that is there. A version that is
    archived has everything only."""
    here, who, name = serving(request), caller(request), request.path_params["request_id"]
    everything = query_of(request, MadeArchiveQuery).all
    async with contextlib.AsyncExitStack() as turn:
        await turn.enter_async_context(here.archives.of(who.account))
        source = await begun(await here.services.requests.archive(who, name, everything=everything))
        return ByteStream(source, here.background, media_type=GZIP, held=turn.pop_all())


async def compare(request: Http) -> Response:
    """By default the newest version against the one before it; `from=0` is against nothing."""
    here, who, series = serving(request), caller(request), request.path_params["series"]
    asked = query_of(request, DiffQuery)
    known = [one.version for one in await here.services.requests.versions(who, series)]
    after = known[0] if asked.to is None else asked.to
    earlier = max((one for one in known if one < after), default=0)
    before = earlier if asked.from_ is None else asked.from_
    headers = {"X-Content-Type-Options": "nosniff", "Carrel-Versions": f"{before}..{after}"}
    async with contextlib.AsyncExitStack() as turn:
        await turn.enter_async_context(here.diffs.of(who.account))
        source = await begun(await here.services.requests.diff(who, series, before, after))
        return ByteStream(
            source, here.background, headers=headers, media_type=DIFF, held=turn.pop_all()
        )


# Frames that clients send over a WebSocket

ACCEPT, READ = "accept", "read"
"""Steps at which something is refused before it is a request, or before it is known which."""


_KINDS: dict[str, type[ClientFrame]] = {
    "generate": GenerateFrame,
    "resume": ResumeFrame,
    "cancel": CancelFrame,
    "answer": AnswerFrame,
    "done": DoneFrame,
}


for _kind in _KINDS.values():
    wire.prepare(_kind)


def content_of(text: str | None) -> dict[str, Any]:
    """Raises `MessageInvalid`."""
    if text is None:
        raise MessageInvalid("A frame is text.", hint="Send JSON in text frames.", field="frame")
    if is_too_deep(text):
        raise MessageInvalid(
            f"A frame has at most {MAX_DEPTH} levels of lists and objects.",
            hint="Make it flatter.",
            field="frame",
        )
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        raise MessageInvalid(
            "A frame is no JSON.", hint='Send {"type": "generate", …}.', field="frame"
        ) from None
    if not isinstance(content, dict):
        raise MessageInvalid(
            "A frame is an object.", hint='Send {"type": "generate", …}.', field="frame"
        )
    # Older clients name a tool, and no type.
    return {"type": "generate", **content} if "tool" in content else content


def frame_of(content: dict[str, Any]) -> ClientFrame:
    """Raises `MessageInvalid`."""
    named = content.get("type")
    kind = _KINDS.get(named) if isinstance(named, str) else None
    if kind is None:
        raise MessageInvalid(
            "type: This type is unknown.",
            hint=f"Use one of {', '.join(_KINDS)}.",
            field="type",
        )
    return wire.from_plain(content, kind, "")


def refusal(error: CarrelError, content: dict[str, Any]) -> View:
    """What is told of a frame that nothing became of. `to` is its type: only what an error to
    `generate` or `resume` is about has ended with it."""
    named, word = content.get("type"), content.get("request_id")
    to = named if isinstance(named, str) and named in _KINDS else ""
    frame: View = {"type": "error"}
    if isinstance(word, str) and 0 < len(word) <= 128:
        frame["request_id"] = word
    frame |= {
        "to": to,
        "code": error.code,
        "message": concealed(error.message),
        "hint": concealed(error.hint),
        "step": ACCEPT if to == "generate" else to or READ,
        "retriable": error.passing,
    }
    return {**concealed(dict(error.details)), **frame}


# The WebSocket

MOST_FOLLOWED = 200
"""Requests that one connection hears of at the same time."""
MOST_AT_WORK = 2 * MOST_FOLLOWED
"""Frames that are being seen to."""
MOST_TOLD = 1000
"""Outcomes of which is known that this client has heard them."""
Heard = tuple[str, int]
"""The request that is to be heard of now, and from where on; or nothing."""
SendUntilRead = Callable[[str], Awaitable[bool]]
POLICY, RESTART = 1008, 1012
_GONE = (WebSocketDisconnect, ClientDisconnected)


async def requests_socket(websocket: WebSocket) -> None:
    await websocket.accept()
    await RequestSession(websocket).attend()


class RequestSession:
    """One client. What it asks for goes on without it."""

    def __init__(self, websocket: WebSocket) -> None:
        here: ApiContext = serving(websocket)
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
                f"{len(self._tasks)} requests are followed on this connection already.",
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
            problem = foreseen(error, "a frame of requests")
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
            return (await requests.submit(who, generate(frame), self._id)).key, 0
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
