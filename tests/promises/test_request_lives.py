"""docs/requests.md: what stays of a request, its questions, its end and its webhook."""

from __future__ import annotations

import hashlib
import hmac
import http.server
import io
import json
import os
import tarfile
import threading
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.daemon.requesting import daemon_with
from tests.daemon.rig import ANSWER_S, LOOK_S, Daemon, bad, good

RESULT = (
    "type request_id complete summary files total_files needs_research check usage space_id "
    "workspace retained_until workspace_path"
)
FILE = "path change bytes lines language type executable"


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with daemon_with({"request_webhook_hosts": ["127.0.0.1"]}) as found:
        yield found


def ask(client: httpx.Client, instructions: str, **more: Any) -> str:
    body = {"instructions": instructions, "frontend": "scripted", **more}
    answer = client.post("/v1/requests", json=body)
    assert answer.status_code == 202, answer.text
    return f"/v1/requests/{answer.json()['request_id']}"


def made(client: httpx.Client, instructions: str, **more: Any) -> tuple[str, dict[str, Any]]:
    path = ask(client, instructions, **more)
    found = good(client.get(path, params={"wait": 60}))
    assert found["state"] == "done", found
    return path, found


def until_gone(client: httpx.Client, path: str) -> dict[str, Any]:
    """When its workspace is."""
    end = time.monotonic() + ANSWER_S
    while (found := good(client.get(path)))["workspace"] == "there":
        assert time.monotonic() < end, found
        time.sleep(LOOK_S)
    return dict(found)


def frames(daemon: Daemon, **asked: Any) -> Generator[dict[str, Any], dict[str, Any] | None, None]:
    """Of one request, to its outcome; what is sent answers its questions."""
    with daemon.websocket("/v1/requests") as socket:
        socket.send(json.dumps({"type": "generate", "frontend": "scripted", **asked}))
        while True:
            frame = json.loads(socket.recv(ANSWER_S))
            said = yield frame
            if said is not None:
                socket.send(json.dumps(said))
            if frame["type"] in ("result", "error"):
                return


# What stays


def test_an_ephemeral_one_goes_when_it_was_read(owner: httpx.Client) -> None:
    path, found = made(owner, "write src/a.py print(1)\nsay It is done.")
    result = found["result"]
    assert result["summary"] == "It is done."
    (file,) = result["files"]
    assert {*FILE.split()} <= {*file} and file["text"] == "print(1)\n"
    assert (file["path"], file["change"], file["language"]) == ("src/a.py", "added", "python")
    until_gone(owner, path)
    bad(owner.get(f"{path}/files/src/a.py"), 410, "workspace_gone")
    bad(owner.get("/v1/requests/nobody"), 404, "request_not_found")


def test_one_that_is_held_can_be_fetched_until_done(owner: httpx.Client, tmp_path: Path) -> None:
    (tmp_path / "old.txt").write_text("old\n")
    (tmp_path / "gone.txt").write_text("gone\n")
    (tmp_path / "kept.txt").write_text("kept\n")
    steps = "write a/b.txt new\nwrite old.txt newer\nrun rm gone.txt\nrun head -c 9 /dev/zero > z"
    asked = {"project": str(tmp_path), "retention": {"hold_s": 600}}
    path, found = made(owner, steps, **asked)
    kinds = {one["path"]: one["change"] for one in found["result"]["files"]}
    assert kinds == {"a/b.txt": "added", "old.txt": "modified", "gone.txt": "deleted", "z": "added"}
    assert os.listdir(tmp_path) and (tmp_path / "old.txt").read_text() == "old\n"
    first = good(owner.get(f"{path}/files", params={"limit": 3}))
    assert len(first["files"]) == 3 and first["next"]
    rest = good(owner.get(f"{path}/files", params={"limit": 3, "after": first["next"]}))
    assert len(rest["files"]) == 1
    piece = owner.get(f"{path}/files/z", headers={"Range": "bytes=1-3"})
    assert (piece.status_code, piece.content) == (206, b"\0\0\0")
    for whole, names in ((False, {"a/b.txt", "old.txt", "z"}), (True, {"kept.txt"})):
        packed = owner.get(f"{path}/archive", params={"all": str(whole).lower()}).content
        with tarfile.open(fileobj=io.BytesIO(packed), mode="r:gz") as tar:
            inside = {one.name.removeprefix("./") for one in tar if one.isfile()}
        assert names <= inside and ("kept.txt" in inside) is whole
    good(owner.post(f"{path}/done"))
    until_gone(owner, path)


