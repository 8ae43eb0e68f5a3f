"""`Hub`: as `AsyncHub`, for programs without an event loop.

    with carrel.Hub(types=["buffer_*"]) as hub:
        hub.publish("buffer_space_message", {"text": "hello"}, space=space.id)
        for message in hub:
            print(message.space, message.type, message.payload)

Somebody has to answer the hub's heartbeats while the program does other things: an `AsyncHub`
in a thread of its own.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Coroutine, Iterable, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar, Unpack

from carrel.client.aio_hub import AsyncHub, Timing
from carrel.client.hub_protocol import (
    Delivered,
    HubClient,
    HubMessage,
    HubOptions,
    HubStatus,
    Published,
    Replayed,
)
from carrel.domain.errors import DaemonUnavailable

T = TypeVar("T")


class Hub:
    """See `AsyncHub`. `timeout_s` is how long one call may take, with all that it takes to
    connect again; None: as long as it takes. May be used by several threads; one of them
    iterates."""

    def __init__(
        self,
        *,
        data: str | os.PathLike[str] | None = None,
        socket: str | os.PathLike[str] | None = None,
        url: str | None = None,
        token: str | None = None,
        autostart: bool = True,
        timing: Timing | None = None,
        timeout_s: float | None = None,
        **options: Unpack[HubOptions],
    ) -> None:
        self._hub = AsyncHub(
            data=data,
            socket=socket,
            url=url,
            token=token,
            autostart=autostart,
            timing=timing,
            **options,
        )
        self._timeout_s = timeout_s
        self._auto_ack = bool(options.get("auto_ack")) and bool(options.get("consumer"))
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._batch: deque[HubMessage] = deque()
        self._given: HubMessage | None = None

    @property
    def client_id(self) -> str:
        """By which others may ask this client; a new one for every connection."""
        return self._hub.client_id

    @property
    def space(self) -> str:
        """The space that this runs in; empty outside."""
        return self._hub.space

    @property
    def connected(self) -> bool:
        return self._hub.connected

    def __enter__(self) -> Hub:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="carrel-hub", daemon=True
        )
        self._thread.start()
        try:
            self._wait(self._hub.__aenter__())
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Says goodbye, and acknowledges what was to be acknowledged."""
        loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        self._loop = None
        asyncio.run_coroutine_threadsafe(self._hub.close(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()

    # Saying

    def publish(
        self, type: str, payload: Mapping[str, Any], *, space: str = "", reply_to: str = ""
    ) -> Published:
        """Returns when it is kept. At least once: when the connection breaks before the hub
        has said so, it is sent again with the same id, and may then be in the log twice."""
        return self._call(self._hub.publish(type, payload, space=space, reply_to=reply_to))

    def publish_many(
        self, messages: Iterable[tuple[str, Mapping[str, Any]]], *, space: str = ""
    ) -> list[Published]:
        """Types and payloads, in this order; see `AsyncHub.publish_many`."""
        return self._call(self._hub.publish_many(list(messages), space=space))

    def send(
        self, type: str, payload: Mapping[str, Any], *, space: str = "", reply_to: str = ""
    ) -> Delivered:
        """A live message: whoever listens now gets it, at most once."""
        return self._call(self._hub.send(type, payload, space=space, reply_to=reply_to))

    def request(
        self,
        type: str,
        payload: Mapping[str, Any] | None = None,
        *,
        space: str = "",
        to: str = "",
        deadline_s: float | None = None,
    ) -> Any:
        """The answer's data; see `AsyncHub.request`."""
        asked = self._hub.request(type, payload, space=space, to=to, deadline_s=deadline_s)
        return self._call(asked)

    def respond(self, message: HubMessage, data: Any = None, *, pending: bool = False) -> bool:
        """Answers a request. False when it came too late."""
        return self._call(self._hub.respond(message, data, pending=pending))

    def fail(self, message: HubMessage, code: str, text: str, *, hint: str = "") -> bool:
        """Answers a request with an error."""
        return self._call(self._hub.fail(message, code, text, hint=hint))

    # Hearing

    def __iter__(self) -> Hub:
        return self

    def __next__(self) -> HubMessage:
        given, self._given = self._given, None
        if given is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(self._hub.acknowledge_soon, given)
        if not self._batch:
            if self._loop is None:
                raise StopIteration
            self._batch.extend(self._wait(self._hub.batch()))
            if not self._batch:
                raise StopIteration
        message = self._batch.popleft()
        if self._auto_ack and message.seq:
            self._given = message
        return message

    def acknowledge(self, message: HubMessage) -> int:
        """Of a consumer: this one and all before it in its space are not sent again."""
        return self._call(self._hub.acknowledge(message))

    def replay(
        self, space: str = "", *, seq: int | None = None, since: float | None = None
    ) -> Replayed:
        """Has all sent that is kept after a number or a time; see `AsyncHub.replay`."""
        return self._call(self._hub.replay(space, seq=seq, since=since))

    def subscribe(self, *, types: Iterable[str] = ("*",), spaces: Iterable[str] = ("*",)) -> None:
        """Instead of what was subscribed to before."""
        self._call(self._hub.subscribe(types=types, spaces=spaces))

    # Looking

    def clients(self, space: str = "") -> list[HubClient]:
        """Who is connected, to this space or at all."""
        return self._call(self._hub.clients(space))

    def status(self) -> HubStatus:
        return self._call(self._hub.status())

    # The thread

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return self._wait(work, self._timeout_s)

    def _wait(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        if self._loop is None:
            work.close()
            raise DaemonUnavailable("This client of the hub is not open.", hint="Use `with`.")
        future: Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout_s)
        except TimeoutError:
            if future.done():
                raise
            future.cancel()
            raise DaemonUnavailable(
                f"The hub did not answer within {timeout_s} seconds.",
                hint="`carrel status` shows whether the daemon is well.",
            ) from None
        except BaseException:
            future.cancel()
            raise
