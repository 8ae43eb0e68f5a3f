"""Clients that speak on streams: one connection is the server's standard input and output."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import stat
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from carrel.app.service import Services
from carrel.domain.access import LOCAL
from carrel.domain.errors import MessageInvalid
from carrel.domain.instances import Handed, Instance, InstanceState, Server, Share, Transport
from tests.instances.installed import require
from tests.instances.rig import WAIT_S, leftovers, processes, server, start, until

OVER = (InstanceState.ENDED, InstanceState.FAILED)
STDIO = server("stdio", transport=Transport.STDIO)


class Streams:
    """A client on a socket, a line of JSON for each message."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self._number = 0

    async def ask(self, method: str, **params: object) -> Mapping[str, Any]:
        self._number += 1
        self._send({"id": self._number, "method": method, "params": params})
        async with asyncio.timeout(WAIT_S):
            while line := await self._reader.readline():
                message = json.loads(line)
                if message.get("id") == self._number and "method" not in message:
                    return dict(message["result"])
        raise EOFError

    async def tool(self, name: str, **arguments: object) -> str:
        result = await self.ask("tools/call", name=name, arguments=arguments)
        return str(result["content"][0]["text"])

    async def begin(self) -> Mapping[str, Any]:
        about = {"name": "test", "version": "1"}
        found = await self.ask(
            "initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo=about
        )
        self._send({"method": "notifications/initialized"})
        return found

    async def rest(self) -> bytes:
        async with asyncio.timeout(WAIT_S):
            return await self._reader.read()

    def _send(self, message: Mapping[str, object]) -> None:
        self.writer.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")


@contextlib.asynccontextmanager
async def connected(instance: Instance) -> AsyncIterator[Streams]:
    reader, writer = await asyncio.open_unix_connection(instance.socket)
    try:
        yield Streams(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def begin(services: Services, wanted: str | Server, project: Path, **more: object) -> Handed:
    return await start(services, wanted, project, streams=True, **more)


async def test_one_connection_is_its_streams(
    data: Path, services: Services, tmp_path: Path
) -> None:
    handed = await begin(services, STDIO, tmp_path)
    instance = handed.instance
    assert (instance.state, instance.port, handed.token) == (InstanceState.READY, 0, "")
    path = Path(instance.socket)
    assert stat.S_ISSOCK(path.stat().st_mode)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.stat().st_uid == os.geteuid()
    async with connected(instance) as client:
        assert (await client.begin())["serverInfo"]["name"] == "misbehaving"
        assert await client.tool("echo", text="hello") == "hello"
        about = json.loads(await client.tool("about"))
        assert about["cwd"] == str(tmp_path)
        assert not [name for name in about["env"] if "TOKEN" in name]
        with pytest.raises(ConnectionError):
            await asyncio.open_unix_connection(instance.socket)
        client.writer.write_eof()
        assert await client.rest() == b""
    ended = await until(services, instance.instance_id, *OVER)
    assert ended.state is InstanceState.ENDED
    assert not path.exists()
    assert leftovers(data, instance.instance_id) == []


async def test_a_client_that_dies(data: Path, services: Services, tmp_path: Path) -> None:
    """Its connection ends with it, and the server with that."""
    instance = (await begin(services, STDIO, tmp_path)).instance
    async with connected(instance) as client:
        await client.begin()
        client.writer.transport.abort()
    await until(services, instance.instance_id, *OVER)
    assert leftovers(data, instance.instance_id) == []


async def test_nobody_comes(
    data: Path, services: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("carrel.instances.adapter.CONNECT_S", 0.3)
    instance = (await begin(services, STDIO, tmp_path)).instance
    ended = await until(services, instance.instance_id, *OVER)
    assert ended.state is InstanceState.FAILED
    assert not Path(instance.socket).exists()
    assert leftovers(data, instance.instance_id) == []


async def test_released_while_somebody_speaks(
    data: Path, services: Services, tmp_path: Path
) -> None:
    instance = (await begin(services, STDIO, tmp_path)).instance
    async with connected(instance) as client:
        await client.begin()
        await client.tool("spawn", orphan=True)
        assert len(processes(instance.instance_id)) >= 2
        assert await services.instances.release(LOCAL, instance.instance_id) == "terminated"
        assert await client.rest() == b""
    assert leftovers(data, instance.instance_id) == []


async def test_each_has_its_own(services: Services, tmp_path: Path) -> None:
    one, two = await asyncio.gather(*(begin(services, STDIO, tmp_path) for _ in range(2)))
    async with connected(one.instance) as first, connected(two.instance) as second:
        pids = [json.loads(await client.tool("about"))["env"] for client in (first, second)]
    assert pids[0]["CARREL_SPACE"] != pids[1]["CARREL_SPACE"]


async def test_unconfined(data: Path, services: Services, tmp_path: Path) -> None:
    instance = (await begin(services, STDIO, tmp_path, confined=False)).instance
    async with connected(instance) as client:
        await client.begin()
        assert await client.tool("echo", text="hello") == "hello"
    await until(services, instance.instance_id, *OVER)
    assert leftovers(data, instance.instance_id) == []


async def test_real_ones(data: Path, services: Services, tmp_path: Path) -> None:
    require("everything")
    require("filesystem")
    (tmp_path / "note.txt").write_text("of the project")
    both = await asyncio.gather(
        *(begin(services, name, tmp_path) for name in ("everything", "filesystem"))
    )
    everything, filesystem = (handed.instance for handed in both)
    async with connected(everything) as client:
        await client.begin()
        assert await client.tool("echo", message="hello") == "Echo: hello"
    async with connected(filesystem) as client:
        await client.begin()
        path = str(tmp_path / "note.txt")
        assert await client.tool("read_text_file", path=path) == "of the project"
    for instance in (everything, filesystem):
        await until(services, instance.instance_id, *OVER)
    assert leftovers(data, everything.instance_id, filesystem.instance_id) == []


async def test_what_has_no_streams(services: Services, tmp_path: Path) -> None:
    with pytest.raises(MessageInvalid, match="standard streams"):
        await begin(services, server("ok"), tmp_path)
    with pytest.raises(MessageInvalid, match="one client"):
        await begin(services, STDIO, tmp_path, share=Share.PROJECT)
