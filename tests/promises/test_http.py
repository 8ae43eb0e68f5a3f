"""docs/api.md, by plain HTTP and WebSocket."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import struct
import tarfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import zstandard
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection

from tests.daemon.rig import ANSWER_S, LOOK_S, Daemon, bad, fresh_daemon, good

# They share a daemon.
pytestmark = pytest.mark.xdist_group("http")

SPACE = (
    "id name state project base runtime confined uncovered driver path network tier limits "
    "default_disk_bytes enforced labels env retention created_at updated_at active_at stopped_at "
    "removed_at problem restored_from description parent live_runs"
)
RUN = "id space argv display_command cwd state terminal created_at pid exit failure failure_code"
EXIT = "reason code signal started_at ended_at cpu_seconds max_rss_bytes"


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with fresh_daemon() as found:
        yield found


@pytest.fixture
def project(tmp_path: Path) -> Path:
    found = tmp_path / "greet"
    found.mkdir()
    (found / "greet.py").write_text("print('Hello')\n")
    return found


@pytest.fixture
def space(owner: httpx.Client, project: Path) -> Iterator[dict[str, Any]]:
    asked = {"project": {"kind": "folder", "location": str(project)}}
    found = good(owner.post("/v1/spaces", json=asked))
    yield found
    owner.delete(f"/v1/spaces/{found['id']}", params={"force": "true"})


def at(space: dict[str, Any], path: str = "") -> str:
    return f"/v1/spaces/{space['id']}{path}"


def execute(client: httpx.Client, space: dict[str, Any], script: str, **more: Any) -> Any:
    return good(client.post(at(space, "/exec"), json={"argv": ["sh", "-c", script], **more}))


# Making and finding spaces


def test_a_space_has_what_the_page_shows(space: dict[str, Any], project: Path) -> None:
    assert {*SPACE.split()} <= {*space}
    assert space["state"] == "ready" and space["id"].startswith("sp_")
    assert space["project"] == {"kind": "folder", "location": str(project), "ref": None}
    assert Path(space["path"], "greet.py").is_file() or space["driver"] == "overlay"
    assert space["name"].startswith("greet-") and space["name"].endswith(space["id"][-5:])


def test_a_retry_with_an_idempotency_key_makes_one_space(owner: httpx.Client) -> None:
    headers = {"Idempotency-Key": "job-42"}
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(owner.post, "/v1/spaces", json={}, headers=headers) for _ in range(4)]
        answers = [one.result() for one in asked]
    assert {one.status_code for one in answers} == {201}
    (made,) = {one.json()["id"] for one in answers}
    good(owner.delete(f"/v1/spaces/{made}"))


def test_progress_is_a_stream_that_ends_with_the_space(owner: httpx.Client) -> None:
    heard = []
    headers = {"Accept": "text/event-stream"}
    with owner.stream("POST", "/v1/spaces", json={"name": "streamed"}, headers=headers) as answer:
        for line in answer.iter_lines():
            if line.startswith("event:"):
                heard.append(line.partition(":")[2].strip())
            if line.startswith("data:"):
                data = json.loads(line.partition(":")[2])
    assert heard[-1] == "space" and {*heard[:-1]} <= {"progress"}
    assert data["name"] == "streamed" and data["state"] == "ready"
    with owner.stream("POST", "/v1/spaces", json={"name": "streamed"}, headers=headers) as answer:
        text = answer.read().decode()
    assert "event: problem" in text and "name" in text
    good(owner.delete("/v1/spaces/streamed"))


def test_lists_are_filtered_and_paged(owner: httpx.Client) -> None:
    labels = {"team": "blue", "n": "1"}
    made = [
        good(
            owner.post("/v1/spaces", json={"name": f"list-{n}", "labels": {**labels, "n": str(n)}})
        )
        for n in range(3)
    ]
    blue: dict[str, str | int] = {"label": "team=blue", "limit": 2}
    first = good(owner.get("/v1/spaces", params=blue))
    assert len(first["spaces"]) == 2 and first["total"] == 3 and first["next"]
    rest = good(owner.get("/v1/spaces", params={**blue, "after": first["next"]}))
    assert len(rest["spaces"]) == 1 and not rest["next"]
    both = good(owner.get("/v1/spaces?label=team=blue&label=n=1&state=ready&state=stopped"))
    assert [one["name"] for one in both["spaces"]] == ["list-1"]
    assert good(owner.get("/v1/spaces", params={"name": "list-2"}))["total"] == 1
    assert good(owner.get(f"/v1/spaces/{made[0]['id'][:9]}"))["id"] == made[0]["id"]
    bad(owner.get("/v1/spaces", params={"limit": 0}), 422, "message_invalid")
    bad(owner.get("/v1/spaces", params={"limit": 1001}), 422, "message_invalid")
    for one in made:
        good(owner.delete(at(one)))


def test_a_space_is_changed_stopped_started_and_removed(
    owner: httpx.Client, space: dict[str, Any]
) -> None:
    changed = {"name": "other", "labels": {"a": "b"}, "retention": {"ttl_s": 3600}}
    shown = good(owner.patch(at(space), json=changed))
    assert (shown["name"], shown["labels"], shown["retention"]["ttl_s"]) == (
        "other",
        {"a": "b"},
        3600,
    )
    assert good(owner.post(at(space, "/stop"), json={"grace_s": 1}))["state"] == "stopped"
    bad(owner.post(at(space, "/exec"), json={"argv": ["true"]}), 409, "state_conflict")
    assert good(owner.post(at(space, "/start")))["state"] == "ready"
    assert good(owner.post(at(space, "/restart"), json={"grace_s": 0}))["state"] == "ready"
    execute(owner, space, "echo x > left.txt")
    refused = bad(owner.delete(at(space)), 409, "unexported_changes")
    assert refused["changes"] == 1
    assert good(owner.delete(at(space), params={"force": "true"}))
    kept = good(owner.get("/v1/trash"))
    assert space["id"] in json.dumps(kept)
    back = good(owner.post(f"/v1/trash/{space['id']}/restore"))
    assert owner.get(at(back, "/files"), params={"path": "left.txt"}).text == "x\n"
    good(owner.delete(at(back), params={"force": "true"}))


# Errors


def test_errors_are_problems_with_codes(owner: httpx.Client, space: dict[str, Any]) -> None:
    told = bad(owner.get("/v1/spaces/x"), 404, "space_not_found")
    assert told["title"] == "Not Found" and told["detail"] == "There is no space 'x'."
    assert told["hint"] == "`carrel ls` lists them."
    bad(owner.get("/v1/nothing"), 404, "route_not_found")
    bad(owner.put("/v1/spaces"), 405, "method_not_allowed")
    bad(owner.post("/v1/spaces", content=b"{"), 422, "message_invalid")
    bad(owner.post("/v1/spaces", json={"nmae": "x"}), 422, "message_invalid")
    big = {"description": "x" * (1 << 20)}
    bad(owner.post("/v1/spaces", json=big), 413, "too_large")
    bad(owner.post(at(space, "/exec"), json={"argv": ["x" * (4 << 20)]}), 413, "too_large")
    long, much = ["x" * 140_000], ["x" * 120_000] * 20
    for argv, code in ((long, "message_invalid"), (much, "command_invalid")):
        bad(owner.post(at(space, "/exec"), json={"argv": ["true", *argv]}), 422, code)
    execute(owner, space, "echo abc > f")
    beyond = owner.get(at(space, "/files?path=f"), headers={"Range": "bytes=100-"})
    bad(beyond, 416, "range_not_satisfiable")


def test_pages_of_other_origins_are_refused(daemon: Daemon, owner: httpx.Client) -> None:
    bad(owner.get("/v1/health", headers={"Origin": "http://evil.test"}), 403, "forbidden")
    with daemon.tcp(daemon.token("admin")) as client:
        good(client.get("/v1/spaces"))
        bad(client.get("/v1/spaces", headers={"Host": "evil.test"}), 403, "forbidden")
    with daemon.tcp() as nobody:
        bad(nobody.get("/v1/spaces"), 401, "authentication_failed")


# Who may


def test_scopes_of_tokens(daemon: Daemon, owner: httpx.Client, space: dict[str, Any]) -> None:
    own = good(owner.post("/v1/tokens", json={"scope": f"space:{space['id']}"}))
    with daemon.tcp(own["secret"]) as client:
        shown = good(client.get(at(space)))
        assert shown["path"] == "" and shown["project"]["location"] == "greet"
        bad(client.post("/v1/spaces", json={}), 403, "forbidden")
        bad(client.patch(at(space), json={"labels": {"a": "b"}}), 403, "forbidden")
        bad(client.get("/v1/doctor"), 403, "forbidden")
    with daemon.tcp(daemon.token("label:team=red")) as client:
        bad(client.get(at(space)), 404, "space_not_found")
        made = good(client.post("/v1/spaces", json={"name": "same"}))
        assert made["labels"] == {"team": "red"} and made["path"] == ""
        mine = good(owner.post("/v1/spaces", json={"name": "same"}))
        assert good(client.get("/v1/spaces/same"))["id"] == made["id"]
        assert good(owner.get("/v1/spaces/same"))["id"] == mine["id"]
        bad(owner.patch(at(made), json={"labels": {"team": "blue"}}), 409, "state_conflict")
        bad(client.post("/v1/spaces", json={"runtime": "process"}), 403, "forbidden")
        for one in (made, mine):
            good(owner.delete(at(one)))
    listed = good(owner.get("/v1/tokens"))
    assert own["secret"] not in json.dumps(listed)
    good(owner.delete(f"/v1/tokens/{own['id']}"))
    with daemon.tcp(own["secret"]) as client:
        bad(client.get(at(space)), 401, "authentication_failed")


# Commands


def test_a_command_to_its_end(owner: httpx.Client, space: dict[str, Any]) -> None:
    told = execute(owner, space, "cat; echo no >&2; exit 3", stdin="in\n", env={"X": "1"})
    assert told["stdout"] == "in\n" and told["stderr"] == "no\n" and not told["truncated"]
    run = told["run"]
    assert {*RUN.split()} <= {*run} and {*EXIT.split()} <= {*run["exit"]}
    assert run["state"] == "ended" and run["exit"]["code"] == 3
    raw = base64.b64encode(b"\xff\0").decode()
    told = execute(owner, space, "cat", stdin_base64=raw, base64=True)
    assert told["stdout_base64"] == raw and "stdout" not in told
    assert execute(owner, space, "printf '\\377'")["stdout"] == "\ufffd"
    told = execute(owner, space, "seq 1000", max_output_bytes=5)
    assert told["truncated"] and told["stdout"] == "1000\n"
    told = execute(owner, space, "sleep 60", timeout_s=0.2)
    assert told["run"]["exit"]["reason"] == "timeout"
    missing = owner.post(at(space, "/exec"), json={"argv": ["no-such-program"]})
    assert missing.status_code >= 400 and missing.json()["code"] == "command_not_found"


def test_a_command_that_nobody_waits_for(owner: httpx.Client, space: dict[str, Any]) -> None:
    script = (
        "echo one; read x < /dev/null; trap 'echo got; exit 7' TERM; while :; do sleep 0.05; done"
    )
    run = good(owner.post(at(space, "/runs"), json={"argv": ["sh", "-c", script]}))
    path = f"/v1/runs/{run['id']}"
    assert good(owner.get(path))["state"] == "running"
    late = good(owner.get(f"{path}/wait", params={"timeout_s": 0.1}))
    assert late["state"] == "running"
    output = f"{path}/output"
    end = time.monotonic() + ANSWER_S
    while not (first := owner.get(output, params={"offset": 0})).content:
        assert time.monotonic() < end
        time.sleep(LOOK_S)
    assert first.content == b"one\n" and first.headers["carrel-offset"] == "0"
    assert first.headers["carrel-ended"] == "false"
    good(owner.post(f"{path}/signal", json={"signal": "TERM"}))
    ended = good(owner.get(f"{path}/wait", params={"timeout_s": 60}))
    assert ended["exit"]["code"] == 7
    last = owner.get(output, params={"stream": "stdout", "offset": 4, "limit": 2})
    assert last.content == b"go" and last.headers["carrel-offset"] == "4"
    assert good(owner.get(at(space, "/runs")))["runs"][0]["id"] == run["id"]


def frames(socket: ClientConnection) -> Iterator[dict[str, Any] | tuple[int, int, bytes]]:
    """To the end of the connection, however it ends."""
    with contextlib.suppress(ConnectionClosed):
        while True:
            message = socket.recv(ANSWER_S)
            if isinstance(message, str):
                yield json.loads(message)
            else:
                stream, offset = struct.unpack(">BQ", message[:9])
                yield stream, offset, message[9:]


def test_exec_over_a_websocket(daemon: Daemon, space: dict[str, Any]) -> None:
    with daemon.websocket(at(space, "/exec")) as socket:
        socket.send(json.dumps({"argv": ["sh", "-c", "cat; echo no >&2; exit 4"], "stdin": True}))
        heard = frames(socket)
        started = next(heard)
        assert isinstance(started, dict) and started["type"] == "started" and started["input"] == 0
        socket.send(b"hello\n")
        socket.send(json.dumps({"type": "eof"}))
        rest = list(heard)
        out = b"".join(one[2] for one in rest if isinstance(one, tuple) and one[0] == 1)
        err = b"".join(one[2] for one in rest if isinstance(one, tuple) and one[0] == 2)
        assert (out, err) == (b"hello\n", b"no\n")
        told = [one for one in rest if isinstance(one, dict)]
        assert {"type": "input", "bytes": 6} in told
        assert told[-1]["type"] == "exit" and told[-1]["run"]["exit"]["code"] == 4
        assert socket.close_code == 1000
    run = started["run"]["id"]
    with daemon.websocket(f"/v1/runs/{run}/attach?stdout=2") as socket:
        again = [one for one in frames(socket) if isinstance(one, tuple) and one[0] == 1]
        assert again[0][1] == 2 and b"".join(one[2] for one in again) == b"llo\n"


def test_a_terminal_and_a_command_that_is_none(daemon: Daemon, space: dict[str, Any]) -> None:
    with daemon.websocket(at(space, "/exec")) as socket:
        words = ["sh", "-c", "read x; stty size; exit 130"]
        socket.send(json.dumps({"argv": words, "terminal": True, "rows": 24, "cols": 80}))
        heard = frames(socket)
        next(heard)
        socket.send(json.dumps({"type": "resize", "rows": 30, "cols": 100}))
        socket.send(b"\n")
        rest = list(heard)
        assert b"30 100" in b"".join(one[2] for one in rest if isinstance(one, tuple))
    with daemon.websocket(at(space, "/exec")) as socket:
        socket.send(json.dumps({"argv": ["no-such-program"]}))
        (problem,) = (one for one in frames(socket) if isinstance(one, dict))
        assert problem["type"] == "problem" and problem["code"] == "command_not_found"
        assert socket.close_code == 1008
    with daemon.websocket(at(space, "/exec")) as socket:
        socket.send("x" * (5 << 20))
        with pytest.raises(ConnectionClosed):
            socket.recv(ANSWER_S)
        assert socket.close_code == 1009


def test_a_page_sends_its_token_among_the_protocols(daemon: Daemon, space: dict[str, Any]) -> None:
    from websockets.sync.client import connect
    from websockets.typing import Subprotocol

    secret = daemon.token(f"space:{space['id']}")
    address = f"ws://{daemon.address}{at(space, '/exec')}"
    named = [Subprotocol("carrel"), Subprotocol(f"carrel.token.{secret}")]
    with connect(address, subprotocols=named, proxy=None) as socket:
        assert socket.subprotocol == "carrel"
        socket.send(json.dumps({"argv": ["true"]}))
        assert [one["type"] for one in frames(socket) if isinstance(one, dict)][-1] == "exit"
    with pytest.raises(InvalidStatus):
        connect(address, subprotocols=[Subprotocol("carrel")], proxy=None)


# Files


def test_files_by_path(owner: httpx.Client, space: dict[str, Any]) -> None:
    def file(path: str) -> str:
        return at(space, f"/files?path={path}")

    assert owner.put(file("a%80b"), content=b"0123").is_success
    assert owner.put(
        at(space, "/files"), params={"path": "x", "mode": "750"}, content=b"x"
    ).is_success
    assert good(owner.get(at(space, "/files/stat"), params={"path": "x"}))["mode"] == "750"
    piece = owner.get(file("a%80b"), headers={"Range": "bytes=1-2"})
    assert (piece.status_code, piece.content) == (206, b"12")
    good(owner.post(at(space, "/files/mkdir"), json={"path": "d/e", "parents": True}))
    good(owner.post(at(space, "/files/move"), json={"source": "x", "target": "d/x"}))
    owner.put(file("y"), content=b"y")
    taken = owner.post(at(space, "/files/move"), json={"source": "y", "target": "d/x"})
    assert taken.status_code == 409, taken.text
    good(
        owner.post(at(space, "/files/move"), json={"source": "y", "target": "d/x", "replace": True})
    )
    listed = good(owner.get(at(space, "/files/list"), params={"path": "."}))
    assert "a\\udc80b" in json.dumps(listed)
    assert owner.get(file("nothing")).json()["code"] == "path_not_found"
    assert owner.get(file("../../x")).json()["code"] == "path_escapes"
    assert owner.delete(file("d")).status_code >= 400
    assert owner.delete(at(space, "/files"), params={"path": "d", "recursive": "true"}).is_success


def test_archives_go_in_and_out(owner: httpx.Client, space: dict[str, Any]) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        found = tarfile.TarInfo("in/a.txt")
        found.size = 3
        tar.addfile(found, io.BytesIO(b"abc"))
    body = zstandard.compress(packed.getvalue())
    good(owner.post(at(space, "/files/mkdir"), json={"path": "up"}))
    assert owner.put(at(space, "/archive"), params={"path": "up"}, content=body).is_success
    assert owner.get(at(space, "/files"), params={"path": "up/in/a.txt"}).text == "abc"
    answer = owner.get(at(space, "/archive"), params={"path": "up", "plain": "true"})
    with tarfile.open(fileobj=io.BytesIO(answer.content)) as tar:
        assert "abc" in [tar.extractfile(one).read().decode() for one in tar if one.isfile()]  # type: ignore[union-attr]
    assert (
        owner.get(at(space, "/archive"), params={"path": "up"}).content[:4] == b"\x28\xb5\x2f\xfd"
    )


def test_what_was_copied_out_is_not_lost(owner: httpx.Client, space: dict[str, Any]) -> None:
    execute(owner, space, "echo x > notes.txt")
    read = owner.get(at(space, "/files"), params={"path": "notes.txt", "take": "true"})
    copy = {"copy": read.headers["carrel-copy"]}
    bad(owner.delete(at(space)), 409, "unexported_changes")
    assert owner.post(at(space, "/copied"), json=copy).status_code == 200
    bad(owner.post(at(space, "/copied"), json=copy), 404, "copy_not_found")
    assert good(owner.get(at(space, "/changes")))["left_files"] == 0
    good(owner.delete(at(space)))


def test_what_differs(owner: httpx.Client, space: dict[str, Any]) -> None:
    execute(owner, space, "echo more >> greet.py; echo new > new.txt")
    found = good(owner.get(at(space, "/changes"), params={"limit": 1}))
    assert len(found["changes"]) == 1 and found["total"] == found["files"] == 2
    assert {"commits", "ignored", "git", "left_files", "left_commits"} <= {*found}
    text = owner.post(at(space, "/diff"), json={"paths": ["greet.py"]}).text
    assert "+more" in text and "new.txt" not in text
    files = good(owner.post(at(space, "/diff/files"), json={}))
    assert {one["path"] for one in files["files"]} == {"greet.py", "new.txt"}


# Events, and the rest


def test_events_that_exist_now(owner: httpx.Client, space: dict[str, Any]) -> None:
    execute(owner, space, "true")
    wanted: dict[str, Any] = {
        "after": 0,
        "space": space["id"],
        "type": ["run.started", "run.ended"],
    }
    headers = {"Accept": "application/json"}
    found = good(owner.get("/v1/events", params=wanted, headers=headers))["events"]
    assert [one["type"] for one in found] == ["run.started", "run.ended"]
    with owner.stream("GET", "/v1/events", params=wanted) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = answer.iter_lines()
        name = next(line for line in lines if line.startswith("id:"))
    resumed = {"Last-Event-ID": name.partition(":")[2].strip()}
    with owner.stream(
        "GET", "/v1/events", params={"space": space["id"]}, headers=resumed
    ) as answer:
        line = next(line for line in answer.iter_lines() if line.startswith("event:"))
    assert line.partition(":")[2].strip() != "run.started"


def test_every_path_of_the_page_is_in_the_document(owner: httpx.Client) -> None:
    paths = good(owner.get("/v1/openapi.json"))["paths"]
    for path in ("/v1/spaces", "/v1/spaces/{space}/exec", "/v1/invocations", "/v1/requests"):
        assert path in paths, path
    assert good(owner.get("/v1/health")) and good(owner.get("/v1/info"))["version"]
    assert b"carrel_" in owner.get("/metrics").content
    assert {"path", "total_bytes", "free_bytes", "parts"} <= {*good(owner.get("/v1/df"))}
    good(owner.post("/v1/gc", json={"dry_run": True}))
    good(owner.get("/v1/usage"))
    good(owner.get("/v1/inbox"))
    good(owner.get("/v1/bases"))


def test_breaking_out_is_tried_and_told(owner: httpx.Client, space: dict[str, Any]) -> None:
    told = good(owner.post(at(space, "/verify")))
    assert told and "attempt" in json.dumps(told)
