"""Spaces through the API: made, found, changed, stopped, started, removed, brought back."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from carrel.api import wire
from carrel.api.types.spaces import SpaceInfo
from tests.daemon.rig import Daemon, bad, good


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "greet.py").write_text("print('hello')\n")
    return tmp_path


def _new(client: httpx.Client, **body: Any) -> dict[str, Any]:
    made: dict[str, Any] = good(client.post("/v1/spaces", json=body))
    return made


def _remove(client: httpx.Client, space: dict[str, Any]) -> None:
    good(client.delete(f"/v1/spaces/{space['id']}", params={"force": "true"}))


def test_a_space_is_made_as_asked(client: httpx.Client, daemon: Daemon, project: Path) -> None:
    name = f"try-{uuid4().hex[:8]}"
    response = client.post(
        "/v1/spaces",
        json={
            "project": {"kind": "folder", "location": str(project)},
            "name": name,
            "tier": "minimal",
            "limits": {"pids": 64},
            "labels": {"team": "blue"},
            "env": {"CI": "1"},
            "retention": {"ttl_s": 3600},
        },
    )
    assert response.status_code == 201
    space = response.json()
    wire.from_plain(space, SpaceInfo)
    assert space["state"] == "ready" and space["name"] == name
    assert space["project"] == {"kind": "folder", "location": str(project), "ref": None}
    assert space["limits"]["pids"] == 64 and space["limits"]["cpus"] == 0.5
    assert space["labels"] == {"team": "blue"} and space["env"] == {"CI": "1"}
    assert space["retention"]["ttl_s"] == 3600 and space["live_runs"] == 0
    assert space["path"] == f"{daemon.data}/spaces/{space['id']}/project"
    assert space["runtime"] != "auto" and space["confined"] is not None
    assert space["created_at"].endswith("Z") and len(space["created_at"]) == 24
    _remove(client, space)


def test_it_is_found_by_id_name_and_prefix(client: httpx.Client, space: dict[str, Any]) -> None:
    for word in (space["id"], space["name"], space["id"][:-2]):
        assert good(client.get(f"/v1/spaces/{word}"))["id"] == space["id"]
    bad(client.get("/v1/spaces/sp_aaaaaaaaaaaa"), 404, "space_not_found")
    bad(client.get("/v1/spaces/%00%ff"), 404, "space_not_found")
    bad(client.get("/v1/spaces/..%2f..%2fetc"), 404, "route_not_found")


def test_lists_have_filters_and_pages(client: httpx.Client) -> None:
    label = uuid4().hex
    made = [_new(client, labels={"batch": label}) for _ in range(3)]
    query: dict[str, Any] = {"label": f"batch={label}", "limit": 2}
    first = good(client.get("/v1/spaces", params=query))
    assert first["total"] == 3 and len(first["spaces"]) == 2 and first["next"]
    rest = good(client.get("/v1/spaces", params={**query, "after": first["next"]}))
    assert rest["next"] == ""
    listed = [space["id"] for space in first["spaces"] + rest["spaces"]]
    assert listed == [space["id"] for space in reversed(made)]
    of_name = good(client.get("/v1/spaces", params={"name": made[0]["name"]}))
    assert [space["id"] for space in of_name["spaces"]] == [made[0]["id"]]
    stopped = {"state": ["stopped", "failed"], "label": f"batch={label}"}
    assert good(client.get("/v1/spaces", params=stopped))["total"] == 0
    for space in made:
        _remove(client, space)


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=1001", "limit=x", "state=odd", "label=plain", "after=" + "x" * 999]
)
def test_a_bad_query_is_named(client: httpx.Client, query: str) -> None:
    problem = bad(client.get(f"/v1/spaces?{query}"), 422, "message_invalid")
    assert query.partition("=")[0] in problem["field"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"nmae": "x"}, "body.nmae"),
        ({"name": "UPPER"}, "body.name"),
        ({"limits": {"memory_bytes": 0}}, "body.limits.memory_bytes"),
        ({"limits": {"memory_bytes": "1G"}}, "body.limits.memory_bytes"),
        ({"limits": {"cpus": 0}}, "body.limits.cpus"),
        ({"project": {"kind": "tape"}}, "body.project.kind"),
        ({"network": "some"}, "body.network"),
        ({"labels": {"": "x"}}, "body.labels"),
        ({"env": {"A=B": "x"}}, "body.env"),
        ({"retention": {"ttl_s": -1}}, "body.retention.ttl_s"),
        ({"exclude": ["x", 7]}, "body.exclude.1"),
        ([], "body"),
    ],
)
def test_a_bad_body_names_the_field(client: httpx.Client, body: object, field: str) -> None:
    problem = bad(client.post("/v1/spaces", json=body), 422, "message_invalid")
    assert problem["field"].startswith(field)


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b"\xff\xfe{}",
        b"[" * 100_000,
        b'{"limits": {"cpus": NaN}}',
        b'{"limits": {"pids": ' + b"9" * 5000 + b"}}",
        b'{"name": "\\ud800"}',
        b"",
    ],
)
def test_what_is_no_json_is_refused(client: httpx.Client, content: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    bad(client.post("/v1/spaces", content=content, headers=headers), 422, "message_invalid")


def test_json_has_to_be_called_so(client: httpx.Client) -> None:
    """A form on a page could send any text; JSON it cannot."""
    headers = {"Content-Type": "text/plain"}
    bad(client.post("/v1/spaces", content=b"{}", headers=headers), 422, "message_invalid")


def test_projects_that_are_not_there(client: httpx.Client, tmp_path: Path) -> None:
    body = {"project": {"kind": "folder", "location": str(tmp_path / "none")}}
    bad(client.post("/v1/spaces", json=body), 422, "project_not_found")
    bad(client.post("/v1/spaces", json={"base": "ba_none"}), 404, "base_not_found")
    both = {"base": "ba_none", "project": {"kind": "empty"}}
    bad(client.post("/v1/spaces", json=both), 422, "message_invalid")
    bad(client.post("/v1/spaces", json={"runtime": "none"}), 503, "sandbox_unavailable")
    bad(client.post("/v1/spaces", json={"driver": "none"}), 503, "tree_unavailable")


def test_names_are_taken_once(client: httpx.Client, space: dict[str, Any]) -> None:
    bad(client.post("/v1/spaces", json={"name": space["name"]}), 409, "name_taken")


def test_a_key_makes_one_space(client: httpx.Client) -> None:
    headers = {"Idempotency-Key": uuid4().hex}
    first = client.post("/v1/spaces", json={"env": {"A": "1"}}, headers=headers)
    again = client.post("/v1/spaces", json={"env": {"A": "1"}}, headers=headers)
    assert first.status_code == again.status_code == 201
    assert first.json()["id"] == again.json()["id"]
    other = client.post("/v1/spaces", json={"env": {"A": "2"}}, headers=headers)
    bad(other, 422, "idempotency_key_reused")
    long = client.post("/v1/spaces", json={}, headers={"Idempotency-Key": "x" * 256})
    bad(long, 422, "message_invalid")
    _remove(client, first.json())


def _streamed(client: httpx.Client, body: object) -> list[tuple[str, Any]]:
    headers = {"Accept": "text/event-stream"}
    with client.stream("POST", "/v1/spaces", json=body, headers=headers) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        text = "".join(response.iter_text())
    events = []
    for block in text.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines() if line[:1] != ":")
        if lines:
            events.append((lines["event"], json.loads(lines["data"])))
    return events


def test_making_one_can_be_watched(client: httpx.Client, project: Path) -> None:
    (project / "new").write_text(uuid4().hex)
    events = _streamed(client, {"project": {"kind": "folder", "location": str(project)}})
    assert [name for name, _ in events][-1] == "space"
    assert {name for name, _ in events[:-1]} == {"progress"}
    assert set(events[0][1]) == {"stage", "done", "total", "bytes_done", "building"}
    _remove(client, events[-1][1])


def test_what_nobody_can_make_is_refused_before_it_is_watched(client: httpx.Client) -> None:
    both = {"base": "ba_x", "project": {"kind": "empty"}}
    headers = {"Accept": "text/event-stream"}
    bad(client.post("/v1/spaces", json=both, headers=headers), 422, "message_invalid")


def test_a_watched_failure_is_told_in_the_stream(client: httpx.Client, tmp_path: Path) -> None:
    body = {"project": {"kind": "folder", "location": str(tmp_path / "none")}}
    name, problem = _streamed(client, body)[-1]
    assert (name, problem["code"], problem["status"]) == ("problem", "project_not_found", 422)


def test_what_can_be_changed(client: httpx.Client, space: dict[str, Any]) -> None:
    path = f"/v1/spaces/{space['id']}"
    name = f"new-{uuid4().hex[:8]}"
    body = {"name": name, "labels": {"a": "b"}, "retention": {"idle_s": 60, "discard": True}}
    changed = good(client.patch(path, json=body))
    assert changed["name"] == name and changed["labels"] == {"a": "b"}
    assert changed["retention"] == {
        "ttl_s": None,
        "idle_s": 60.0,
        "keep_s": None,
        "discard": True,
    }
    same = good(client.patch(path, json={"name": None}))
    assert same["name"] == name and same["labels"] == {"a": "b"}
    bad(client.patch(path, json={"state": "ready"}), 422, "message_invalid")
    bad(client.patch("/v1/spaces/sp_none", json={}), 404, "space_not_found")


def test_stopping_and_starting(client: httpx.Client, space: dict[str, Any]) -> None:
    path = f"/v1/spaces/{space['id']}"
    stopped = good(client.post(f"{path}/stop", json={"grace_s": 0}))
    assert stopped["state"] == "stopped" and stopped["stopped_at"]
    assert good(client.post(f"{path}/stop"))["state"] == "stopped"
    bad(client.post(f"{path}/exec", json={"argv": ["true"]}), 409, "state_conflict")
    bad(client.post(f"{path}/verify"), 409, "state_conflict")
    started = good(client.post(f"{path}/start"))
    assert started["state"] == "ready" and started["stopped_at"] is None
    bad(client.post(f"{path}/stop", json={"grace_s": 601}), 422, "message_invalid")


def test_unexported_changes_keep_it(client: httpx.Client) -> None:
    space = _new(client)
    path = f"/v1/spaces/{space['id']}"
    good(client.put(f"{path}/files?path=work", content=b"dear"))
    problem = bad(client.delete(path), 409, "unexported_changes")
    assert problem["changes"] == 1 and problem["first"] == ["added work"]
    removal = good(client.delete(path, params={"force": "true"}))
    assert removal["space"] == space["id"] and removal["changes"] == 1 and not removal["lost"]
    assert removal["kept"]["space"]["id"] == space["id"]
    bad(client.delete(path), 404, "space_not_found")
    gone = good(client.get(path))
    assert gone["state"] == "removed" and gone["path"] == ""
    assert not os.path.exists(space["path"])


def test_the_trash_gives_back(client: httpx.Client) -> None:
    space = _new(client, labels={"keep": "me"})
    good(client.put(f"/v1/spaces/{space['id']}/files?path=work", content=b"dear"))
    _remove(client, space)
    trash = good(client.get("/v1/trash"))["trash"]
    (kept,) = [one for one in trash if one["space"]["id"] == space["id"]]
    assert kept["changes"] == 1 and kept["bytes_kept"] > 0
    assert kept["space"]["state"] == "removed"
    response = client.post(f"/v1/trash/{space['id']}/restore")
    assert response.status_code == 201
    restored = response.json()
    assert restored["restored_from"] == space["id"] and restored["labels"] == {"keep": "me"}
    assert client.get(f"/v1/spaces/{restored['id']}/files?path=work").content == b"dear"
    bad(client.post(f"/v1/trash/{space['id']}/restore"), 404, "space_not_found")
    _remove(client, restored)


def test_what_differs_from_the_base(client: httpx.Client, project: Path) -> None:
    space = _new(client, project={"kind": "folder", "location": str(project)})
    path = f"/v1/spaces/{space['id']}"
    good(client.put(f"{path}/files?path=greet.py", content=b"print('bye')\n"))
    good(client.put(f"{path}/files?path=new", content=b""))
    found = good(client.get(f"{path}/changes"))
    assert [(one["kind"], one["path"]) for one in found["changes"]] == [
        ("modified", "greet.py"),
        ("added", "new"),
    ]
    first = good(client.get(f"{path}/changes", params={"limit": 1}))
    assert len(first["changes"]) == 1 and first["total"] == 2
    _remove(client, space)


def test_use_and_proof(client: httpx.Client, space: dict[str, Any]) -> None:
    path = f"/v1/spaces/{space['id']}"
    good(client.put(f"{path}/files?path=big", content=b"x" * 100_000))
    use = good(client.get(f"{path}/usage"))
    assert use["space"] == space["id"] and use["disk_bytes"] >= 100_000
    assert good(client.get(f"{path}/usage", params={"disk": "false"}))["disk_bytes"] is None
    everybody = good(client.get("/v1/usage"))["usage"]
    assert space["id"] in {one["space"] for one in everybody}
    proof = good(client.post(f"{path}/verify"))
    assert proof["space"] == space["id"] and proof["attempts"]
    assert proof["holds"] == all(one["refused"] for one in proof["attempts"])
    assert proof["holds"] is space["confined"]


def test_bases(client: httpx.Client, project: Path) -> None:
    body = {"project": {"kind": "folder", "location": str(project)}, "exclude": ["*.pyc"]}
    response = client.post("/v1/bases", json=body)
    assert response.status_code == 201
    base = response.json()
    assert base["entries"] == 1 and base["project"]["location"] == str(project)
    assert base["id"] in {one["id"] for one in good(client.get("/v1/bases"))["bases"]}
    space = _new(client, base=base["id"])
    assert space["base"] == base["id"] and space["project"]["location"] == str(project)
    _remove(client, space)
    missing = {"project": {"kind": "folder", "location": str(project / "none")}}
    bad(client.post("/v1/bases", json=missing), 422, "project_not_found")
    bad(client.post("/v1/bases", json={}), 422, "message_invalid")
