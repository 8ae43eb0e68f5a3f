"""Whose share of the daemon's threads the work of a request takes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import ParamSpec, TypeVar

from carrel.domain.access import Caller, Scope, ScopeKind, working_for
from carrel.domain.requests import Generate
from tests.instances.rig import serving
from tests.requests.rig import ANSWER_S

P = ParamSpec("P")
T = TypeVar("T")


class Noting(ThreadPoolExecutor):
    """Threads that note for whom something is done."""

    def __init__(self) -> None:
        super().__init__(8)
        self.seen: list[tuple[str, str]] = []

    def submit(self, work: Callable[P, T], /, *args: P.args, **options: P.kwargs) -> Future[T]:
        # `asyncio.to_thread` has the context run what is to be done.
        inner = getattr(work, "args", (work,))[0]
        self.seen.append((getattr(inner, "__name__", ""), working_for.get()))
        return super().submit(work, *args, **options)


async def test_each_request_works_in_the_share_of_its_own_caller(data: Path) -> None:
    """Also the one that is begun when another's ends."""
    callers = [Caller(f"tk_{name}", Scope(ScopeKind.LABEL, f"team={name}")) for name in "abc"]
    async with serving(data, requests_at_once=1) as services:
        threads = Noting()
        asyncio.get_running_loop().set_default_executor(threads)
        asked = [await services.requests.submit(one, Generate("write x y")) for one in callers]
        for caller, request in zip(callers, asked, strict=True):
            async with asyncio.timeout(ANSWER_S):
                async for _frame in services.requests.follow(caller, request.key):
                    pass
        collected = [who for what, who in threads.seen if what == "collect"]
        assert collected == [caller.account for caller in callers], threads.seen
