"""Threads for what may wait in the kernel for as long as a hostile process likes: whoever waits
there cannot be killed, and a pool of threads would be used up. So whoever finds none idle gets a
new one."""

from __future__ import annotations

import _thread
import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")

BRIEFLY_S = 0.005
"""What a thread does in microseconds, unless a command is hostile."""
MOST_IDLE = 4
"""Threads that wait for the next work: most of it takes microseconds, and a new thread more."""

_idle: deque[SimpleQueue[Callable[[], None]]] = deque()


async def in_own_thread(work: Callable[[], T]) -> T:
    """Does it in a thread of its own, which goes on when nobody waits for it any more."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def tell(how: Callable[[Any], None], what: object) -> None:
        if not done.done():
            how(what)

    def do() -> None:
        try:
            told: tuple[Callable[[Any], None], object] = (done.set_result, work())
        except Exception as error:
            told = (done.set_exception, error)
        # A loop that has ended asks for nothing.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(tell, *told)

    unwaited(do)
    return await done


def briefly(work: Callable[[], None]) -> None:
    """Has a thread do it, which is mostly done at once; it is waited for only so long."""
    done = _thread.allocate_lock()
    done.acquire()

    def do() -> None:
        work()
        done.release()

    unwaited(do)
    done.acquire(timeout=BRIEFLY_S)


def unwaited(work: Callable[[], None]) -> None:
    """Has a thread do it, which is not waited for. `work` does not raise."""
    try:
        queue = _idle.pop()
    except IndexError:
        queue = SimpleQueue()
        _thread.start_new_thread(_serve, (queue,))
    queue.put(work)


def _serve(queue: SimpleQueue[Callable[[], None]]) -> None:
    while True:
        queue.get()()
        if len(_idle) >= MOST_IDLE:
            return
        _idle.append(queue)
