"""The OpenAPI document, derived from the contract."""

from __future__ import annotations

import functools
import re
from http import HTTPStatus
from typing import Any

import msgspec

from carrel.api import types
from carrel.api.routes import ALWAYS, OPERATIONS, Operation
from carrel.api.types.common import ProblemDetails
from carrel.interfaces.http.answers import PROBLEM, STATUS

BINARY = {"schema": {"type": "string", "format": "binary"}}
EVENT_STREAM = {"text/event-stream": {"schema": {"type": "string"}}}
FRAMES = {
    "schema": {
        "type": "object",
        "properties": {name: {"type": "string"} for name in ("id", "event", "data")},
    }
}
"""Each event is one."""
JSON = "application/json"
NAMED = {"type": "string", "maxLength": 255}
"""What may stand in a path."""
_PATH = re.compile(r"{(\w+)(?::path)?}")
_SOMETIMES = {
    "ResultFile": {"text", "base64"},
    "ExecInfo": {"stdout", "stderr", "stdout_base64", "stderr_base64"},
    "ProblemDetails": {"hint"},
}
"""Members of answers that are not always there."""
_RESUMED = {"events.read", "requests.follow"}
"""Streams that go on after a `Last-Event-ID`."""
_OLDER = {
    "sessions.request": {"400": "Bad path", "500": "Failed"},
    "sessions.release": {"400": "Bad session"},
}
"""Statuses that were promised there."""
_COPY = {
    "Carrel-Copy": {
        "description": "For `files.copied`, once all of it is on the client's disk",
        "schema": {"type": "string"},
    }
}
_HEADERS: dict[str, Any] = {
    "files.read": _COPY,
    "files.read_archive": _COPY,
    "review.export": _COPY,
    "runs.output": {
        "Carrel-Offset": {
            "description": "Where they begin",
            "required": True,
            "schema": {"type": "integer"},
        },
        "Carrel-Ended": {
            "description": "Whether no more will come",
            "required": True,
            "schema": {"type": "string", "enum": ["true", "false"]},
        },
    },
}


def document(version: str) -> dict[str, Any]:
    paths: dict[str, Any] = {}
    for row in OPERATIONS:
        path = _PATH.sub(r"{\1}", row.path)
        paths.setdefault(path, {})[row.method.lower()] = _operation(row)
    token = {
        "type": "http",
        "scheme": "bearer",
        "description": "Over TCP. On the Unix socket the caller's user is enough.",
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Carrel",
            "version": version,
            "description": "Private workspaces for coding agents. "
            "Errors are problem details (RFC 9457).",
        },
        "paths": paths,
        "components": {"schemas": _schemas(), "securitySchemes": {"token": token}},
        "security": [{"token": []}, {}],
    }


def _operation(row: Operation) -> dict[str, Any]:
    found: dict[str, Any] = {
        "tags": [row.group],
        "operationId": row.name,
        "parameters": _parameters(row),
        "responses": {str(row.status): _answer(row), **_errors(row)},
    }
    if row.streams:
        both = {**found["responses"].get("200", {}).get("content", {}), **EVENT_STREAM}
        found["responses"]["200"] = {"description": row.streams, "content": both}
    if row.takes:
        found["requestBody"] = {"required": True, "content": {row.takes: BINARY}}
    if row.body:
        content = {JSON: {"schema": _reference(row.body)}}
        found["requestBody"] = {"required": not row.optional, "content": content}
    return found


def _parameters(row: Operation) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": NAMED}
        for name in _PATH.findall(row.path)
    ]
    if row.query:
        schema = _schemas()[row.query]
        required = schema.get("required", ())
        found += [
            {"name": name, "in": "query", "required": name in required, "schema": one}
            for name, one in schema["properties"].items()
        ]
    if row.keyed:
        text = {"type": "string", "maxLength": 128, "pattern": "^[ -~]*$"}
        found.append({"name": "Idempotency-Key", "in": "header", "schema": text})
    if row.name in _RESUMED:
        number = {"type": "string", "pattern": "^[0-9]{0,18}$"}
        found.append({"name": "Last-Event-ID", "in": "header", "schema": number})
    if row.parts:
        found.append({"name": "Range", "in": "header", "schema": {"type": "string"}})
    return found


def _answer(row: Operation) -> dict[str, Any]:
    if row.media == JSON:
        phrase, content = HTTPStatus(row.status).phrase, {"schema": _reference(row.answer)}
        return {"description": phrase, "content": {JSON: content}}
    schema = FRAMES if row.media in EVENT_STREAM else BINARY
    told = {"description": row.answer, "content": {row.media: schema}}
    if row.name in _HEADERS:
        told["headers"] = _HEADERS[row.name]
    return told


def _errors(row: Operation) -> dict[str, Any]:
    by_status: dict[int, list[str]] = {}
    for code in (*ALWAYS, *row.errors):
        known = by_status.setdefault(STATUS[code], [])
        if code not in known:
            known.append(code)
    found: dict[str, Any] = {
        str(status): _problem("A problem: " + ", ".join(f"`{code}`" for code in codes))
        for status, codes in sorted(by_status.items())
    }
    if row.parts:
        found["206"] = {"description": "A part", "content": {row.media: BINARY}}
    if row.ends:
        found["204"] = {"description": row.ends}
    for status, about in _OLDER.get(row.name, {}).items():
        found[status] = _problem(about)
    return found


def _problem(about: str) -> dict[str, Any]:
    return {"description": about, "content": {PROBLEM: {"schema": _reference("ProblemDetails")}}}


def _reference(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


@functools.cache
def _schemas() -> dict[str, Any]:
    """Of all types that the contract names, and of what they are made of."""
    told = {row.answer for row in OPERATIONS if row.media == JSON}
    names = told | {name for row in OPERATIONS for name in (row.body, row.query) if name}
    kinds = [ProblemDetails, *(types.find(name) for name in sorted(names))]
    _, found = msgspec.json.schema_components(
        kinds,
        # The domain says `object` of what can be anything.
        schema_hook=lambda _kind: {"description": "anything"},
        ref_template="#/components/schemas/{name}",
    )
    for name, schema in found.items():
        if schema.get("type") == "object" and schema.get("additionalProperties") is not False:
            # Of an answer. A default is for clients of older daemons: this one tells them all.
            members = set(schema["properties"]) - _SOMETIMES.get(name, set())
            schema["required"] = sorted(members)
    return found
