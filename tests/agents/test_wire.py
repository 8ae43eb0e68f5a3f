"""What goes between a driver's program and whoever started it, from both sides."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import pytest

from carrel.agents import wire
from carrel.domain.turns import (
    AgentEventType,
    AgentServer,
    AgentSetup,
    Attachment,
    Continuation,
    Control,
    ControlKind,
    InteractionMode,
    Permission,
    Told,
    TurnRequest,
)

SEAT = AgentSetup(
    "/workspace",
    "/agent/state",
    "/agent/context",
    True,
    mcp=("carrel", "mcp"),
    mcp_env={"CARREL_HUB": "/run/hub"},
    credentials={"openai": "key"},
    servers=(AgentServer("serena", "http://127.0.0.1:1/mcp", True, "TOKEN"), AgentServer("b", "")),
    server_env={"TOKEN": "shown"},
    untrusted=(".claude",),
    agreed=(".mcp.json",),
    also_read=("/srv/docs",),
)
REQUEST = TurnRequest(
    "scripted",
    "say é\u2028\n",
    session_id="s",
    run_id="r",
    model="small",
    continuation=Continuation("any", "k"),
    permission=Permission.ASK,
    env={"A": "b"},
    attachments=(Attachment("/a", "text/plain"), Attachment("/b")),
    system_prompt="be short",
    timeout_s=1.5,
    answer_s=2.5,
    kits=("kit:x",),
    mode=InteractionMode.INTERACTIVE,
    trust=True,
    queue=True,
)


@pytest.mark.parametrize("value", [REQUEST, SEAT])
def test_the_examples_say_something_in_every_field(value: object) -> None:
    assert dataclasses.is_dataclass(value) and not isinstance(value, type)
    for field in dataclasses.fields(value):
        # What was imported is put into the agent's folder, and never sent.
        if field.name != "imported":
            assert getattr(value, field.name) != field.default, field.name


@pytest.mark.parametrize("request_", [REQUEST, TurnRequest("scripted", "say hi")])
@pytest.mark.parametrize("setup", [SEAT, AgentSetup("/w", "/s", "", False)])
def test_a_start_comes_back_as_it_was(request_: TurnRequest, setup: AgentSetup) -> None:
    start = wire.Start("module:Name", request_, setup, {"own_process": True, "words": ["a"]})
    line = wire.line_of(start)
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    found = wire.read_start(line)
    assert found == start
    assert type(found.request.permission) is type(request_.permission)
    assert type(found.request.mode) is InteractionMode


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"nonsense",
        b"[]",
        b"{}",
        b"\xff",
        b"[" * 100_000,
        b'{"driver":"m:n","request":1,"setup":{},"options":{}}',
        b'{"driver":"m:n","request":{"frontend":"f"},"setup":{"mcp":[]},"options":{}}',
        b'{"driver":"m:n","request":{"permission":"all"},"setup":{"mcp":[]},"options":{}}',
    ],
)
def test_a_start_that_is_none(line: bytes) -> None:
    with pytest.raises(ValueError):
        wire.read_start(line)


@pytest.mark.parametrize(
    "control",
    [
        Control(ControlKind.INPUT, text="é\n"),
        Control.interrupt(),
        Control(ControlKind.PERMISSION, id="call-1", allow=True),
        Control(ControlKind.PERMISSION, id="call-2"),
    ],
)
def test_a_control_comes_back_as_it_was(control: Control) -> None:
    assert wire.read_control(wire.line_of(control)) == control


@pytest.mark.parametrize("line", [b"nonsense", b"[]", b"{}", b'{"kind":"new"}', b'{"kind":null}'])
def test_a_control_that_is_none(line: bytes) -> None:
    with pytest.raises(ValueError):
        wire.read_control(line)


def test_only_a_clear_yes_allows() -> None:
    control = wire.read_control(b'{"kind":"permission","id":7,"allow":"no","more":1}')
    assert control == Control(ControlKind.PERMISSION, id="7")


@dataclass(frozen=True)
class Thing:
    name: str


@pytest.mark.parametrize(
    ("payload", "read"),
    [
        ({"text": "é\u2028\n", "n": 1, "f": 0.5, "no": None}, None),
        ({"nested": {"list": [1, [2]]}, "tuple": (1, 2)}, {"nested": {"list": [1, [2]]}}),
        ({"text": math.nan}, {"text": None}),
        ({"thing": Thing("x")}, {"thing": {"name": "x"}}),
        ({"other": object}, {"other": "<class 'object'>"}),
    ],
)
def test_what_is_told_is_read(payload: Mapping[str, object], read: Mapping[str, object]) -> None:
    line = wire.told_line(Told(AgentEventType.LOG, payload, "key"))
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    found = wire.read_told(line)
    assert found is not None and found.key == "key" and found.type is AgentEventType.LOG
    for name, value in (read or payload).items():
        assert found.payload[name] == value


def test_what_is_no_json_is_told_as_python_shows_it() -> None:
    circle: dict[str, object] = {}
    circle["self"] = circle
    odd: list[Mapping[str, object]] = [{"a": "\ud800"}, circle, MappingProxyType({"a": "\udfff"})]
    for payload in odd:
        line = wire.told_line(Told(AgentEventType.MESSAGE, payload, "\ud800"))
        found = json.loads(line)
        assert found["type"] == "log" and found["key"] == "\\ud800"
        assert wire.read_told(line) is not None
