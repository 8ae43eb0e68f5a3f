"""docs/agents.md and docs/agents/scripted.md: each step of a script, what an agent has, what waits
and what an end leaves, by plain HTTP."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.daemon.rig import bad, good
from tests.instances.small import put_small, small
from tests.promises.test_turns import begin, turned, until

PAGE = Path(__file__).parents[2] / "docs" / "agents" / "scripted.md"


@pytest.fixture
def space(owner: httpx.Client, tmp_path: Path) -> Iterator[str]:
    where = {"kind": "folder", "location": str(tmp_path)}
    (tmp_path / "a.txt").write_text("as it was\n")
    made = good(owner.post("/v1/spaces", json={"project": where, "agent": "scripted"}))
    yield f"/v1/spaces/{made['id']}"
    owner.delete(f"/v1/spaces/{made['id']}", params={"force": "true"})


def events(client: httpx.Client, space: str, turn: dict[str, Any]) -> list[dict[str, Any]]:
    asked = {"after": turn["after"], "space": space[11:], "limit": 1000}
    headers = {"Accept": "application/json"}
    found = good(client.get("/v1/events", params=asked, headers=headers))["events"]
    return [
        one
        for one in found
        if one["data"].get("run_id") == turn["id"] and one["type"].startswith("agent.")
    ]


STEPS = {
    "write": ("write d/e.txt one  two", {"d/e.txt": "one  two\n"}),
    "append": ("append a.txt more", {"a.txt": "as it was\nmore\n"}),
    "run": ("run echo x > r.txt; sleep 600 &", {"r.txt": "x\n"}),
    "say": ("say something", {}),
    "sleep": ("sleep 0.1\nsay awake", {}),
    "repeat": ("repeat 3 append n.txt x", {"n.txt": "x\nx\nx\n"}),
    "tool": ('tool update_space {"description": "told"}', {}),
    "ask": ("", {}),
    "fail": ("fail no luck", {}),
    "crash": ("say first\ncrash", {}),
}
FAILING = {"fail": "no luck", "crash": ""}


def test_these_are_the_steps_of_the_page() -> None:
    table = PAGE.read_text().split("| step | what it does |")[1].split("\n\n")[0]
    assert re.findall(r"^\| `(\w+)", table, re.M) == [
        *("write", "append", "run", "say", "ask", "tool", "sleep", "repeat", "fail", "crash")
    ]
    assert {*STEPS} == {*re.findall(r"^\| `(\w+)", table, re.M)}


@pytest.mark.parametrize("step", [name for name in STEPS if name != "ask"])
def test_a_step(owner: httpx.Client, space: str, step: str) -> None:
    """`ask` is in test_requests, where somebody answers."""
    prompt, files = STEPS[step]
    turn = turned(owner, space, prompt)
    for path, text in files.items():
        assert owner.get(f"{space}/files", params={"path": path}).text == text
    if step in FAILING:
        error = turn["result"]["error"]
        assert error["code"] == "agent_crashed" and FAILING[step] in error["message"]
    else:
        assert turn["state"] == "complete", turn
    told = [one["data"]["payload"] for one in events(owner, space, turn)]
    calls = [one for one in told if "input" in one]
    if step in ("write", "append", "run", "tool"):
        results = [one for one in told if "output" in one]
        assert calls[0]["id"] == results[0]["id"] == "call-1-1" and not results[0]["is_error"]
    if step == "tool":
        assert good(owner.get(space))["description"] == "told"
    if step == "run":
        # What it left running is ended.
        assert good(owner.get(space))["live_runs"] == 0


def test_other_lines_are_repeated_and_steps_may_fail(owner: httpx.Client, space: str) -> None:
    first = turned(owner, space, "run exit 3\nsleep soon\nwrite\nhello")
    assert first["state"] == "complete" and first["result"]["final_output"] == "turn 1: hello"
    told = [one["data"]["payload"] for one in events(owner, space, first)]
    assert [one["is_error"] for one in told if "output" in one] == [True]
    said = [one["text"] for one in told if one.get("role") == "assistant"]
    assert said == ["turn 1: sleep soon", "turn 1: write", "turn 1: hello"]
    # A turn is counted when it begins, so one that was killed can be gone on with.
    crashed = turned(owner, space, "crash", continuation=first["continuation"])
    again = turned(owner, space, "and?", continuation=crashed["continuation"])
    assert again["result"]["final_output"] == "turn 3: and?"
    other = {"provider": "any", "key": "0" * 32}
    failed = owner.post(f"{space}/turns", json={"prompt": "x", "continuation": other})
    if failed.is_success:
        path = f"/v1/turns/{failed.json()['id']}"
        ended = good(owner.get(path, params={"wait_s": 60}))
        assert ended["result"]["error"]["code"] == "continuation_not_found"
    else:
        bad(failed, 404, "continuation_not_found")


def test_a_continuation_is_of_its_provider(owner: httpx.Client, space: str) -> None:
    asked = {"provider": "anthropic", "key": "6a0c1f6e-4d0b-4c57-9f2b-1f0a4c1d9e77"}
    told = owner.post(f"{space}/turns", json={"prompt": "x", "continuation": asked})
    bad(told, 422, "provider_mismatch")


def test_what_an_agent_has(owner: httpx.Client, space: str) -> None:
    """Its tree, its own folder that stays, documents that it cannot change, and variables."""
    assert owner.put(f"{space}/context/rules.txt", content=b"be brief\n").is_success
    script = (
        "run pwd > p; echo kept > /agent/state/own; cat /agent/context/rules.txt >> p;"
        " touch /agent/context/x || echo read-only >> p; echo $OWN >> p"
    )
    turned(owner, space, script, env={"OWN": "given"})
    lines = owner.get(f"{space}/files", params={"path": "p"}).text.splitlines()
    assert lines == ["/workspace", "be brief", "read-only", "given"]
    # A variable of a turn is that one's alone; the folder is not.
    turned(owner, space, "run cat /agent/state/own > q; echo ${OWN:-none} >> q")
    assert owner.get(f"{space}/files", params={"path": "q"}).text == "kept\nnone\n"
    assert "given" not in owner.get(f"{space}/turns").text
    large = owner.put(f"{space}/context/large", content=b"x" * ((16 << 20) + 1))
    bad(large, 413, "too_large")
    named = {"path": "rules.txt", "folder": "context"}
    turn = turned(owner, space, "say read", attachments=[named, {"path": "a.txt"}])
    assert turn["state"] == "complete"
    os_path = {"attachments": [{"path": "none", "folder": "context"}]}
    told = owner.post(f"{space}/turns", json={"prompt": "x", **os_path})
    bad(told, 404, "path_not_found")
    folder = owner.post(f"{space}/turns", json={"prompt": "x", "attachments": [{"path": "."}]})
    assert folder.status_code >= 400 and folder.json()["code"].startswith("path_")


def test_so_many_turns_wait(owner: httpx.Client, space: str) -> None:
    first = begin(owner, space, "run until [ -e go ]; do sleep 0.05; done")
    waiting = [begin(owner, space, f"say {n}", queue=True) for n in range(16)]
    told = owner.post(f"{space}/turns", json={"prompt": "say no", "queue": True})
    assert told.status_code in (409, 429) and told.json()["hint"]
    # One that waits can be taken out; those after it go on.
    assert owner.post(f"{waiting[0]}/interrupt").status_code == 202
    assert owner.put(f"{space}/files", params={"path": "go"}, content=b"").is_success
    last = good(owner.get(waiting[-1], params={"wait_s": 60}))
    assert last["state"] == "complete" and last["result"]["final_output"] == "15"
    assert good(owner.get(waiting[0]))["result"]["error"]["code"] == "interrupted"
    assert good(owner.get(first))["state"] == "complete"
    listed = good(owner.get(f"{space}/turns"))["turns"]
    assert len(listed) == 17 and listed[0]["id"] in waiting[-1]


def test_the_end_of_a_space_ends_its_turn(owner: httpx.Client, space: str) -> None:
    path = begin(owner, space, "sleep 600")
    good(owner.post(f"{space}/stop"))
    ended = good(owner.get(path, params={"wait_s": 60}))
    assert ended["state"] == "error" and ended["result"]["error"]["code"] == "interrupted"
    types = [one["type"] for one in events(owner, space, ended)]
    assert types[-2:] == ["agent.state", "agent.complete"] and types.count("agent.complete") == 1
    refused = owner.post(f"{space}/turns", json={"prompt": "x"})
    bad(refused, 409, "state_conflict")


def test_a_server_of_its_own(owner: httpx.Client, tmp_path: Path) -> None:
    """It sees the space's tree; its tools need permission."""
    good(owner.put("/v1/servers/tiny", json=small()))
    (tmp_path / "a.txt").write_text("of the project\n")
    put_small(tmp_path)
    where = {"kind": "folder", "location": str(tmp_path)}
    asked = {"project": where, "agent": "scripted", "mcp": ["tiny"]}
    space = f"/v1/spaces/{good(owner.post('/v1/spaces', json=asked))['id']}"
    call = 'tool mcp__tiny__read {"path": "/workspace/b.txt"}'
    turn = turned(owner, space, f"write b.txt mine\n{call}")
    output = [one["data"]["payload"].get("output", "") for one in events(owner, space, turn)]
    assert any("mine" in one for one in output), output
    denied = turned(owner, space, call, permission="deny")
    output = [one["data"]["payload"].get("output", "") for one in events(owner, space, denied)]
    assert not any("mine" in one for one in output), output
    shown = good(owner.get(space))
    assert "tiny" in json.dumps(shown)
    owner.delete(space, params={"force": "true"})
    good(owner.delete("/v1/servers/tiny"))


def test_permissions_last_and_are_denied_together(owner: httpx.Client, space: str) -> None:
    path = begin(owner, space, "write b.txt 1\nwrite c.txt 1", permission="ask")
    (asking,) = until(owner, path, lambda turn: turn["permissions"])["permissions"]
    bad(owner.post(f"{path}/permissions/none", json={"allow": True}), 409, "state_conflict")
    assert asking["name"] == "write" and asking["input"]["path"] == "b.txt"
    assert owner.post(f"{path}/interrupt").status_code == 202
    ended = good(owner.get(path, params={"wait_s": 60}))
    assert ended["result"]["error"]["code"] == "interrupted" and not ended["permissions"]
    assert owner.get(f"{space}/files", params={"path": "b.txt"}).status_code == 404
    bad(owner.post(f"{path}/input", json={"text": "x"}), 409, "state_conflict")
    bad(owner.post(f"{path}/interrupt"), 409, "state_conflict")
