"""docs/api.md, more of it: what a space may be asked for, what is at work in it, its commands over
a WebSocket, requests and images, by plain HTTP."""

from __future__ import annotations

import contextlib
import json
import os
import re
import struct
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection

from tests.daemon.rig import ANSWER_S, LOOK_S, Daemon, bad, fresh_daemon, good

pytestmark = pytest.mark.xdist_group("http")

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with fresh_daemon() as found:
        yield found


@pytest.fixture(scope="module", autouse=True)
def left_alone(daemon: Daemon) -> str:
    """A command whose client has gone, begun here so that nobody waits for it alone."""
    with daemon.local() as client:
        space = make(client)
    with daemon.websocket(f"{space}/exec") as socket:
        return begin(socket, "sleep 600", hangup=True)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    found = tmp_path / "greet"
    found.mkdir()
    (found / "greet.py").write_text("print('Hello')\n")
    (found / "disk.iso").write_text("large\n")
    (found / ".gitignore").write_text("*.log\n")
    for one in (tmp_path, found):
        one.chmod(0o755)
    return found


@pytest.fixture
def space(owner: httpx.Client, project: Path) -> Iterator[str]:
    found = make(owner, project=folder(project), agent="scripted")
    yield found
    owner.delete(found, params={"force": "true"})


def folder(path: Path) -> dict[str, str]:
    return {"kind": "folder", "location": str(path)}


def make(client: httpx.Client, **asked: Any) -> str:
    """Its path."""
    return f"/v1/spaces/{good(client.post('/v1/spaces', json=asked))['id']}"


def sh(client: httpx.Client, space: str, script: str, **more: Any) -> str:
    asked = {"argv": ["sh", "-c", script], **more}
    return str(good(client.post(f"{space}/exec", json=asked))["stdout"])


def test_each_operation_is_on_a_page() -> None:
    """By its whole path, or by what that ends with."""
    with fresh_daemon(listen=None) as daemon, daemon.local() as client:
        paths = good(client.get("/v1/openapi.json"))["paths"]
        good(client.post("/v1/shutdown"))
    text = "".join(page.read_text() for page in DOCS.rglob("*.md"))
    named = re.sub(r"\{\w+\}", "{}", text)
    missing = []
    for path in paths:
        whole = re.sub(r"\{\w+\}", "{}", path)
        parts = whole.split("/")
        ends = ["…/" + "/".join(parts[-n:]) for n in (1, 2, 3)]
        if whole not in named and not any(end in named for end in ends):
            missing.append(path)
    assert len(paths) > 90 and not missing


# Making one


