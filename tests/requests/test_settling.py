"""What is due at the end of a request is done, whatever fails on the way, and waits for nobody
else's."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from carrel.api.types.hub import SpawnSpace
from carrel.app.service import Services
from carrel.domain.access import LOCAL, Caller, Scope, ScopeKind
from carrel.domain.errors import InsufficientDisk, LauncherUnavailable, StateConflict
from carrel.domain.ids import new_id
from carrel.domain.projects import Project, ProjectKind
from carrel.domain.requests import (
    FrameKind,
    Generate,
    Keeping,
    Policy,
    Request,
    RequestState,
    Webhook,
    Workspace,
)
from carrel.domain.runtimes import Command
from carrel.domain.spaces import SpaceRequest
from carrel.hub.access import Identity
from carrel.hub.client import Client
from carrel.hub.rates import Rate
from carrel.interfaces.notifications import OutcomeSender
from carrel.service.journal import Journal
from carrel.service.requests import work
from carrel.service.requests import work as working_room
from carrel.service.requests.book import LiveRequest, RequestParts
from carrel.service.requests.stream import PART_BYTES
from carrel.service.requests.work import FOREVER, PLACES
from carrel.service.spaces import Spaces
from tests.requests.rig import ANSWER_S, heard, made, paths
from tests.service.rig import opened

pytestmark = pytest.mark.asyncio(loop_scope="module")
EMPTY = Project(ProjectKind.EMPTY)
NOWHERE = Webhook("http://127.0.0.1:9/nobody")


class Disk:
    """Full for what says that a request has ended."""

    def __init__(self) -> None:
        self.full = False
        self.refused = asyncio.Event()

    def take(self, records: tuple[Any, ...]) -> None:
        if self.full and any(isinstance(one, Request) and one.ended for one in records):
            self.refused.set()
            raise InsufficientDisk("The disk is full.")


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    disk, real = Disk(), Journal.write

    async def write(self: Journal, *records: Any, **named: Any) -> Any:
        disk.take(records)
        return await real(self, *records, **named)

    monkeypatch.setattr(Journal, "write", write)
    yield disk
    disk.full = False


@contextmanager
def sending(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A receiver that is silent until this ends; in whose share something was sent to it."""
    sent: list[str] = []
    go = asyncio.Event()

    async def send(_self: OutcomeSender, account: str, _webhook: Webhook, _body: object) -> None:
        sent.append(account)
        await go.wait()

    monkeypatch.setattr(OutcomeSender, "send", send)
    try:
        yield sent
    finally:
        go.set()


async def until(done: Any) -> None:
    async with asyncio.timeout(ANSWER_S):
        while not done():
            await asyncio.sleep(0.01)


async def working(services: Services, asked: Generate) -> Request:
    """One whose agent has begun."""
    request = await services.requests.submit(LOCAL, asked)
    async with asyncio.timeout(ANSWER_S):
        async for frame in services.requests.follow(LOCAL, request.key):
            if frame.kind is FrameKind.EVENT and "sleep" in str(frame.data):
                break
    return await services.requests.get(LOCAL, request.key)


def running(mark: str) -> list[int]:
    found = []
    for process in psutil.process_iter(["pid", "cmdline"]):
        if any(mark in word for word in process.info["cmdline"] or ()):
            found.append(process.info["pid"])
    return found


async def test_an_outcome_waits_for_room(services: Services, disk: Disk) -> None:
    disk.full = True
    request = await services.requests.submit(LOCAL, Generate("write a.txt 1"))
    following = asyncio.create_task(heard(services, request.key))
    async with asyncio.timeout(ANSWER_S):
        await disk.refused.wait()
    assert not (await services.requests.get(LOCAL, request.key)).ended
    disk.full = False
    assert paths(await following) == ["a.txt"]
    await services.requests.delivered(LOCAL, request.key)
    await services.requests.settled()


async def test_what_is_cancelled_ends_on_a_full_disk(services: Services, disk: Disk) -> None:
    """It may be what fills it."""
    mark = new_id("mk")
    request = await working(services, Generate(f"run sleep 1000 # {mark}"))
    await until(lambda: running(mark))
    disk.full = True
    cancelling = asyncio.create_task(services.requests.cancel(LOCAL, request.key))
    await until(lambda: not running(mark))
    assert not cancelling.done()
    disk.full = False
    async with asyncio.timeout(ANSWER_S):
        assert (await cancelling).state is RequestState.CANCELLED
    assert services.journal.get(request.space_id) is None


