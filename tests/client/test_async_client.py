"""The async client against a real daemon: the same words, awaited."""

from __future__ import annotations

import asyncio
import inspect
import os
from pathlib import Path

import pytest

import carrel
from carrel import AsyncClient, Client, CommandFailed, Retention, errors
from carrel.client import AsyncRunHandle, AsyncSpace, RunHandle, Space
from carrel.client.aio import AsyncTokens
from carrel.client.aio_spaces import AsyncFiles
from carrel.client.exchange import STDERR, STDOUT
from carrel.client.spaces import Files
from carrel.client.sync import Tokens
from carrel.domain.errors import DaemonUnavailable
from carrel.domain.runs import RunState, Stream
from carrel.domain.spaces import SpaceState
from tests.client.killing import COUNT, COUNTING, kill
from tests.daemon.rig import Daemon


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Client, AsyncClient),
        (Space, AsyncSpace),
        (Files, AsyncFiles),
        (RunHandle, AsyncRunHandle),
        (Tokens, AsyncTokens),
    ],
)
def test_both_clients_have_the_same_methods(one: type, other: type) -> None:
    def shape(kind: type) -> dict[str, list[str]]:
        return {
            name: list(inspect.signature(value).parameters)
            for name, value in vars(kind).items()
            if inspect.isfunction(value) and not name.startswith("_")
        }

    assert shape(one) == shape(other)


async def test_a_space_and_its_life(async_client: AsyncClient, project: Path) -> None:
    async with async_client.space(project, labels={"kind": "async"}) as space:
        assert (await space.run(["cat", "README.md"])).stdout == "read me\n"
        found = [one.id async for one in async_client.spaces(labels={"kind": "async"})]
        assert found == [space.id] and (await async_client.get(space.name)).id == space.id
        assert (await space.stop()).state is SpaceState.STOPPED
        assert (await space.start()).state is SpaceState.READY
        await space.update(retention=Retention(idle_s=5))
        assert space.info.retention.idle_s == 5
        assert (await space.verify()).holds
        assert (await space.usage()).space == space.id
        assert space.id in [one.space for one in await async_client.usage()]
        await space.files.write("new", "changed")
        assert [one.path for one in await space.changes()] == ["new"]
        text = b"".join([piece async for piece in space.diff()])
        assert b"+++ b/new\n@@ -0,0 +1 @@\n+changed\n" in text
        listed = await space.diff_files("new")
        assert [(one.path, one.added) for one in listed.files] == [("new", 1)]
    with pytest.raises(errors.SpaceNotFound):
        await space.run(["true"])
    assert space.id in [one.space.id for one in await async_client.trash()]
    back = await async_client.undelete(space.id)
    assert await back.files.read("new") == b"changed"
    with pytest.raises(errors.UnexportedChanges):
        await back.remove()
    await back.remove(force=True)


async def test_many_at_once(async_client: AsyncClient) -> None:
    async def one(number: int) -> str:
        async with async_client.space(labels={"n": str(number)}) as space:
            return (await space.run(["echo", str(number)])).stdout

    found = await asyncio.gather(*(one(number) for number in range(8)))
    assert list(found) == [f"{number}\n" for number in range(8)]


async def test_files(async_space: AsyncSpace, tmp_path: Path) -> None:
    files = async_space.files
    assert await files.read("sub/data", start=1, end=3) == b"\x01\x02"
    await files.mkdir("a/b", parents=True)
    await files.write("a/b/c", iter([b"x"] * 3), mode=0o640)
    assert (await files.stat("a/b/c")).mode == "640"
    await files.move("a/b/c", "a/d")
    assert sorted(one.name for one in await files.list("a")) == ["b", "d"]
    await files.download(".", tmp_path / "out")
    assert (tmp_path / "out" / "a" / "d").read_text() == "xxx"
    await files.delete("a", recursive=True)
    await files.upload(tmp_path / "out" / "a", "a")
    assert await files.read("a/d") == b"xxx"
    with pytest.raises(errors.PathNotFound):
        await files.read("nothing")


async def test_commands(async_client: AsyncClient, async_space: AsyncSpace) -> None:
    result = await async_space.run(["sh", "-c", "echo out; echo err >&2; exit 2"])
    assert (result.stdout, result.stderr, result.code) == ("out\n", "err\n", 2)
    with pytest.raises(CommandFailed):
        await async_space.run(["false"], check=True)
    with pytest.raises(errors.CommandNotFound):
        await async_space.run(["no-such-command"])
    assert (await async_space.run(["sleep", "60"], timeout_s=0.2)).code == 124
    run = await async_space.start_run(["sh", "-c", "cat; sleep 60"], stdin="x")
    assert (await run.wait(timeout_s=0.1)).state is RunState.RUNNING
    while await run.read() != b"x":
        await asyncio.sleep(0)
    await run.signal("TERM")
    ended = await (await async_client.run(run.id)).wait()
    assert ended.exit is not None and ended.exit.signal == 15
    assert await run.read() == b"x" and await run.read(Stream.STDERR) == b""
    assert {one.id for one in await async_space.runs()} >= {run.id, result.run.id}


