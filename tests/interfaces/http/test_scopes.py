"""What is out of a token's scope does not exist for it: on every route."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from carrel.domain.access import ADMIN, Caller, Scope, ScopeKind
from carrel.domain.errors import InsufficientDisk
from carrel.domain.events import Event, EventType
from carrel.interfaces.http.answers import AnswerReader, details_of, reader
from carrel.interfaces.http.events import info
from tests.daemon.hub_rig import line_to, speak
from tests.daemon.rig import Daemon, bad, good
from tests.daemon.sessions import FRAME_S, Session
from tests.instances.small import FILE, SCRIPT, small

# They share a daemon and what was made in it.
pytestmark = pytest.mark.xdist_group("scopes")

ABSENT = {
    "space": "sp_aaaaaaaaaaaa",
    "run": "ru_aaaaaaaaaaaa",
    "instance": "in_aaaaaaaaaaaa",
    "request_id": "rq_aaaaaaaaaaaa",
    "series": "none-of-them",
}


@dataclass(frozen=True)
class Route:
    """`{space}` and `{run}` are filled in. `expect`: `hidden` (as if it were not there),
    `admin` (forbidden), `own` (answers with what is one's own), `open` (to all)."""

    method: str
    path: str
    expect: str
    query: dict[str, str] = field(default_factory=dict)
    body: Any = None
    content: bytes | None = None


ROUTES = [
    Route("POST", "/v1/spaces", "own", body={"runtime": "process"}),
    Route("GET", "/v1/spaces", "own"),
    Route("GET", "/v1/spaces/{space}", "hidden"),
    Route("PATCH", "/v1/spaces/{space}", "hidden", body={"labels": {}}),
    Route("POST", "/v1/spaces/{space}/stop", "hidden", body={}),
    Route("POST", "/v1/spaces/{space}/start", "hidden"),
    Route("POST", "/v1/spaces/{space}/restart", "hidden"),
    Route("DELETE", "/v1/spaces/{space}", "hidden", {"force": "true"}),
    Route("GET", "/v1/spaces/{space}/changes", "hidden"),
    Route("POST", "/v1/spaces/{space}/diff", "hidden", body={}),
    Route("POST", "/v1/spaces/{space}/diff/files", "hidden", body={}),
    Route("GET", "/v1/spaces/{space}/context", "hidden"),
    Route("GET", "/v1/spaces/{space}/context/{name}", "hidden"),
    Route("PUT", "/v1/spaces/{space}/context/{name}", "hidden", content=b"new"),
    Route("DELETE", "/v1/spaces/{space}/context/{name}", "hidden"),
    Route("GET", "/v1/spaces/{space}/usage", "hidden"),
    Route("GET", "/v1/usage", "own"),
    Route("GET", "/v1/spaces/{space}/ps", "hidden"),
    Route("GET", "/v1/ps", "own"),
    Route("GET", "/v1/spaces/{space}/services", "hidden"),
    Route("POST", "/v1/spaces/{space}/services/{service}/restart", "hidden"),
    Route("GET", "/v1/spaces/{space}/ports", "hidden"),
    Route("POST", "/v1/spaces/{space}/ports", "admin", body={"port": 3000}),
    Route("DELETE", "/v1/spaces/{space}/ports/{port}", "admin"),
    Route("GET", "/v1/ssh", "admin"),
    Route("GET", "/v1/ssh/listener", "admin"),
    Route("PUT", "/v1/ssh/listener", "admin", body={}),
    Route("DELETE", "/v1/ssh/listener", "admin"),
    Route("GET", "/v1/ssh/keys", "admin"),
    Route("POST", "/v1/ssh/keys", "admin", body={"key": "x", "scopes": ["admin"]}),
    Route("DELETE", "/v1/ssh/keys/{key}", "admin"),
    Route("POST", "/v1/spaces/{space}/verify", "hidden"),
    Route("POST", "/v1/spaces/{space}/exec", "hidden", body={"argv": ["true"]}),
    Route("POST", "/v1/spaces/{space}/runs", "hidden", body={"argv": ["true"]}),
    Route("GET", "/v1/spaces/{space}/runs", "hidden"),
    Route("GET", "/v1/runs/{run}", "hidden"),
    Route("GET", "/v1/runs/{run}/wait", "hidden", {"timeout_s": "0"}),
    Route("POST", "/v1/runs/{run}/signal", "hidden", body={"signal": "KILL"}),
    Route("GET", "/v1/runs/{run}/output", "hidden"),
    Route("GET", "/v1/spaces/{space}/files", "hidden", {"path": "secret"}),
    Route("PUT", "/v1/spaces/{space}/files", "hidden", {"path": "new"}, content=b"x"),
    Route("DELETE", "/v1/spaces/{space}/files", "hidden", {"path": "secret"}),
    Route("GET", "/v1/spaces/{space}/files/stat", "hidden", {"path": "secret"}),
    Route("GET", "/v1/spaces/{space}/files/list", "hidden", {"path": "."}),
    Route(
        "POST", "/v1/spaces/{space}/files/move", "hidden", body={"source": "secret", "target": "x"}
    ),
    Route("POST", "/v1/spaces/{space}/files/mkdir", "hidden", body={"path": "new"}),
    Route("GET", "/v1/spaces/{space}/archive", "hidden"),
    Route("PUT", "/v1/spaces/{space}/archive", "hidden", content=b"x"),
    Route("POST", "/v1/spaces/{space}/copied", "hidden", body={"copy": "x"}),
    Route("POST", "/v1/spaces/{space}/land", "hidden"),
    Route("POST", "/v1/spaces/{space}/export", "hidden", body={"format": "tar"}),
    Route(
        "POST", "/v1/spaces/{space}/take", "hidden", body={"paths": ["secret"], "into": "{space}"}
    ),
    Route("POST", "/v1/spaces/{space}/checkpoints", "hidden"),
    Route("GET", "/v1/spaces/{space}/checkpoints", "hidden"),
    Route("POST", "/v1/spaces/{space}/rewind", "hidden"),
    Route("POST", "/v1/spaces/{space}/fork", "hidden"),
    Route("GET", "/v1/landings", "admin"),
    Route("POST", "/v1/undo", "admin"),
    Route(
        "POST",
        "/v1/spaces/{space}/comments",
        "hidden",
        body={"path": "secret", "line": 1, "text": "x"},
    ),
    Route("GET", "/v1/spaces/{space}/comments", "hidden"),
    Route("DELETE", "/v1/spaces/{space}/comments/{comment}", "hidden"),
    Route("POST", "/v1/spaces/{space}/comments/send", "hidden"),
    Route(
        "POST",
        "/v1/races",
        "own",
        body={"agents": ["scripted"], "turn": {"prompt": "x"}, "space": {"runtime": "process"}},
    ),
    Route("GET", "/v1/races/{race}", "hidden"),
    Route("POST", "/v1/races/{race}/check", "hidden"),
    Route("POST", "/v1/queue", "admin", body={"spaces": ["hidden"]}),
    Route("GET", "/v1/queue", "admin"),
    Route("POST", "/v1/queue/{entry}/cancel", "admin"),
    Route("GET", "/v1/trash", "own"),
    Route("POST", "/v1/trash/{space}/restore", "hidden"),
    Route("GET", "/v1/inbox", "own"),
    Route("POST", "/v1/inbox/seen", "own"),
    Route("POST", "/v1/inbox/{item}/answer", "hidden", body={"answer": "yes"}),
    Route("POST", "/v1/spaces/{space}/turns", "hidden", body={"prompt": "hello"}),
    Route("GET", "/v1/spaces/{space}/turns", "hidden"),
    Route("GET", "/v1/spaces/{space}/terminal", "hidden"),
    Route("GET", "/v1/spaces/{space}/trust", "hidden"),
    Route("POST", "/v1/spaces/{space}/trust", "hidden", body={"digest": ""}),
    Route("GET", "/v1/turns/{turn}", "hidden"),
    Route("POST", "/v1/turns/{turn}/interrupt", "hidden"),
    Route("POST", "/v1/turns/{turn}/stop", "hidden"),
    Route("POST", "/v1/turns/{turn}/input", "hidden", body={"text": "more"}),
    Route("POST", "/v1/turns/{turn}/permissions/{permission}", "hidden", body={"allow": True}),
    Route("GET", "/v1/agents", "own"),
    Route("PUT", "/v1/agents/path", "admin", body={"path": "/usr/bin"}),
    Route("POST", "/v1/agents/{name}/install", "admin"),
    Route("PUT", "/v1/agents/{name}/import", "admin", body={}),
    Route("DELETE", "/v1/agents/{name}/import", "admin"),
    Route("POST", "/v1/invocations", "admin", body={"frontend": "x", "cwd": "/", "state": "/"}),
    Route("POST", "/v1/kits/resolve", "admin", body={"kits": []}),
    Route("POST", "/v1/kits/describe", "admin", body={"kits": []}),
    Route("GET", "/v1/credentials", "admin"),
    Route("PUT", "/v1/credentials/{name}", "admin", body={"value": "key"}),
    Route("DELETE", "/v1/credentials/{name}", "admin"),
    Route("POST", "/v1/instances", "hidden", body={"server": "carrel", "space_id": "{space}"}),
    Route("GET", "/v1/instances", "own"),
    Route("GET", "/v1/instances/{instance}", "hidden"),
    Route("DELETE", "/v1/instances/{instance}", "hidden"),
    Route("POST", "/v1/instances/{instance}/heartbeat", "hidden"),
    Route("GET", "/v1/instances/{instance}/logs", "hidden"),
    Route("GET", "/v1/servers", "own"),
    Route("PUT", "/v1/servers/{name}", "admin", body={"command": ["true"]}),
    Route("DELETE", "/v1/servers/{name}", "admin"),
    Route("POST", "/request-session", "admin", body={"project_path": "/", "server": "carrel"}),
    Route("POST", "/release-session", "hidden", body={"session_id": "{instance}"}),
    Route("POST", "/v1/requests", "own", body={"instructions": "x", "runtime": "process"}),
    Route("GET", "/v1/requests", "own"),
    Route("GET", "/v1/requests/{request_id}", "hidden"),
    Route("DELETE", "/v1/requests/{request_id}", "hidden"),
    Route("POST", "/v1/requests/{request_id}/cancel", "hidden"),
    Route("POST", "/v1/requests/{request_id}/answer", "hidden", body={"text": "yes"}),
    Route("POST", "/v1/requests/{request_id}/extend", "hidden", body={"seconds": 60}),
    Route("POST", "/v1/requests/{request_id}/done", "hidden"),
    Route("GET", "/v1/requests/{request_id}/events", "hidden"),
    Route("GET", "/v1/requests/{request_id}/files", "hidden"),
    Route("GET", "/v1/requests/{request_id}/files/{path}", "hidden"),
    Route("GET", "/v1/requests/{request_id}/archive", "hidden"),
    Route("GET", "/v1/series/{series}/versions", "hidden"),
    Route("GET", "/v1/series/{series}/diff", "hidden"),
    Route("GET", "/v1/bases", "admin"),
    Route("GET", "/v1/images", "own"),
    Route("GET", "/v1/images/{image}", "hidden"),
    Route("POST", "/v1/images", "admin", body={"name": "x", "path": "/nowhere"}),
    Route("PUT", "/v1/images", "admin", {"name": "x"}, content=b"x"),
    Route("POST", "/v1/images/prune", "admin", body={}),
    Route("POST", "/v1/images/build", "admin", body={"project": "/nowhere"}),
    Route("POST", "/v1/images/pull", "admin", body={"image": "Not/A/Name"}),
    Route("DELETE", "/v1/images/{image}", "admin"),
    Route("POST", "/v1/bases", "admin", body={"project": {"kind": "empty"}}),
    Route("GET", "/v1/events", "own", {"after": "0"}),
    Route("POST", "/v1/gc", "admin", body={"dry_run": True}),
    Route("GET", "/v1/doctor", "admin"),
    Route("GET", "/v1/df", "admin"),
    Route("GET", "/v1/tokens", "admin"),
    Route("POST", "/v1/tokens", "admin", body={"scope": "admin"}),
    Route("DELETE", "/v1/tokens/{token}", "admin"),
    Route("GET", "/v1/health", "open"),
    Route("GET", "/v1/info", "own"),
    Route("GET", "/metrics", "admin"),
    Route("POST", "/v1/shutdown", "admin"),
]
SCOPES = ["space", "label"]


@dataclass(frozen=True)
class World:
    """A space of the token's own, and one that is not; both with a run and a file."""

    own: dict[str, Any]
    foreign: dict[str, Any]
    foreign_run: str
    foreign_instance: str
    foreign_request: str
    foreign_series: str
    foreign_token: str
    trashed: str
    clients: dict[str, httpx.Client]


@pytest.fixture(scope="module")
def world(daemon: Daemon) -> Iterator[World]:
    label = uuid4().hex
    with daemon.local() as client:
        own = good(client.post("/v1/spaces", json={"labels": {"team": label}}))
        foreign = good(client.post("/v1/spaces", json={"labels": {"team": "other"}}))
        for space in (own, foreign):
            good(client.put(f"/v1/spaces/{space['id']}/files?path=secret", content=b"dear"))
        _ask(daemon, foreign["id"])
        # Of an agent: then it is a run and a turn.
        wanted = {"frontend": "scripted", "prompt": "sleep 600"}
        run = good(client.post(f"/v1/spaces/{foreign['id']}/turns", json=wanted))
        instance = _instance(client, foreign["id"])
        gone = good(client.post("/v1/spaces", json={"labels": {"team": "other"}}))
        good(client.put(f"/v1/spaces/{gone['id']}/files?path=secret", content=b"dear"))
        good(client.delete(f"/v1/spaces/{gone['id']}", params={"force": "true"}))
        asked = {"instructions": "write a b", "retention": {"series": label}}
        request = good(client.post("/v1/requests", json=asked))["key"]
        good(client.get(f"/v1/requests/{request}", params={"wait": 60}))
        token = good(client.post("/v1/tokens", json={"scope": "admin"}))["id"]
        secrets = {
            "space": daemon.token(f"space:{own['id']}"),
            "label": daemon.token(f"label:team={label}"),
        }
        clients = {kind: daemon.tcp(secret) for kind, secret in secrets.items()}
        try:
            yield World(
                own=own,
                foreign=foreign,
                foreign_run=run["id"],
                foreign_instance=instance,
                foreign_request=request,
                foreign_series=label,
                foreign_token=token,
                trashed=gone["id"],
                clients=clients,
            )
        finally:
            client.delete(f"/v1/requests/{request}")
            for space in (own, foreign):
                client.delete(f"/v1/spaces/{space['id']}", params={"force": "true"})
            client.delete(f"/v1/tokens/{token}")


def _instance(client: httpx.Client, space: str) -> str:
    """A server of its own, in this space."""
    good(client.put(f"/v1/spaces/{space}/files?path={FILE}", content=SCRIPT))
    wanted = {"server": small(), "space_id": space}
    return str(good(client.post("/v1/instances", json=wanted))["instance_id"])


def _ask(daemon: Daemon, space: str) -> None:
    """A question that waits for a person, in this space."""
    with line_to(daemon) as line:
        payload = {"question": "May I?"}
        line.send("buffer_user_question", payload, id=space, space=space)
        while line.receive().get("reply_to") != space:
            pass


def _send(client: httpx.Client, route: Route, **given: str) -> httpx.Response:
    # A question of the foreign space has the space's own name.
    words = {"item": given.get("space", ""), "turn": given.get("run", ""), "permission": "p"}
    words |= {"image": "no/such"}
    words |= {"comment": "co_none", "entry": "qe_x", "race": "rc_aaaaaaaaaaaa", "key": "x"}
    words |= {"space": ABSENT["space"], "port": "3000", "service": "db"}
    words |= {"name": "openai", "path": "a", "token": "", **given}
    path = route.path.format(**words)
    more: dict[str, Any] = {} if route.body is None else {"json": _filled(route.body, words)}
    if route.content is not None:
        more["content"] = route.content
    headers = {"Accept": "application/json"}
    return client.request(route.method, path, params=route.query, headers=headers, **more)


def _filled(body: dict[str, Any], words: dict[str, str]) -> dict[str, Any]:
    """Ids in a body are places in it, as in a path."""
    places = {f"{{{name}}}": word for name, word in words.items()}
    return {
        name: places.get(value, value) if isinstance(value, str) else value
        for name, value in body.items()
    }


def _name(route: Route) -> str:
    return f"{route.method} {route.path}"


def test_the_table_has_every_route(client: httpx.Client) -> None:
    document = good(client.get("/v1/openapi.json"))
    served = {
        f"{method.upper()} {path}"
        for path, operations in document["paths"].items()
        for method in operations
    }
    assert served == {_name(route) for route in ROUTES}


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize(
    "route", [route for route in ROUTES if route.expect == "hidden"], ids=_name
)
def test_what_is_foreign_is_as_if_it_were_not(world: World, scope: str, route: Route) -> None:
    client = world.clients[scope]
    foreign = world.trashed if "/trash/" in route.path else world.foreign["id"]
    there = {
        **{"space": foreign, "run": world.foreign_run, "instance": world.foreign_instance},
        **{"request_id": world.foreign_request, "series": world.foreign_series},
    }
    met = _send(client, route, **there)
    absent = _send(client, route, **ABSENT)
    assert met.status_code == absent.status_code == 404, met.text
    blind = met.text
    for name, word in there.items():
        blind = blind.replace(word, ABSENT[name])
    assert blind == absent.text
    assert set(met.headers) == set(absent.headers)


@pytest.mark.parametrize("word", ["name", "prefix"])
@pytest.mark.parametrize("scope", SCOPES)
def test_it_cannot_be_guessed(world: World, scope: str, word: str) -> None:
    guess = world.foreign["name"] if word == "name" else world.foreign["id"][:-1]
    bad(world.clients[scope].get(f"/v1/spaces/{guess}"), 404, "space_not_found")


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("route", [route for route in ROUTES if route.expect == "admin"], ids=_name)
def test_what_is_for_administrators(world: World, scope: str, route: Route) -> None:
    response = _send(world.clients[scope], route, token=world.foreign_token)
    bad(response, 403, "forbidden")


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("route", [route for route in ROUTES if route.expect == "own"], ids=_name)
def test_lists_have_nothing_foreign(world: World, daemon: Daemon, scope: str, route: Route) -> None:
    response = _send(world.clients[scope], route)
    if route.path in ("/v1/spaces", "/v1/requests", "/v1/races") and route.method == "POST":
        # Unconfined, it is nobody's but an administrator's.
        bad(response, 403, "forbidden")
        return
    text = json.dumps(good(response))
    for secret in (
        *(world.foreign["id"], world.foreign["name"], world.trashed, world.foreign_request),
        str(daemon.data),
    ):
        if secret == str(daemon.data) and route.path in ("/v1/spaces", "/v1/trash"):
            continue  # A space's own path is in the data folder.
        assert secret not in text
    if route.path in ("/v1/spaces", "/v1/usage"):
        assert world.own["id"] in text


@pytest.mark.parametrize("scope", SCOPES)
def test_its_own_space_is_its_own(world: World, scope: str) -> None:
    client, path = world.clients[scope], f"/v1/spaces/{world.own['id']}"
    assert good(client.get(path))["id"] == world.own["id"]
    assert client.get(f"{path}/files?path=secret").content == b"dear"
    answer = good(client.post(f"{path}/exec", json={"argv": ["echo", "hi"]}))
    assert answer["stdout"] == "hi\n"
    assert good(client.get(f"/v1/runs/{answer['run']['id']}"))["state"] == "ended"


def test_a_label_is_kept(world: World) -> None:
    client, path = world.clients["label"], f"/v1/spaces/{world.own['id']}"
    bad(client.patch(path, json={"labels": {"team": "other"}}), 403, "forbidden")
    bad(client.patch(path, json={"labels": {}}), 403, "forbidden")
    bad(client.post("/v1/spaces", json={"labels": {"team": "other"}}), 403, "forbidden")
    made = good(client.post("/v1/spaces", json={}))
    assert made["labels"] == world.own["labels"]
    good(client.delete(f"/v1/spaces/{made['id']}"))
    folder = {"project": {"kind": "folder", "location": "/etc"}}
    bad(client.post("/v1/spaces", json=folder), 403, "forbidden")
    bad(world.clients["space"].post("/v1/spaces", json={}), 403, "forbidden")


@pytest.mark.parametrize("scope", SCOPES)
def test_sockets_too(world: World, daemon: Daemon, scope: str) -> None:
    secret = world.clients[scope].headers["Authorization"].removeprefix("Bearer ")
    with daemon.tcp_websocket(f"/v1/spaces/{world.foreign['id']}/exec", secret) as connection:
        session = Session(connection)
        session.send({"argv": ["true"]})
        assert session.until("problem")["code"] == "space_not_found"
    with daemon.tcp_websocket("/v1/requests", secret) as connection:
        for type in ("resume", "cancel", "done"):
            connection.send(json.dumps({"type": type, "request_id": world.foreign_request}))
            assert json.loads(connection.recv(FRAME_S))["code"] == "request_not_found"
    with daemon.tcp_websocket(f"/v1/runs/{world.foreign_run}/attach", secret) as connection:
        assert Session(connection).until("problem")["code"] == "run_not_found"


def test_nothing_foreign_was_touched(world: World, client: httpx.Client) -> None:
    """After all of the above, in whatever order: the foreign space is as it was."""
    path = f"/v1/spaces/{world.foreign['id']}"
    now = good(client.get(path))
    assert now["state"] == "running" and now["labels"] == {"team": "other"}
    assert client.get(f"{path}/files?path=secret").content == b"dear"
    assert len(good(client.get(f"{path}/changes"))["changes"]) == 2
    instance = good(client.get(f"/v1/instances/{world.foreign_instance}"))
    assert instance["state"] == "ready" and instance["clients"] == 1
    assert good(client.get(f"/v1/runs/{world.foreign_run}"))["state"] == "running"
    assert good(client.get(f"/v1/requests/{world.foreign_request}"))["workspace"] == "there"


def test_where_programs_are_is_for_administrators(daemon: Daemon, client: httpx.Client) -> None:
    known = good(client.get("/v1/servers"))["servers"]
    assert any(one["command"] for one in known)
    with daemon.tcp(daemon.token("label:team=blue")) as other:
        found = good(other.get("/v1/servers"))["servers"]
    assert [one["name"] for one in found] == [one["name"] for one in known]
    assert not any(one["command"] or one["where"] for one in found)
    # Nor does any token say where they are.
    with daemon.tcp(daemon.token("admin")) as admin:
        refused = admin.put("/v1/agents/path", json={"path": "/usr/bin"})
    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")


@pytest.fixture
def shared(client: httpx.Client, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """A space of the owner, of a folder of his, that a label's token sees."""
    project = {"kind": "folder", "location": str(tmp_path / "home" / "greet")}
    (tmp_path / "home" / "greet").mkdir(parents=True)
    body = {"project": project, "labels": {"team": "paths"}}
    made = good(client.post("/v1/spaces", json=body))
    yield made
    client.delete(f"/v1/spaces/{made['id']}", params={"force": "true"})


def test_the_daemons_folders_are_for_administrators(
    daemon: Daemon, client: httpx.Client, shared: dict[str, Any], tmp_path: Path
) -> None:
    """Nor is it told where the owner's own are."""
    one = f"/v1/spaces/{shared['id']}"
    assert shared["path"].startswith(str(daemon.data))
    assert shared["project"]["location"].startswith(str(tmp_path))
    scopes = ("label:team=paths", f"space:{shared['id']}")
    for scope in scopes:
        with daemon.tcp(daemon.token(scope)) as other:
            good(other.post(f"{one}/exec", json={"argv": ["sh", "-c", "echo > new"]}))
            run = good(other.post(f"{one}/exec", json={"argv": ["true"]}))["run"]["id"]
            answers = [
                other.get(path, headers={"Accept": "application/json"})
                for path in (
                    *("/v1/spaces", one, f"{one}/usage", f"/v1/runs/{run}", "/v1/trash"),
                    *("/v1/requests", "/v1/instances", "/v1/agents", "/v1/info"),
                )
            ]
            answers += [other.post(f"{one}/stop", json={}), other.post(f"{one}/start")]
            answers += [other.post(f"{one}/verify"), other.patch(one, json={"description": "x"})]
            for answer in answers:
                good(answer)
                assert str(daemon.data) not in answer.text, answer.url
                assert str(tmp_path) not in answer.text, answer.url
            assert good(answers[1])["project"]["location"] == "greet"
    # Nor does code in the space hear of it.
    (heard,) = speak(daemon, shared["id"], {"type": "system_list_spaces", "id": "l"})
    (found,) = heard["data"]["spaces"]
    assert found["project"] == "greet"
    with daemon.tcp(daemon.token("admin")) as admin:
        assert good(admin.get(one))["path"] == shared["path"]


def test_mounts_name_no_base(daemon: Daemon, client: httpx.Client, shared: dict[str, Any]) -> None:
    """The folders that are shown themselves, and nothing of what they are made of. The tree is at
    the project's own path too."""
    body = {"argv": ["cat", "/proc/self/mountinfo"]}
    said = good(client.post(f"/v1/spaces/{shared['id']}/exec", json=body))["stdout"]
    lines = [line for line in said.splitlines() if " - " in line]
    assert lines and f"{daemon.data}/bases" not in said
    for line in lines:
        _mount, _, options = line.partition(" - ")
        assert str(daemon.data) not in options


def test_a_request_of_a_token_says_nothing_of_where_it_works(
    daemon: Daemon, client: httpx.Client
) -> None:
    body = {"instructions": "write a b", "retention": "retain"}
    with daemon.tcp(daemon.token("label:team=paths")) as other:
        name = good(other.post("/v1/requests", json=body))["request_id"]
        own = good(other.get(f"/v1/requests/{name}", params={"wait": 60}))
        assert (own["state"], own["workspace"], own["workspace_path"]) == ("done", "there", "")
    told = good(client.get(f"/v1/requests/{own['key']}"))
    assert told["workspace_path"].startswith(str(daemon.data))


@pytest.mark.parametrize("scope", [None, Scope(ScopeKind.LABEL, "a=b"), ADMIN])
def test_problems_name_the_daemons_folders_to_its_owner(scope: Scope | None) -> None:
    words = "There is no room in /var/lib/carrel/carrel.db."
    error = InsufficientDisk(words, hint=words, path="/var/lib/carrel/x", many=["/var/lib/carrel"])
    reader.set(AnswerReader(Caller("tk", scope) if scope else None, "/var/lib/carrel"))
    found = details_of(error)
    event = info(Event(1, EventType.SPACE_STATE, "sp", {"problem": {"message": words}}, 1.0))
    others = info(Event(1, "buffer_x", "sp", {"text": words}, 1.0))
    reader.set(AnswerReader())
    assert others.data == {"text": words}
    for value in (found, event.data):
        assert ("/var/lib/carrel" in json.dumps(value)) is (scope is ADMIN)
    if scope is not ADMIN:
        assert found["detail"] == "There is no room in <data>/carrel.db."
        assert (found["path"], found["many"]) == ("<data>/x", ["<data>"])
