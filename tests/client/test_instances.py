"""Dedicated MCP servers through the client."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from carrel import AsyncClient, Client
from carrel.client import Space
from carrel.domain.errors import InstanceFailed, InstanceNotFound, MessageInvalid, ServerNotFound
from carrel.domain.instances import InstanceState
from carrel.domain.limits import Limits
from tests.instances.small import FILE, LAST_WORDS, SCRIPT, command, put_small, small
from tests.interfaces.http.test_instances import HANDSHAKE

ANSWER_S = 60.0


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return put_small(tmp_path)


def greet(url: str, headers: dict[str, str]) -> str:
    answer = httpx.post(url, json=HANDSHAKE, headers=headers, timeout=ANSWER_S)
    return str(answer.json()["result"]["serverInfo"]["name"])


def test_it_is_let_go_at_the_end(client: Client, project: Path) -> None:
    options = Limits(memory_bytes=512 << 20)
    with client.instances.start(
        small(), project=project, ttl=600, limits=options, tool_ready=("echo", {"a": 1})
    ) as server:
        assert server.info.state is InstanceState.READY and server.info.ttl == 600
        assert server.info.limits.memory_bytes == 512 << 20
        assert greet(server.url, dict(server.headers)) == "small"
        assert server.heartbeat().clients == 1
        assert "POST /mcp" in server.logs()
        assert [one.instance_id for one in client.instances.list()] == [server.id]
        assert client.instances.get(server.id).url == server.url
    assert client.instances.list() == []
    assert server.release() == "already_gone"
    assert server.refresh().state is InstanceState.ENDED


def test_each_lets_go_of_its_own_share(client: Client, project: Path) -> None:
    one, two = [client.instances.start(small(), project=project, share="project") for _ in "12"]
    assert one.id == two.id and one.hold != two.hold
    assert one.refresh().clients == 2
    assert [one.release(), one.release()] == ["released", "released"]
    assert client.instances.get(two.id).hold == ""
    assert two.refresh().clients == 1
    assert two.release() == "terminated"


def test_in_a_space(client: Client, space: Space) -> None:
    space.files.write(FILE, SCRIPT)
    with client.instances.start(small(), space=space.name) as server:
        assert server.info.space_id == space.id
        assert client.instances.list(space=space.name)[0].instance_id == server.id


def test_errors(client: Client, project: Path) -> None:
    with pytest.raises(MessageInvalid, match="project or"):
        client.instances.start("everything")
    with pytest.raises(ServerNotFound):
        client.instances.start("nobody-knows", project=project)
    with pytest.raises(InstanceNotFound):
        client.instances.get("in_aaaaaaaaaaaa")
    with pytest.raises(InstanceFailed) as failed:
        client.instances.start(small("fails"), project=project)
    assert LAST_WORDS in str(failed.value.details["output"])


def test_servers(client: Client) -> None:
    client.instances.add_server("mine", command("http"), stdio=command("streams"), warm=0)
    known = {one.name: one for one in client.instances.servers()}
    assert known["mine"].source == "added" and known["mine"].streams
    client.instances.remove_server("mine")
    with pytest.raises(ServerNotFound):
        client.instances.remove_server("mine")


async def test_awaited(async_client: AsyncClient, project: Path) -> None:
    instances = async_client.instances
    async with await instances.start(small(), project=project, lease=60) as server:
        assert greet(server.url, dict(server.headers)) == "small"
        assert (await server.heartbeat()).lease == 60
        assert "POST /mcp" in await server.logs()
        assert (await instances.get(server.id)).id == server.id
        assert len(await instances.list()) == 1
    assert await instances.list() == []
    assert await server.release() == "already_gone"
    one, two = [await instances.start(small(), project=project, share="project") for _ in "12"]
    assert [await one.release(), await one.release()] == ["released", "released"]
    assert await two.release() == "terminated"
    await instances.add_server("mine-too", command("http"))
    assert "mine-too" in [one.name for one in await instances.servers()]
    await instances.remove_server("mine-too")
