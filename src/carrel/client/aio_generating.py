"""Requests, awaited: see `generating`.

async with await client.requests.generate("A stack in Python, with tests.") as stream:
    async for frame in stream:
        print(frame.type, frame.message)
    await stream.save("stack")
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from typing import IO, TypeVar, Unpack

from carrel.client import request_calls as calls
from carrel.client import saving
from carrel.client.aio_link import AsyncLink
from carrel.client.aio_streaming import AsyncStream
from carrel.client.calls import Call, Project
from carrel.client.generating import Path
from carrel.client.request_calls import RequestOptions
from carrel.client.request_exchange import Hearing, failure_of
from carrel.client.request_models import (
    RequestFrame,
    RequestInfo,
    RequestResult,
    ResultFile,
    Saved,
)
from carrel.client.requests import Answer, Request
from carrel.client.transfer import replacing
from carrel.domain.errors import RequestNotFound, WorkspaceGone

T = TypeVar("T")


class _Frames(AsyncStream):
    exchange: Hearing

    def __init__(self, link: AsyncLink, exchange: Hearing) -> None:
        super().__init__(link, exchange)

    async def __aiter__(self) -> AsyncIterator[RequestFrame]:
        while True:
            for frame in iter(self.exchange.next, None):
                yield frame
            if self.exchange.ended or self._left:
                return
            await self.more()


class AsyncRequests:
    """A request is meant by one's own name for it, or by its key."""

    def __init__(self, link: AsyncLink) -> None:
        self._link = link

    async def generate(
        self, instructions: str, *, project: Project = None, **options: Unpack[RequestOptions]
    ) -> AsyncRequestStream:
        """Asks, and returns what is heard of it. What is wrong with it is heard there too."""
        content = calls.request_content(instructions, project, options)
        return await self._hear(Hearing(content["request_id"], content))

    async def follow(self, request_id: str, *, after: int = 0) -> AsyncRequestStream:
        """What is heard of one that was asked for before, after that number."""
        return await self._hear(Hearing(request_id, None, after))

    async def _hear(self, hearing: Hearing) -> AsyncRequestStream:
        return AsyncRequestStream(self, await _Frames(self._link, hearing).open())

    async def submit(
        self, instructions: str, *, project: Project = None, **options: Unpack[RequestOptions]
    ) -> RequestInfo:
        """Asks, and returns when it is written down."""
        content = calls.request_content(instructions, project, options)
        return await self._send(calls.submit(content))

    async def get(self, request_id: str, *, wait_s: float = 0.0) -> RequestInfo:
        """See `Requests.get`."""
        return await self._send(calls.get(request_id, wait_s))

    async def list(
        self, *, live: bool | None = None, owner: str = "", series: str = ""
    ) -> AsyncIterator[RequestInfo]:
        """Newest first, page by page."""
        before = ""
        while True:
            page, before = await self._send(calls.page(live, owner, series, before))
            for one in page:
                yield one
            if not before:
                return

    async def cancel(self, request_id: str) -> RequestInfo:
        """Nothing of it runs when this returns. What has ended stays as it is."""
        return await self._send(calls.change(request_id, "cancel"))

    async def answer(
        self, request_id: str, text: str = "", *, id: str = "", allow: bool | None = None
    ) -> None:
        """To what its agent asks; `id` may be left out when that is one thing only."""
        await self._send(calls.answer(request_id, text, id, allow))

    async def done(self, request_id: str) -> RequestInfo:
        """Its files were fetched: what was held for that goes."""
        return await self._send(calls.change(request_id, "done"))

    async def extend(self, request_id: str, seconds: float) -> RequestInfo:
        """So long from now on it is retained."""
        return await self._send(calls.change(request_id, "extend", {"seconds": seconds}))

    async def remove(self, request_id: str) -> RequestInfo:
        """Nothing but its record is left."""
        return await self._send(calls.remove(request_id))

    # What was made

    async def files(self, request_id: str) -> AsyncIterator[ResultFile]:
        """What is not as it was, by path, page by page."""
        after = ""
        while True:
            page, after = await self._send(calls.files(request_id, after))
            for one in page:
                yield one
            if not after:
                return

    async def fetch(self, request_id: str, path: str) -> bytes:
        return (await self._link.ask(calls.fetch(request_id, path))).check().body

    async def archive(self, request_id: str, to: Path, *, everything: bool = False) -> int:
        """A tar.gz of what was added and modified, or of all; gives its size."""
        with replacing(os.fspath(to)) as file:
            return await self._copy(calls.archive(request_id, everything), file)

    async def save(
        self, request_id: str, folder: Path, *, everything: bool = False, replace: bool = True
    ) -> Saved:
        """See `Requests.save`."""
        return await self.save_made(
            request_id, folder, None, everything=everything, replace=replace
        )

    async def save_made(
        self,
        request_id: str,
        folder: Path,
        result: RequestResult | None,
        *,
        everything: bool = False,
        replace: bool = True,
    ) -> Saved:
        """`result` serves when the workspace has gone."""
        try:
            with saving.buffer() as archive:
                await self._copy(calls.archive(request_id, everything), archive)
                return await asyncio.to_thread(saving.save, archive, folder, replace=replace)
        except WorkspaceGone:
            result = result or (await self.get(request_id)).result
            if result is None or not saving.is_whole(result):
                raise
        with saving.archive_of(result.files) as archive:
            return await asyncio.to_thread(saving.save, archive, folder, replace=replace)

    # Versions

    async def versions(self, series: str) -> Sequence[RequestInfo]:
        """Newest first."""
        return await self._send(calls.versions(series))

    async def diff(self, series: str, before: int | None = None, after: int | None = None) -> str:
        """See `Requests.diff`."""
        answer = (await self._link.ask(calls.diff(series, before, after))).check()
        return answer.body.decode("utf-8", "surrogateescape")

    async def _copy(self, request: Request, file: IO[bytes]) -> int:
        async with await self._link.open(request) as stream:
            if stream.head.status >= 400:
                Answer(stream.head, await stream.read()).check()
            size = 0
            async for piece in stream:
                size += await asyncio.to_thread(file.write, piece)
            return size

    async def _send(self, call: Call[T]) -> T:
        return call.decode(await self._link.json(call.request))


