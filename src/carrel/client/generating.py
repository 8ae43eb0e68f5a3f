"""Requests: what is to be made is said, a workspace is made for it, and what was made comes back.

with client.requests.generate("A stack in Python, with tests.") as stream:
    for frame in stream:
        print(frame.type, frame.message)
    stream.save("stack")
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import IO, TypeVar, Unpack

from carrel.client import request_calls as calls
from carrel.client import saving
from carrel.client.calls import Call, Project
from carrel.client.link import Link
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
from carrel.client.streaming import Stream
from carrel.client.transfer import replacing
from carrel.domain.errors import RequestNotFound, WorkspaceGone

T = TypeVar("T")
Path = str | os.PathLike[str]


class _Frames(Stream):
    exchange: Hearing

    def __init__(self, link: Link, exchange: Hearing) -> None:
        super().__init__(link, exchange)


class Requests:
    """A request is meant by one's own name for it, or by its key."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def generate(
        self, instructions: str, *, project: Project = None, **options: Unpack[RequestOptions]
    ) -> RequestStream:
        """Asks, and returns what is heard of it. What is wrong with it is heard there too."""
        content = calls.request_content(instructions, project, options)
        return RequestStream(self, self._link, Hearing(content["request_id"], content))

    def follow(self, request_id: str, *, after: int = 0) -> RequestStream:
        """What is heard of one that was asked for before, after that number."""
        return RequestStream(self, self._link, Hearing(request_id, None, after))

    def submit(
        self, instructions: str, *, project: Project = None, **options: Unpack[RequestOptions]
    ) -> RequestInfo:
        """Asks, and returns when it is written down."""
        return self._send(calls.submit(calls.request_content(instructions, project, options)))

    def get(self, request_id: str, *, wait_s: float = 0.0) -> RequestInfo:
        """`wait_s`: for its end, at most a minute. Reading an outcome takes it: what is
        ephemeral goes then."""
        return self._send(calls.get(request_id, wait_s))

    def list(
        self, *, live: bool | None = None, owner: str = "", series: str = ""
    ) -> Iterator[RequestInfo]:
        """Newest first, page by page."""
        before = ""
        while True:
            page, before = self._send(calls.page(live, owner, series, before))
            yield from page
            if not before:
                return

    def cancel(self, request_id: str) -> RequestInfo:
        """Nothing of it runs when this returns. What has ended stays as it is."""
        return self._send(calls.change(request_id, "cancel"))

    def answer(
        self, request_id: str, text: str = "", *, id: str = "", allow: bool | None = None
    ) -> None:
        """To what its agent asks; `id` may be left out when that is one thing only."""
        self._send(calls.answer(request_id, text, id, allow))

    def done(self, request_id: str) -> RequestInfo:
        """Its files were fetched: what was held for that goes."""
        return self._send(calls.change(request_id, "done"))

    def extend(self, request_id: str, seconds: float) -> RequestInfo:
        """So long from now on it is retained."""
        return self._send(calls.change(request_id, "extend", {"seconds": seconds}))

    def remove(self, request_id: str) -> RequestInfo:
        """Nothing but its record is left."""
        return self._send(calls.remove(request_id))

    # What was made

    def files(self, request_id: str) -> Iterator[ResultFile]:
        """What is not as it was, by path, page by page."""
        after = ""
        while True:
            page, after = self._send(calls.files(request_id, after))
            yield from page
            if not after:
                return

    def fetch(self, request_id: str, path: str) -> bytes:
        return self._link.ask(calls.fetch(request_id, path)).check().body

    def archive(self, request_id: str, to: Path, *, everything: bool = False) -> int:
        """A tar.gz of what was added and modified, or of all; gives its size."""
        with replacing(os.fspath(to)) as file:
            return self._copy(calls.archive(request_id, everything), file)

    def save(
        self, request_id: str, folder: Path, *, everything: bool = False, replace: bool = True
    ) -> Saved:
        """The same, unpacked into a folder. `PathExists` when something is there and is not to
        be replaced. What leads out of the folder is left out; nothing is deleted there."""
        return self.save_made(request_id, folder, None, everything=everything, replace=replace)

    def save_made(
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
                self._copy(calls.archive(request_id, everything), archive)
                return saving.save(archive, folder, replace=replace)
        except WorkspaceGone:
            result = result or self.get(request_id).result
            if result is None or not saving.is_whole(result):
                raise
        with saving.archive_of(result.files) as archive:
            return saving.save(archive, folder, replace=replace)

    # Versions

    def versions(self, series: str) -> Sequence[RequestInfo]:
        """Newest first."""
        return self._send(calls.versions(series))

    def diff(self, series: str, before: int | None = None, after: int | None = None) -> str:
        """As `git diff` has it: of the newest against the one before, unless it is said which.
        0 is nothing at all."""
        answer = self._link.ask(calls.diff(series, before, after)).check()
        return answer.body.decode("utf-8", "surrogateescape")

    def _copy(self, request: Request, file: IO[bytes]) -> int:
        with self._link.open(request) as stream:
            if stream.head.status >= 400:
                Answer(stream.head, stream.read()).check()
            return sum(file.write(piece) for piece in stream)

    def _send(self, call: Call[T]) -> T:
        return call.decode(self._link.json(call.request))


class RequestStream:
    """What is heard of one request, to its outcome: over any number of connections, nothing
    missing and nothing twice. Not for several threads, but for `cancel`, `answer` and `done`."""

    def __init__(self, requests: Requests, link: Link, hearing: Hearing) -> None:
        self._requests = requests
        self._hearing = hearing
        self._stream = _Frames(link, hearing).open()

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

    def __enter__(self) -> RequestStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leaves; it goes on, unless it is tied to this connection."""
        self._stream.close()

    def fileno(self) -> int:
        """For `select`; -1 while there is no connection."""
        return self._stream.fileno()

    def wait(self, timeout_s: float | None = None) -> list[RequestFrame]:
        """What came; waits for something, at most so long."""
        if not self.ended and not self._stream.left:
            self._stream.wait(timeout_s=timeout_s)
        return list(iter(self._hearing.next, None))

    def __iter__(self) -> Iterator[RequestFrame]:
        """To the outcome, which is the last."""
        while True:
            yield from iter(self._hearing.next, None)
            if self.ended or self._stream.left:
                return
            self._stream.wait()

    def result(self) -> RequestResult:
        """Waits for the end. Raises the error that it ended with; `details` has its `step` and
        whether it is `retriable`."""
        for _ in self:
            # Who wants to hear them goes through them first.
            continue
        outcome = self.outcome
        if outcome is None:
            raise self._hearing.gone()
        if outcome.result is None:
            raise failure_of(outcome.raw)
        return outcome.result

    def cancel(self) -> RequestInfo:
        return self._requests.cancel(self.request_id)

    def answer(self, text: str = "", *, id: str = "", allow: bool | None = None) -> None:
        self._requests.answer(self.request_id, text, id=id, allow=allow)

    def done(self) -> None:
        """See `Requests.done`; of one that was refused nothing is there."""
        try:
            self._requests.done(self.request_id)
        except RequestNotFound:
            return

    def fetch(self, path: str) -> bytes:
        return self._requests.fetch(self.request_id, path)

    def archive(self, to: Path, *, everything: bool = False) -> int:
        return self._requests.archive(self.request_id, to, everything=everything)

    def save(self, folder: Path, *, replace: bool = True) -> Saved:
        """Waits for the end, and puts what was made into a folder: see `Requests.save`."""
        result = self.result()
        return self._requests.save_made(self.request_id, folder, result, replace=replace)