@pytest.mark.parametrize("size", [0, 3_000_000])
async def test_input(async_space: AsyncSpace, size: int) -> None:
    data = os.urandom(size)
    assert (await async_space.run(["cat"], stdin=data)).stdout_bytes == data
    early = await async_space.run(["head", "-c", "3"], stdin=b"abc" * 2_000_000)
    assert (early.stdout, early.code) == ("abc", 0)


async def test_a_conversation(async_space: AsyncSpace) -> None:
    run = await async_space.start_run(["sh", "-c", "exec sleep 60"])
    async with await run.attach() as stream:
        await stream.signal("INT")
        assert [output async for output in stream] == []
    assert stream.exchange.run["exit"]["signal"] == 2


async def test_leaving_ends_the_reading(async_space: AsyncSpace) -> None:
    run = await async_space.start_run(["sh", "-c", "echo 1; sleep 60"])
    stream = await run.attach()

    async def read() -> list[bytes]:
        return [output.data async for output in stream]

    reading = asyncio.create_task(read())
    while not stream.exchange.offsets[STDOUT]:
        await asyncio.sleep(0)
    stream.close()
    assert await asyncio.wait_for(reading, 30) == [b"1\n"]
    assert (await run.refresh()).state is RunState.RUNNING


async def test_a_cancelled_run_goes_on(async_space: AsyncSpace) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(async_space.run(["sleep", "60"]), 0.5)
    [run] = await async_space.runs()
    while (await run.refresh()).state is RunState.STARTING:
        await asyncio.sleep(0)
    assert run.info.state is RunState.RUNNING


async def test_the_daemon_itself(async_client: AsyncClient, daemon: Daemon, project: Path) -> None:
    assert (await async_client.info()).version == carrel.__version__
    assert (await async_client.gc(dry_run=True)).dry_run
    assert (await async_client.doctor()).findings
    assert (await async_client.df()).parts
    base = await async_client.make_base(project)
    assert base.id in [one.id for one in await async_client.bases()]
    token = await async_client.tokens.create("admin", name="async")
    assert token.id in [one.id for one in await async_client.tokens.list()]
    async with AsyncClient(url=f"http://{daemon.address}", token=token.secret) as other:
        assert (await other.info()).scope == "admin"
        async with other.space() as space:
            assert (await space.run(["echo", "tcp"])).stdout == "tcp\n"
        await async_client.tokens.revoke("async")
        with pytest.raises(errors.AuthenticationFailed):
            await other.info()


async def test_it_is_started_on_demand(own_daemon: Daemon) -> None:
    own_daemon.stop()
    async with AsyncClient(data=own_daemon.data) as client:
        assert (await client.info()).data == str(own_daemon.data)


async def test_output_is_complete_whatever_happens_to_the_daemon(own_daemon: Daemon) -> None:
    async with AsyncClient(data=own_daemon.data) as client, client.space() as space:
        run = await space.start_run(["sh", "-c", COUNTING])
        got = {STDOUT: b"", STDERR: b""}
        kills = 0
        async for output in run.output():
            got[output.stream] += output.data
            if kills < 2 and len(got[STDOUT]) > 40 * (kills + 1):
                kills += 1
                await asyncio.to_thread(kill, own_daemon)
        numbers = range(COUNT)
        assert got[STDOUT].split() == [b"%d" % number for number in numbers]
        assert got[STDERR].split() == [b"e%d" % number for number in numbers]
        assert kills == 2 and run.info.exit is not None and run.info.exit.code == 0


async def test_input_on_its_way_is_not_lost(own_daemon: Daemon) -> None:
    """It is whole, or the client says that it may not be; that is rare."""
    content = os.urandom(3_000_000)
    # With its first byte the client is known to know the run: else it could not go on.
    late = "dd bs=1 count=1 of=got 2>&-; until [ -e go ]; do sleep 0.05; done; exec cat got -"
    for left in reversed(range(4)):
        async with AsyncClient(data=own_daemon.data) as client, client.space() as space:
            running = asyncio.create_task(space.run(["sh", "-c", late], stdin=content))
            while not any(one.name == "got" and one.size for one in await space.files.list(".")):
                await asyncio.sleep(0.05)
            for _ in range(2):
                await asyncio.to_thread(kill, own_daemon)
                await space.files.write("some", b"")
            await space.files.write("go", b"")
            try:
                result = await running
            except DaemonUnavailable as error:
                assert left and "may be missing" in error.message
                continue
        assert result.code == 0
        whole = result.stdout_bytes == content
        assert whole, len(result.stdout_bytes)
        return
