"""docs/requests.md: its table of paths, its settings and whose turn it is, by plain HTTP and
WebSocket."""

from __future__ import annotations

import io
import json
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed

from tests.daemon.requesting import daemon_with
from tests.daemon.rig import ANSWER_S, LOOK_S, Daemon, bad, good

pytestmark = pytest.mark.xdist_group("requests")

RECORD = (
    "request_id state place frontend owner series version space_id workspace workspace_path "
    "retained_until created_at ended_at"
)


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    settings = {"requests_at_once": 1, "request_s": 1}
    with daemon_with({**settings, "request_tier": "minimal"}) as found:
        yield found


@pytest.fixture
def owner(daemon: Daemon) -> Iterator[httpx.Client]:
    """Whatever a test leaves ends with it."""
    with daemon.local() as found:
        yield found
        for one in good(found.get("/v1/requests"))["requests"]:
            found.delete(f"/v1/requests/{one['request_id']}")


def ask(client: httpx.Client, name: str, instructions: str = "write a.txt 1", **more: Any) -> Any:
    headers = {"Idempotency-Key": name}
    body = {"instructions": instructions, "limits": {"timeout_s": 60}, **more}
    answer = client.post("/v1/requests", json=body, headers=headers)
    assert answer.status_code == 202, answer.text
    assert answer.json()["request_id"] == name
    return answer.json()


def done(client: httpx.Client, name: str) -> dict[str, Any]:
    found = good(client.get(f"/v1/requests/{name}", params={"wait": 60}))
    assert found["state"] in ("done", "failed", "cancelled"), found
    return dict(found)


def lines(client: httpx.Client, name: str, **more: Any) -> list[dict[str, Any]]:
    """Server-sent events: numbers and frames."""
    with client.stream("GET", f"/v1/requests/{name}/events", **more) as answer:
        if answer.status_code == 204:
            return []
        text = answer.read().decode()
    told = []
    for block in text.split("\n\n"):
        fields = dict(line.partition(": ")[::2] for line in block.splitlines() if ": " in line)
        if "data" in fields:
            told.append({**json.loads(fields["data"]), "number": fields.get("id")})
    return told


def test_one_from_its_start_to_its_end(owner: httpx.Client) -> None:
    keep = {"policy": "retain", "for": "1h"}
    made = ask(owner, "whole", "write d/a.txt 1\nrun printf '12345' > b", retention=keep)
    assert {*RECORD.split()} <= {*made} and made["frontend"] == "scripted"
    found = done(owner, "whole")
    assert found["state"] == "done" and found["result"]["complete"]
    names = [one["path"] for one in good(owner.get("/v1/requests/whole/files"))["files"]]
    assert names == ["b", "d/a.txt"]
    piece = owner.get("/v1/requests/whole/files/b", headers={"Range": "bytes=1-2"})
    assert (piece.status_code, piece.content) == (206, b"23")
    assert owner.get("/v1/requests/whole/files/d/a.txt").text == "1\n"
    packed = owner.get("/v1/requests/whole/archive").content
    with tarfile.open(fileobj=io.BytesIO(packed), mode="r:gz") as tar:
        assert {one.name.removeprefix("./") for one in tar if one.isfile()} == {"b", "d/a.txt"}
    bad(owner.get("/v1/requests/whole/files/none"), 404, "path_not_found")
    before = found["retained_until"]
    assert good(owner.post("/v1/requests/whole/extend", json={"seconds": 7200}))[
        "retained_until"
    ] > str(before)
    # Listed without what its files hold.
    (listed,) = good(owner.get("/v1/requests", params={"limit": 1}))["requests"]
    assert listed["request_id"] == "whole" and "result" not in listed
    gone = good(owner.delete("/v1/requests/whole"))
    assert gone["workspace"] == "gone" and done(owner, "whole")["state"] == "done"
    bad(owner.get("/v1/requests/whole/files/b"), 410, "workspace_gone")
    bad(owner.post("/v1/requests/whole/extend", json={"seconds": 1}), 410, "workspace_gone")


