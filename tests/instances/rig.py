"""A whole service with servers of the tests, and what a client asks of them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from carrel.app.service import Services, open_service
from carrel.config import parse_settings
from carrel.domain.access import LOCAL
from carrel.domain.instances import (
    Handed,
    Instance,
    InstanceRequest,
    InstanceState,
    PortBy,
    Server,
    ToolCall,
)
from carrel.domain.server_adapter import HandshakeAttempt
from carrel.instances.adapter import LocalServerAdapter
from carrel.instances.handshake import HandshakeRequest, asked
from carrel.launcher.client import Launcher
from carrel.service.instances import warm
from carrel.service.instances.warm import NAME, Bridging
from tests.etc import share_etc
from tests.instances import misbehaving
from tests.instances.installed import search_path
from tests.launchers import forked_launchers
from tests.machine import inhabitants

WAIT_S = 60.0
SCRIPT = misbehaving.__file__
PYTHON = "/usr/bin/python3"


def server(mode: str, *words: str, **more: Any) -> Server:
    """One that is wrong in that way, or right."""
    command = (PYTHON, "-I", "-S", SCRIPT, mode, *words)
    return Server(f"test-{mode}", command, binds=(SCRIPT,), **more)


@contextlib.asynccontextmanager
async def serving(
    data: Path, *, warm_bridge: bool = False, **settings: Any
) -> AsyncIterator[Services]:
    """With a warm bridge only for the tests of it: a service that starts one or two servers
    would load it, for more than a second, and never fork it."""
    share_etc(data)
    with pytest.MonkeyPatch.context() as patch, forked_launchers():
        patch.setenv("PATH", search_path())
        # On a busy machine a test takes longer than that: `settled` begins it where it is meant.
        patch.setattr(warm, "QUIET_S", 3600.0)
        if not warm_bridge:
            patch.setattr(Bridging, "started", lambda *_: None)
        async with open_service(
            parse_settings({"data": data, "request_agent": "scripted", **settings})
        ) as services:
            yield services


async def start(services: Services, server: str | Server, project: Path, **more: Any) -> Handed:
    request = InstanceRequest(server=server, project_path=str(project), **more)
    async with asyncio.timeout(WAIT_S):
        return await services.instances.start(LOCAL, request)


async def call(handed: Handed, tool: str, **arguments: object) -> None:
    """A whole handshake and one tool, as a client has it. Raises `NotReady`."""
    adapter = LocalServerAdapter(lambda *_: (), lambda: ())
    instance = handed.instance
    wanted = ToolCall(tool, arguments)
    async with asyncio.timeout(WAIT_S):
        await adapter.greet(HandshakeAttempt(instance.server, instance.url, handed.token, wanted))


async def until(services: Services, instance_id: str, *states: InstanceState) -> Instance:
    """In one of these states."""
    async with asyncio.timeout(WAIT_S):
        while True:
            instance = await services.instances.get(LOCAL, instance_id)
            if instance.state in states:
                return instance
            await asyncio.sleep(0.01)


async def post(url: str, body: Mapping[str, object], headers: Mapping[str, str]) -> int:
    """The status of an answer to one message."""
    sent = {"Content-Type": "application/json", **headers}
    async with asked(HandshakeRequest("POST", url, sent, json.dumps(body).encode())) as answer:
        return answer.status


def processes(instance_id: str) -> list[psutil.Process]:
    """All that runs of it, wherever it went."""
    found = []
    for pid in inhabitants({instance_id}):
        with contextlib.suppress(psutil.Error):
            found.append(psutil.Process(pid))
    return found


def loaded_process(data: Path, name: str) -> psutil.Process | None:
    """What others are forked from, as the launcher of this data folder tells."""
    launcher = Launcher(data)
    try:
        listed = launcher.call("zygotes", {}, [])[0]["zygotes"]
    finally:
        launcher.close()
    pids = [one["pid"] for one in listed if one["name"] == name]
    return psutil.Process(pids[0]) if pids else None


def private_memory(pid: int) -> int:
    """Of its own, in bytes."""
    rows = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(row.split()[1]) << 10 for row in rows if row.startswith("Private_"))


def leftovers(data: Path, *instance_ids: str) -> list[str]:
    """What is on the machine of these, beside their records."""
    found = [str(path) for path in (data / "instances").glob("*")]
    # A warm process has one of its own while it is there.
    users = [path for path in (data / "uids").glob("*") if os.readlink(path) != NAME]
    found += [f"user {path.name}" for path in users]
    found += [f"holder {path}" for path in _entries(data / "launcher" / "holders")]
    found += [f"process {pid}" for pid in inhabitants(instance_ids)]
    return found


def _entries(folder: Path) -> list[str]:
    return os.listdir(folder) if folder.is_dir() else []


def by_port_file() -> Server:
    words = ("--port-file", "{port_file}")
    return server("writes-port-file", *words, port_by=PortBy.FILE)
