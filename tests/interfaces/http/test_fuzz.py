"""The API against its own OpenAPI document: what comes back is what the document says, and
nothing that a client can send is our fault."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.strategies import SearchStrategy
from schemathesis import Case, GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from carrel.api.types.common import MAX_PATH
from tests.daemon.rig import ANSWER_S, Daemon, good
from tests.interfaces.http.test_scopes import ROUTES, Route
from tests.sampling import examples

# They share a daemon and what was made in it.
pytestmark = pytest.mark.xdist_group("fuzzed routes")

EXAMPLES = examples(5, exhaustive=25)
ANY_WORDS = examples(2, exhaustive=8)
COSTLY = {
    "POST /v1/spaces": 8,
    "POST /v1/spaces/{space}/verify": 2,
    "POST /v1/spaces/{space}/start": 5,
    "POST /v1/spaces/{space}/stop": 5,
    "POST /v1/bases": 8,
    "POST /v1/spaces/{space}/fork": 4,
    "POST /v1/gc": 5,
    "GET /v1/doctor": 1,
    "GET /v1/df": 1,
    "POST /v1/instances": 12,
    "POST /v1/requests": 12,
}
"""Examples of what takes its time."""
LACKING = {"tree_unavailable", "sandbox_unavailable"}
"""A back end that was asked for by name and that this machine does not have: 503."""
CHECKS = [
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
]
FUZZED = [route for route in ROUTES if route.path != "/v1/shutdown"]
PLAIN = {
    "GET /v1/ssh/listener",
    "DELETE /v1/ssh/listener",
    "GET /v1/ssh/keys",
    "DELETE /v1/ssh/keys/{key}",
    "GET /v1/spaces/{space}/checkpoints",
    "GET /v1/spaces/{space}/comments",
    "DELETE /v1/spaces/{space}/comments/{comment}",
    "POST /v1/queue/{entry}/cancel",
    "GET /v1/races/{race}",
    "GET /v1/spaces/{space}",
    "GET /v1/spaces/{space}/services",
    "POST /v1/spaces/{space}/services/{service}/restart",
    "GET /v1/spaces/{space}/ports",
    "DELETE /v1/spaces/{space}/ports/{port}",
    "GET /v1/spaces/{space}/ps",
    "GET /v1/ps",
    "GET /v1/ssh",
    "GET /v1/spaces/{space}/context",
    "GET /v1/spaces/{space}/context/{name}",
    "DELETE /v1/spaces/{space}/context/{name}",
    "POST /v1/spaces/{space}/start",
    "POST /v1/spaces/{space}/verify",
    "GET /v1/runs/{run}",
    "GET /v1/trash",
    "GET /v1/df",
    "POST /v1/trash/{space}/restore",
    "GET /v1/inbox",
    "POST /v1/inbox/seen",
    "POST /v1/turns/{turn}/interrupt",
    "POST /v1/turns/{turn}/stop",
    "GET /v1/agents",
    "POST /v1/agents/{name}/install",
    "DELETE /v1/agents/{name}/import",
    "GET /v1/instances/{instance}",
    "POST /v1/instances/{instance}/heartbeat",
    "GET /v1/servers",
    "DELETE /v1/servers/{name}",
    "GET /v1/credentials",
    "DELETE /v1/credentials/{name}",
    "DELETE /v1/requests/{request_id}",
    "POST /v1/requests/{request_id}/cancel",
    "POST /v1/requests/{request_id}/done",
    "GET /v1/requests/{request_id}/files/{path}",
    "GET /v1/series/{series}/versions",
    "GET /v1/bases",
    "GET /v1/images",
    "GET /v1/images/{image}",
    "DELETE /v1/images/{image}",
    "GET /v1/doctor",
    "GET /v1/tokens",
    "DELETE /v1/tokens/{token}",
    "GET /v1/health",
    "GET /v1/info",
    "GET /metrics",
}
"""They take nothing that could be wrong."""


def _name(route: Route) -> str:
    return f"{route.method} {route.path}"


class World:
    """Targets that are there, so that not every request ends at a wrong id."""

    def __init__(self, daemon: Daemon, client: httpx.Client, project: Path) -> None:
        self.client = client
        self.url = f"http://{daemon.address}"
        self.headers = {
            "Authorization": f"Bearer {daemon.token('admin')}",
            "Accept": "application/json",
        }
        document = good(client.get("/v1/openapi.json"))
        self.schema = schemathesis.openapi.from_dict(document)
        self.schema.config.update(base_url=self.url)
        self.project = project
        self.space = good(client.post("/v1/spaces", json={}))["id"]
        path = f"/v1/spaces/{self.space}"
        good(client.put(f"{path}/files?path=file", content=b"0123456789"))
        answer = good(client.post(f"{path}/exec", json={"argv": ["echo", "hi"]}))
        self.run = answer["run"]["id"]
        asked = {"instructions": "write file 0123456789", "retention": {"series": "fuzz"}}
        self.request = good(client.post("/v1/requests", json=asked))["key"]
        good(client.get(f"/v1/requests/{self.request}", params={"wait": ANSWER_S}))

    def close(self) -> None:
        self.client.delete(f"/v1/requests/{self.request}")
        self.client.delete(f"/v1/spaces/{self.space}", params={"force": "true"})

    def parameters(self, route: Route) -> dict[str, str]:
        known = {"space": self.space, "run": self.run, "token": "tk_none"}
        known |= {"request_id": self.request, "series": "fuzz", "path": "file"}
        known |= {"image": "none/of:them"}
        names = [name for name in known if f"{{{name}}}" in route.path]
        if route.method == "DELETE" and route.path == "/v1/spaces/{space}":
            return {"space": "sp_none"}
        if route.method == "DELETE" and route.path == "/v1/requests/{request_id}":
            return {"request_id": "rq_none"}
        return {name: known[name] for name in names}


@pytest.fixture(scope="module")
def fuzzed(daemon: Daemon, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    project = tmp_path_factory.mktemp("project")
    (project / "file").write_text("content")
    with daemon.local() as client:
        world = World(daemon, client, project)
        try:
            yield world
        finally:
            world.close()


def _tamed(case: Case[Any], world: World) -> None:
    """A project is a small folder: not whatever of this machine a random path may name."""
    body: Any = case.body
    if isinstance(body, dict) and isinstance(body.get("project_path"), str):
        # Nor is a random command run on one that is there.
        body["project_path"] = f"{world.project}/none"
    named = body.get("project") if isinstance(body, dict) else None
    if isinstance(named, str) and 0 < len(named) <= MAX_PATH:
        # One that is too long stays so.
        body["project"] = str(world.project)
    if case.path == "/v1/images" and isinstance(body, dict) and isinstance(body.get("path"), str):
        body["path"] = str(world.project) if 0 < len(body["path"]) <= MAX_PATH else body["path"]
    if case.path == "/v1/images/pull" and isinstance(body, dict) and "image" in body:
        # No registry is asked.
        body["local"] = True
    if isinstance(body, dict) and body.get("webhook"):
        # Nor is anything told to anybody.
        _tame_webhook(body)
    if isinstance(body, dict) and isinstance(body.get("project"), dict):
        project = body["project"]
        if isinstance(project.get("location"), str) and project.get("kind") != "empty":
            project["location"] = str(world.project)


def _tame_webhook(body: dict[str, Any]) -> None:
    nowhere = "http://127.0.0.1:9/"
    if isinstance(body["webhook"], str):
        body["webhook"] = nowhere
    elif isinstance(body["webhook"], dict) and isinstance(body["webhook"].get("url"), str):
        body["webhook"]["url"] = nowhere


def _check(case: Case[Any], world: World) -> None:
    _tamed(case, world)
    response = case.call(headers=world.headers, timeout=ANSWER_S)
    text = response.content.decode("utf-8", "replace")
    if response.status_code >= 500:
        known = response.status_code == 503 and response.json()["code"] in LACKING
        assert known, f"{case.as_curl_command()}\n{response.status_code} {text}"
    checks: Any = CHECKS
    if response.status_code == 413:
        # A body that is too large is not looked at, so nobody says what else is wrong with it.
        checks = [check for check in CHECKS if check is not negative_data_rejection]
    case.validate_response(response, checks=checks, headers=world.headers)
    if case.path == "/v1/spaces" and response.status_code == 201:
        made = response.json()["id"]
        good(world.client.delete(f"/v1/spaces/{made}", params={"force": "true"}))
    if case.path == "/v1/spaces/{space}/fork" and response.status_code == 201:
        for one in response.json()["spaces"]:
            good(world.client.delete(f"/v1/spaces/{one['id']}", params={"force": "true"}))
    if case.path == "/v1/requests" and response.status_code == 202:
        good(world.client.delete(f"/v1/requests/{response.json()['key']}"))


def _fuzz_route(world: World, route: Route, mode: GenerationMode) -> None:
    operation = world.schema[route.path][route.method]
    strategy = operation.as_strategy(mode, path_parameters=world.parameters(route) or None)
    _fuzz(world, strategy, min(COSTLY.get(_name(route), EXAMPLES), EXAMPLES))


@pytest.mark.parametrize("route", FUZZED, ids=_name)
@pytest.mark.filterwarnings("ignore")
def test_it_is_as_the_document_says(fuzzed: World, route: Route) -> None:
    _fuzz_route(fuzzed, route, GenerationMode.POSITIVE)


@pytest.mark.parametrize("route", [one for one in FUZZED if _name(one) not in PLAIN], ids=_name)
@pytest.mark.filterwarnings("ignore")
def test_what_the_document_forbids_is_refused(fuzzed: World, route: Route) -> None:
    _fuzz_route(fuzzed, route, GenerationMode.NEGATIVE)


def test_only_plain_routes_cannot_be_asked_wrongly(fuzzed: World) -> None:
    plain = set()
    for route in FUZZED:
        operation: Any = fuzzed.schema[route.path][route.method]
        # Any text may stand in a Range.
        headers = [one for one in operation.headers if one.name != "Range"]
        if not (operation.query or headers or operation.body):
            plain.add(_name(route))
    assert plain == PLAIN


@pytest.mark.parametrize("route", [route for route in FUZZED if "{" in route.path], ids=_name)
@pytest.mark.filterwarnings("ignore")
def test_any_word_may_stand_in_a_path(fuzzed: World, route: Route) -> None:
    _fuzz(fuzzed, fuzzed.schema[route.path][route.method].as_strategy(), ANY_WORDS)


def _fuzz(world: World, strategy: SearchStrategy[Case[Any]], count: int) -> None:
    @given(case=strategy)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def fuzz(case: Case[Any]) -> None:
        _check(case, world)

    fuzz()
