"""Who begins is answered at once, and no differently than by the server."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, KNOWN_PROTOCOL_VERSIONS

from carrel.mcp.front import LONGEST
from carrel.mcp.handshake import CAPABILITIES, CLIENT, FOLDER, VERSION
from tests.mcp.dialogue import (
    INFO,
    MODERN,
    Message,
    encoded,
    entries,
    envelope,
    front_alone,
    front_answers,
    initialize,
    opening,
    request,
    server_answers,
)

LISTS = ("tools/list", "prompts/list", "resources/list", "resources/templates/list")
INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}
CANCELLED = {
    "jsonrpc": "2.0",
    "method": "notifications/cancelled",
    "params": {"requestId": 0, "reason": "late"},
}
NO_TOOL: Message = {"name": "no_such", "arguments": {}}
CLAUDE = {
    VERSION: MODERN,
    CLIENT: {**INFO, "title": "Claude Code", "description": "d", "websiteUrl": "https://a.b/c"},
    CAPABILITIES: {"roots": {"listChanged": True}, "elicitation": {"form": {}, "url": {}}},
}
CODEX: Message = {"experimental": {"codex/auth-change": {}}, "elicitation": {"form": {}, "url": {}}}


@pytest.mark.parametrize("inside", [True, False], ids=["inside", "outside"])
async def test_the_answers_are_those_of_the_server(inside: bool) -> None:
    """CARREL_WRITE_DOCS=1 writes them."""
    file = Path(FOLDER, f"{'inside' if inside else 'outside'}.json")
    found = await entries(inside, KNOWN_PROTOCOL_VERSIONS, ("ping", *LISTS))
    if os.environ.get("CARREL_WRITE_DOCS") == "1":
        file.write_text(json.dumps(found, indent=1) + "\n")
    assert json.loads(file.read_text()) == found


@pytest.mark.parametrize("inside", [True, False], ids=["inside", "outside"])
@pytest.mark.parametrize("version", KNOWN_PROTOCOL_VERSIONS)
def test_it_needs_no_server_to_begin(version: str, inside: bool) -> None:
    params = envelope(version) if version == MODERN else {"_meta": {"progressToken": 0}}
    asked = [request(id, method, params) for id, method in enumerate(LISTS, 1)]
    found = front_alone(inside, encoded([opening(version), INITIALIZED, *asked, CANCELLED]))
    assert list(found) == ["0", "1", "2", "3", "4"]
    assert all("result" in one for one in found.values())


def test_it_knows_the_agents() -> None:
    codex = initialize("a", "2025-06-18", capabilities=CODEX, clientInfo={**INFO, "title": "Codex"})
    assert front_alone(True, encoded([codex])).keys() == {'"a"'}
    asked = request(0, "tools/list", {"_meta": CLAUDE})
    assert len(front_alone(True, encoded([asked]))["0"]["result"]["tools"]) == 14


DIALOGUES: dict[str, tuple[list[Message | bytes], int]] = {
    "a tool": (
        [
            *(opening("2025-06-18"), INITIALIZED, request(1, "tools/list"), request("2", "ping")),
            *(request(3, "tools/call", NO_TOOL), request(4, "tools/list"), request(5, "ping")),
        ],
        6,
    ),
    "a tool in an envelope": (
        [
            *(opening(MODERN), request(1, "tools/list", envelope())),
            request(2, "tools/call", {**envelope(), **NO_TOOL}),
            request(3, "prompts/list", envelope()),
        ],
        4,
    ),
    "before it is initialized": ([initialize(), request(1, "tools/call", NO_TOOL)], 2),
    "without a beginning": ([request(1, "tools/list"), request(2, "ping")], 2),
    "a ping first": ([request(1, "ping"), initialize(2), request(3, "tools/list")], 3),
    "a notification first": ([INITIALIZED, initialize(), request(1, "tools/list")], 2),
    "no message first": ([b"nonsense", b"", initialize(), request(1, "tools/list")], 2),
    "no message later": ([initialize(), b"[]", b"{", request(1, "tools/list")], 2),
    "a batch": ([initialize(), encoded([request(1, "ping")])[:-1].join((b"[", b"]"))], 1),
    "twice": ([initialize(), initialize(1, "2024-11-05"), request(2, "tools/list")], 3),
    "an unknown version": ([initialize(0, "2020-01-01"), request(1, "tools/list")], 2),
    "a modern version by the old way": ([initialize(0, MODERN), request(1, "ping")], 2),
    "an unknown version in an envelope": (
        [request(0, "server/discover", envelope("2099-01-01")), opening(MODERN, 1)],
        2,
    ),
    "the old way after the new": ([opening(MODERN), initialize(1), request(2, "tools/list")], 3),
    "the new way after the old": ([initialize(), opening(MODERN, 1), request(2, "tools/list")], 3),
    "unknown methods": (
        [initialize(), request(1, "no/such"), request(2, "subscriptions/listen")],
        3,
    ),
    "a page": ([initialize(), request(1, "tools/list", {"cursor": "x"})], 2),
    "a level of logs": ([initialize(), request(1, "logging/setLevel", {"level": "info"})], 2),
    "much": (
        [initialize(), request(1, "tools/list", {"x": "y" * 3 * LONGEST}), request(2, "ping")],
        3,
    ),
    "without the last newline": ([initialize(), encoded([request(1, "ping")]) + b" "], 2),
}


@pytest.mark.parametrize("name", DIALOGUES)
async def test_with_the_server_behind_it(name: str) -> None:
    said, count = DIALOGUES[name]
    wanted = {json.dumps(one["id"]) for one in said if isinstance(one, dict) and "id" in one}
    wanted |= {"1"} if name == "without the last newline" else set()
    text = encoded(said).removesuffix(b" \n")
    expected = await server_answers(True, text, wanted)
    assert len(expected) == count
    assert await front_answers(True, text, wanted) == expected


def variants(value: Any, place: tuple[str, ...] = ()) -> Iterator[Any]:
    """With something else in each place, without it, and with something beside it."""
    others: list[Any] = [None, 0, 1.5, True, "", "x", [], {}, {"x": 1}, {"x": {}}, {"x": {"y": 1}}]
    if place:
        yield from others
    if isinstance(value, dict):
        for name, inner in value.items():
            yield {one: value[one] for one in value if one != name}
            for other in variants(inner, (*place, name)):
                yield {**value, name: other}
        for other in others:
            yield {**value, "more": other}


FULL = {
    "roots": {"listChanged": True},
    "sampling": {"context": {}, "tools": {}},
    "elicitation": {"form": {}, "url": {}},
    "experimental": {"a": {}},
    "extensions": {"a/b": {}},
}
BEGINNINGS = {
    "the old way": initialize(0, capabilities=FULL, clientInfo=CLAUDE[CLIENT])["params"],
    "the new way": {"_meta": {**CLAUDE, CAPABILITIES: FULL, "progressToken": 0}},
}


@pytest.mark.parametrize("name", BEGINNINGS)
async def test_what_clients_might_say_of_themselves(name: str) -> None:
    """All that the front answers, the server answers as it does."""
    method = "initialize" if name == "the old way" else "tools/list"
    said = [BEGINNINGS[name], *variants(BEGINNINGS[name])]
    asked = [request(id, method, copy.deepcopy(params)) for id, params in enumerate(said)]
    alone: dict[str, Message] = {}
    for one in asked:
        alone |= front_alone(True, encoded([one]))
    assert len(alone) > 10 and "0" in alone
    # The first one decides in which way the server is asked.
    expected = await server_answers(True, encoded(asked), alone.keys())
    assert {id: expected[id] for id in alone} == alone


IDS: list[Any] = [-1, 2**40, 2**70, "", "é", "x", 1.5, True, None, [], {}]
LINES = [
    *(encoded([request(id, "ping")])[:-1] for id in IDS),
    b'{"jsonrpc":"2.0","id":5,"method":"ping","method":"tools/list"}',
    b'{"jsonrpc":"2.0","id":6,"method":"ping","params":null}',
    b'{"jsonrpc":"2.0","id":7,"method":"ping","params":[]}',
    b'{"jsonrpc":"2.0","id":8,"method":"ping","params":{"x":NaN}}',
    b'{"jsonrpc":"2.0","id":9,"method":"ping","more":1}',
    b'{"jsonrpc":"1.0","id":10,"method":"ping"}',
    b'{"id":11,"method":"ping"}',
    b' \t{"jsonrpc" : "2.0", "id":12,"method":"ping"}\t ',
    b'{"jsonrpc":"2.0","id":13,"method":"ping"}\r',
    b'{"jsonrpc":"2.0",\r"id":14,"method":"ping"}',
    b'\xef\xbb\xbf{"jsonrpc":"2.0","id":15,"method":"ping"}',
    b'{"jsonrpc":"2.0","id":"\xff","method":"ping"}',
    b'{"jsonrpc":"2.0","id":"\\ud800","method":"ping"}',
    b'{"jsonrpc":"2.0","id":"\\u0041","method":"p\\u0069ng"}',
    b'{"jsonrpc":"2.0","id":16,"method":"ping","params":{"_meta":{"progressToken":"\x00"}}}',
    b'{"jsonrpc":"2.0","id":17,"method":"ping"}{}',
    b'{"jsonrpc":"2.0","id":18,"method":"ping","params":' + b"[" * 5000 + b"]" * 5000 + b"}",
    b'{"jsonrpc":"2.0","id":19,"result":{}}',
    '{"jsonrpc":"2.0","id":20,"method":"ping"}'.encode("utf-16"),
]


async def test_lines_of_every_kind() -> None:
    alone: dict[str, Message] = {}
    for line in LINES:
        alone |= front_alone(True, encoded([initialize("first"), line]))
    assert {'"first"', "-1", "5", "12", "13", '"x"'} <= alone.keys()
    expected = await server_answers(True, encoded([initialize("first"), *LINES]), alone.keys())
    assert {id: expected[id] for id in alone} == alone


def test_the_end_at_any_point() -> None:
    said = encoded([initialize(), INITIALIZED, request(1, "tools/list")])
    whole = front_alone(True, said)
    for length in range(0, len(said), 7):
        found = front_alone(True, said[:length])
        assert found.items() <= whole.items()
    assert front_alone(True, b"") == {} and len(whole) == 2


def test_every_way_to_begin_is_known() -> None:
    """A new version of the protocol needs a look at the front."""
    assert set(KNOWN_PROTOCOL_VERSIONS) == {*HANDSHAKE_PROTOCOL_VERSIONS, MODERN}