def test_frames_by_http_go_on_where_they_were(owner: httpx.Client) -> None:
    ask(owner, "followed", retention={"hold_s": 600})
    told = lines(owner, "followed")
    assert told[0]["type"] == "accepted" and told[-1]["type"] == "result"
    numbers = [one["seq"] for one in told if "seq" in one]
    assert numbers == sorted({*numbers})
    assert all(str(one["seq"]) == one["number"] for one in told if "seq" in one)
    resumed = lines(owner, "followed", headers={"Last-Event-ID": str(numbers[1])})
    assert [one["seq"] for one in resumed if "seq" in one] == numbers[2:]
    assert not lines(owner, "followed", headers={"Last-Event-ID": str(numbers[-1])})
    good(owner.post("/v1/requests/followed/done"))


def test_its_agent_is_answered_and_it_is_cancelled(owner: httpx.Client) -> None:
    ask(owner, "asking", "ask Which?\nsay done")
    answer = {"text": "left"}
    end = time.monotonic() + ANSWER_S
    while not (told := owner.post("/v1/requests/asking/answer", json=answer)).is_success:
        assert told.json()["code"] == "state_conflict" and time.monotonic() < end, told.text
        time.sleep(LOOK_S)
    assert done(owner, "asking")["state"] == "done"
    ask(owner, "endless", "sleep 600")
    cancelled = good(owner.post("/v1/requests/endless/cancel"))
    assert cancelled["state"] == "cancelled" or done(owner, "endless")["state"] == "cancelled"
    found = done(owner, "endless")
    assert found["failure"]["code"] == "cancelled" and found["workspace"] in ("gone", "none")


def test_lists_are_filtered_and_paged(owner: httpx.Client) -> None:
    for number in range(5):
        ask(owner, f"list-{number}", "say x", owner=f"user-{number % 2}")
        done(owner, f"list-{number}")

    def listed(**asked: Any) -> list[str]:
        found = good(owner.get("/v1/requests", params=asked))["requests"]
        return [one["request_id"] for one in found]

    assert listed(owner="user-1") == ["list-3", "list-1"] and listed(live="true") == []
    page = good(owner.get("/v1/requests", params={"limit": 2}))
    assert [one["request_id"] for one in page["requests"]] == ["list-4", "list-3"]
    assert listed(before=page["next"], limit=2) == ["list-2", "list-1"]
    ask(owner, "versioned", retention={"policy": "versioned", "series": "a/b"})
    done(owner, "versioned")
    assert listed(series="a/b") == ["versioned"]
    series = "a/b"
    (one,) = good(owner.get(f"/v1/series/{series}/versions"))["versions"]
    assert one["version"] == 1
    assert "+1" in owner.get("/v1/series/a/b/diff", params={"from": 0}).text


def test_older_versions_are_archived_or_dropped(owner: httpx.Client) -> None:
    for older in ("archive", "drop"):
        keep = {"policy": "versioned", "series": older, "newest": 1, "older": older}
        for number in range(2):
            ask(owner, f"{older}-{number}", f"write a.txt {number}", retention=keep)
            done(owner, f"{older}-{number}")
    wanted = {"archive": "archived", "drop": "gone"}
    for older, state in wanted.items():
        end = time.monotonic() + ANSWER_S
        while (now := done(owner, f"{older}-0")["workspace"]) != state:
            assert time.monotonic() < end, (older, now)
            time.sleep(LOOK_S)
    told = bad(owner.get("/v1/requests/archive-0/files/a.txt"), 410, "workspace_gone")
    assert "request fetch archive-0" in told["hint"]
    packed = owner.get("/v1/requests/archive-0/archive").content
    with tarfile.open(fileobj=io.BytesIO(packed), mode="r:gz") as tar:
        assert "a.txt" in [one.name.removeprefix("./") for one in tar]
    bad(owner.get("/v1/requests/drop-0/files/a.txt"), 410, "workspace_gone")


def test_what_settings_say(owner: httpx.Client) -> None:
    """A second for the agent, and the limits of a tier."""
    ask(owner, "late", "sleep 600", limits={})
    failed = done(owner, "late")
    assert (failed["failure"]["code"], failed["failure"]["step"]) == ("timeout", "working")
    assert failed["failure"]["retriable"]
    ask(owner, "tiered", retention="retain")
    space = good(owner.get(f"/v1/spaces/{done(owner, 'tiered')['space_id']}"))
    assert space["tier"] == "minimal" and space["state"].startswith("stop")
    ask(owner, "own", retention="retain", limits={"tier": "large", "timeout_s": 60})
    assert good(owner.get(f"/v1/spaces/{done(owner, 'own')['space_id']}"))["tier"] == "large"


