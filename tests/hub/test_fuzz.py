"""Whatever a client sends: it gets an error or is cut off, and the others notice nothing."""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from websockets.exceptions import ConnectionClosed

from carrel.hub.types import TYPES
from tests.hub.rig import OTHER, SPACE, TRANSPORTS, Ended, HubRig, Peer, open_rig
from tests.sampling import examples

ORDERS = (
    *("client_register", "client_update", "client_list", "client_disconnect", "heartbeat"),
    *(
        "system_status",
        "buffer_replay",
        "buffer_acknowledge",
        "buffer_publish",
        "response",
        "error",
    ),
)
_words = st.sampled_from(
    [
        "",
        SPACE,
        OTHER,
        "*",
        "sp_zzzzzzzzzzzz",
        "agent",
        "ide",
        "system",
        "a" * 200,
        "\0",
        "../..",
        "é",
    ]
)
_json: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)
_fields = st.fixed_dictionaries(
    {},
    optional={
        "kind": st.sampled_from(["app", "agent", "ide", "cli", "system", "x"]) | _json,
        "message": _words | _json,
        "space": _words | _json,
        "seq": st.integers() | _json,
        "since": st.floats(allow_nan=False) | _json,
        "consumer": _words | _json,
        "subscriptions": st.fixed_dictionaries(
            {}, optional={"types": st.lists(_words) | _json, "spaces": st.lists(_words) | _json}
        )
        | _json,
        "status": st.sampled_from(["success", "error", "pending"]) | _json,
        "question": _words,
        "answer": _words,
        "command": _words,
        "operation": _words,
        "text": _words,
        "content": _words,
        "name": _words,
        "messages": st.lists(
            st.fixed_dictionaries(
                {"type": st.sampled_from([*TYPES, "buffer_custom_x", "custom_x", ""]) | _json},
                optional={"payload": _json, "id": _words | _json, "reply_to": _words | _json},
            ),
            max_size=4,
        )
        | _json,
    },
)
_envelopes = st.fixed_dictionaries(
    {"type": st.sampled_from([*TYPES, *ORDERS, "custom_x", "buffer_custom_x", "odd", ""]) | _json},
    optional={
        "id": st.text(max_size=10) | _json,
        "space": _words | _json,
        "payload": _fields | _json,
        "reply_to": _words | _json,
        "to": _words | _json,
        "deadline_ms": st.integers(-5, 50) | _json,
        "sender": _json,
        "seq": _json,
        "ts": _json,
    },
)
_frames = st.one_of(
    st.binary(max_size=60).map(lambda data: data.replace(b"\n", b" ")),
    _json.map(lambda value: json.dumps(value).encode()),
    _envelopes.map(lambda value: json.dumps(value).encode()),
    _envelopes.map(lambda value: json.dumps(value).encode()[:-3]),
)
REGISTER = json.dumps({"type": "client_register", "payload": {"kind": "app"}}).encode()


async def _pour(peer: Peer, frames: list[bytes]) -> None:
    for frame in frames:
        try:
            await peer.wire.send(frame)
        except (ConnectionError, ConnectionClosed, Ended):
            return


async def _drain(peer: Peer) -> None:
    """What comes back are envelopes."""
    try:
        while True:
            envelope = json.loads(await peer.wire.receive())
            assert set(envelope) >= {"type", "id", "ts", "sender", "payload"}, envelope
            if envelope["type"] == "error":
                assert envelope["payload"]["code"] != "internal", envelope
    except Ended:
        return


async def _survives(rig: HubRig, frames: list[bytes], *, registered: bool) -> None:
    watcher = await rig.join(types=("*",), spaces=(SPACE,))
    strangers = [await rig.connect(), await rig.connect("inside")]
    draining = [asyncio.create_task(_drain(one)) for one in strangers]
    for one in strangers:
        await _pour(one, [REGISTER, *frames] if registered else frames)
    before = rig.hub.keeper.last(SPACE)
    told = await watcher.ask("buffer_custom_note", {}, space=SPACE)
    assert told["seq"] >= before
    span = (await rig.hub.log.spans())[SPACE]
    assert (span.first, span.last) == (1, rig.hub.keeper.last(SPACE))
    for one in strangers:
        await one.close()
    async with asyncio.timeout(30):
        for task in draining:
            await task


@pytest.mark.parametrize("registered", [True, False])
@pytest.mark.parametrize("transport", TRANSPORTS)
@settings(
    max_examples=examples(7, exhaustive=40), deadline=None, suppress_health_check=list(HealthCheck)
)
@given(frames=st.lists(_frames, max_size=12))
def test_nothing_that_is_sent_does_harm(
    transport: str, registered: bool, frames: list[bytes]
) -> None:
    async def scenario() -> None:
        with tempfile.TemporaryDirectory() as data:
            async with open_rig(Path(data), transport) as rig:
                await _survives(rig, frames, registered=registered)

    asyncio.run(scenario())


@pytest.mark.parametrize("cut", [1, 10, 40])
async def test_half_a_line_is_nothing(tmp_path: Path, cut: int) -> None:
    async with open_rig(tmp_path, "unix") as rig:
        half, other = await rig.join(), await rig.join()
        line = json.dumps({"type": "buffer_custom_x", "space": SPACE, "payload": {}}).encode()
        await half.wire.send_raw(line[:-cut])  # type: ignore[attr-defined]
        await half.close()
        assert (await other.ask("buffer_custom_x", {}, space=SPACE))["seq"] == 1
