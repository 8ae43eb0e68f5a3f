"""Agents that behave badly, in a real space: each ends in the right events, and leaves nothing.

They are scripts for the frontend of the docs, which is a package of its own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import httpx
import psutil
import pytest

from tests.agents.plugins import install
from tests.daemon.rig import Daemon, good
from tests.sampling import examples

# They share a daemon that is started as a person does it.
pytestmark = pytest.mark.xdist_group("agents that fail")

TURN_S = 60.0
FLOOD = examples(30_000_000, exhaustive=100_000_000)
"""More than is kept."""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder = tmp_path_factory.mktemp("faults")
    folder.chmod(0o711)
    install(folder / "plugins")
    daemon = Daemon(folder / "data", forked=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder / "plugins"))
        daemon.start()
    try:
        yield daemon.local()
    finally:
        daemon.close()


class Space:
    def __init__(self, client: httpx.Client) -> None:
        self.client = client
        self.id = good(client.post("/v1/spaces", json={"agent": "shell"}))["id"]

    def begin(self, script: str, **options: Any) -> str:
        body = {"prompt": script, **options}
        return str(good(self.client.post(f"/v1/spaces/{self.id}/turns", json=body))["id"])

    def end(self, turn: str) -> dict[str, Any]:
        until = time.monotonic() + TURN_S
        while True:
            found = good(self.client.get(f"/v1/turns/{turn}", params={"wait_s": 20}))
            if found["state"] != "running":
                return dict(found)
            assert time.monotonic() < until

    def turn(self, script: str, **options: Any) -> dict[str, Any]:
        return self.end(self.begin(script, **options))

    def code(self, script: str, **options: Any) -> str:
        result = self.turn(script, **options)["result"]
        return "" if result["success"] else str(result["error"]["code"])


@pytest.fixture
def space(client: httpx.Client) -> Iterator[Space]:
    found = Space(client)
    try:
        yield found
    finally:
        good(client.delete(f"/v1/spaces/{found.id}", params={"force": "true"}))


def marked(mark: str) -> list[int]:
    """Processes of the machine with that in their arguments."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if any(mark in word for word in process.info["cmdline"] or ()):
            found.append(process.pid)
    return found


def test_the_frontend_of_the_docs(client: httpx.Client, space: Space) -> None:
    names = {one["name"]: one for one in good(client.get("/v1/agents"))["frontends"]}
    assert names["shell"]["installed"] and names["shell"]["path"] == "/bin/sh"
    turn = space.turn("echo one; echo two > made; cat made")
    assert turn["result"] == {"success": True, "final_output": "two", "error": None}
    file = client.get(f"/v1/spaces/{space.id}/files", params={"path": "made"})
    assert file.text == "two\n"


def test_it_fails(space: Space) -> None:
    turn = space.turn("echo sad >&2; exit 3")
    assert turn["state"] == "error"
    assert turn["result"]["error"]["message"].strip() == "sad"


def test_it_floods(space: Space) -> None:
    """What cannot be kept is counted, and its end is heard."""
    script = f"yes {'x' * 1000} | head -c {FLOOD}; echo; echo the end"
    turn = space.turn(script)
    assert turn["result"]["success"] and turn["result"]["final_output"] == "the end"


def test_a_line_without_an_end(space: Space) -> None:
    turn = space.turn("head -c 20000000 /dev/zero | tr '\\0' x; echo; echo after")
    assert turn["result"]["final_output"] == "after"


def test_it_closes_its_output_and_goes_on(space: Space) -> None:
    assert space.code("echo said; exec >&- 2>&-; sleep 0.3; exit 0") == ""


def test_it_leaves_something_behind(space: Space) -> None:
    """What it forked away is the space's, and goes with it."""
    turn = space.turn("setsid sleep 98761 & echo gone")
    assert turn["result"]["success"] and len(marked("98761")) == 1
    good(space.client.post(f"/v1/spaces/{space.id}/stop", json={}))
    assert marked("98761") == []
    good(space.client.post(f"/v1/spaces/{space.id}/start"))


