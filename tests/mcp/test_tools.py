"""What clients see of the tools: arguments, answers, and which are offered where."""

from __future__ import annotations

from typing import Any

import pytest
from mcp import Client
from mcp_types import Tool

from carrel.client.aio_spaces import AsyncSpace
from carrel.mcp.hub import ToolHub
from carrel.mcp.server import CarrelServer
from tests.daemon.rig import Daemon
from tests.mcp.rig import agent, call, heard, person

SPACE = "id name state description='' parent='' project='' network='' created_at=None problem=None"
WANTED = "name='' description='' initial_prompt='' frontend='' project='' wake=False"
WAITS = "question_id='' timeout_s=300.0"
BOTH = {
    "list_spaces": ("", "spaces"),
    "spawn_space": (f"{WANTED} {WAITS}", SPACE),
    "wait_for_space": ("space states=[] timeout_s=60.0", "space reached turn=None"),
    "message_space": ("space text data=None", "seq turn=''"),
    "list_changes": ("space limit=200", "changes total commits"),
    "read_file": ("space path start=0 size=131072", "text=None base64=None next=None"),
}
INSIDE = BOTH | {
    "log_progress": ("message category='info' percent=None", "seq"),
    "signal_user": ("message priority='medium' suggested_actions=[]", "seq"),
    "ask_user": (f"question='' choices=[] {WAITS}", "question_id answered answer=None hint=''"),
    "present_walkthrough": ("content", "seq"),
    "read_messages": ("after=0 limit=100", "messages next"),
    "take_changes": ("space paths=[] replace=False", "written deleted left"),
    "checkpoint": ("message=''", "id files changed"),
    "request_review": (
        "summary='' timeout_s=0.0 question_id=''",
        "question_id answered answer=None hint=''",
    ),
    "space_state": ("", f"{SPACE} children=[]"),
    "update_space": ("name=None description=None", SPACE),
    "delete_space": (f"space='' {WAITS}", "removed"),
    "get_selection": ("", "data=None"),
    "ide_operation": ("operation arguments=None", "data=None"),
}
OUTSIDE = BOTH | {
    "space_state": ("space", f"{SPACE} children=[]"),
    "update_space": ("space name=None description=None", SPACE),
    "delete_space": (f"space {WAITS}", "removed"),
}


async def listed(inside: bool) -> dict[str, Tool]:
    async with Client(CarrelServer(ToolHub(inside=inside))) as client:
        return {one.name: one for one in (await client.list_tools()).tools}


def members(schema: dict[str, Any]) -> list[str]:
    """As in a signature."""
    given = schema["properties"].items()
    assert sorted(schema.get("required", [])) == sorted(k for k, v in given if "default" not in v)
    defaults = {k: f"={v['default']!r}".replace(" ", "") for k, v in given if "default" in v}
    return sorted(k + defaults.get(k, "") for k, _ in given)


@pytest.mark.parametrize(("inside", "wanted"), [(True, INSIDE), (False, OUTSIDE)])
async def test_arguments_and_answers(inside: bool, wanted: dict[str, tuple[str, str]]) -> None:
    tools = await listed(inside)
    assert set(tools) == set(wanted)
    for name, (arguments, answer) in wanted.items():
        given, answered = tools[name].input_schema, tools[name].output_schema
        assert answered is not None
        assert members(given) == sorted(arguments.split()), name
        assert members(answered) == sorted(answer.split()), name
        assert (given["type"], given["additionalProperties"]) == ("object", False)
        assert answered["type"] == "object" and tools[name].description


async def test_limits_and_descriptions_are_those_of_the_contract() -> None:
    given = (await listed(True))["log_progress"].input_schema["properties"]
    assert given["message"] == {
        "type": "string",
        "minLength": 1,
        "maxLength": 100_000,
        "description": "What was done, or is being done.",
    }
    assert given["category"]["type"] == "string" and "milestone" in given["category"]["enum"]
    assert given["percent"]["anyOf"][0] == {"type": "number", "minimum": 0, "maximum": 100}


async def test_hints_for_clients() -> None:
    tools = await listed(True)
    hints = {name: one.annotations for name, one in tools.items() if one.annotations}
    assert set(hints) == set(tools)
    assert [name for name, one in hints.items() if one.destructive_hint] == ["delete_space"]
    reading = {name for name, one in hints.items() if one.read_only_hint}
    assert {"list_spaces", "read_messages"} <= reading and "log_progress" not in reading


async def test_what_does_not_fit_is_named(daemon: Daemon, plain: AsyncSpace) -> None:
    async with agent(daemon, plain.id) as tools:
        for arguments, what in (
            ({}, "log_progress: message: Field required."),
            ({"message": ""}, "log_progress: message: Expected `str` of length >= 1."),
            ({"message": "x", "space": "y"}, "log_progress: space: No such field is known."),
            ({"message": "x", "percent": 101}, "log_progress: percent: Expected `float` <= 100.0."),
        ):
            refused = await call(tools, "log_progress", **arguments)
            assert refused.code == "message_invalid" and refused.data["message"] == what


async def test_clients_that_put_all_into_texts(daemon: Daemon, plain: AsyncSpace) -> None:
    async with person(daemon, plain.id) as user, agent(daemon, plain.id) as tools:
        actions = '["merge", "wait"]'
        said = await call(tools, "signal_user", message="[1]", suggested_actions=actions)
        assert said.good["seq"]
        signal = await heard(user, "buffer_taskspace_signal_user")
        assert signal.payload["suggested_actions"] == ["merge", "wait"]
        assert signal.payload["message"] == "[1]", "a text stays one"
        assert (await call(tools, "log_progress", message="half", percent="50")).good["seq"]
        progress = await heard(user, "buffer_taskspace_progress")
        assert progress.payload == {"message": "half", "category": "info", "percent": 50}
        sent = await call(tools, "message_space", space=plain.id, text="x", data='{"n": 1}')
        assert sent.good["seq"]
        (message,) = (await call(tools, "read_messages")).good["messages"]
        assert message["data"] == {"n": 1}
