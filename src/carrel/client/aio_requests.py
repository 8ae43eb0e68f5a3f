"""Requests: what is to be made is said, a workspace is made for it, what was made comes back."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from typing import IO, Unpack

from carrel.api.types.requests import RequestInfo, RequestOptions, ResultFile, ResultInfo
from carrel.client import models, transfer
from carrel.client.aio_link import AsyncLink, in_thread
from carrel.client.aio_streams import AsyncRequestFrames
from carrel.client.http import HttpAnswer, operation
from carrel.client.options import Path, Project, request_content
from carrel.client.request_frames import RequestExchange, RequestFrame, RequestResult, failure_of
from carrel.client.transfer import Saved, replacing
from carrel.domain.errors import RequestNotFound, WorkspaceGone

PAGE, FILES_PAGE = 200, 1000


class AsyncRequests:
    """A request is meant by one's own name for it, or by its key."""

    def __init__(self, link: AsyncLink) -> None:
        self._link = link

    async def generate(
        self, instructions: str, *, project: Project = None, **options: Unpack[RequestOptions]
    ) -> AsyncRequestStream:
        """Asks, and returns what is heard of it. What is wrong with it is heard there too."""
        content = request_content(instructions, project, options)
        return await self._hear(RequestExchange(content["request_id"], content))

    async def follow(self, request_id: str, *, after: int = 0) -> AsyncRequestStream:
        """What is heard of one that was asked for before, after that number."""
        return await self._hear(RequestExchange(request_id, None, after))

    async def _hear(self, hearing: RequestExchange) -> AsyncRequestStream:
        return AsyncRequestStream(self, await AsyncRequestFrames(self._link, hearing).open())

    async def submit(
        self, instructions: str, *, project: Project = None, **options: Unpack[RequestOptions]
    ) -> RequestInfo:
        """Asks, and returns when it is written down."""
        content = request_content(instructions, project, options)
        return await self._link.call(RequestInfo, "requests.submit", content=content)

    async def get(self, request_id: str, *, wait_s: float = 0.0) -> RequestInfo:
        """`wait_s`: for its end, at most a minute. Reading an outcome takes it: what is
        ephemeral goes then."""
        query = [("wait", wait_s)]
        return await self._link.call(RequestInfo, "requests.show", request_id, query=query)

    async def list(
        self, *, live: bool | None = None, owner: str = "", series: str = ""
    ) -> AsyncIterator[RequestInfo]:
        """Newest first, page by page."""
        query: list[tuple[str, object]] = [("limit", PAGE), ("live", live)]
        query += [("owner", owner or None), ("series", series or None)]
        before = None
        while True:
            request = operation("requests.list", query=[*query, ("before", before)])
            page = await self._link.json(request)
            for one in models.decode(page["requests"], list[RequestInfo]):
                yield one
            before = page.get("next")
            if not before:
                return

    async def cancel(self, request_id: str) -> RequestInfo:
        """Nothing of it runs when this returns. What has ended stays as it is."""
        return await self._link.call(RequestInfo, "requests.cancel", request_id)

    async def answer(
        self, request_id: str, text: str = "", *, id: str = "", allow: bool | None = None
    ) -> None:
        """To what its agent asks; `id` may be left out when that is one thing only."""
        content: dict[str, object] = {"id": id, "allow": allow}
        if allow is None:
            content["text"] = text
        await self._link.json(operation("requests.answer", request_id, content=content))

    async def done(self, request_id: str) -> RequestInfo:
        """Its files were fetched: what was held for that goes."""
        return await self._link.call(RequestInfo, "requests.done", request_id)

    async def extend(self, request_id: str, seconds: float) -> RequestInfo:
        """So long from now on it is retained."""
        content = {"seconds": seconds}
        return await self._link.call(RequestInfo, "requests.extend", request_id, content=content)

    async def remove(self, request_id: str) -> RequestInfo:
        """Nothing but its record is left."""
        return await self._link.call(RequestInfo, "requests.remove", request_id)

    # What was made

    async def files(self, request_id: str) -> AsyncIterator[ResultFile]:
        """What is not as it was, by path, page by page."""
        after = None
        while True:
            query = [("limit", FILES_PAGE), ("after", after)]
            page = await self._link.json(operation("requests.files", request_id, query=query))
            for one in models.decode(page["files"], list[ResultFile]):
                yield one
            after = page.get("next")
            if not after:
                return

    async def fetch(self, request_id: str, path: str) -> bytes:
        answer = await self._link.ask(operation("requests.fetch", request_id, path))
        return answer.check().body

    async def archive(self, request_id: str, to: Path, *, everything: bool = False) -> int:
        """A tar.gz of what was added and modified, or of all; gives its size."""
        with replacing(os.fspath(to)) as file:
            return await self._copy_archive(request_id, everything, file)

    async def save(
        self, request_id: str, folder: Path, *, everything: bool = False, replace: bool = True
    ) -> Saved:
        """The same, unpacked into a folder. `PathExists` when something is there and is not to
        be replaced. What leads out of the folder is left out; nothing is deleted there."""
        return await self.save_made(
            request_id, folder, None, everything=everything, replace=replace
        )

    async def save_made(
        self,
        request_id: str,
        folder: Path,
        result: ResultInfo | None,
        *,
        everything: bool = False,
        replace: bool = True,
    ) -> Saved:
        """`result` serves when the workspace has gone."""
        try:
            with transfer.buffer() as archive:
                await self._copy_archive(request_id, everything, archive)
                return await in_thread(transfer.save, archive, folder, replace=replace)
        except WorkspaceGone:
            result = result or (await self.get(request_id)).result
            if result is None or not transfer.is_whole(result):
                raise
        with transfer.archive_of(result.files) as archive:
            return await in_thread(transfer.save, archive, folder, replace=replace)

    # Versions

    async def versions(self, series: str) -> Sequence[RequestInfo]:
        """Newest first."""
        return await self._link.call(
            list[RequestInfo], "requests.versions", series, member="versions"
        )

    async def diff(self, series: str, before: int | None = None, after: int | None = None) -> str:
        """As `git diff` has it: of the newest against the one before, unless it is said which.
        0 is nothing at all."""
        query = [("from", before), ("to", after)]
        answer = await self._link.ask(operation("requests.diff", series, query=query))
        return answer.check().body.decode("utf-8", "surrogateescape")

    async def _copy_archive(self, request_id: str, everything: bool, file: IO[bytes]) -> int:
        request = operation("requests.archive", request_id, query=[("all", everything)])
        async with await self._link.open(request) as stream:
            if stream.head.status >= 400:
                HttpAnswer(stream.head, await stream.read()).check()
            size = 0
            async for piece in stream:
                size += await in_thread(file.write, piece)
            return size


class AsyncRequestStream:
    """What is heard of one request, to its outcome: over any number of connections, nothing
    missing and nothing twice. Not for several threads or tasks, but for `cancel`, `answer` and
    `done`."""

    def __init__(self, requests: AsyncRequests, frames: AsyncRequestFrames) -> None:
        self._requests = requests
        self._hearing = frames.exchange
        self._stream = frames

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

    # sync:    def fileno(self) -> int:
    # sync:        """For `select`; -1 while there is no connection."""
    # sync:        return self._stream.fileno()
    # sync:
    # sync:    def wait(self, timeout_s: float | None = None) -> list[RequestFrame]:
    # sync:        """What came; waits for something, at most so long."""
    # sync:        return self._stream.heard(timeout_s)

    def __aiter__(self) -> AsyncIterator[RequestFrame]:
        """To the outcome, which is the last."""
        return aiter(self._stream)

    async def result(self) -> RequestResult:
        """Waits for the end. Raises the error that it ended with; `details` has its `step` and
        whether it is `retriable`."""
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
        """Waits for the end, and puts what was made into a folder, as `client.requests`
        does."""
        result = await self.result()
        return await self._requests.save_made(self.request_id, folder, result, replace=replace)