def test_what_can_be_asked_for(owner: httpx.Client, tmp_path: Path) -> None:
    (tmp_path / "old.txt").write_text("old\n")
    tmp_path.chmod(0o755)
    asked: dict[str, Any] = {
        **{"tool": "codesmith", "project": {"kind": "folder", "location": str(tmp_path)}},
        **{"architecture": {"layers": ["one"]}, "context": {"rules.md": "be brief\n"}},
        **{"check": {"command": "exit 3", "timeout_s": 60}, "labels": {"team": "blue"}},
        **{"env": {"OWN": "given"}, "network": "none", "content": False, "retention": "retain"},
        **{"limits": {"memory_bytes": 1 << 30, "pids": 100, "timeout_s": 60}},
    }
    steps = "run cat /agent/context/* > read.txt; cat old.txt; echo $OWN > env.txt"
    ask(owner, "much", steps, **asked)
    found = done(owner, "much")
    result = found["result"]
    assert not result["complete"] and result["check"]["code"] == 3
    assert result["check"]["reason"] == "exited" and not result["check"]["passed"]
    assert all("text" not in one for one in result["files"])
    assert "be brief" in owner.get("/v1/requests/much/files/read.txt").text
    assert owner.get("/v1/requests/much/files/env.txt").text == "given\n"
    space = good(owner.get(f"/v1/spaces/{found['space_id']}"))
    assert space["labels"]["team"] == "blue" and space["limits"]["pids"] == 100
    assert not space["env"].get("OWN") or space["network"] == "none"
    wrong: tuple[dict[str, Any], ...] = (
        *({"check": []}, {"frontend": ""}, {"retention": {"policy": "none"}}, {"nope": 1}),
    )
    for more in wrong:
        told = owner.post("/v1/requests", json={"instructions": "x", **more})
        assert told.status_code == 422, (more, told.text)
    long = {"instructions": "x" * 200_001}
    bad(owner.post("/v1/requests", json=long), 422, "request_invalid")


def test_bytes_and_names_in_a_result(owner: httpx.Client) -> None:
    steps = "run printf '\\377\\000' > raw; chmod +x raw; ln -s raw link; echo x > .gitignore"
    ask(owner, "raw", f"{steps}; mkdir .git; echo y > .git/own")
    files = {one["path"]: one for one in done(owner, "raw")["result"]["files"]}
    assert {*files} == {"raw", "link", ".gitignore"}
    assert files["raw"]["base64"] == "/wA=" and files["raw"]["executable"]
    assert files["link"]["type"] == "symlink" and files[".gitignore"]["text"] == "x\n"


def test_owners_take_turns(daemon: Daemon, owner: httpx.Client) -> None:
    """One that asks for many delays another's one by one; and places in the queue are told."""
    steps = "run until [ -e go ]; do sleep 0.05; done"
    first = ask(owner, "first", steps, owner="many")
    for number in range(3):
        ask(owner, f"many-{number}", "say x", owner="many")
    ask(owner, "single", "say x", owner="one")
    with daemon.websocket("/v1/requests") as socket:
        follow = {"type": "resume", "request_id": "many-2", "after": 0}
        socket.send(json.dumps(follow))
        told = json.loads(socket.recv(ANSWER_S))
        assert told["type"] == "queued" and told["place"] >= 2 and "seq" not in told
        space = good(owner.get(f"/v1/requests/{first['request_id']}"))["space_id"]
        end = time.monotonic() + ANSWER_S
        while not space:
            assert time.monotonic() < end
            time.sleep(LOOK_S)
            space = good(owner.get("/v1/requests/first"))["space_id"]
        assert owner.put(f"/v1/spaces/{space}/files?path=go", content=b"").is_success
        ended = [done(owner, one) for one in ("single", "many-0", "many-1", "many-2")]
        times = [one["ended_at"] for one in ended]
        assert times[0] < times[2] and times[1:] == sorted(times[1:])


def test_what_closes_a_connection(daemon: Daemon) -> None:
    """Only what is no UTF-8, or longer than a megabyte."""
    for wrong in (b"\xff\xfe", "x" * ((1 << 20) + 1)):
        with daemon.websocket("/v1/requests") as socket, pytest.raises(ConnectionClosed):
            socket.send(json.dumps({"type": "resume", "request_id": "none"}))
            assert json.loads(socket.recv(ANSWER_S))["code"] == "request_not_found"
            socket.send(wrong, text=True)
            while True:
                socket.recv(ANSWER_S)
