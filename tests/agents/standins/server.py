"""One HTTP server on loopback that speaks all the APIs, in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, cast

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.agents.standins import anthropic, chat, responses
from tests.agents.standins.script import (
    INPUT_TOKENS,
    UNKNOWN_MODEL,
    Answer,
    Call,
    Fail,
    Hang,
    Say,
    Talk,
    decide,
)

START_SECONDS = 20.0
"""For a busy machine to start a thread and a server."""
STOP_SECONDS = 10.0
"""For what is still being answered to end, once it was told to."""
POLL_SECONDS = 0.05
"""How soon a client that went away is noticed."""


@dataclass(frozen=True)
class Seen:
    """One request as it came. Names of headers are in small letters."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: Any


@dataclass
class Standin:
    """A running stand-in; `url` has no path: OpenAI's clients want `/v1` after it."""

    url: str
    requests: list[Seen] = field(default_factory=list)
    failures: list[int] = field(default_factory=list)
    """HTTP errors that the next requests to a model get, one each, before they are answered."""
    knows: dict[str, str] = field(default_factory=dict)
    """Words of others than the test, and what to do when they are said last."""

    def of(self, path: str) -> list[Seen]:
        return [seen for seen in self.requests if seen.path == path]

    def texts(self) -> list[str]:
        """The last user text of each request to a model."""
        talks = [_APIS[seen.path].read(seen.body) for seen in self.requests if seen.path in _APIS]
        return [talk.texts[-1] for talk in talks if talk.texts]


class _Api(Protocol):
    """What each of the APIs' modules has."""

    PATH: str
    UNKNOWN_STATUS: int

    def read(self, body: Mapping[str, Any]) -> Talk: ...
    def error(self, status: int, model: str | None = None) -> dict[str, Any]: ...
    def whole(self, talk: Talk, answer: Say | Call, number: int) -> dict[str, Any]: ...
    def events(self, talk: Talk, answer: Say | Call, number: int) -> Iterator[str]: ...


_APIS = {api.PATH: cast("_Api", api) for api in (anthropic, responses, chat)}


@contextlib.contextmanager
def serving() -> Iterator[Standin]:
    listener = socket.create_server(("127.0.0.1", 0))
    standin = Standin(f"http://127.0.0.1:{listener.getsockname()[1]}")
    closing = threading.Event()
    config = uvicorn.Config(
        _application(standin, closing),
        lifespan="off",
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=1,
    )
    server = _Server(config)
    thread = threading.Thread(target=server.run, args=([listener],), name="stand-in")
    thread.start()
    try:
        _wait_started(server, thread)
        yield standin
    finally:
        closing.set()
        server.end()
        thread.join(STOP_SECONDS)
        listener.close()
        if thread.is_alive():
            raise RuntimeError("the stand-in did not stop")


class _Server(uvicorn.Server):
    """Tells at once that it serves, and ends at once: the usual one looks ten times a second."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.serves = threading.Event()
        self._ending = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._loop = asyncio.get_running_loop()
        self.serves.set()

    async def main_loop(self) -> None:
        await self.on_tick(0)
        await self._ending.wait()

    def end(self) -> None:
        self.should_exit = True
        if self._loop is not None and self.started:
            self._loop.call_soon_threadsafe(self._ending.set)


def _wait_started(server: _Server, thread: threading.Thread) -> None:
    for _ in range(int(START_SECONDS / POLL_SECONDS)):
        if server.serves.wait(POLL_SECONDS):
            return
        if not thread.is_alive():
            break
    raise RuntimeError("the stand-in did not start")


def _application(standin: Standin, closing: threading.Event) -> Starlette:
    async def answer(request: Request) -> Response:
        body = await request.body()
        seen = _seen(request, body)
        standin.requests.append(seen)
        api = _APIS.get(seen.path)
        if request.method == "POST" and api is not None:
            if standin.failures:
                status = standin.failures.pop(0)
                return JSONResponse(api.error(status), status)
            talk = _taught(standin, api.read(seen.body))
            return await _answer(api, talk, len(standin.requests), request, closing)
        return _other(seen)

    methods = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]
    return Starlette(routes=[Route("/{path:path}", answer, methods=methods)])


def _seen(request: Request, body: bytes) -> Seen:
    try:
        read = json.loads(body) if body else None
    except ValueError:
        read = body.decode(errors="replace")
    return Seen(request.method, request.url.path, dict(request.headers), read)


def _other(seen: Seen) -> Response:
    if seen.path == f"{anthropic.PATH}/count_tokens":
        return JSONResponse({"input_tokens": INPUT_TOKENS})
    if seen.path in ("", "/"):
        return Response()
    return JSONResponse(anthropic.error(404), 404)


def _taught(standin: Standin, talk: Talk) -> Talk:
    more = [do for words, do in standin.knows.items() if talk.texts and words in talk.texts[-1]]
    return replace(talk, texts=[*talk.texts[:-1], "\n".join([*talk.texts[-1:], *more])])


async def _answer(
    api: _Api, talk: Talk, number: int, request: Request, closing: threading.Event
) -> Response:
    if talk.model == UNKNOWN_MODEL:
        return JSONResponse(api.error(api.UNKNOWN_STATUS, talk.model), api.UNKNOWN_STATUS)
    answer = decide(talk)
    if not await _waited(answer, request, closing):
        return JSONResponse(api.error(503), 503)
    if isinstance(answer, Fail):
        return JSONResponse(api.error(answer.status), answer.status)
    assert not isinstance(answer, Hang)
    if talk.stream:
        return StreamingResponse(
            _one_by_one(api.events(talk, answer, number)), media_type="text/event-stream"
        )
    return JSONResponse(api.whole(talk, answer, number))


async def _one_by_one(events: Iterator[str]) -> AsyncIterator[str]:
    """Each in a packet of its own; a plain iterator would need a thread."""
    for event in events:
        yield event
        await asyncio.sleep(0)


async def _waited(answer: Answer, request: Request, closing: threading.Event) -> bool:
    """Whether the time of the answer came: no when its client or the server went first."""
    loop = asyncio.get_running_loop()
    until = float("inf") if isinstance(answer, Hang) else loop.time() + answer.delay
    while loop.time() < until:
        if closing.is_set() or await request.is_disconnected():
            return False
        await asyncio.sleep(min(POLL_SECONDS, until - loop.time()))
    return True
