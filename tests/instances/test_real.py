"""Real servers, and the official SDK's client: as editors and agents have them."""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import psutil
import pytest
from mcp import Client
from mcp.client.context import ClientRequestContext
from mcp_types import (
    CreateMessageRequestParams,
    CreateMessageResult,
    ElicitRequestParams,
    ElicitResult,
    ListRootsResult,
    Root,
    TextContent,
)
from pydantic import FileUrl

from carrel.app.service import Services
from carrel.domain.access import LOCAL
from carrel.domain.instances import Handed, Released
from tests.daemon.rig import Daemon, good
from tests.instances.inside.serving import connected
from tests.instances.installed import require, search_path
from tests.instances.projects import Project, add_memory, make_project
from tests.instances.rig import WAIT_S, leftovers, processes, start
from tests.sampling import whole_only

STATELESS = "2026-07-28"
WORKING_S = 0.5
"""Of CPU, after its last answer: so much it uses only for a call that never ends."""


def to(handed: Handed, **options: Any) -> AbstractAsyncContextManager[Client]:
    return connected(handed.instance.url, handed.token, **options)


async def tool(client: Client, name: str, **arguments: object) -> str:
    result = await client.call_tool(name, arguments)
    first = result.content[0]
    assert isinstance(first, TextContent)
    assert not result.is_error, first.text
    return first.text


# Serena


# In a sample small servers do not meet, and Serena starts in `inside/test_uvicorn_shim.py`.
@whole_only
async def test_serenas_do_not_meet(data: Path, services: Services, tmp_path: Path) -> None:
    """Two on one project and one on another, at the same time."""
    require("serena")
    baskets = make_project(tmp_path / "baskets", "Basket")
    crates = make_project(tmp_path / "crates", "Crate")
    add_memory(baskets, "told", "by the project")
    (crates.path / "long.py").write_text(f"# {'a' * 60}b\n")
    before = [project.everything() for project in (baskets, crates)]
    wanted = (baskets, baskets, crates)
    three = await asyncio.gather(*(start(services, "serena", one.path) for one in wanted))
    assert len({one.instance.port for one in three}) == 3
    # An ordinary user has a gate instead, where sockets cannot be passed on.
    assert len({one.token for one in three}) == 3 or os.geteuid() != 0
    async with to(three[0]) as one, to(three[1], mode="legacy") as two, to(three[2]) as other:
        await asyncio.gather(
            _symbols(one, baskets), _symbols(two, baskets), _symbols(other, crates)
        )
        await _memories(one, two, other)
    _files_are_apart(data, three)
    assert [project.everything() for project in (baskets, crates)] == before
    await _release_in_a_call(services, three[2], crates)
    for handed in three[:2]:
        await _release(services, handed)
    assert leftovers(data, *(handed.instance.instance_id for handed in three)) == []
    assert [project.everything() for project in (baskets, crates)] == before


async def _symbols(client: Client, project: Project) -> None:
    found = json.loads(await tool(client, "find_symbol", name_path_pattern=project.symbol))
    assert [(one["name_path"], one["relative_path"]) for one in found] == [
        (project.symbol, "shop.py")
    ]
    foreign = "Crate" if project.symbol == "Basket" else "Basket"
    assert json.loads(await tool(client, "find_symbol", name_path_pattern=foreign)) == []
    overview = await tool(client, "get_symbols_overview", relative_path="shop.py")
    assert project.symbol in overview and foreign not in overview


async def _memories(one: Client, two: Client, other: Client) -> None:
    """The project's own are read by all of it; what one writes is its own."""
    for client in (one, two):
        assert "by the project" in await tool(client, "read_memory", memory_name="told")
    await tool(one, "write_memory", memory_name="mine", content="of the first")
    await tool(one, "write_memory", memory_name="global/everywhere", content="of the first")
    await tool(two, "write_memory", memory_name="mine", content="of the second")
    assert "of the first" in await tool(one, "read_memory", memory_name="mine")
    assert "of the second" in await tool(two, "read_memory", memory_name="mine")
    for client in (two, other):
        assert "everywhere" not in await tool(client, "list_memories")
    assert "told" not in await tool(other, "list_memories")
    assert "mine" not in await tool(other, "list_memories")


def _files_are_apart(data: Path, three: list[Handed]) -> None:
    """None names another one's folder, or has its token."""
    for handed in three:
        own = data / "instances" / handed.instance.instance_id
        said = b"".join(path.read_bytes() for path in own.rglob("*") if path.is_file())
        for foreign in three:
            if foreign is not handed:
                assert foreign.instance.instance_id.encode() not in said
                assert not foreign.token or foreign.token.encode() not in said


async def _release_in_a_call(services: Services, handed: Handed, project: Project) -> None:
    """The language server goes too, though Serena cannot be asked to end."""
    answered = asyncio.Event()
    calling = asyncio.create_task(_search_for_years(handed, project, answered))
    async with asyncio.timeout(WAIT_S):
        await answered.wait()
    await _busy(handed.instance.pid, calling)
    async with asyncio.timeout(WAIT_S):
        await _release(services, handed)
    with pytest.raises(BaseExceptionGroup):
        await calling


async def _release(services: Services, handed: Handed) -> None:
    instance_id = handed.instance.instance_id
    assert any("jedi" in " ".join(one.cmdline()) for one in processes(instance_id))
    assert await services.instances.release(LOCAL, instance_id) is Released.TERMINATED
    assert processes(instance_id) == []