def test_what_can_be_asked_of_a_space(owner: httpx.Client, project: Path) -> None:
    limits = {"memory_bytes": 1 << 30, "pids": 200, "open_files": 500}
    asked: dict[str, Any] = {
        **{"project": folder(project), "name": "asked", "exclude": ["*.iso"], "tier": "default"},
        **{"runtime": "auto", "driver": "auto", "network": "none", "limits": limits},
        **{"labels": {"team": "blue"}, "env": {"CI": "1"}, "description": "why"},
        **{"retention": {"ttl_s": 3600, "idle_s": 60, "keep_s": 10, "discard": True}},
        **{"home_tools": False, "with_credentials": True, "share_downloads": False},
    }
    path = make(owner, **asked)
    found = good(owner.get(path))
    for name in ("name", "network", "labels", "env", "retention", "description"):
        assert found[name] == asked[name], name
    assert found["tier"] == "default" and limits.items() <= found["limits"].items()
    assert {one["kind"] for one in found["enforced"]} >= {"memory", "pids"}
    assert all({"kind", "enforced", "how"} <= {*one} for one in found["enforced"])
    assert found["confined"] and found["uncovered"]
    assert {"tools", "shown", "packages", "withheld", "setup"} <= {*found} and not found["tools"]
    assert sh(owner, path, "ls; echo $CI").split() == ["greet.py", "1"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", found["created_at"])
    good(owner.delete(path))


def test_it_sees_other_paths_that_are_named(
    daemon: Daemon, owner: httpx.Client, tmp_path: Path
) -> None:
    sdk = tmp_path / "sdk"
    sdk.mkdir()
    (sdk / "tool").write_text("a tool\n")
    for one in (tmp_path, sdk):
        one.chmod(0o755)
    path = make(owner, show=[str(sdk)], labels={"team": "shown"})
    assert good(owner.get(path))["shown"] == [str(sdk)]
    said = sh(owner, path, f"cat {sdk}/tool; touch {sdk}/more || echo read-only")
    assert said == "a tool\nread-only\n" and not (sdk / "more").exists()
    with daemon.tcp(daemon.token("label:team=shown")) as client:
        assert not good(client.get(path))["shown"]
        bad(client.post("/v1/spaces", json={"show": [str(sdk)]}), 403, "forbidden")
    good(owner.delete(path))


def test_set_up_commands_run_when_they_should(owner: httpx.Client, project: Path) -> None:
    (project / "carrel.toml").write_text('[setup]\nrun = ["echo made > made.txt"]\n')
    for asked, commands in (({}, 1), ({"run_setup": True}, 1), ({"run_setup": False}, 0)):
        path = make(owner, project=folder(project), **asked)
        assert len(good(owner.get(path))["setup"]) == commands
        there = owner.get(f"{path}/files", params={"path": "made.txt"}).is_success
        assert there is bool(commands)
        # What was set up is no change of the space.
        assert good(owner.get(f"{path}/changes"))["total"] == 0
        good(owner.delete(path))


def test_a_base_is_as_the_project_was(owner: httpx.Client, project: Path) -> None:
    base = good(owner.post("/v1/bases", json={"project": folder(project), "exclude": ["*.iso"]}))
    assert base["entries"] >= 2 and base["size_bytes"] > 0
    assert base["id"] in [one["id"] for one in good(owner.get("/v1/bases"))["bases"]]
    (project / "greet.py").write_text("print('Changed')\n")
    path = make(owner, base=base["id"])
    assert "Hello" in sh(owner, path, "cat greet.py; ! ls disk.iso")
    good(owner.delete(path))


def test_nothing_is_made_for_a_model_that_is_not_there(owner: httpx.Client) -> None:
    asked = {"agent": "scripted", "model": "none", "name": "unmade"}
    told = bad(owner.post("/v1/spaces", json=asked), 422, "model_not_supported")
    assert told["known"] == ["scripted"]
    assert not good(owner.get("/v1/spaces", params={"name": "unmade"}))["spaces"]
    good(owner.delete(make(owner, **{**asked, "model": "scripted"})))


def test_a_kept_name_is_of_its_scope(daemon: Daemon, owner: httpx.Client) -> None:
    """Tokens of a label change labels only of spaces that were made with it."""
    made = make(owner, name="mine", labels={"team": "x"})
    with daemon.tcp(daemon.token("label:team=x")) as client:
        bad(client.patch(made, json={"name": "theirs"}), 403, "forbidden")
        bad(client.patch(made, json={"labels": {"team": "x", "a": "b"}}), 403, "forbidden")
        good(client.post("/v1/spaces", json={"name": "mine"}))
        assert good(client.get(made))["name"] == "mine"
    # It would be out of the reach of a token that is good.
    bad(owner.patch(made, json={"labels": {}}), 409, "state_conflict")
    good(owner.patch(made, json={"labels": {"team": "x", "more": "1"}}))


# What it has and does


def test_times_are_bounded(owner: httpx.Client, space: str) -> None:
    for path, body in (("stop", {"grace_s": 601}), ("stop", {"grace_s": -1})):
        bad(owner.post(f"{space}/{path}", json=body), 422, "message_invalid")
    run = good(owner.post(f"{space}/runs", json={"argv": ["true"]}))["id"]
    bad(owner.get(f"/v1/runs/{run}/wait", params={"timeout_s": 61}), 422, "message_invalid")
    bad(owner.get("/v1/turns/ru_x", params={"wait_s": 61}), 422, "message_invalid")
    bad(owner.get("/v1/requests/x", params={"wait": 61}), 422, "message_invalid")


def test_stopped_it_can_be_looked_at_and_started(owner: httpx.Client, space: str) -> None:
    sh(owner, space, "echo x > kept.txt; sleep 600 & echo")
    stopped = good(owner.post(f"{space}/stop"))
    assert stopped["state"] == "stopped" and stopped["stopped_at"] and not stopped["live_runs"]
    assert owner.get(f"{space}/files", params={"path": "kept.txt"}).text == "x\n"
    # Again is no error, and a restart begins it.
    assert good(owner.post(f"{space}/stop"))["state"] == "stopped"
    assert good(owner.post(f"{space}/restart"))["state"] == "ready"
    assert sh(owner, space, "cat kept.txt; pgrep sleep || echo gone") == "x\ngone\n"


def test_a_removal_says_what_it_kept(owner: httpx.Client, space: str) -> None:
    assert good(owner.get(space))["default_disk_bytes"] > 0
    sh(owner, space, "echo x > a; echo y > b")
    told = good(owner.delete(space, params={"force": "true"}))
    assert told["changes"] == 2 and told["lost"] == "" and told["kept"]
    (kept,) = (
        one for one in good(owner.get("/v1/trash"))["trash"] if one["space"]["id"] == told["space"]
    )
    assert kept == told["kept"]
    assert good(owner.get(space))["state"] == "removed"
    assert good(owner.post(f"/v1/trash/{told['space']}/restore"))["restored_from"] == told["space"]


def test_changes_of_every_kind(owner: httpx.Client, space: str) -> None:
    sh(owner, space, "echo x > a.log; echo y > b.txt; git init -q . 2>/dev/null; true")
    own = good(owner.get(f"{space}/changes"))
    assert [one["path"] for one in own["changes"]] == ["b.txt"] and own["files"] == 1
    assert own["ignored"] == 1
    more = good(owner.get(f"{space}/changes", params={"ignored": "true", "git": "true"}))
    paths = {one["path"] for one in more["changes"]}
    assert {"a.log", "b.txt"} <= paths and (own["git"] == 0 or any(".git/" in p for p in paths))
    other = make(owner)
    owner.put(f"{other}/files", params={"path": "c.txt"}, content=b"c")
    name = other.rpartition("/")[2]
    text = owner.post(f"{space}/diff", json={"to": name}).text
    assert "c.txt" in text and "b.txt" in text
    assert "a.log" in owner.post(f"{space}/diff", json={"ignored": True}).text
    first = good(owner.post(f"{space}/diff/files", json={"to": name, "limit": 1}))
    assert len(first["files"]) == 1 < first["total"]
    good(owner.delete(other, params={"force": "true"}))


def test_what_it_uses_and_what_works(daemon: Daemon, owner: httpx.Client, space: str) -> None:
    run = good(owner.post(f"{space}/runs", json={"argv": ["sleep", "600"]}))
    sh(owner, space, "mkdir d; head -c 100000 /dev/zero > d/f")
    used = good(owner.get(f"{space}/usage"))
    assert used["disk_files"] >= 2 and used["disk_bytes"] >= 100_000
    # Without a control group nobody counts them.
    assert used["pids"] is None or used["pids"] >= 1
    assert good(owner.get(f"{space}/usage", params={"disk": "false"}))["disk_files"] is None
    for disk, known in (("true", True), ("false", False)):
        listed = good(owner.get("/v1/usage", params={"disk": disk}))["usage"]
        (one,) = (one for one in listed if space.endswith(one["space"]))
        assert (one["disk_files"] is not None) is known
    works = good(owner.get(f"{space}/ps"))
    assert [one["id"] for one in works["runs"]] == [run["id"]] and works["space"]["live_runs"] == 1
    everywhere = good(owner.get("/v1/ps"))["spaces"]
    assert works["space"]["id"] in [one["space"]["id"] for one in everywhere]
    assert good(owner.get(f"{space}/services"))["services"] == []
    told = good(owner.get(f"{space}/ports"))
    assert not told["listening"] and not told["forwards"]
    name = works["space"]["id"]
    with daemon.tcp(daemon.token(f"space:{name}")) as client:
        good(client.get(f"{space}/ports"))
        bad(client.post(f"{space}/ports", json={"port": 80}), 403, "forbidden")
        bad(client.delete(f"{space}/ports/80"), 403, "forbidden")


def test_a_removal_waits_for_no_stop(daemon: Daemon, owner: httpx.Client) -> None:
    """Whatever its grace is."""
    space = make(owner)
    stubborn = ["sh", "-c", "trap '' TERM HUP INT; touch on; while :; do sleep 0.1; done"]
    good(owner.post(f"{space}/runs", json={"argv": stubborn}))
    until = time.monotonic() + ANSWER_S
    while not owner.get(f"{space}/files?path=on").is_success:
        assert time.monotonic() < until
        time.sleep(LOOK_S)
    with daemon.local() as other, ThreadPoolExecutor(1) as pool:
        stopping = pool.submit(other.post, f"{space}/stop", json={"grace_s": 500})
        while good(owner.get(space))["state"] != "stopping":
            assert not stopping.done()
            time.sleep(LOOK_S)
        good(owner.delete(space, params={"force": "true"}))
        stopping.result(ANSWER_S)


def test_the_last_of_much_output_is_kept(owner: httpx.Client, space: str) -> None:
    """A mebibyte, when nothing is said."""
    asked = {"argv": ["sh", "-c", "head -c 3000000 /dev/zero | tr '\\0' x; echo end"]}
    told = good(owner.post(f"{space}/exec", json=asked))
    assert told["truncated"] and len(told["stdout"]) == 1 << 20 and told["stdout"].endswith("end\n")


def test_who_was_sent_a_copy_says_so(daemon: Daemon, owner: httpx.Client) -> None:
    """Nobody else; and a part of a file is no copy of it."""
    space = make(owner, labels={"team": "copy"})
    path = f"{space}/files?path=a.txt&take=true"
    assert owner.put(f"{space}/files?path=a.txt", content=b"0123").is_success
    part = owner.get(path, headers={"Range": "bytes=0-1"})
    assert part.status_code == 206 and "carrel-copy" not in part.headers
    assert "carrel-copy" not in owner.get(f"{space}/files?path=a.txt").headers
    copy = {"copy": owner.get(path).headers["carrel-copy"]}
    with daemon.tcp(daemon.token("label:team=copy")) as client:
        bad(client.post(f"{space}/copied", json=copy), 404, "copy_not_found")
    archive = owner.get(f"{space}/archive?path=.")
    assert archive.headers["carrel-copy"] != copy["copy"]
    assert good(owner.get(f"{space}/changes"))["left_files"] == 1
    good(owner.post(f"{space}/copied", json=copy))
    assert good(owner.get(f"{space}/changes"))["left_files"] == 0
    good(owner.delete(space))


def test_output_says_whether_more_comes(owner: httpx.Client, space: str) -> None:
    argv = ["sh", "-c", f"echo {'x' * 5000} >&2; exit 3"]
    run = good(owner.post(f"{space}/runs", json={"argv": argv}))
    path = f"/v1/runs/{run['id']}"
    assert good(owner.get(f"{path}/wait", params={"timeout_s": 60}))["exit"]["code"] == 3
    told = owner.get(f"{path}/output", params={"stream": "stderr"})
    assert len(told.content) == 5001 and told.headers["carrel-ended"] == "true"
    beyond = owner.get(f"{path}/output", params={"stream": "stderr", "offset": 5001})
    assert beyond.content == b"" and beyond.headers["carrel-offset"] == "5001"
    assert len(good(owner.get(path))["argv"][2]) < 5000
    second = good(owner.post(f"{space}/runs", json={"argv": ["true"]}))["id"]
    listed = [one["id"] for one in good(owner.get(f"{space}/runs"))["runs"]]
    assert listed[:2] == [second, run["id"]]


# Over a WebSocket


def heard(socket: ClientConnection) -> Iterator[dict[str, Any] | tuple[int, int, bytes]]:
    with contextlib.suppress(ConnectionClosed):
        while True:
            message = socket.recv(ANSWER_S)
            if isinstance(message, str):
                yield json.loads(message)
            else:
                stream, offset = struct.unpack(">BQ", message[:9])
                yield stream, offset, message[9:]


def begin(socket: ClientConnection, script: str, **more: Any) -> str:
    """The id of its run."""
    socket.send(json.dumps({"argv": ["sh", "-c", script], **more}))
    told = json.loads(socket.recv(ANSWER_S))
    assert told["type"] == "started", told
    return str(told["run"]["id"])


def test_a_command_goes_on_without_its_client(
    daemon: Daemon, owner: httpx.Client, space: str
) -> None:
    """Whoever attaches again misses nothing; two see the same; and a signal reaches it."""
    script = "trap 'echo got; exit 5' INT; echo one; read x; echo $x; while :; do sleep 0.05; done"
    with daemon.websocket(f"{space}/exec") as socket:
        run = begin(socket, script, stdin=True, reader="nobody-guesses-this")
        (stream, offset, data) = next(one for one in heard(socket) if isinstance(one, tuple))
        assert (stream, offset, data) == (1, 0, b"one\n")
    path = f"/v1/runs/{run}/attach"
    with (
        daemon.websocket(f"{path}?stdout=4&reader=nobody-guesses-this") as again,
        daemon.websocket(f"{path}?hold=false") as other,
    ):
        begun = json.loads(again.recv(ANSWER_S))
        assert begun["type"] == "started" and begun["input"] == 0
        again.send(b"two\n")
        rest = heard(again)
        first = next(one for one in rest if isinstance(one, tuple))
        assert first == (1, 4, b"two\n")
        again.send(json.dumps({"type": "signal", "signal": "INT"}))
        *_, last = rest
        assert isinstance(last, dict) and last["run"]["exit"]["code"] == 5
        seen = b"".join(one[2] for one in heard(other) if isinstance(one, tuple))
        assert seen == b"one\ntwo\ngot\n" and other.close_code == 1000
    assert good(owner.get(f"/v1/runs/{run}"))["state"] == "ended"


def test_frames_that_cannot_be(daemon: Daemon, owner: httpx.Client, space: str) -> None:
    with daemon.websocket(f"{space}/exec") as socket:
        socket.send(json.dumps({"argv": []}))
        told = json.loads(socket.recv(ANSWER_S))
        assert (told["type"], told["code"]) == ("problem", "message_invalid")
        assert [*heard(socket)] == [] and socket.close_code == 1008
    with daemon.websocket("/v1/runs/ru_nobody/attach") as socket:
        (told,) = heard(socket)
        assert isinstance(told, dict) and told["code"] == "run_not_found"
    with daemon.websocket(f"{space}/exec") as socket:
        run = begin(socket, "sleep 600", stdin=True)
        socket.send("x" * (4 << 20 | 1))
        while [*heard(socket)]:
            pass
        assert socket.close_code == 1009
    assert good(owner.get(f"/v1/runs/{run}"))["state"] == "running"


def test_a_terminal_has_no_count_of_its_input(daemon: Daemon, space: str) -> None:
    with daemon.websocket(f"{space}/exec") as socket:
        words = {"argv": ["sh", "-c", "stty size; tty"], "terminal": True, "rows": 31, "cols": 99}
        socket.send(json.dumps(words))
        told = [*heard(socket)]
    text = b"".join(one[2] for one in told if isinstance(one, tuple))
    assert b"31 99" in text and b"/dev/pts/" in text
    assert not any(isinstance(one, dict) and one["type"] == "input" for one in told)


def test_a_command_hears_that_nobody_is_there(owner: httpx.Client, left_alone: str) -> None:
    """Ten seconds after its last client has gone, if that was asked for."""
    ended = good(owner.get(f"/v1/runs/{left_alone}/wait", params={"timeout_s": 60}))["exit"]
    assert ended["reason"] == "signaled" and ended["signal"] == 1, ended


# Turns, and a person


def test_a_terminal_of_the_agent(owner: httpx.Client, space: str) -> None:
    bad(owner.get(f"{space}/terminal"), 409, "state_conflict")
    turn = good(owner.post(f"{space}/turns", json={"terminal": True}))
    assert turn["terminal"]
    told = good(owner.get(f"{space}/terminal"))
    assert told["turn"]["id"] == turn["id"] and told["argv"] and told["cwd"]
    only = good(owner.get(f"{space}/terminal", params={"read_only": "true"}))
    assert only["argv"] != told["argv"]
    busy = owner.post(f"{space}/turns", json={"prompt": "say x"})
    assert turn["id"] in json.dumps(bad(busy, 409, "state_conflict")) or busy.json()["detail"]
    assert owner.post(f"/v1/turns/{turn['id']}/input", json={"text": "say hi"}).status_code == 202
    assert owner.post(f"/v1/turns/{turn['id']}/stop").status_code == 202
    ended = good(owner.get(f"/v1/turns/{turn['id']}", params={"wait_s": 60}))
    assert ended["result"]["error"]["code"] == "interrupted"
    assert owner.post(f"/v1/turns/{turn['id']}/stop").status_code == 409


def test_signals_are_seen_and_permissions_answered(owner: httpx.Client, space: str) -> None:
    steps = 'tool signal_user {"message": "look", "priority": "urgent"}\nwrite a.txt 1'
    turn = good(owner.post(f"{space}/turns", json={"prompt": steps, "permission": "ask"}))["id"]
    end = time.monotonic() + ANSWER_S
    while len(items := mine(owner, space)) < 2:
        assert time.monotonic() < end, items
        time.sleep(LOOK_S)
    kinds = {one["kind"]: one for one in items}
    assert {*kinds} == {"signal", "permission"} and kinds["signal"]["priority"] == "urgent"
    assert all(one["name"] and one["at"] for one in items)
    assert good(owner.post("/v1/inbox/seen"))["seen"] >= 1
    assert [one["kind"] for one in mine(owner, space)] == ["permission"]
    path = f"/v1/inbox/{kinds['permission']['id']}/answer"
    good(owner.post(path, json={"answer": "yes"}))
    assert good(owner.get(f"/v1/turns/{turn}", params={"wait_s": 60}))["state"] == "complete"
    assert owner.get(f"{space}/files", params={"path": "a.txt"}).text == "1\n"
    assert not mine(owner, space)


def mine(client: httpx.Client, space: str) -> list[dict[str, Any]]:
    items = good(client.get("/v1/inbox"))["items"]
    return [one for one in items if space.endswith(one["space"])]


# The rest


def test_servers_of_ones_own(daemon: Daemon, owner: httpx.Client) -> None:
    """What they run is for administrators."""
    good(owner.put("/v1/servers/mine", json={"command": ["/usr/bin/env"], "env": {"A": "b"}}))
    with daemon.tcp(daemon.token("label:a=b")) as client:
        listed = client.get("/v1/servers")
        assert "mine" in listed.text and "/usr/bin/env" not in listed.text
        bad(client.put("/v1/servers/more", json={"command": ["x"]}), 403, "forbidden")
    assert "/usr/bin/env" in owner.get("/v1/servers").text
    good(owner.delete("/v1/servers/mine"))


def test_events_are_read_in_parts(owner: httpx.Client, space: str) -> None:
    sh(owner, space, "true")
    name = space.rpartition("/")[2]
    headers = {"Accept": "application/json"}
    asked: dict[str, Any] = {"after": 0, "space": name, "limit": 2}
    first = good(owner.get("/v1/events", params=asked, headers=headers))["events"]
    assert len(first) == 2
    rest = {**asked, "after": first[-1]["seq"], "limit": 1000}
    more = good(owner.get("/v1/events", params=rest, headers=headers))["events"]
    assert more[0]["seq"] > first[-1]["seq"] and "run.ended" in [one["type"] for one in more]


def test_what_is_said_of_the_daemon(daemon: Daemon, owner: httpx.Client, project: Path) -> None:
    with daemon.tcp() as nobody:
        good(nobody.get("/v1/health"))
    use = good(owner.get("/v1/df"))
    assert all({"kind", "name", "bytes", "note", "of"} <= {*one} for one in use["parts"])
    told = good(owner.get("/v1/doctor"))
    assert told["runtime"] and told["driver"] and told["findings"]
    base = good(owner.post("/v1/bases", json={"project": folder(project)}))["id"]
    for asked, there in (({"dry_run": True, "bases": True}, True), ({"bases": True}, False)):
        report = owner.post("/v1/gc", json=asked)
        assert base in report.text and report.is_success
        left = [one["id"] for one in good(owner.get("/v1/bases"))["bases"]]
        assert (base in left) is there
    one = good(owner.post("/v1/tokens", json={"scope": "admin", "ttl_s": 3600}))
    assert one["secret"] and one["expires_at"]
    good(owner.delete(f"/v1/tokens/{one['id']}"))
    if os.geteuid() != 0:
        # The account that the tests make for this has no name.
        return
    access = good(owner.get("/v1/ssh"))
    assert "Host *.carrel" in access["block"] and Path(access["config"]).is_file()
