"""The daemon is killed while instances live, and at every step of their start: nobody's server
ends with it, and nothing of half a start is left."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from carrel.app.service import Services
from carrel.domain.access import LOCAL
from carrel.domain.instances import LIVE, InstanceState, Released
from carrel.domain.server_adapter import NotReady
from carrel.domain.spaces import SpaceQuery
from tests.daemon.rig import ANSWER_S, NO_TLS, Daemon, good
from tests.forking import forked
from tests.instances.killing import play
from tests.instances.rig import PYTHON, SCRIPT, call, leftovers, processes, serving
from tests.instances.small import put_small, small
from tests.launchers import nursery
from tests.load.clearing import end_everything
from tests.sampling import every, examples

CHILD_S = 90.0
MOST_WRITES = 40
CASES = (
    ("gated", "before"),
    ("direct", "after"),
    ("in_space", "before"),
    ("again", "before"),
)
"""Before a write something was done that is not written down; after it, the other way round."""
TTL_S = 10.0
ASKED = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
View = dict[str, Any]


def body(mode: str, *words: str, **more: Any) -> View:
    """A server of the tests, as the API takes it."""
    return {"command": [PYTHON, "-I", "-S", SCRIPT, mode, *words], "binds": [SCRIPT], **more}


OK = body("ok")
STDIO = body("stdio", transport="stdio")
DIRECT = body(
    "takes-fd",
    *("--fd", "{fd}", "--token-from", "SECRET"),
    port={"by": "socket"},
    takes_token="SECRET",
)


@pytest.fixture
def daemon(data: Path) -> Iterator[Daemon]:
    daemon = Daemon(data / "data")
    try:
        yield daemon.start()
    finally:
        daemon.close()


@pytest.fixture
def owner() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def start(client: httpx.Client, server: Any, **more: Any) -> View:
    found: View = good(client.post("/v1/instances", json={"server": server, **more}))
    return found


def echo(instance: View) -> None:
    """As its own client does it: the daemon has no part in it."""
    token = instance["token"]
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    message = {**ASKED, "params": {"name": "echo", "arguments": {"text": "hello"}}}
    response = httpx.post(
        instance["url"], json=message, headers=headers, timeout=ANSWER_S, verify=NO_TLS
    )
    assert "hello" in good(response)["result"]["content"][0]["text"]


class Streams:
    def __init__(self, path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(ANSWER_S)
        self.socket.connect(path)
        self._lines = self.socket.makefile("rb")

    def echo(self) -> None:
        message = {**ASKED, "params": {"name": "echo", "arguments": {"text": "hello"}}}
        self.socket.sendall(json.dumps(message).encode() + b"\n")
        assert b"hello" in self._lines.readline()

    def close(self) -> None:
        self._lines.close()
        self.socket.close()


class Kinds:
    """All kinds of instances."""

    def __init__(self, client: httpx.Client, project: Path, owner_pid: int) -> None:
        here = {"project_path": str(project)}
        origin = {"project": {"kind": "folder", "location": str(project)}}
        self.space_id = good(client.post("/v1/spaces", json=origin))["id"]
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            plain = [
                pool.submit(start, client, OK, **here) for _ in range(examples(2, exhaustive=10))
            ]
            kept = [pool.submit(start, client, OK, **here, survive=True) for _ in range(2)]
            self.plain = [one.result() for one in (*plain, *kept)]
        self.in_space = start(client, small(), space_id=self.space_id)
        self.streams = start(client, STDIO, **here, streams=True)
        self.again = start(client, OK, **here, restart="on-failure")
        self.shared = start(client, OK, **here, share="project")
        assert start(client, OK, **here, share="project")["clients"] == 2
        self.direct = start(client, DIRECT, **here)
        self.crashed = start(client, OK, **here)
        self.owned = start(client, OK, **here, owner_pid=owner_pid)
        self.short = start(client, OK, **here, ttl=TTL_S)

    @property
    def answering(self) -> list[View]:
        return [*self.plain, self.in_space, self.shared, self.direct]

    @property
    def all(self) -> list[View]:
        others = [self.streams, self.again, self.crashed, self.owned, self.short]
        return [*self.answering, *others]


def test_all_kinds_go_on(daemon: Daemon, tmp_path: Path, owner: subprocess.Popen[bytes]) -> None:
    client, data = daemon.local(), daemon.data
    there = Kinds(client, put_small(tmp_path), owner.pid)
    ids = [one["instance_id"] for one in there.all]
    streams = Streams(there.streams["socket"])
    with contextlib.closing(streams), _starting(client, tmp_path) as half:
        streams.echo()
        daemon.kill()
        for one in there.all:
            assert psutil.pid_exists(one["pid"])
        for one in (*there.answering, there.again):
            echo(one)
        streams.echo()
        _meanwhile(there, owner)
        came = time.time()
        client = daemon.start().local()
        _taken_up(client, there)
        _told(client, there, half["instance_id"], came)
        streams.echo()
        for one in there.answering:
            echo(one)
        _released(client, there)
    assert leftovers(data, *ids, half["instance_id"]) == []


@contextlib.contextmanager
def _starting(client: httpx.Client, project: Path) -> Iterator[View]:
    """One that is never ready; whoever asked for it is not answered."""
    wanted = {"server": body("never-binds"), "project_path": str(project)}

    def ask() -> None:
        with contextlib.suppress(httpx.HTTPError):
            client.post("/v1/instances", json=wanted)

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask)
        until_s = time.monotonic() + ANSWER_S
        while not (found := [one for one in _listed(client).values() if _half(one)]):
            assert time.monotonic() < until_s
            time.sleep(0.02)
        yield found[0]
        asking.result(ANSWER_S)


def _half(one: View) -> bool:
    return bool(one["state"] == "starting" and one["pid"])


def _listed(client: httpx.Client, **more: str) -> dict[str, View]:
    found = good(client.get("/v1/instances", params=more))["instances"]
    return {one["instance_id"]: one for one in found}


def _meanwhile(there: Kinds, owner: subprocess.Popen[bytes]) -> None:
    """While there is no daemon."""
    os.kill(there.crashed["pid"], signal.SIGKILL)
    os.kill(there.again["pid"], signal.SIGKILL)
    owner.kill()
    owner.wait()


def _taken_up(client: httpx.Client, there: Kinds) -> None:
    listed = _listed(client)
    for before in [*there.answering, there.streams]:
        after = listed[before["instance_id"]]
        same = ("port", "pid", "url", "socket", "created_at", "survive", "started_in_ms")
        assert {name: after[name] for name in same} == {name: before[name] for name in same}
        assert after["state"] == "ready"
        token = good(client.get(f"/v1/instances/{before['instance_id']}"))["token"]
        assert token == before["token"]
    assert listed[there.shared["instance_id"]]["clients"] == 2


def _told(client: httpx.Client, there: Kinds, half: str, came: float) -> None:
    """What became of those that ended, or were to end."""
    assert _over(client, half)["problem"]["code"] == "interrupted"
    assert _over(client, there.crashed["instance_id"])["problem"]["code"] == "instance_failed"
    assert _over(client, there.owned["instance_id"])["problem"]["code"] == "owner_gone"
    again = _eventually(
        client, there.again["instance_id"], lambda one: one["restarts"] and one["state"] == "ready"
    )
    assert again["restarts"] == 1 and again["port"] == there.again["port"]
    echo({**again, "token": there.again["token"]})
    short = _over(client, there.short["instance_id"])
    assert short["problem"]["code"] == "ttl_over"
    assert datetime.fromisoformat(short["ended_at"]).timestamp() < came + TTL_S


def _over(client: httpx.Client, instance_id: str) -> View:
    return _eventually(client, instance_id, lambda one: one["state"] in ("ended", "failed"))


def _eventually(client: httpx.Client, instance_id: str, so: Callable[[View], object]) -> View:
    until_s = time.monotonic() + ANSWER_S
    while not so(found := good(client.get(f"/v1/instances/{instance_id}"))):
        assert time.monotonic() < until_s, found
        time.sleep(0.02)
    return dict(found)


def _released(client: httpx.Client, there: Kinds) -> None:
    going = [*there.answering, there.streams, there.again]
    said = []
    for one in (*going, there.shared):
        path = f"/v1/instances/{one['instance_id']}"
        said.append(good(client.delete(path))["status"])
    assert said.count("released") == 1
    assert said.count("terminated") == len(going)
    assert _listed(client) == {}
    good(client.delete(f"/v1/spaces/{there.space_id}", params={"force": "true"}))
    for one in going:
        with pytest.raises(httpx.HTTPError):
            echo({**one, "url": one["url"] or "http://127.0.0.1:1"})


# At every step


def act(told: Path, data: Path, project: Path, scenario: str, moment: str, number: int) -> View:
    """What the killed one had said, which is in the file `told`."""
    words = (nursery(), str(told), (str(data), str(project)), scenario, moment, number)
    process = forked.Process(target=play, args=words)
    process.start()
    process.join(CHILD_S)
    assert process.exitcode in (0, -9), process.exitcode
    lines = [json.loads(line) for line in told.read_text().splitlines()]
    return {key: value for one in lines for key, value in one.items()}


@pytest.mark.parametrize(("scenario", "moment"), CASES)
async def test_killed_at_its_writes(scenario: str, moment: str, data: Path, tmp_path: Path) -> None:
    """All of them on one data folder: what one leaves would be the next one's trouble."""
    project = tmp_path / "project"
    project.mkdir()
    put_small(project)
    try:
        for number in every(5, range(1, MOST_WRITES)):
            words = (tmp_path / "told", data, project, scenario, moment, number)
            said = await asyncio.to_thread(act, *words)
            async with serving(data) as services:
                await check(services, data, said)
            if "writes" in said:
                assert number > 1
                return
        raise AssertionError("the start never ends")
    finally:
        await asyncio.to_thread(end_everything, data)


