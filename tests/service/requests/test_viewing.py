"""What clients hear of a request, whatever its agent has written."""

from __future__ import annotations

import json

import pytest

from carrel.client.request_frames import frame_of
from carrel.domain.requests import FrameKind, Generate, Request, RequestState
from carrel.service.requests.view import View

REQUEST = Request(
    request_id="mine",
    key="rq_aaaaaaaaaaaa",
    caller="local",
    asked=Generate(instructions="something"),
    digest="",
    state=RequestState.WORKING,
    created_at=1.0,
    updated_at=1.0,
    space_id="sp_aaaaaaaaaaaa",
)


@pytest.mark.parametrize("type", ["permission", "tool_call", "message", "state"])
@pytest.mark.parametrize("name", ["id", "name", "text", "input", ""])
@pytest.mark.parametrize("value", [5, None, True, [1], {"a": 1}, 1e300])
def test_what_has_another_shape_can_be_read(type: str, name: str, value: object) -> None:
    event = {"seq": 1, "run_id": "r", "payload": {name: value} if name else value}
    envelope = {"type": f"agent.{type}", "id": "r.1", "ts": 1.0, "seq": 1, "payload": event}
    frames = list(View(REQUEST, "").frames(json.dumps(envelope).encode()))
    heard = [frame_of({"type": one.kind, "request_id": "mine", **one.data}) for one in frames]
    assert heard[0].type is FrameKind.EVENT
