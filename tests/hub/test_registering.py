"""Coming, saying who one is, and going."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from carrel.domain.hub import MCP_SOCKET, McpSession
from carrel.domain.trees import Owner
from carrel.hub.access import Identity
from carrel.hub.hub import HubServer
from carrel.hub.rates import Pace
from carrel.interfaces.hub import sockets
from carrel.interfaces.hub.sockets import LineConnection
from carrel.interfaces.mcp import McpProcess
from tests.hub.behaviours import shows
from tests.hub.rig import (
    NOTE,
    OTHER,
    SPACE,
    WAIT_S,
    HubRig,
    hear,
    open_rig,
    options,
)

HEARTBEAT_S = 1.0
"""Who sends them is heard in three times of it, on a busy machine too."""

# Registering


@shows("register.first")
async def test_nothing_is_taken_before_registration(rig: HubRig) -> None:
    peer = await rig.connect()
    for type in (NOTE, "system_status", "client_list", "buffer_replay", "heartbeat", "response"):
        assert (await peer.refused(type, {}, space=SPACE))["code"] == "forbidden"
    assert (await peer.ask("client_register", {"kind": "app"}))["client_id"]


@shows("register.answer")
async def test_a_registration_is_answered(rig: HubRig) -> None:
    told = await (await rig.connect()).ask("client_register", {"kind": "cli", "name": "me"})
    assert told["client_id"].startswith("cl_")
    assert (told["heartbeat_s"], told["sync"], told["space"]) == (15.0, "process", "")
    told = await (await rig.connect("inside")).ask("client_register", {"kind": "agent"})
    assert told["space"] == SPACE


@shows("register.once")
async def test_a_client_registers_once(rig: HubRig) -> None:
    peer = await rig.join()
    assert (await peer.refused("client_register", {"kind": "app"}))["code"] == "forbidden"


@shows("register.kinds")
async def test_an_agent_is_bound_to_a_space(rig: HubRig) -> None:
    outside = await rig.connect()
    assert (await outside.refused("client_register", {"kind": "agent"}))["code"] == "forbidden"
    await outside.ask("client_register", {"kind": "ide"})
    inside = await rig.connect("inside")
    if rig.transport == "unix":
        for kind in ("app", "ide", "cli"):
            problem = await inside.refused("client_register", {"kind": kind})
            assert problem["code"] == "forbidden"
    await inside.ask("client_register", {"kind": "agent"})


@shows("register.never_system")
async def test_no_client_is_the_system(rig: HubRig) -> None:
    peer = await rig.connect()
    for kind in ("system", "root", "", None, 1):
        problem = await peer.refused("client_register", {"kind": kind})
        assert problem["code"] == "message_invalid"


@shows("register.in_time")
async def test_who_does_not_register_is_cut_off(tmp_path: Path, transport: str) -> None:
    async with open_rig(tmp_path, transport, options(register_s=0.2)) as rig:
        silent = await rig.connect()
        *_, error, last = await silent.ended()
        assert error["payload"]["code"] == "message_invalid"
        assert last["payload"]["reason"] == "not_registered"
        rig.hub.options = replace(rig.hub.options, register_s=WAIT_S)
        await (await rig.join()).ask("system_status")


@shows("register.most")
async def test_there_are_so_many_clients_and_no_more(tmp_path: Path, transport: str) -> None:
    async with open_rig(tmp_path, transport, options(most_clients=2)) as rig:
        first, _second = await rig.join(), await rig.join()
        third = await rig.connect()
        (error,) = await third.ended()
        assert error["payload"]["code"] == "insufficient_resources"
        await first.ask("client_disconnect")
        await first.ended()
        await rig.join()


async def test_a_full_hub_has_a_place_for_who_has_none(tmp_path: Path) -> None:
    """What one has filled by many spaces keeps others out no more than one space would."""
    async with open_rig(tmp_path, "unix", options(most_clients=2, most_in_space=2)) as rig:
        for _ in range(2):
            await rig.join("agent", "inside")
        await rig.join("agent", "other")
        (error,) = await (await rig.connect("other")).ended()
        assert error["payload"]["code"] == "insufficient_resources"


async def test_spaces_of_one_account_have_one_pace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a token with many spaces has no more of the hub's time than with one."""
    paces: list[Pace | None] = []

    class Heard(LineConnection):
        def __init__(self, hub: HubServer, identity: Identity, pace: Pace | None = None) -> None:
            paces.append(pace)
            super().__init__(hub, identity, pace)

    monkeypatch.setattr(sockets, "LineConnection", Heard)
    async with open_rig(tmp_path, "unix") as rig:
        here = sockets.HubListener(rig.hub, McpProcess(("false",)))
        for name, account in (("a", "team=blue"), ("b", "team=blue"), ("c", "")):
            (rig.folder / name).mkdir()
            here.open_space(rig.folder / name, f"sp_{name}", Owner(0, 0), account)
            await rig.join("agent", name)
        here.close_all()
    assert paces[0] is paces[1] and paces[2] not in (None, paces[0])