def test_one_that_is_retained_stays_for_its_time(owner: httpx.Client) -> None:
    path, found = made(owner, "write a.txt 1", retention={"policy": "retain", "for": "36h"})
    assert found["workspace"] == "there" and found["retained_until"]
    later = good(owner.post(f"{path}/extend", json={"for": "72h"}))
    assert later["retained_until"] > found["retained_until"]
    assert good(owner.get(f"/v1/spaces/{found['space_id']}"))["live_runs"] == 0
    good(owner.delete(path))
    until_gone(owner, path)


def test_versions_of_a_series(owner: httpx.Client) -> None:
    keeping = {"policy": "versioned", "series": "shop/cart", "newest": 1, "older": "archive"}
    paths = [made(owner, f"write cart.py PRICE = {n}", retention=keeping)[0] for n in (1, 2)]
    found = good(owner.get("/v1/series/shop/cart/versions"))["versions"]
    assert [one["version"] for one in found] == [2, 1]
    diff = owner.get("/v1/series/shop%2Fcart/diff").text
    assert "+PRICE = 2" in diff and "-PRICE = 1" in diff
    whole = owner.get("/v1/series/shop/cart/diff", params={"from": 0, "to": 1}).text
    assert "+PRICE = 1" in whole
    wrong = owner.get("/v1/series/shop/cart/diff", params={"from": 7})
    bad(wrong, 404, "version_not_found")
    for path in paths:
        good(owner.delete(path))
    body = {"instructions": "x", "frontend": "scripted", "retention": {"policy": "versioned"}}
    bad(owner.post("/v1/requests", json=body), 422, "request_invalid")


# While it works


def test_a_question_waits_for_its_answer(daemon: Daemon) -> None:
    heard = frames(daemon, instructions="ask Which?\nsay done", request_id="asking")
    frame = next(heard)
    while frame["type"] != "input_needed":
        frame = next(heard)
    assert frame["question"] == "Which?" and frame["id"] and "choices" in frame
    answer = {"type": "answer", "request_id": "asking", "id": frame["id"], "text": "the left"}
    told = [heard.send(answer), *heard]
    assert told[-1]["type"] == "result"
    given = [one["event"] for one in told if one["type"] == "event"]
    assert "the left" in json.dumps([one for one in given if one["type"] == "tool_result"])


@pytest.mark.parametrize("allow", [True, False])
def test_a_permission_is_allowed_or_not(daemon: Daemon, allow: bool) -> None:
    name = f"permit-{allow}"
    asked = {"instructions": "write a.txt 1", "permission": "ask", "request_id": name}
    heard = frames(daemon, **asked)
    frame = next(heard)
    while frame["type"] != "input_needed":
        frame = next(heard)
    assert {*frame["permission"]} == {"name", "input"}
    answer = {"type": "answer", "request_id": name, "id": frame["id"], "allow": allow}
    *_, result = [heard.send(answer), *heard]
    assert result["total_files"] == int(allow) and result["complete"] is allow


def test_progress_grows_and_one_outcome_ends_it(daemon: Daemon) -> None:
    heard = list(frames(daemon, instructions="write a.txt 1", check="cat a.txt"))
    shown = [one["progress"] for one in heard if one["type"] == "progress"]
    assert shown == sorted(shown) and 0 <= shown[0] <= shown[-1] <= 1
    numbers = [one["seq"] for one in heard if "seq" in one]
    assert numbers == sorted({*numbers}) and all(one["request_id"] for one in heard)
    assert {*RESULT.split()} <= {*heard[-1]}
    assert heard[-1]["check"] == {**heard[-1]["check"], "passed": True, "code": 0}
    assert heard[-1]["check"]["output"] == "1\n" and heard[-1]["check"]["seconds"] >= 0