async def _search_for_years(handed: Handed, project: Project, answered: asyncio.Event) -> None:
    """It holds the interpreter all that time."""
    async with to(handed) as client:
        await _symbols(client, project)
        answered.set()
        pattern = {"substring_pattern": "(a+)+c", "relative_path": "long.py"}
        await client.call_tool("search_for_pattern", pattern)


async def _busy(pid: int, calling: asyncio.Task[None]) -> None:
    """It works and works: what comes before takes less."""
    process = psutil.Process(pid)
    begun = process.cpu_times().user
    async with asyncio.timeout(WAIT_S):
        while process.cpu_times().user < begun + WORKING_S:
            assert not calling.done(), calling
            await asyncio.sleep(0.01)


# The reference servers


async def test_both_directions(data: Path, services: Services, tmp_path: Path) -> None:
    """What the server asks of its client comes through, too."""
    require("everything")
    handed = await start(services, "everything", tmp_path)

    async def sample(
        context: ClientRequestContext, params: CreateMessageRequestParams
    ) -> CreateMessageResult:
        return CreateMessageResult(
            role="assistant", content=TextContent(type="text", text="a model's words"), model="none"
        )

    async def elicit(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        return ElicitResult(action="accept", content={"name": "Ada", "check": True})

    async def roots(context: ClientRequestContext) -> ListRootsResult:
        return ListRootsResult(roots=[Root(uri=FileUrl("file:///a/root"), name="the root")])

    steps: list[float] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        steps.append(progress)

    callbacks = {
        "sampling_callback": sample,
        "elicitation_callback": elicit,
        "list_roots_callback": roots,
    }
    async with to(handed, **callbacks) as client:
        assert await tool(client, "echo", message="hello") == "Echo: hello"
        words = {"duration": 0.2, "steps": 4}
        await client.call_tool("trigger-long-running-operation", words, progress_callback=note)
        assert steps == [1, 2, 3, 4]
        assert "a model's words" in await tool(client, "trigger-sampling-request", prompt="say")
        elicited = await client.call_tool("trigger-elicitation-request", {})
        assert "Ada" in str(elicited.content)
        assert "file:///a/root" in await tool(client, "get-roots-list")
        large = "x" * 900_000
        assert await tool(client, "echo", message=large) == f"Echo: {large}"
    async with to(handed, mode="legacy") as client:
        env = json.loads(await tool(client, "get-env"))
        assert env["HOME"] != str(Path.home()) and "CARREL_TOKEN" not in env
    await services.instances.release(LOCAL, handed.instance.instance_id)
    assert list(tmp_path.iterdir()) == []
    assert leftovers(data, handed.instance.instance_id) == []


async def test_files_by_their_own_paths(data: Path, services: Services, tmp_path: Path) -> None:
    require("filesystem")
    project, beside = tmp_path / "project", tmp_path / "beside.txt"
    project.mkdir()
    (project / "read.txt").write_text("of the project")
    beside.write_text("not of the project")
    (project / "link").symlink_to(beside)
    handed = await start(services, "filesystem", project)
    async with to(handed) as one, to(handed, mode="legacy") as two:
        assert await tool(one, "read_text_file", path=f"{project}/read.txt") == "of the project"
        await tool(one, "write_file", path=f"{project}/new.txt", content="written")
        assert await tool(two, "read_text_file", path=f"{project}/new.txt") == "written"
        for outside in (beside, project / "link", project / ".." / "beside.txt", "/etc/passwd"):
            refused = await two.call_tool("read_text_file", {"path": str(outside)})
            assert refused.is_error and "not of the project" not in str(refused.content)
        refused = await two.call_tool("write_file", {"path": str(beside), "content": "x"})
        assert refused.is_error
    await services.instances.release(LOCAL, handed.instance.instance_id)
    written = project / "new.txt"
    assert written.read_text() == "written" and beside.read_text() == "not of the project"
    assert written.stat().st_uid == project.stat().st_uid
    assert leftovers(data, handed.instance.instance_id) == []


# Carrel itself


@pytest.fixture
def daemon(data: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("PATH", f"{Path(psutil.Process().exe()).parent}:{search_path()}")
    daemon = Daemon(data / "data")
    try:
        yield daemon.start()
    finally:
        daemon.close()


async def test_carrel_in_a_space(daemon: Daemon, tmp_path: Path) -> None:
    """What it may do there is what the space may, in both ways of speaking."""
    client = daemon.local()
    origin = {"project": {"kind": "folder", "location": str(tmp_path)}}
    space, other = [
        good(await asyncio.to_thread(client.post, "/v1/spaces", json=origin)) for _ in range(2)
    ]
    wanted = {"server": "carrel", "space_id": space["id"]}
    made = good(await asyncio.to_thread(client.post, "/v1/instances", json=wanted))
    for mode in ("legacy", STATELESS):
        async with connected(made["url"], made["token"], mode=mode) as tools:
            assert (tools.protocol_version == STATELESS) is (mode == STATELESS)
            listed = json.loads(await tool(tools, "list_spaces"))["spaces"]
            assert [one["id"] for one in listed] == [space["id"]]
            refused = await tools.call_tool("delete_space", {"space": other["id"]})
            assert refused.is_error, refused
    path = f"/v1/instances/{made['instance_id']}"
    assert good(await asyncio.to_thread(client.delete, path)) == {"status": "terminated"}