class AsyncRequestStream:
    """As `RequestStream`."""

    def __init__(self, requests: AsyncRequests, stream: _Frames) -> None:
        self._requests = requests
        self._stream = stream
        self._hearing = stream.exchange

    @property
    def request_id(self) -> str:
        return self._hearing.request_id

    @property
    def outcome(self) -> RequestFrame | None:
        """Of type `result` or `error`, when it has come."""
        return self._hearing.outcome

    @property
    def ended(self) -> bool:
        return self._hearing.ended

    async def __aenter__(self) -> AsyncRequestStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leaves; it goes on, unless it is tied to this connection."""
        self._stream.close()

    def __aiter__(self) -> AsyncIterator[RequestFrame]:
        """To the outcome, which is the last."""
        return aiter(self._stream)

    async def result(self) -> RequestResult:
        """Waits for the end. Raises the error that it ended with."""
        async for _ in self:
            # Who wants to hear them goes through them first.
            continue
        outcome = self.outcome
        if outcome is None:
            raise self._hearing.gone()
        if outcome.result is None:
            raise failure_of(outcome.raw)
        return outcome.result

    async def cancel(self) -> RequestInfo:
        return await self._requests.cancel(self.request_id)

    async def answer(self, text: str = "", *, id: str = "", allow: bool | None = None) -> None:
        await self._requests.answer(self.request_id, text, id=id, allow=allow)

    async def done(self) -> None:
        """See `Requests.done`; of one that was refused nothing is there."""
        try:
            await self._requests.done(self.request_id)
        except RequestNotFound:
            return

    async def fetch(self, path: str) -> bytes:
        return await self._requests.fetch(self.request_id, path)

    async def archive(self, to: Path, *, everything: bool = False) -> int:
        return await self._requests.archive(self.request_id, to, everything=everything)

    async def save(self, folder: Path, *, replace: bool = True) -> Saved:
        """Waits for the end, and puts what was made into a folder."""
        result = await self.result()
        return await self._requests.save_made(self.request_id, folder, result, replace=replace)
