"""Threads for what may wait in the kernel for as long as a hostile process likes: whoever waits
there cannot be killed, and a pool of threads would be used up."""

from __future__ import annotations

import _thread
import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

BRIEFLY_S = 0.005
"""What a thread does in microseconds, unless a command is hostile."""


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

    _thread.start_new_thread(do, ())
    return await done


def briefly(work: Callable[[], None]) -> None:
    """Does it in a thread, which is mostly done at once; it is waited for only so long."""
    done = _thread.allocate_lock()
    done.acquire()

    def do() -> None:
        work()
        done.release()

    _thread.start_new_thread(do, ())
    done.acquire(timeout=BRIEFLY_S)