async def test_nobody_waits_for_anothers_webhook(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sending(monkeypatch) as sent:
        first = await services.requests.submit(LOCAL, Generate("write a 1", webhook=NOWHERE))
        await until(lambda: sent)
        keeping = Keeping(hold_s=600.0)
        held = await services.requests.submit(LOCAL, Generate("write a 1", keeping=keeping))
        await heard(services, held.key)
        other = await working(services, Generate("run sleep 1000", webhook=NOWHERE))
        async with asyncio.timeout(ANSWER_S):
            done = await services.requests.done(LOCAL, held.key)
            assert done.workspace is Workspace.GONE
            cancelled = await services.requests.cancel(LOCAL, other.key)
            assert cancelled.workspace is Workspace.GONE
        assert (await services.requests.get(LOCAL, first.key)).delivered_at is None
        await until(lambda: len(sent) == 2)
    async with asyncio.timeout(ANSWER_S):
        await services.requests.settled()
    assert len(sent) == 2, "each is told once"
    assert (await services.requests.get(LOCAL, first.key)).workspace is Workspace.GONE


async def test_webhooks_of_one_labels_tokens_have_one_share(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(data, request_webhook_hosts=["127.0.0.1"]) as services:
        with sending(monkeypatch) as sent:
            for name in ("tk_1", "tk_2"):
                caller = Caller(name, Scope(ScopeKind.LABEL, "team=blue"))
                await services.requests.submit(caller, Generate("write a 1", webhook=NOWHERE))
            await until(lambda: len(sent) == 2)
            assert sent == ["team=blue"] * 2
        await services.requests.settled()


async def test_one_step_that_fails_keeps_no_other_from_being_done(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails, real = True, Spaces.stop

    async def stop(self: Spaces, *words: Any, **named: Any) -> Any:
        if fails:
            raise LauncherUnavailable("The launcher does not answer.")
        return await real(self, *words, **named)

    monkeypatch.setattr(Spaces, "stop", stop)
    with sending(monkeypatch) as sent:
        asked = Generate("write a 1", keeping=Keeping(Policy.RETAIN), webhook=NOWHERE)
        request = await services.requests.submit(LOCAL, asked)
        await until(lambda: sent)
    await services.requests.settled()
    found = await services.requests.get(LOCAL, request.key)
    assert found.delivered_at is not None and found.retained_until is not None
    space = services.journal.get(request.space_id or found.space_id)
    assert space is not None and space.state == "ready"
    fails = False
    await services.requests.tidy()
    space = services.journal.get(found.space_id)
    assert space is not None and space.state == "stopped", "it was tried again"
    await services.requests.remove(LOCAL, request.key)


async def test_one_that_cannot_be_removed_is_nobody_elses_trouble(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeping = Keeping(Policy.RETAIN, seconds=1.0)
    stuck, free = [
        (await made(services, Generate("write a 1", keeping=keeping)))[0] for _ in range(2)
    ]
    real, now = Spaces.remove, services.journal.clock()

    async def remove(self: Spaces, caller: Any, word: str, **named: Any) -> Any:
        if word == stuck.space_id:
            raise OSError(16, "Device or resource busy")
        return await real(self, caller, word, **named)

    monkeypatch.setattr(Spaces, "remove", remove)
    monkeypatch.setattr(services.journal, "clock", lambda: now + 3600.0)
    await services.requests.tidy()
    workspaces = [(await services.requests.get(LOCAL, one.key)).workspace for one in (stuck, free)]
    assert workspaces == [Workspace.THERE, Workspace.GONE]
    monkeypatch.setattr(Spaces, "remove", real)
    await services.requests.tidy()
    assert (await services.requests.get(LOCAL, stuck.key)).workspace is Workspace.GONE


async def test_only_one_at_a_time_in_a_folder(
    services: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However close together they are asked for: who has looked waits for the other to come."""
    looked: list[str] = []
    real, locks = work.space_request, services.spaces._locks._locks

    def space_request(parts: RequestParts, request: Request) -> SpaceRequest:
        wanted = real(parts, request)
        if not request.space_id:
            # It is only asked for.
            return wanted
        looked.append(request.key)
        until_s = time.monotonic() + ANSWER_S
        while len(looked) < 2 and not (PLACES in locks and locks[PLACES].wanted):
            assert time.monotonic() < until_s
            time.sleep(0.01)
        return wanted

    monkeypatch.setattr(working_room, "space_request", space_request)
    folder = tmp_path / "work"
    folder.mkdir()
    folder.chmod(0o777)
    tmp_path.chmod(0o755)
    asked = Generate("write a.txt 1\nsleep 1000", workspace_path=str(folder))
    both = [await services.requests.submit(LOCAL, asked) for _ in range(2)]
    following = [asyncio.create_task(heard(services, one.key)) for one in both]
    done, _ = await asyncio.wait(following, timeout=ANSWER_S, return_when=asyncio.FIRST_COMPLETED)
    (refused,) = done
    last = refused.result()[-1]
    assert (last.kind, last.data["code"]) == (FrameKind.ERROR, "project_in_use")
    for one in both:
        await services.requests.cancel(LOCAL, one.key)
    await asyncio.gather(*following)


# Whether anybody is there


@pytest.fixture
def impatient(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services.requests._presence, "_given_up_s", 0.2)


async def test_who_asks_now_and_then_is_waited_for(services: Services, impatient: None) -> None:
    """The agent has its own time, and the result waits from its end on."""
    script = "run while [ ! -e go ]; do sleep 0.05; done\nwrite a.txt 1"
    request = await services.requests.submit(LOCAL, Generate(script))
    live = services.requests._book.get(request.key)
    assert live is not None and live.lonely is None
    await until(lambda: live.request.state is RequestState.WORKING)
    assert live.lonely is None
    await services.files.use(
        LOCAL, live.request.space_id, lambda files: files.write("go", b""), writes=True
    )
    await until(lambda: live.request.ended)
    assert live.request.state is RequestState.DONE and live.request.result is not None
    # Nobody comes for it.
    await until(lambda: live.request.delivered_at is not None)
    await services.requests.settled()
    assert live.request.workspace is Workspace.GONE


async def test_a_look_is_a_sign_of_life(services: Services, impatient: None) -> None:
    request = await services.requests.submit(LOCAL, Generate("write a.txt 1"))
    live = services.requests._book.get(request.key)
    assert live is not None
    await until(lambda: live.lonely is not None)
    before = live.lonely
    services.requests.noticed(LOCAL, live.request)
    assert before is not None and before.cancelled() and live.lonely is not before
    await until(lambda: live.request.delivered_at is not None)
    await services.requests.settled()


async def test_the_daemons_end_is_nobodys_going_away(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = await working(services, Generate("run sleep 1000"))
    tied = await services.requests.submit(LOCAL, Generate("sleep 1000", tied=True))
    monkeypatch.setattr(services.requests._presence, "_closed", False)
    frames = services.requests.follow(LOCAL, tied.key)
    await anext(frames)
    services.requests.ending()
    await frames.aclose()
    for _ in range(10):
        await asyncio.sleep(0.01)
    assert not (await services.requests.get(LOCAL, tied.key)).ended
    monkeypatch.undo()
    for one in (tied, request):
        await services.requests.cancel(LOCAL, one.key)


async def test_nothing_is_told_of_a_workspace_before_it_is_accepted(services: Services) -> None:
    """The record may be ahead of the log that the rest is told from."""
    request, _ = await made(services, Generate("write a.txt 1"))
    making = dataclasses.replace(request, state=RequestState.MAKING, space_id=new_id("sp"))
    live = LiveRequest(making, making="storing: 0")
    async with contextlib.aclosing(services.requests._hearing.follow(live, 0, "")) as frames:
        first = asyncio.ensure_future(anext(frames))
        assert (await asyncio.wait({first}, timeout=0.2))[0] == set()
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)


async def spawned(services: Services, inside: str) -> str:
    """A space that code in this one asked for, as through its own socket."""
    caller = Caller(f"space:{inside}", Scope(ScopeKind.SPACE, inside))
    client = Client("cl_test", Identity(caller, inside=True), Silent(), Rate(1.0, 1), 0.0)
    assert services.hub.requests.system is not None
    answer: Any = await services.hub.requests.system(client, "", "system_spawn_space", SpawnSpace())
    return str(answer.space.id)


class Silent:
    """A `Sink` that nobody is at the other end of."""

    def send(self, envelopes: Any) -> None: ...

    def waiting(self) -> int:
        return 0

    async def drained(self) -> None: ...

    def close(self, reason: str) -> None: ...


@pytest.mark.parametrize("how", ["delete", "cancel", "end", "removed by hand"])
async def test_what_its_agent_asked_for_goes_with_it(services: Services, how: str) -> None:
    """Also what those asked for in turn; and of none of them anything is kept."""
    waiting = "run while [ ! -e go ]; do sleep 0.1; done"
    request = await working(services, Generate(instructions=waiting))
    child = await spawned(services, request.space_id)
    others = [child, await spawned(services, child)]
    for one in others:
        await services.runs.start(one, Command(("sleep", "600")))
        await asyncio.to_thread((services.open_spaces.folder(one) / "tmp/work").write_text, "work")
    match how:
        case "delete":
            await services.requests.remove(LOCAL, request.key)
        case "cancel":
            await services.requests.cancel(LOCAL, request.key)
        case "removed by hand":
            await services.spaces.remove(LOCAL, request.space_id, force=True)
            await services.requests.cancel(LOCAL, request.key)
        case "end":
            await services.runs.start(request.space_id, Command(("touch", "go")))
            await heard(services, request.key)
            await services.requests.delivered(LOCAL, request.key)
    async with asyncio.timeout(ANSWER_S):
        await services.requests.settled()
    for one in (request.space_id, *others):
        assert services.journal.get(one) is None
        assert await services.store.space(one) is None
        assert not services.open_spaces.folder(one).exists()
    trashed = {one.space.space_id for one in await services.spaces.trashed(LOCAL)}
    assert trashed.isdisjoint(others)


async def test_one_that_is_asked_for_too_late_goes_too(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its request has ended while it was made."""
    request = await working(services, Generate(instructions="run sleep 600"))
    real, made = Spaces.create, []

    async def create(self: Spaces, *words: Any, **named: Any) -> Any:
        await services.spaces.remove(LOCAL, request.space_id, force=True)
        made.append(await real(self, *words, **named))
        return made[-1]

    monkeypatch.setattr(Spaces, "create", create)
    with pytest.raises(StateConflict):
        await spawned(services, request.space_id)
    assert services.journal.get(made[0].space_id) is None
    await services.requests.cancel(LOCAL, request.key)


async def test_what_a_killed_daemon_left_of_it_goes_later(services: Services) -> None:
    request = SpaceRequest(EMPTY, parent="sp_aaaaaaaaaaaa", transient=True, retention=FOREVER)
    left = await services.spaces.create(LOCAL, request)
    own = await services.spaces.create(LOCAL, SpaceRequest(EMPTY, parent="sp_aaaaaaaaaaaa"))
    await services.collector.retire()
    assert services.journal.get(left.space_id) is None
    assert services.journal.get(own.space_id) is not None, "it has work of its own"
    await services.spaces.remove(LOCAL, own.space_id, force=True)


async def test_one_token_leaves_a_place_for_others(services: Services) -> None:
    """Its agents take as long as it said."""
    greedy, other = (Caller(name, Scope(ScopeKind.ADMIN)) for name in ("tk_greedy", "tk_other"))
    most = services.requests._parts.rules.at_once
    asked = Generate(instructions="sleep 600", timeout_s=86_400.0)
    begun = [(greedy, await services.requests.submit(greedy, asked)) for _ in range(most + 1)]
    try:
        begun += [(one, await services.requests.submit(one, asked)) for one in (other, other)]
        begun += [(LOCAL, await services.requests.submit(LOCAL, asked)) for _ in range(2)]
        waiting = [services.requests.place(request) for _, request in begun]
        assert [who.name for (who, _), place in zip(begun, waiting, strict=True) if not place] == [
            *["tk_greedy"] * (most - 1),
            "tk_other",
            "local",
        ]
    finally:
        for caller, request in reversed(begun):
            await services.requests.cancel(caller, request.key)


async def test_parts_of_messages_wait_up_to_a_bound(services: Services) -> None:
    """For a follower that does not read them, whatever writes them."""
    asked = Generate(instructions="sleep 600")
    request = await services.requests.submit(LOCAL, asked)
    following = services.requests.follow(LOCAL, request.key)
    try:
        async with asyncio.timeout(ANSWER_S), contextlib.aclosing(following) as frames:
            async for frame in frames:
                if frame.kind is FrameKind.EVENT:
                    break
            space_id = (await services.requests.get(LOCAL, request.key)).space_id
            for size in (PART_BYTES, 10):
                payload = msgspec.json.encode({"payload": {"text": "x" * size}})
                services.hub.spread(space_id, "agent.message_delta", msgspec.Raw(payload))
            async for frame in frames:
                event = frame.data.get("event")
                if isinstance(event, dict) and event["type"] == "message_delta":
                    assert event["payload"] == {"text": "x" * 10}
                    break
    finally:
        await services.requests.cancel(LOCAL, request.key)
