"""Whose share of the daemon's threads the work of a request takes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ParamSpec, TypeVar

import pytest

from carrel.api.types.admin import NewToken
from carrel.domain.access import LOCAL, Caller, Scope, ScopeKind, working_for
from carrel.domain.errors import Capacity, SpaceInvalid
from carrel.domain.projects import Project, ProjectKind
from carrel.domain.requests import Check, Generate, Keeping, Policy, RequestState
from carrel.domain.spaces import SpaceRequest
from carrel.service.requests import stream
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


async def test_tokens_of_one_label_have_one_share_of_the_places(data: Path) -> None:
    """However many there are: one place is left for others."""
    blue = [Caller(f"tk_{number}", Scope(ScopeKind.LABEL, "team=blue")) for number in range(3)]
    red = Caller("tk_red", Scope(ScopeKind.LABEL, "team=red"))
    async with serving(data, requests_at_once=2) as services:
        lasting = Generate("write x y", check=Check(("sleep", "600")))
        asked = [await services.requests.submit(one, lasting) for one in blue]
        other = await services.requests.submit(red, Generate("write x y"))
        async with asyncio.timeout(ANSWER_S):
            async for _frame in services.requests.follow(red, other.key):
                pass
        now = [
            await services.requests.get(*one)
            for one in zip(blue, (r.key for r in asked), strict=True)
        ]
        assert [one.state is RequestState.QUEUED for one in now] == [False, True, True]
        for caller, request in zip(blue, asked, strict=True):
            await services.requests.cancel(caller, request.key)


async def test_what_a_token_left_in_the_line_does_not_begin_after_it_was_revoked(
    data: Path,
) -> None:
    async with serving(data, requests_at_once=1) as services:
        requests, tokens = services.requests, services.tokens
        token = await tokens.create(LOCAL, NewToken(scope="label:team=blue"))
        blue = await tokens.caller(token.secret)
        lasting = await requests.submit(LOCAL, Generate("sleep 600"))
        left = await requests.submit(blue, Generate("write x y", keeping=Keeping(Policy.RETAIN)))
        assert left.state is RequestState.QUEUED
        await tokens.revoke(LOCAL, token.id)
        await requests.cancel(LOCAL, lasting.key)
        async with asyncio.timeout(ANSWER_S):
            async for _frame in requests.follow(LOCAL, left.key):
                pass
        ended = await requests.get(LOCAL, left.key)
        assert ended.failure is not None and ended.failure.code == "forbidden"
        assert not ended.space_id


async def test_who_follows_wakes_for_its_own_and_has_a_share(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is said in other spaces is no news of a request that waits; and one account follows
    only so many."""
    monkeypatch.setattr(stream, "MOST_FOLLOWERS", 2)
    blue = Caller("tk_1", Scope(ScopeKind.LABEL, "team=blue"))
    looks: list[str] = []
    real = stream.RequestEvents._waiting

    def noted(*args: Any) -> Any:
        looks.append("")
        return real(*args)

    async with serving(data, requests_at_once=1) as services:
        lasting = Generate("write x y", check=Check(("sleep", "600")))
        asked = [await services.requests.submit(blue, lasting) for _ in range(2)]
        followed = [services.requests.follow(blue, asked[1].key) for _ in range(2)]
        async with asyncio.timeout(ANSWER_S):
            assert [(await anext(one)).kind for one in followed] == ["queued", "queued"]
            waits = [asyncio.ensure_future(anext(one)) for one in followed]
            monkeypatch.setattr(stream.RequestEvents, "_waiting", noted)
            for _ in range(3):
                await services.spaces.create(LOCAL, SpaceRequest(Project(ProjectKind.EMPTY)))
            assert looks == []
            with pytest.raises(Capacity):
                await anext(services.requests.follow(blue, asked[1].key))
            assert (await anext(services.requests.follow(LOCAL, asked[1].key))).kind == "queued"
            for request in reversed(asked):
                await services.requests.cancel(blue, request.key)
            assert [(await one).kind for one in waits] == ["error", "error"]


async def test_carrels_own_labels_are_not_the_callers(data: Path) -> None:
    async with serving(data) as services:
        with pytest.raises(SpaceInvalid, match="Carrel's own"):
            await services.requests.submit(LOCAL, Generate("x", labels={"carrel.request": "rq_1"}))


def test_files_may_appear_while_one_is_told() -> None:
    """Whoever reads slowly is told of them all, each once."""
    live: Any = SimpleNamespace(files=["a", "b"])
    told: Any = SimpleNamespace(
        accepted=True, files=0, view=SimpleNamespace(appeared=lambda path: path)
    )
    events: Any = None
    heard = []
    for path in stream.RequestEvents._files_of(events, live, told):
        heard.append(path)
        if len(live.files) < 5:
            live.files.append("cde"[len(live.files) - 2])
    assert "".join(map(str, heard)) == "abcde" and told.files == 5
