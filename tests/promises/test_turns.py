"""docs/agents.md, docs/review.md and docs/ports.md: an agent's turns and what comes of them, by
plain HTTP."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.daemon.rig import ANSWER_S, LOOK_S, bad, good

TURN = (
    "id space session frontend provider model permission permissions prompt state created_at "
    "ended_at continuation result usage"
)
USAGE = {"input_tokens", "output_tokens", "cached_tokens", "cost_usd", "turns"}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "greet.py").write_text("print('Hello')\n")
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-qb", "main"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], check=True)
    return tmp_path


@pytest.fixture
def space(owner: httpx.Client, project: Path) -> Iterator[str]:
    where = {"kind": "folder", "location": str(project)}
    made = good(owner.post("/v1/spaces", json={"project": where, "agent": "scripted"}))
    yield f"/v1/spaces/{made['id']}"
    owner.delete(f"/v1/spaces/{made['id']}", params={"force": "true"})


def begin(client: httpx.Client, space: str, prompt: str, **more: Any) -> str:
    answer = client.post(f"{space}/turns", json={"prompt": prompt, **more})
    assert answer.status_code == 201, answer.text
    return f"/v1/turns/{answer.json()['id']}"


def turned(client: httpx.Client, space: str, prompt: str, **more: Any) -> dict[str, Any]:
    path = begin(client, space, prompt, **more)
    found = good(client.get(path, params={"wait_s": 60}))
    assert found["ended_at"], found
    return dict(found)


def until(client: httpx.Client, path: str, what: Callable[[dict[str, Any]], object]) -> Any:
    end = time.monotonic() + ANSWER_S
    while not what(found := good(client.get(path))):
        assert time.monotonic() < end, found
        time.sleep(LOOK_S)
    return found


def test_a_turn_says_how_it_went(owner: httpx.Client, space: str) -> None:
    first = turned(owner, space, "write a.txt 1\nsay done", session="job-42")
    assert {*TURN.split()} <= {*first} and {*first["usage"]} == USAGE
    assert first["state"] == "complete" and first["session"] == "job-42"
    assert first["result"] == {"success": True, "final_output": "done", "error": None}
    # The same session alone resumes nothing; a continuation does.
    assert turned(owner, space, "hello", session="job-42")["result"]["final_output"] == (
        "turn 1: hello"
    )
    again = turned(owner, space, "and again?", continuation=first["continuation"])
    assert again["result"]["final_output"] == "turn 2: and again?"
    failed = turned(owner, space, "fail no luck")
    assert failed["state"] == "error" and failed["result"]["error"]["code"] == "agent_crashed"
    listed = good(owner.get(f"{space}/turns", params={"limit": 2}))["turns"]
    assert [one["id"] for one in listed] == [failed["id"], again["id"]]
    shown = good(owner.get(space))
    assert shown["agent"] == "scripted" and shown["activity"] == "idle" and not shown["working"]
    assert shown["spent"]["turns"] >= 0


def test_events_of_a_turn(owner: httpx.Client, space: str) -> None:
    turn = turned(owner, space, "run echo hi\nsay done")
    wanted: dict[str, str | int] = {"after": 0, "space": space.rpartition("/")[2]}
    headers = {"Accept": "application/json"}
    found = good(owner.get("/v1/events", params=wanted, headers=headers))["events"]
    own = [one for one in found if one["type"].startswith("agent.")]
    types = [one["type"].removeprefix("agent.") for one in own]
    assert types[0] == "state" and types[-2:] == ["state", "complete"]
    assert types.count("complete") == 1 and {"tool_call", "tool_result", "message"} <= {*types}
    payloads = [one["data"] for one in own]
    assert all(one["run_id"] == turn["id"] for one in payloads)
    numbers = [one["seq"] for one in payloads]
    assert numbers == sorted({*numbers}) and numbers[0] == 1
    (called,) = (one["payload"] for one in payloads if "input" in one["payload"])
    assert called == {"id": "call-1-1", "name": "run", "input": {"command": "echo hi"}}


def test_an_agent_is_interrupted_stopped_and_told_more(owner: httpx.Client, space: str) -> None:
    path = begin(owner, space, "sleep 600")
    bad(owner.post(f"{space}/turns", json={"prompt": "say no"}), 409, "state_conflict")
    assert good(owner.get(space))["activity"] == "working"
    assert good(owner.get(path, params={"wait_s": 0.1}))["state"] == "running"
    assert owner.post(f"{path}/interrupt").status_code == 202
    ended = good(owner.get(path, params={"wait_s": 60}))
    assert ended["result"]["error"]["code"] == "interrupted"
    path = begin(owner, space, "sleep 600")
    assert owner.post(f"{path}/stop").status_code == 202
    assert good(owner.get(path, params={"wait_s": 60}))["state"] == "error"
    late = turned(owner, space, "sleep 600", timeout_s=0.5)
    assert late["result"]["error"]["code"] == "timeout"
    path = begin(owner, space, "run until [ -e go ]; do sleep 0.05; done")
    good(owner.post(f"{path}/input", json={"text": "say later"}))
    assert owner.put(f"{space}/files", params={"path": "go"}, content=b"").is_success
    told = good(owner.get(path, params={"wait_s": 60}))
    assert told["result"]["final_output"] == "later"


@pytest.mark.parametrize("allow", [True, False])
def test_permissions(owner: httpx.Client, space: str, allow: bool) -> None:
    path = begin(owner, space, "write a.txt 1\nsay done", permission="ask")
    asking = until(owner, path, lambda turn: turn["permissions"])["permissions"]
    assert [{*one} for one in asking] == [{"id", "name", "input"}]
    assert good(owner.get(space))["activity"] == "waiting for permission"
    kinds = [one["kind"] for one in good(owner.get("/v1/inbox"))["items"]]
    assert "permission" in kinds
    good(owner.post(f"{path}/permissions/{asking[0]['id']}", json={"allow": allow}))
    ended = good(owner.get(path, params={"wait_s": 60}))
    assert ended["state"] == "complete" and not ended["permissions"]
    there = owner.get(f"{space}/files", params={"path": "a.txt"}).is_success
    assert there is allow
    denied = turned(owner, space, "write b.txt 1", permission="deny")
    assert denied["state"] == "complete"
    assert owner.get(f"{space}/files", params={"path": "b.txt"}).status_code == 404
    # Nobody answers in time.
    turned(owner, space, "write c.txt 1", permission="ask", answer_s=0.2)
    assert owner.get(f"{space}/files", params={"path": "c.txt"}).status_code == 404


def test_turns_wait_for_one_another(owner: httpx.Client, space: str) -> None:
    first = begin(owner, space, "run until [ -e go ]; do sleep 0.05; done")
    asked = {"prompt": "say next", "queue": True, "env": {"X": "1"}}
    assert owner.post(f"{space}/turns", json=asked).status_code >= 400
    waiting = begin(owner, space, "say next", queue=True)
    assert good(owner.get(waiting))["state"] == "queued"
    assert owner.put(f"{space}/files", params={"path": "go"}, content=b"").is_success
    assert good(owner.get(first, params={"wait_s": 60}))["state"] == "complete"
    ended = good(owner.get(waiting, params={"wait_s": 60}))
    assert ended["state"] == "complete" and ended["result"]["final_output"] == "next"


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"frontend": "nobody"}, "unsupported_frontend"),
    ({"frontend": "gemini"}, "frontend_not_installed"),
    ({"model": "none"}, "model_not_supported"),
    ({"kits": ["kit:x"]}, "message_invalid"),
    ({"attachments": [{"path": "nowhere.md"}]}, "path_not_found"),
    ({"attachments": [{"path": "../../carrel.db"}]}, "path_escapes"),
    ({"prompt": 7}, "message_invalid"),
]


@pytest.mark.parametrize(("asked", "code"), REFUSED)
def test_what_cannot_begin_says_why(
    owner: httpx.Client, space: str, asked: dict[str, Any], code: str
) -> None:
    told = owner.post(f"{space}/turns", json={"prompt": "hello", **asked})
    assert told.status_code >= 400 and told.json()["code"] == code, told.text
    assert not good(owner.get(f"{space}/turns"))["turns"]
    bad(owner.get("/v1/turns/ru_nobody"), 404, "turn_not_found")


def test_documents_and_credentials(owner: httpx.Client, space: str) -> None:
    assert owner.put(f"{space}/context/rules.txt", content=b"be brief\n").is_success
    listed = good(owner.get(f"{space}/context"))["files"]
    assert [(one["name"], one["size"]) for one in listed] == [("rules.txt", 9)]
    assert owner.get(f"{space}/context/rules.txt").content == b"be brief\n"
    turned(
        owner, space, "run cat /agent/context/rules.txt > got; echo x > /agent/context/y || true"
    )
    assert owner.get(f"{space}/files", params={"path": "got"}).text == "be brief\n"
    assert owner.delete(f"{space}/context/rules.txt").is_success
    assert not good(owner.get(f"{space}/context"))["files"]
    assert owner.put("/v1/credentials/example", json={"value": "sk-planted"}).is_success
    shown = owner.get("/v1/credentials").text
    assert "example" in shown and "sk-planted" not in shown
    assert owner.delete("/v1/credentials/example").is_success
    gone = owner.delete("/v1/credentials/example")
    bad(gone, 404, "credential_not_found")


def test_what_is_at_work(owner: httpx.Client, space: str) -> None:
    path = begin(owner, space, "run python3 -m http.server 8123 --bind 127.0.0.1")
    found = until(owner, f"{space}/ports", lambda told: "8123" in json.dumps(told))
    assert found
    working = good(owner.get(f"{space}/ps"))
    assert {"runs", "listening", "forwards", "usage"} <= {*working}
    brought = good(owner.post(f"{space}/ports", json={"port": 8123}))
    end = time.monotonic() + ANSWER_S
    seen = 0
    while seen != 200:
        assert time.monotonic() < end
        seen = httpx.get(f"http://127.0.0.1:{brought['local']}/greet.py").status_code
    good(owner.delete(f"{space}/ports/8123"))
    with pytest.raises(httpx.TransportError):
        httpx.get(f"http://127.0.0.1:{brought['local']}/")
    owner.post(f"{path}/stop")
    good(owner.get(path, params={"wait_s": 60}))


def test_checkpoints_forks_and_landing(owner: httpx.Client, space: str, project: Path) -> None:
    turned(owner, space, "write one.txt 1")
    kept = good(owner.post(f"{space}/checkpoints", json={"message": "so far"}))
    turned(owner, space, "write two.txt 2\nrun rm greet.py")
    listed = good(owner.get(f"{space}/checkpoints"))["checkpoints"]
    assert kept["id"] in [one["id"] for one in listed]
    good(owner.post(f"{space}/rewind", json={"checkpoint": kept["id"]}))
    files = good(owner.post(f"{space}/diff/files", json={}))["files"]
    assert {one["path"] for one in files} == {"one.txt"}
    (fork,) = good(owner.post(f"{space}/fork", json={"count": 1}))["spaces"]
    assert owner.get(f"/v1/spaces/{fork['id']}/files", params={"path": "one.txt"}).text == "1\n"
    good(owner.delete(f"/v1/spaces/{fork['id']}", params={"force": "true"}))
    good(owner.post(f"{space}/land", json={"branch": "landed"}))
    there = ["git", "-C", str(project), "show", "landed:one.txt"]
    assert subprocess.run(there, capture_output=True, text=True, check=True).stdout == "1\n"
    assert not (project / "one.txt").exists()
    assert good(owner.get("/v1/landings"))["landings"]
