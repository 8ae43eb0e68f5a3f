"""MCP servers that spaces are made with: there for their agents, and gone with them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from carrel.app.service import Services
from carrel.domain.access import LOCAL
from carrel.domain.errors import ServerNotFound, ServerNotInstalled, SpaceInvalid
from carrel.domain.events import Event, EventQuery
from carrel.domain.instances import Instance, InstanceState, Server, Transport
from carrel.domain.spaces import Space
from carrel.domain.turns import Control, ControlKind, InteractionMode, Permission, TurnRequest
from tests.instances.rig import WAIT_S, serving, until
from tests.instances.small import PYTHON, put_small
from tests.load.clearing import end_everything
from tests.sampling import whole_only
from tests.service.rig import make, run

READ = 'tool mcp__small__read {"path": "who.txt"}'


def server(mode: str, name: str = "small", **more: Any) -> Server:
    return Server(name, (PYTHON, "-I", "{project}/small.py", mode), **more)


STREAMS = server("streams", "streams", transport=Transport.STDIO)


@pytest.fixture
async def services(data: Path) -> AsyncIterator[Services]:
    try:
        async with serving(data) as services:
            services.instances.servers.add(server("http"))
            yield services
    finally:
        await asyncio.to_thread(end_everything, data)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    put_small(tmp_path)
    (tmp_path / "who.txt").write_text("the first")
    return tmp_path


async def seated(services: Services, project: Path, *names: str, **more: Any) -> Space:
    options = {"agent": "scripted", "mcp": names or ("small",), **more}
    async with asyncio.timeout(WAIT_S):
        return await make(services, project, **options)


async def told(services: Services, space: Space, prompt: str, **more: Any) -> list[Event]:
    """The events of a turn, which succeeds."""
    request = TurnRequest("", prompt, **more)
    async with asyncio.timeout(WAIT_S):
        turn = await services.turns.start(LOCAL, space.space_id, request)
        turn = await services.turns.wait(LOCAL, turn.run_id)
    assert turn.result is not None and turn.result.success, turn
    query = EventQuery(0, frozenset({space.space_id}), limit=5000)
    found, _ = await services.feed.read(LOCAL, query)
    return [one for one in found if one.data.get("run_id") == turn.run_id]


async def started(services: Services, space: Space) -> list[Instance]:
    """Its servers, when all of them were, as the first turn waits for them. A turn itself would
    load the SDK's client, for a second."""
    async with asyncio.timeout(WAIT_S):
        await services.space_servers.given(space.space_id)
    return living(services, space)


def said(events: list[Event], type: str, member: str) -> list[Any]:
    of = [one.data["payload"] for one in events if one.type == f"agent.{type}"]
    return [one[member] for one in of if isinstance(one, dict) and member in one]


def living(services: Services, space: Space) -> list[Instance]:
    found = services.instances.of_caller(f"space:{space.space_id}")
    return [handed.instance for handed in found]


async def permit(services: Services, space: Space, times: int) -> None:
    query = EventQuery(0, frozenset({space.space_id}), frozenset({"agent.permission"}))
    async for event in services.feed.follow(LOCAL, query):
        payload = event.data["payload"]
        assert isinstance(payload, dict)
        if "decision" in payload:
            continue
        control = Control(ControlKind.PERMISSION, id=payload["id"], allow=True)
        await services.turns.control(LOCAL, str(event.data["run_id"]), control)
        times -= 1
        if not times:
            return


async def test_each_space_has_its_own(services: Services, project: Path) -> None:
    first = await seated(services, project)
    (project / "who.txt").write_text("the second")
    second = await seated(services, project)
    found = await asyncio.gather(*(told(services, one, READ) for one in (first, second)))
    assert [said(one, "tool_result", "output") for one in found] == [["the first"], ["the second"]]
    assert len({one.instance_id for s in (first, second) for one in living(services, s)}) == 2


async def test_names_are_looked_at_first(services: Services, project: Path) -> None:
    services.instances.servers.add(Server("away", ("/nowhere/at-all",)))
    for names, problem in (
        (("small", "no-such"), ServerNotFound),
        (("small", "away"), ServerNotInstalled),
        (("carrel",), SpaceInvalid),
        (tuple(f"small{number}" for number in range(17)), SpaceInvalid),
    ):
        with pytest.raises(problem):
            await seated(services, project, *names)
    assert not services.journal.all()


async def test_as_long_as_the_space(services: Services, project: Path) -> None:
    space = await seated(services, project, "small", "small")
    (first,) = await started(services, space)
    stopped = await services.spaces.stop(LOCAL, space.space_id)
    assert not living(services, space)
    assert [one.state for one in services.spaces.residents(stopped)] == [None]
    await services.spaces.start(LOCAL, space.space_id)
    (second,) = await started(services, space)
    assert second.instance_id != first.instance_id
    await services.spaces.remove(LOCAL, space.space_id, force=True)
    assert not living(services, space)
    ended = await services.instances.get(LOCAL, second.instance_id)
    assert ended.state is InstanceState.ENDED