def test_it_hangs(space: Space) -> None:
    assert space.code("sleep 98762", timeout_s=1) == "timeout"
    assert marked("98762") == []


def test_it_ignores_who_asks_it_to_stop(space: Space) -> None:
    turn = space.begin("trap '' INT TERM HUP; echo on; while :; do sleep 98763; done")
    until = time.monotonic() + TURN_S
    while not marked("98763"):
        assert time.monotonic() < until
        time.sleep(0.02)
    good(space.client.post(f"/v1/turns/{turn}/interrupt"))
    assert space.end(turn)["result"]["error"]["code"] == "interrupted"
    assert marked("98763") == []


def test_it_is_killed(space: Space) -> None:
    assert space.code("kill -9 $$") == "agent_crashed"


def test_its_space_is_stopped_and_removed(client: httpx.Client) -> None:
    space = Space(client)
    turn = space.begin("sleep 98764")
    good(client.post(f"/v1/spaces/{space.id}/stop", json={"grace_s": 0}))
    assert space.end(turn)["result"]["error"]["code"] == "interrupted"
    good(client.delete(f"/v1/spaces/{space.id}", params={"force": "true"}))
    assert client.get(f"/v1/turns/{turn}").status_code in (200, 404)


def test_it_is_spoken_to_and_does_not_listen(space: Space) -> None:
    turn = space.begin("sleep 98765")
    answer = space.client.post(f"/v1/turns/{turn}/input", json={"text": "hello"})
    assert answer.json()["code"] == "unsupported_frontend"
    good(space.client.post(f"/v1/turns/{turn}/interrupt"))
    space.end(turn)
    over = space.client.post(f"/v1/turns/{turn}/interrupt")
    assert over.json()["code"] == "state_conflict"


def test_it_is_spoken_to_and_never_reads(space: Space) -> None:
    """What it is told waits for it in the daemon's memory, but not without end."""
    turn = space.begin("run kill -STOP $PPID; sleep 98$((700 + 66))", frontend="scripted")
    until = time.monotonic() + TURN_S
    while not marked("98766"):
        assert time.monotonic() < until
        time.sleep(0.02)
    said = {"text": "x" * 500_000}
    answers = [space.client.post(f"/v1/turns/{turn}/input", json=said) for _ in range(5)]
    assert [one.status_code for one in answers][-2:] == [409, 409]


def test_what_cannot_begin(client: httpx.Client, space: Space) -> None:
    def code(**body: Any) -> str:
        answer = client.post(f"/v1/spaces/{space.id}/turns", json=body)
        return str(answer.json()["code"])

    assert code(prompt="x", frontend="nothing") == "unsupported_frontend"
    assert code(prompt="") == "message_invalid"
    assert code(prompt="x", kits=["kit:a"]) == "message_invalid"
    asked = {"provider": "any", "key": "k"}
    assert code(prompt="x", continuation=asked) == "continuation_not_found"
    plain = good(client.post("/v1/spaces", json={}))["id"]
    answer = client.post(f"/v1/spaces/{plain}/turns", json={"prompt": "x"})
    assert answer.json()["code"] == "unsupported_frontend"
    # A space that was made without an agent gets one with its first turn.
    run = good(client.post(f"/v1/spaces/{plain}/runs", json={"argv": ["sleep", "98766"]}))["id"]
    body = {"prompt": "echo hi", "frontend": "shell"}
    busy = client.post(f"/v1/spaces/{plain}/turns", json=body)
    assert busy.json()["code"] == "state_conflict"
    good(client.post(f"/v1/runs/{run}/signal", json={"signal": "KILL"}))
    good(client.get(f"/v1/runs/{run}/wait", params={"timeout_s": 30}))
    turn = good(client.post(f"/v1/spaces/{plain}/turns", json=body))["id"]
    ended = good(client.get(f"/v1/turns/{turn}", params={"wait_s": 30}))
    assert ended["result"]["final_output"] == "hi"
    assert good(client.get(f"/v1/spaces/{plain}"))["agent"] == "shell"
    good(client.delete(f"/v1/spaces/{plain}", params={"force": "true"}))
