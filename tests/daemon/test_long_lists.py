"""Lists of what others wrote: neither long records nor slow readers of them take the daemon's
memory and time."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest

from carrel.interfaces.http.services import LISTS
from carrel.service.runs import MOST_NOTED
from carrel.service.turn_queue import WAITING_CHARACTERS
from carrel.store.reads import LIST_BYTES
from tests.daemon.rig import ANSWER_S, Daemon, bad, good

LONG = 100_000
PROMPT = "x" * 1_000_000
MEMORY = 150 << 20


@pytest.fixture
def theirs(daemon: Daemon) -> httpx.Client:
    return daemon.tcp(daemon.token("label:team=long"))


def _space(client: httpx.Client, **more: Any) -> str:
    return str(good(client.post("/v1/spaces", json=more))["id"])


def _most_memory(daemon: Daemon) -> int:
    status = Path(f"/proc/{daemon.pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) << 10


def test_a_record_has_the_beginning_of_long_arguments(theirs: httpx.Client) -> None:
    """The command has all of them."""
    space = _space(theirs)
    argv = ["sh", "-c", "echo $# ${#1}", "sh", *["y" * LONG] * 15]
    done = good(theirs.post(f"/v1/spaces/{space}/exec", json={"argv": argv}))
    assert done["stdout"] == f"15 {LONG}\n"
    listed = theirs.get(f"/v1/spaces/{space}/runs")
    assert len(listed.content) < 4 * MOST_NOTED
    [run] = good(listed)["runs"]
    assert run["argv"][:4] == argv[:4] and len(run["argv"]) == 5
    assert run["argv"][4].endswith(f"… (19 words, {15 * LONG + len(''.join(argv[:4]))} characters)")
    good(theirs.post(f"/v1/spaces/{space}/exec", json={"argv": ["echo", "short"]}))
    assert good(theirs.get(f"/v1/spaces/{space}/runs"))["runs"][0]["argv"] == ["echo", "short"]
    asked = {"space": space, "type": "run.started", "after": "0"}
    events = theirs.get("/v1/events", params=asked, headers={"Accept": "application/json"})
    assert len(good(events)["events"]) == 2
    assert len(events.content) < 4 * MOST_NOTED


def test_what_waits_for_its_turn_is_so_much_of_one_label(theirs: httpx.Client) -> None:
    """It is in memory, in however many spaces."""
    spaces = [_space(theirs, agent="scripted") for _ in range(2)]
    for space in spaces:
        good(theirs.post(f"/v1/spaces/{space}/turns", json={"prompt": "sleep 600"}))
    most = WAITING_CHARACTERS // len(PROMPT)
    for number in range(most):
        body = {"prompt": PROMPT, "queue": True}
        good(theirs.post(f"/v1/spaces/{spaces[number % 2]}/turns", json=body))
    refused = theirs.post(f"/v1/spaces/{spaces[0]}/turns", json=body)
    assert "characters wait" in bad(refused, 409, "state_conflict")["detail"]
    # What is asked for is what was written last, as far as it goes.
    turns = good(theirs.get(f"/v1/spaces/{spaces[0]}/turns"))["turns"]
    assert len(turns) == most // 2 + 1


def test_who_reads_no_lists_has_a_share_of_memory(stopped: Daemon) -> None:
    stopped.start()
    secret = stopped.token("label:team=long")
    with stopped.tcp(secret) as theirs, contextlib.ExitStack() as stack:
        space = _space(theirs, agent="scripted")
        good(theirs.post(f"/v1/spaces/{space}/turns", json={"prompt": "sleep 600"}))
        for _ in range(9):
            body = {"prompt": PROMPT, "queue": True}
            good(theirs.post(f"/v1/spaces/{space}/turns", json=body))
        ask = (
            f"GET /v1/spaces/{space}/turns HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            f"Authorization: Bearer {secret}\r\n\r\n"
        )
        for _ in range(10 * LISTS):
            one = stack.enter_context(socket.create_connection(("127.0.0.1", stopped.port)))
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            one.settimeout(ANSWER_S)
            one.sendall(ask.encode())
        # Others are answered, by the same door.
        with stopped.tcp(stopped.token("label:team=other")) as other:
            assert good(other.get("/v1/spaces"))["spaces"] == []
        with stopped.local() as owner:
            assert len(good(owner.get(f"/v1/spaces/{space}/turns"))["turns"]) == 10
        assert _most_memory(stopped) < MEMORY + LISTS * LIST_BYTES
