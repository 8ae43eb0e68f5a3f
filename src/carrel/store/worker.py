"""A thread that does what an event loop asks of it, so that the loop never waits.

A plain queue and one wake-up of the loop for each answer: that costs less than the
standard library's executors, and shows the thread all that is waiting at once.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Generic, Protocol, TypeVar

from carrel.domain.errors import StoreBusy
from carrel.store import database

MOST_WAITING = 100_000
"""Callers wait for their answers, so only a runaway has so many open at once."""

STOP_TIMEOUT_S = 60.0
"""What is in the queue is still done, and each of it may wait for a lock; only a disk that
does not answer takes this long."""

Task = TypeVar("Task")
Answer = TypeVar("Answer")
Task_contra = TypeVar("Task_contra", contravariant=True)
Answer_co = TypeVar("Answer_co", covariant=True)


class TaskServer(Protocol[Task_contra, Answer_co]):
    """Made, used and closed in the worker's thread."""

    def serve(self, tasks: Sequence[Task_contra]) -> Sequence[Answer_co | Exception]:
        """One answer for each task. Does not raise."""
        ...

    def tidy(self) -> None:
        """Called after the answers were sent. Does not raise."""
        ...

    def close(self) -> None: ...


class StoreWorker(Generic[Task, Answer]):
    """`most` is how many tasks are served together; `heard` gets their answers on the event
    loop, just before the callers do."""

    def __init__(
        self,
        name: str,
        open_server: Callable[[], TaskServer[Task, Answer]],
        *,
        most: int,
        heard: Callable[[Sequence[Answer | Exception]], None] | None = None,
    ) -> None:
        self._open_server = open_server
        self._most = most
        self._heard = heard
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[tuple[Task, asyncio.Future[Answer]] | None] = SimpleQueue()
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._closing = False
        # A daemon thread: a program that forgot to close the store can still end.
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    async def start(self) -> None:
        """Raises what opening the server raised."""
        self._thread.start()
        try:
            await asyncio.shield(self._opened)
        except BaseException:
            await self.stop()
            raise

    async def ask(self, task: Task) -> Answer:
        """A task whose caller is cancelled is done all the same. Raises `StoreBusy` after
        `stop`, and RuntimeError in another event loop than the one this was made in."""
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError("The store is used in another event loop than it was opened in.")
        if self._closing:
            raise database.closed()
        if self._queue.qsize() >= MOST_WAITING:
            raise StoreBusy("Too many records wait to be stored.", hint="Try again in a moment.")
        future: asyncio.Future[Answer] = self._loop.create_future()
        self._queue.put((task, future))
        return await future

    async def stop(self) -> None:
        """Does what is waiting, then closes the server. Raises `StoreBusy` if that takes
        too long."""
        if not self._closing:
            self._closing = True
            self._queue.put(None)
        try:
            await asyncio.wait_for(asyncio.shield(self._ended), STOP_TIMEOUT_S)
        except TimeoutError:
            raise StoreBusy(
                "The disk does not answer.", hint="Look at the system's log for its errors."
            ) from None
        self._thread.join()

    def _work(self) -> None:
        try:
            server = self._open_server()
        except BaseException as error:
            self._tell(self._refuse, error)
            return
        if self._tell(self._opened.set_result, None):
            self._serve(server)
        try:
            server.close()
        except BaseException as error:
            self._tell(self._ended.set_exception, error)
        else:
            self._tell(self._ended.set_result, None)

    def _serve(self, server: TaskServer[Task, Answer]) -> None:
        while batch := self._next_batch():
            answers = _answers(server, [task for task, _future in batch])
            if not self._tell(self._deliver, [future for _task, future in batch], answers):
                return
            server.tidy()

    def _next_batch(self) -> list[tuple[Task, asyncio.Future[Answer]]]:
        """Waits for a task, and takes along what else is there; empty at the end."""
        first = self._queue.get()
        if first is None:
            return []
        batch = [first]
        while len(batch) < self._most:
            try:
                another = self._queue.get_nowait()
            except Empty:
                break
            if another is None:
                self._queue.put(None)
                break
            batch.append(another)
        return batch

    def _tell(self, function: Callable[..., None], *values: object) -> bool:
        """Whether there is still a loop to hear it."""
        try:
            self._loop.call_soon_threadsafe(function, *values)
        except RuntimeError:
            return False
        return True

    def _refuse(self, error: BaseException) -> None:
        self._closing = True
        self._ended.set_result(None)
        self._opened.set_exception(error)
        # Whoever waited may have been cancelled; then nobody looks at it.
        self._opened.exception()

    def _deliver(
        self, futures: list[asyncio.Future[Answer]], answers: Sequence[Answer | Exception]
    ) -> None:
        if self._heard is not None:
            self._heard(answers)
        for future, answer in zip(futures, answers, strict=True):
            if future.done():
                continue
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)


def _answers(
    server: TaskServer[Task, Answer], tasks: Sequence[Task]
) -> Sequence[Answer | Exception]:
    """A mistake in the server must not leave its callers waiting for ever."""
    try:
        return server.serve(tasks)
    except Exception as error:
        return [error for _task in tasks]