async def test_what_a_session_of_mcp_costs_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A space that connects there without a pause would have all of that process."""
    spent: list[float] = []
    served = asyncio.Event()

    class Counted(Pace):
        def spend(self, seconds: float, now: float) -> None:
            spent.append(seconds)

    class Serving(McpProcess):
        def serve(self, connection: socket.socket, session: McpSession) -> None:
            connection.close()
            served.set()

    monkeypatch.setattr(sockets, "Pace", Counted)
    async with open_rig(tmp_path, "unix") as rig:
        here = sockets.HubListener(rig.hub, Serving(()))
        here.open_space(tmp_path, "sp_a", Owner(os.geteuid(), os.getegid()))
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(tmp_path / MCP_SOCKET))
            async with asyncio.timeout(WAIT_S):
                await served.wait()
        here.close_all()
    assert len(spent) == 1 and spent[0] > sockets.SESSION_S


@shows("update.subscriptions")
async def test_subscriptions_can_be_changed(rig: HubRig) -> None:
    speaker, hearer = await rig.join(), await rig.join(types=("custom_*",), spaces=(SPACE,))
    await speaker.ask("custom_one", {}, space=SPACE)
    wanted = {"subscriptions": {"types": ["custom_two"], "spaces": [OTHER]}}
    await hearer.ask("client_update", wanted)
    for space in (SPACE, OTHER):
        for type in ("custom_one", "custom_two"):
            await speaker.ask(type, {}, space=space)
    found = await hear(hearer, 2)
    seen = [(one["type"], one["space"]) for one in found]
    assert seen == [("custom_one", SPACE), ("custom_two", OTHER)]
    await hearer.nothing_more()


# Heartbeats, leaving


@shows("heartbeat.ours")
async def test_the_hub_is_heard_from(tmp_path: Path, transport: str) -> None:
    async with open_rig(tmp_path, transport, options(heartbeat_s=0.1)) as rig:
        peer = await rig.join()
        async with asyncio.timeout(30):
            while json.loads(await peer.wire.receive())["type"] != "heartbeat":
                pass


@shows("heartbeat.theirs", "leave.told")
async def test_a_silent_client_is_cut_off(tmp_path: Path, transport: str) -> None:
    async with open_rig(tmp_path, transport, options(heartbeat_s=HEARTBEAT_S)) as rig:
        watcher = await rig.join(types=("client_disconnected",), spaces=("*",))
        silent = await rig.agent()
        told: list[dict[str, Any]] = []

        async def watch() -> None:
            while not told:
                await watcher.send("heartbeat", id="")
                found = json.loads(await watcher.wire.receive())
                if found["type"] == "client_disconnected":
                    told.append(found)

        async with asyncio.timeout(30):
            await watch()
        (last,) = [one for one in await silent.ended() if one["type"] == "client_disconnected"]
        assert last["payload"]["reason"] == "connection_lost"
        assert told[0]["payload"]["kind"] == "agent" and told[0]["space"] == SPACE
        assert told[0]["payload"]["reason"] == "connection_lost"


@shows("leave.said")
async def test_a_client_says_that_it_leaves(rig: HubRig) -> None:
    watcher = await rig.join(types=("client_disconnected",), spaces=("*",))
    agent = await rig.agent()
    await agent.ask("client_disconnect", {"reason": "done"})
    assert (await agent.ended())[-1]["payload"]["reason"] == "client_shutdown"
    assert (await watcher.receive())["payload"]["reason"] == "client_shutdown"


@shows("leave.daemon")
async def test_the_hub_ends(rig: HubRig) -> None:
    peer = await rig.join()
    await rig.hub.close()
    (last,) = await peer.ended()
    assert last["payload"]["reason"] == "daemon_shutdown"


# Looking


@shows("look.clients", "look.status")
async def test_one_sees_who_is_there(rig: HubRig) -> None:
    app, agent = await rig.join(name="watcher"), await rig.agent(name="worker")
    found = (await app.ask("client_list"))["clients"]
    assert [(one["kind"], one["name"]) for one in found] == [
        ("app", "watcher"),
        ("agent", "worker"),
    ]
    here = (await app.ask("client_list", {"space": SPACE}))["clients"]
    assert [one["name"] for one in here] == ["worker"]
    status = await agent.ask("system_status")
    assert (status["clients"], status["requests"], status["sync"]) == (2, 0, "process")


async def test_what_others_hear_is_told_as_far_as_one_may_know_of_it(rig: HubRig) -> None:
    await rig.join(name="watcher", spaces=(SPACE, OTHER))
    agent = await rig.agent()
    here = (await agent.ask("client_list", {"space": SPACE}))["clients"]
    assert [one["spaces"] for one in here if one["name"] == "watcher"] == [[SPACE]]
