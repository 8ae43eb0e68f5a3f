"""The daemon's own routes, the document, the figures, and what HTTP itself refuses."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest

from carrel.interfaces.http.body_limits import MAX_JSON
from tests.daemon.rig import Daemon, bad, good


def test_health_and_info(client: httpx.Client) -> None:
    assert good(client.get("/v1/health")) == {"status": "ok"}
    info = good(client.get("/v1/info"))
    assert info["api"] == "v1" and info["scope"] == "admin"
    assert info["defaults"]["network"] == "none"
    assert "date" in client.get("/v1/health").headers
    assert "server" not in client.get("/v1/health").headers


def test_paths_and_methods_that_are_not_there(client: httpx.Client) -> None:
    for path in ("/", "/v1", "/v1/spaces/", "/v2/spaces", "/docs", "/openapi.json"):
        bad(client.get(path), 404, "route_not_found")
    wrong = client.patch("/v1/spaces/x/files", json={})
    bad(wrong, 405, "method_not_allowed")
    assert wrong.headers["Allow"] == "DELETE, GET, PUT"
    bad(client.request("HEAD2", "/v1/spaces"), 400, "message_invalid")
    for path in ("/v1/openapi.json", "/v1/health"):
        assert client.head(path).headers["Allow"] == "GET"


def test_what_a_body_may_be(client: httpx.Client) -> None:
    folder, stop = "/v1/spaces/nope/files/mkdir", "/v1/spaces/nope/stop"
    for kind in ("application/json", "application/JSON; charset=utf-8", "application/x+json"):
        there = client.post(folder, content=b'{"path": "x"}', headers={"Content-Type": kind})
        bad(there, 404, "space_not_found")
    for headers in ({}, {"Content-Type": ""}, {"Content-Type": "text/plain"}):
        bad(client.post(folder, content=b'{"path": "x"}', headers=headers), 422, "message_invalid")
        bad(client.post(stop, content=b"{}", headers=headers), 422, "message_invalid")
    headers = {"Content-Type": "application/json"}
    for nothing in (b"", b"null", b" null\n"):
        bad(client.post(stop, content=nothing, headers=headers), 404, "space_not_found")
        bad(client.post(folder, content=nothing, headers=headers), 422, "message_invalid")


def test_bodies_that_are_too_large(client: httpx.Client) -> None:
    large = b'{"name": "' + b"x" * MAX_JSON + b'"}'
    headers = {"Content-Type": "application/json"}
    bad(client.post("/v1/spaces", content=large, headers=headers), 413, "too_large")
    chunked = (large[start : start + 65536] for start in range(0, len(large), 65536))
    bad(client.post("/v1/spaces", content=chunked, headers=headers), 413, "too_large")


def test_the_document_is_complete(client: httpx.Client) -> None:
    document = good(client.get("/v1/openapi.json"))
    assert document["openapi"].startswith("3.")
    schemas = document["components"]["schemas"]
    assert "ProblemDetails" in schemas and "HTTPValidationError" not in schemas
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            _check_operation(f"{method} {path}", operation)
    assert _dangling(document) == set()


def _check_operation(name: str, operation: dict[str, Any]) -> None:
    for status, response in operation["responses"].items():
        if int(status) >= 400:
            assert list(response["content"]) == ["application/problem+json"], (name, status)
    statuses = set(operation["responses"])
    assert {"401", "403", "422", "429", "500", "503"} <= statuses, name
    assert statuses & {"200", "201", "202"}, name


def _dangling(document: dict[str, Any]) -> set[str]:
    wanted = set(re.findall(r"#/components/schemas/(\w+)", str(document)))
    return wanted - set(document["components"]["schemas"])


def test_figures(client: httpx.Client, space: dict[str, Any]) -> None:
    good(client.post(f"/v1/spaces/{space['id']}/exec", json={"argv": ["true"]}))
    client.get("/v1/no/such/path")
    response = client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = response.text.splitlines()
    values = {
        name: float(value)
        for name, value in (line.rsplit(" ", 1) for line in lines if line[:1] != "#")
    }
    assert values['carrel_spaces{state="ready"}'] >= 1
    assert values["carrel_live_runs"] >= 0 and values["carrel_event_seq"] > 0
    route = 'method="POST",route="/v1/spaces/{space}/exec",status="200"'
    assert values[f"carrel_http_requests_total{{{route}}}"] >= 1
    assert values['carrel_http_requests_total{method="GET",route="unknown",status="404"}'] >= 1
    assert values["carrel_create_seconds_count"] >= 1 and values["carrel_exec_seconds_count"] >= 1
    assert values["process_resident_memory_bytes"] > 1e6 and values["process_open_fds"] > 5
    assert any(name.startswith("carrel_info{version=") for name in values)
    _check_histogram(values, "carrel_exec_seconds")
    assert {line.split()[3] for line in lines if line.startswith("# TYPE")} == {
        "gauge",
        "counter",
        "histogram",
    }


def _check_histogram(values: dict[str, float], name: str) -> None:
    buckets = [value for key, value in values.items() if key.startswith(f"{name}_bucket")]
    assert buckets == sorted(buckets) and buckets[-1] == values[f"{name}_count"]
    assert values[f"{name}_sum"] > 0


def test_clean_up_and_doctor(client: httpx.Client) -> None:
    report = good(client.post("/v1/gc", json={"dry_run": True}))
    assert report["dry_run"] is True and isinstance(report["actions"], list)
    assert good(client.post("/v1/gc"))["dry_run"] is False
    bad(client.post("/v1/gc", json={"dry": True}), 422, "message_invalid")
    assert good(client.post("/v1/gc", json={"bases": True, "dry_run": True}))["dry_run"] is True
    report = good(client.get("/v1/df"))
    assert 0 < report["free_bytes"] <= report["total_bytes"]
    assert {"records", "messages"} <= {part["kind"] for part in report["parts"]}
    diagnosis = good(client.get("/v1/doctor"))
    assert diagnosis["findings"] and diagnosis["driver"]
    assert {"area", "name", "grade", "what", "remedy"} <= set(diagnosis["findings"][0])


@pytest.mark.parametrize("path", ["/v1/spaces", "/v1/health"])
def test_answers_are_quick(client: httpx.Client, daemon: Daemon, path: str) -> None:
    """Not a benchmark: a guard against what takes a hundred times as long as it may."""
    for _ in range(20):
        good(client.get(path))
    lines = client.get("/metrics").text.splitlines()
    slow = f'carrel_http_request_seconds_bucket{{route="{path}",le="0.1"}}'
    total = f'carrel_http_request_seconds_count{{route="{path}"}}'
    found = dict(line.rsplit(" ", 1) for line in lines if line[:1] != "#")
    assert float(found[slow]) >= 0.9 * float(found[total])
