"""Requests from client to client."""

from __future__ import annotations

from typing import Any

from tests.hub.behaviours import shows
from tests.hub.rig import (
    OTHER,
    SPACE,
    HubRig,
)


@shows("request.answered", "request.kinds")
async def test_a_request_gets_one_answer(rig: HubRig) -> None:
    agent, app = await rig.agent(), await rig.join()
    number = await app.send("agent_command", {"command": "go"}, space=SPACE, deadline_ms=20_000)
    asked = await agent.receive()
    assert (asked["type"], asked["payload"]["command"]) == ("agent_command", "go")
    assert (asked["deadline_ms"], asked["sender"]["kind"]) == (20_000, "app")
    reply = {"status": "success", "data": {"done": True}}
    assert await agent.ask("response", reply, reply_to=asked["id"]) == {"dropped": False}
    answer = await app.answer(number)
    assert (answer["payload"], answer["sender"]["kind"]) == (reply, "agent")
    again = await agent.ask("response", reply, reply_to=asked["id"])
    assert again == {"dropped": True}
    await app.nothing_more()


@shows("request.deadline", "request.late")
async def test_a_request_that_nobody_answers(rig: HubRig) -> None:
    agent, app = await rig.agent(), await rig.join()
    problem = await app.refused("agent_interrupt", {}, space=SPACE, deadline_ms=1)
    assert problem["code"] == "timeout"
    asked = await agent.receive()
    late = await agent.ask("response", {"status": "success"}, reply_to=asked["id"])
    assert late == {"dropped": True}
    await app.nothing_more()
    assert (await app.ask("system_status"))["late_answers"] == 1
    # Not the one that was asked.
    number = await app.send("agent_interrupt", {}, space=SPACE)
    asked = await agent.receive()
    stranger = await rig.join()
    foreign = await stranger.ask("response", {"status": "success"}, reply_to=asked["id"])
    assert foreign == {"dropped": True}
    await agent.ask("response", {"status": "pending"}, reply_to=asked["id"])
    assert (await app.answer(number))["payload"] == {"status": "pending"}


@shows("request.nobody")
async def test_nobody_is_there_to_answer(rig: HubRig) -> None:
    app = await rig.join()
    for type in ("agent_interrupt", "ide_get_selection"):
        problem = await app.refused(type, {}, space=SPACE)
        assert problem["code"] == "no_receiver"
    # Only what is for agents is answered in their place.
    for type in ("custom_x", "buffer_custom_x", "ide_get_selection"):
        problem = await app.refused(type, {}, space=SPACE, to="agent")
        assert problem["code"] == "no_receiver"
    wrong: list[dict[str, Any]] = [{"deadline_ms": -1}, {"deadline_ms": 10**9}, {"id": ""}]
    for bad in wrong:
        await rig.agent()
        number = await app.send("agent_interrupt", {}, space=SPACE, **bad)
        found = await app.receive() if not number else await app.answer(number)
        assert found["payload"]["code"] == "message_invalid"


@shows("request.capability")
async def test_a_script_in_a_space_is_not_asked(rig: HubRig) -> None:
    agent, app = await rig.agent(), await rig.join()
    await rig.join("agent", "inside")
    number = await app.send("agent_interrupt", {}, space=SPACE)
    asked = await agent.receive()
    await agent.ask("response", {"status": "success"}, reply_to=asked["id"])
    assert (await app.answer(number))["payload"]["status"] == "success"


@shows("request.gone")
async def test_whoever_was_asked_goes(rig: HubRig) -> None:
    agent, app = await rig.agent(), await rig.join()
    number = await app.send("agent_interrupt", {}, space=SPACE)
    await agent.receive()
    await agent.close()
    assert (await app.answer(number))["payload"]["code"] == "no_receiver"


@shows("request.capability")
async def test_a_request_goes_to_who_can_answer_it(rig: HubRig) -> None:
    able = await rig.join("ide", spaces=(SPACE,), capabilities=["ide_operation"])
    unable = await rig.join("ide", spaces=(SPACE,), capabilities=["ide_get_selection"])
    elsewhere = await rig.join("ide", spaces=(OTHER,))
    agent = await rig.agent()
    number = await agent.send("ide_operation", {"operation": "open"}, space=SPACE)
    asked = await able.receive()
    await able.ask("response", {"status": "success", "data": 1}, reply_to=asked["id"])
    assert (await agent.answer(number))["payload"]["data"] == 1
    named = await rig.join("app", spaces=(SPACE,), name="mine")
    told = await agent.ask("client_list", {"space": SPACE})
    (client_id,) = [one["client_id"] for one in told["clients"] if one["name"] == "mine"]
    await agent.send("custom_hello", {}, space=SPACE, to=client_id)
    assert (await named.receive())["type"] == "custom_hello"
    for peer in (unable, elsewhere):
        await peer.nothing_more()