async def check(services: Services, data: Path, said: View) -> None:
    """What was ready answers, and can be let go; the rest is over. Nothing is left then."""
    for instance in await services.instances.list(LOCAL):
        if await settled(services, instance.instance_id) is InstanceState.READY:
            released = await services.instances.release(LOCAL, instance.instance_id)
            assert released is Released.TERMINATED
    ended = await services.instances.list(LOCAL, ended=True)
    if "ready" in said:
        assert said["ready"] in [one.instance_id for one in ended]
    assert all(not one.pid for one in ended)
    for space in (await services.spaces.list(LOCAL, SpaceQuery(limit=100))).spaces:
        own = data / "spaces" / space.space_id / "home" / ".instances"
        assert not own.is_dir() or list(own.iterdir()) == []
        assert processes(space.space_id) == []
        await services.spaces.remove(LOCAL, space.space_id, force=True, grace_s=0.2)
    assert leftovers(data, *(one.instance_id for one in ended)) == []


async def settled(services: Services, instance_id: str) -> InstanceState:
    """Ready means that it answers, unless it is just found out that it has ended."""
    async with asyncio.timeout(ANSWER_S):
        while True:
            handed = await services.instances.handed(LOCAL, instance_id)
            if handed.instance.state not in LIVE:
                return handed.instance.state
            with contextlib.suppress(NotReady):
                await call(handed, "echo", text="hello")
                return InstanceState.READY
            await asyncio.sleep(0.02)
