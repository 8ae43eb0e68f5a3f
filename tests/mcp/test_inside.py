"""The tools from inside real sandboxes, by the SDK's own client, over both transports."""

from __future__ import annotations

import asyncio

import pytest

from carrel.client.aio_spaces import AsyncSpace
from tests.daemon.rig import Daemon
from tests.mcp.rig import Step, answer, drive, heard, person

# They share the project with the packages, which takes seconds to make.
pytestmark = pytest.mark.xdist_group("tools inside")
TOOLS = {
    "log_progress",
    "signal_user",
    "ask_user",
    "request_review",
    "space_state",
    "update_space",
    "list_spaces",
    "spawn_space",
    "wait_for_space",
    "message_space",
    "list_changes",
    "read_file",
    "take_changes",
    "checkpoint",
    "read_messages",
    "delete_space",
    "present_walkthrough",
    "get_selection",
    "ide_operation",
}
STEPS: list[Step] = [
    ("log_progress", {"message": "half way", "category": "milestone", "percent": 50}),
    ("signal_user", {"message": "look", "priority": "high", "suggested_actions": ["merge"]}),
    ("present_walkthrough", {"content": "# What I did"}),
    ("update_space", {"description": "the work"}),
    ("spawn_space", {"description": "a half", "initial_prompt": "do your half"}),
    ("space_state", {}),
    ("list_spaces", {}),
    ("message_space", {"space": "$4.id", "text": "how is it?", "data": {"n": 1}}),
    ("wait_for_space", {"space": "$4.id", "states": ["ready"]}),
    ("wait_for_space", {"space": "$4.id", "timeout_s": 0}),
    ("delete_space", {"space": "$4.id"}),
    ("read_messages", {}),
    ("get_selection", {}),
    ("ide_operation", {"operation": "open", "arguments": {"path": "a"}}),
    ("log_progress", {"message": "mine", "space": "sp_aaaaaaaaaaaa"}),
    ("space_state", {"space": "sp_aaaaaaaaaaaa"}),
    ("message_space", {"space": "sp_aaaaaaaaaaaa", "text": "hello"}),
    ("spawn_space", {"project": "/etc"}),
    ("log_progress", {"message": ""}),
    ("signal_user", {"message": "x", "priority": "whatever"}),
]


@pytest.mark.parametrize(("transport", "mode"), [("stdio", "auto"), ("http", "legacy")])
async def test_every_tool(daemon: Daemon, desk: AsyncSpace, transport: str, mode: str) -> None:
    async with person(daemon, desk.id) as user:
        tools, called = await drive(desk, transport, mode, STEPS)
        progress = await heard(user, "buffer_taskspace_progress")
        signal = await heard(user, "buffer_taskspace_signal_user")
        walkthrough = await heard(user, "buffer_walkthrough")
    assert set(tools) == TOOLS
    assert all(given["additionalProperties"] is False for given, _ in tools.values())
    assert all(answered["type"] == "object" for _, answered in tools.values())

    good = [one.good for one in called[:12]]
    assert [one["seq"] for one in good[:3]] == [progress.seq, signal.seq, walkthrough.seq]
    assert (progress.sender.kind, progress.sender.space) == ("agent", desk.id)
    assert progress.payload == {"message": "half way", "category": "milestone", "percent": 50}
    assert signal.payload["suggested_actions"] == ["merge"]
    child = good[4]
    assert (child["state"], child["parent"], good[3]["description"]) == (
        "ready",
        desk.id,
        "the work",
    )
    assert (good[5]["id"], good[5]["children"]) == (desk.id, [child["id"]])
    assert [one["id"] for one in good[6]["spaces"]] == [desk.id, child["id"]]
    assert good[7]["seq"] and (good[8]["reached"], good[9]["reached"]) == (True, False)
    assert called[8].reports and good[10] == {"removed": child["id"]}
    assert good[11]["messages"] == []
    assert [one.code for one in called[12:]] == [
        "no_receiver",
        "no_receiver",
        "message_invalid",
        "message_invalid",
        "space_not_found",
        "forbidden",
        "message_invalid",
        "message_invalid",
    ]


@pytest.mark.parametrize(("transport", "mode"), [("stdio", "legacy"), ("http", "auto")])
async def test_asking_the_user(daemon: Daemon, desk: AsyncSpace, transport: str, mode: str) -> None:
    steps: list[Step] = [
        ("ask_user", {"question": "Which colour?", "choices": ["red", "blue"]}),
        ("ask_user", {"question": "Sure?", "timeout_s": 0}),
    ]
    async with person(daemon, desk.id) as user:
        driving = asyncio.create_task(drive(desk, transport, mode, steps))
        question = await answer(user, "blue")
        _, (first, second) = await driving
    assert question.payload == {"question": "Which colour?", "choices": ["red", "blue"]}
    assert (question.sender.kind, question.sender.space) == ("agent", desk.id)
    assert (first.good["answered"], first.good["answer"]) == (True, "blue")
    assert first.good["question_id"] == question.id and first.reports
    assert second.good["answered"] is False and second.good["question_id"] != question.id