def test_cancelling_leaves_nothing(daemon: Daemon, owner: httpx.Client) -> None:
    heard = frames(daemon, instructions="write a.txt 1\nsleep 600", request_id="stopped")
    frame = next(heard)
    while frame["type"] != "event":
        frame = next(heard)
    *_, told = [heard.send({"type": "cancel", "request_id": "stopped"}), *heard]
    assert told["code"] == "cancelled" and told["retriable"]
    gone = until_gone(owner, "/v1/requests/stopped")
    bad(owner.get(f"/v1/spaces/{gone['space_id']}/files?path=a.txt"), 404, "space_not_found")


def test_one_that_is_tied_ends_with_its_connection(daemon: Daemon, owner: httpx.Client) -> None:
    heard = frames(daemon, instructions="sleep 600", request_id="tied", tied=True)
    while next(heard)["type"] != "event":
        pass
    heard.close()
    until_gone(owner, "/v1/requests/tied")


def test_what_goes_wrong_has_its_step(daemon: Daemon) -> None:
    failing: list[tuple[dict[str, Any], str, str, bool]] = [
        ({"instructions": "fail no luck"}, "agent_crashed", "working", True),
        ({"instructions": "crash"}, "agent_crashed", "working", True),
        ({"instructions": "sleep 600", "limits": {"timeout_s": 1}}, "timeout", "working", True),
        ({"instructions": "x", "project": "/no/where"}, "project_not_found", "", False),
    ]
    for asked, code, step, again in failing:
        *_, told = frames(daemon, **asked)
        assert (told["type"], told["code"], told["retriable"]) == ("error", code, again), told
        assert told["step"] == step or not step
        assert told["message"] and "hint" in told


def test_events_by_http_are_the_frames(owner: httpx.Client) -> None:
    path, _ = made(owner, "write a.txt 1", retention="retain")
    with owner.stream("GET", f"{path}/events") as answer:
        lines = [line for line in answer.iter_lines() if line.startswith("data:")]
    told = [json.loads(line.partition(":")[2]) for line in lines]
    assert told[0]["type"] == "accepted" and told[-1]["type"] == "result"
    before = max(one["seq"] for one in told[:-1] if "seq" in one)
    with owner.stream("GET", f"{path}/events", params={"after": before}) as answer:
        rest = [line for line in answer.iter_lines() if line.startswith("data:")]
    assert len(rest) == 1
    good(owner.delete(path))


# Webhooks, and who may


class Heard(http.server.BaseHTTPRequestHandler):
    found: list[tuple[bytes, str]]
    arrived: threading.Event

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.found.append((body, self.headers["Carrel-Signature"]))
        self.send_response(204)
        self.end_headers()
        self.arrived.set()

    def log_message(self, *_: object) -> None: ...


def test_a_webhook_is_told_and_signed(owner: httpx.Client) -> None:
    Heard.found, Heard.arrived = [], threading.Event()
    with http.server.HTTPServer(("127.0.0.1", 0), Heard) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        hook = {"url": f"http://127.0.0.1:{server.server_port}/made", "secret": "a secret"}
        path = ask(owner, "write a.txt 1", webhook=hook)
        assert Heard.arrived.wait(ANSWER_S)
        server.shutdown()
    ((body, signature),) = Heard.found
    wanted = "sha256=" + hmac.new(b"a secret", body, hashlib.sha256).hexdigest()
    assert signature == wanted
    told = json.loads(body)
    assert told["type"] == "result" and path.endswith(told["request_id"])


def test_what_a_token_may_ask(daemon: Daemon, owner: httpx.Client, tmp_path: Path) -> None:
    body = {"instructions": "write a.txt 1", "frontend": "scripted"}
    refused: list[dict[str, Any]] = [
        {"workspace_path": str(tmp_path)},
        {"webhook": "http://elsewhere.test/x"},
        {"also_read": [str(tmp_path)]},
    ]
    with daemon.tcp(daemon.token("label:team=blue")) as client:
        for more in refused:
            bad(client.post("/v1/requests", json={**body, **more}), 403, "forbidden")
        path, found = made(client, "write a.txt 1")
        assert found["workspace_path"] == "" and found["result"]["files"]
        bad(owner.get(f"{path}-x"), 404, "request_not_found")
        with daemon.tcp(daemon.token("label:team=red")) as other:
            bad(other.get(path), 404, "request_not_found")
