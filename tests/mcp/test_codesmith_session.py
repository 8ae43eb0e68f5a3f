"""What clients say to `carrel codesmith` is answered as the SDK's own server would."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from mcp_types.version import KNOWN_PROTOCOL_VERSIONS, LATEST_HANDSHAKE_VERSION

from carrel.mcp.codesmith.session import (
    VERSION,
    Called,
    CodesmithSession,
    GivenUp,
    Unheard,
    answers,
)
from carrel.mcp.codesmith.tool import ARGUMENTS, options_of
from tests.mcp import twin
from tests.mcp.dialogue import (
    INITIALIZED,
    MODERN,
    Message,
    encoded,
    envelope,
    initialize,
    opening,
    request,
)

IDS: list[Any] = [-1, 2**70, "", "é", 1.5, True, None, [], {}]
DIALOGUES: dict[str, list[Message | bytes]] = {
    **{f"begun by {one}": [opening(one)] for one in KNOWN_PROTOCOL_VERSIONS},
    "as usual": [initialize(), INITIALIZED, request("a", "tools/list"), request(2, "ping")],
    "enveloped": [request(1, "tools/list", envelope()), request(2, "ping", envelope())],
    "before it is initialized": [request(1, "tools/list"), request(2, "ping")],
    "a ping first": [request(1, "ping"), initialize(2), request(3, "tools/list")],
    "no messages": [b"nonsense", b"", b"[]", b"{", b'"x"', b"\xff\xfe", initialize()],
    "twice": [initialize(), initialize(1, "2024-11-05"), request(2, "tools/list")],
    "an unknown version": [initialize(0, "2020-01-01"), request(1, "tools/list")],
    "a modern version by the old way": [initialize(0, MODERN), request(1, "ping")],
    "no beginning": [
        request(0, "initialize", {}),
        request(1, "initialize"),
        initialize(2, "x" * 9),
    ],
    "unknown methods": [initialize(), request(1, "no/such"), request(2, "prompts/list")],
    "unknown methods enveloped": [request(1, "no/such", envelope())],
    "an unknown version in an envelope": [
        request(0, "server/discover", envelope("2099-01-01")),
        opening(MODERN, 1),
    ],
    "ids of every kind": [
        initialize("first"),
        *(request(id, "ping") for id in IDS),
    ],
    "answers to nothing": [initialize(), b'{"jsonrpc":"2.0","id":19,"result":{}}'],
    "no version of JSON-RPC": [initialize(), b'{"id":3,"method":"ping"}', request(4, "ping")],
}


async def test_the_answers_are_those_of_the_sdk() -> None:
    assert answers() == await twin.answers()


@pytest.mark.parametrize("name", DIALOGUES)
async def test_dialogues(name: str) -> None:
    said = DIALOGUES[name]
    assert twin.answers_of_session(said) == await twin.answers_of(said)


@pytest.mark.parametrize(
    ("said", "code"),
    [
        # The SDK says the same in other words.
        ([opening(MODERN), initialize(1)], -32022),
        ([opening(MODERN), request(1, "tools/list")], -32602),
        ([opening(MODERN), request(1, "ping", {"_meta": {VERSION: MODERN}})], -32602),
        ([initialize(), opening(MODERN, 1)], -32600),
        ([initialize(), request(1, "tools/call", {"name": 5})], -32602),
        ([initialize(), request(1, "tools/call", {"name": "generate", "arguments": []})], -32602),
        ([request(1, "tools/call", {"name": "generate"})], -32602),
    ],
)
async def test_errors_by_code(said: list[Message], code: int) -> None:
    ours = twin.answers_of_session(said)
    theirs = await twin.answers_of(said)
    assert ours["1"]["error"]["code"] == theirs["1"]["error"]["code"] == code


def taken(said: Sequence[Message | bytes]) -> list[Any]:
    session = CodesmithSession()
    return [session.take(line) for line in encoded(said).splitlines()]


@pytest.mark.parametrize("version", KNOWN_PROTOCOL_VERSIONS)
def test_a_call(version: str) -> None:
    meta = {"_meta": {"progressToken": "mine"}}
    if version == MODERN:
        meta["_meta"] |= envelope()["_meta"]
    asked = request(
        7, "tools/call", {"name": "generate", "arguments": {"instructions": "x"}, **meta}
    )
    cancelled = {
        "jsonrpc": "2.0",
        "method": "notifications/cancelled",
        "params": {"requestId": 7},
    }
    begun, call, given_up = taken([opening(version), asked, cancelled])
    assert "result" in begun
    assert isinstance(call, Called) and isinstance(given_up, GivenUp)
    assert (call.id, call.token, call.arguments) == (7, "mine", {"instructions": "x"})
    assert call.modern is (version == MODERN) and given_up.id == 7


def test_what_is_no_message() -> None:
    found = taken([b"nonsense", b"[1]", b"", b'{"jsonrpc":"2.0","id":1,"result":{}}'])
    assert [type(one) for one in found] == [Unheard, Unheard, type(None), Unheard]


@pytest.mark.parametrize("params", [[], "x", 5, None])
def test_parameters_that_are_none(params: Any) -> None:
    """The SDK does not answer these at all."""
    line = encoded([{"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": params}])
    (found,) = [CodesmithSession().take(one) for one in line.splitlines()]
    assert isinstance(found, dict) and found["error"]["code"] == -32602


def test_the_newest_version_is_offered() -> None:
    (begun,) = taken([initialize(0, "1999-01-01")])
    assert begun["result"]["protocolVersion"] == LATEST_HANDSHAKE_VERSION


def test_arguments() -> None:
    given = {name: "/x" for name in ARGUMENTS}
    assert options_of({**given, "model": None, "check": ""}) == {
        **{name: "/x" for name in ("instructions", "workspace_path", "architecture", "frontend")},
        "context": "/x",
    }
    assert options_of({"instructions": "x", "architecture": {"a": 1}})["architecture"] == {"a": 1}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "no instructions"),
        ({"instructions": " \n"}, "no instructions"),
        ({"instructions": None}, "no instructions"),
        ({"instructions": 5}, "instructions is not a text"),
        ({"instructions": "x", "workspace_path": ["/tmp"]}, "workspace_path is not a text"),
        ({"instructions": "x", "workspace_path": "here"}, "workspace_path is not absolute"),
        ({"instructions": "x", "architecture": 5}, "architecture is not a text or an object"),
        ({"instructions": "x", "folder": "/tmp"}, "no argument 'folder'"),
    ],
)
def test_arguments_that_are_none(given: Message, told: str) -> None:
    with pytest.raises(Exception, match=told) as caught:
        options_of(given)
    assert getattr(caught.value, "code", "") == "message_invalid"