async def test_a_refused_removal_changes_nothing(services: Services, project: Path) -> None:
    space = await seated(services, project)
    (before,) = await started(services, space)
    await run(services, space, "echo x > new.txt")
    with pytest.raises(Exception, match="not copied out"):
        await services.spaces.remove(LOCAL, space.space_id)
    assert living(services, space) == [before]


async def test_one_that_fails_is_told_and_tried_again(services: Services, project: Path) -> None:
    late = Server("late", (PYTHON, "-I", "{project}/late.py", "http"))
    services.instances.servers.add(late)
    space = await seated(services, project, "late", "small")
    events = await told(services, space, f"{READ}\nrun cp small.py late.py")
    assert "the first" in said(events, "tool_result", "output")
    (note,) = (text for text in said(events, "log", "text") if "late" in text)
    assert note.startswith("The MCP server late is left out: late ended with code 2")
    shown = {one.name: one for one in services.spaces.residents(space)}
    assert shown["late"].state is InstanceState.FAILED and shown["late"].problem is not None
    failures = await services.store.events(EventQuery(types=frozenset({"server.failed"})))
    assert {one.data["server"] for one in failures} == {"late"}
    events = await told(services, space, 'tool mcp__late__echo {"a": 1}')
    assert said(events, "tool_result", "output") == ['{"a": 1}']


async def test_one_that_never_answers(services: Services, project: Path) -> None:
    services.instances.servers.add(server("never", ready_s=0.3))
    space = await seated(services, project)
    events = await told(services, space, "say hello")
    assert "did not answer within 0.3 s" in said(events, "log", "text")[0]
    services.instances.servers.add(server("never", ready_s=600))
    async with asyncio.timeout(WAIT_S):
        await services.spaces.stop(LOCAL, space.space_id)
        await services.spaces.start(LOCAL, space.space_id)
        await services.spaces.remove(LOCAL, space.space_id, force=True)
    assert not living(services, space)


async def test_a_crash_before_a_turn(services: Services, project: Path) -> None:
    space = await seated(services, project)
    (before,) = await started(services, space)
    await run(services, space, "pkill -9 -f small.py")
    await until(services, before.instance_id, InstanceState.RESTARTING)
    events = await told(services, space, READ)
    assert said(events, "tool_result", "output") == ["the first"]
    (after,) = living(services, space)
    assert after.instance_id == before.instance_id and after.restarts == 1


async def test_an_agent_that_comes_later(services: Services, project: Path) -> None:
    """The sandbox is set up anew for it."""
    space = await seated(services, project, agent="")
    (before,) = await started(services, space)
    request = TurnRequest("scripted", READ)
    turn = await services.turns.start(LOCAL, space.space_id, request)
    turn = await services.turns.wait(LOCAL, turn.run_id, WAIT_S)
    assert turn.result is not None and turn.result.success and not turn.notes
    (after,) = living(services, space)
    assert after.instance_id != before.instance_id


async def test_tools_of_others_need_permission(services: Services, project: Path) -> None:
    space = await seated(services, project)
    events = await told(services, space, READ, permission=Permission.DENY)
    assert said(events, "tool_result", "output") == ["Permission was denied."]
    assert said(events, "permission", "decision") == ["deny"]


async def test_where_nothing_confines(services: Services, project: Path) -> None:
    """There is no way in without a token: the agent shows it."""
    services.instances.servers.add(STREAMS)
    plain = {"runtime": "process", "driver": "copy"}
    space = await seated(services, project, "small", "streams", **plain)
    (project / "who.txt").write_text("not this")
    given = await services.space_servers.given(space.space_id)
    small, streams = given.servers
    assert not small.token and given.env[streams.token]
    asked = f"{READ}\n{READ.replace('small', 'streams')}"
    answering = asyncio.create_task(permit(services, space, 2))
    events = await told(services, space, asked)
    await answering
    assert said(events, "tool_result", "output") == ["the first"] * 2


async def test_in_a_terminal(services: Services, project: Path) -> None:
    space = await seated(services, project)
    request = TurnRequest("", READ, mode=InteractionMode.INTERACTIVE)
    async with asyncio.timeout(WAIT_S):
        turn = await services.turns.start(LOCAL, space.space_id, request)
        query = EventQuery(0, frozenset({space.space_id}), frozenset({"agent.tool_result"}))
        event = await anext(services.feed.follow(LOCAL, query))
        await services.turns.stop(LOCAL, turn.run_id)
        await services.turns.wait(LOCAL, turn.run_id)
    assert said([event], "tool_result", "output") == ["the first"]


# In a sample the daemon is killed between two turns in the suite of all frontends.
@whole_only
async def test_a_daemon_after_another(data: Path, project: Path) -> None:
    """They go on with the space, and are not started twice."""
    try:
        async with serving(data) as services:
            services.instances.servers.add(server("http"))
            space = await seated(services, project)
            (before,) = await started(services, space)
        async with serving(data) as services:
            events = await told(services, space, READ)
            assert said(events, "tool_result", "output") == ["the first"]
            (after,) = living(services, space)
            assert (after.instance_id, after.pid) == (before.instance_id, before.pid)
            await services.spaces.remove(LOCAL, space.space_id, force=True)
    finally:
        await asyncio.to_thread(end_everything, data)
