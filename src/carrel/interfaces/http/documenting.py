"""What the OpenAPI document says beside the models: errors, streams, who may call."""

from __future__ import annotations

from typing import Any

from carrel.interfaces.http.models.common import Problem
from carrel.interfaces.http.problems import PROBLEM, STATUS

ALWAYS = (
    "authentication_failed",
    "forbidden",
    "too_large",
    "message_invalid",
    "rate_limited",
    "internal",
    "store_busy",
    "daemon_unavailable",
    "insufficient_disk",
)
"""What any request can be answered with."""
SPACE = ("space_not_found", "space_ambiguous")
RUN = ("run_not_found", "space_not_found")
CHANGING = ("state_conflict", "tree_damaged", "tree_unavailable", "sandbox_unavailable")
PATH_ERRORS = (
    "path_not_found",
    "path_invalid",
    "path_escapes",
    "path_denied",
    "path_exists",
    "path_wrong_kind",
)
PATHS = (*SPACE, *CHANGING, *PATH_ERRORS)
COMMAND = (
    *SPACE,
    *CHANGING,
    "command_invalid",
    "command_not_found",
    "command_not_executable",
    "launcher_unavailable",
    "isolation_unproven",
    "limits_unavailable",
)
PROJECT = (
    "project_not_found",
    "project_not_a_folder",
    "project_unreadable",
    "project_changed",
    "project_too_large",
    "project_invalid",
    "ref_not_found",
    "git_failed",
    "git_timeout",
    "archive_invalid",
    "base_not_found",
)

INSTANCE = ("instance_not_found", "launcher_unavailable")
STARTING = (
    *SPACE,
    *CHANGING,
    "project_not_found",
    "project_not_a_folder",
    "project_unreadable",
    "project_invalid",
    "server_not_found",
    "server_not_installed",
    "instance_failed",
    "too_many_instances",
    "command_invalid",
    "command_not_found",
    "command_not_executable",
    "launcher_unavailable",
    "isolation_unproven",
    "limits_unavailable",
)
"""Of an instance."""
ASKED = ("request_not_found",)
"""Of a request."""
MADE = (*ASKED, *CHANGING, "workspace_gone", "space_not_found")
VERSIONS = ("version_not_found", "message_invalid")

Responses = dict[int | str, dict[str, Any]]
_SCHEMA = {"$ref": "#/components/schemas/Problem"}


def errors(*codes: str) -> Responses:
    """The `responses` of a route that can fail so, beside what can always happen."""
    by_status: dict[int, list[str]] = {}
    for code in (*ALWAYS, *codes):
        known = by_status.setdefault(STATUS[code], [])
        if code not in known:
            known.append(code)
    return {
        status: problem_as("A problem: " + ", ".join(f"`{code}`" for code in names))
        for status, names in sorted(by_status.items())
    }


def problem_as(description: str) -> dict[str, Any]:
    """What the document says of one status."""
    return {"description": description, "content": {PROBLEM: {"schema": _SCHEMA}}}


BINARY = {"schema": {"type": "string", "format": "binary"}}
EVENT_STREAM = {"text/event-stream": {"schema": {"type": "string"}}}
_MEMBERS = {name: {"type": "string"} for name in ("id", "event", "data")}
FRAMES = {"text/event-stream": {"schema": {"type": "object", "properties": _MEMBERS}}}
"""Each event is one frame."""


def query(name: str, about: str, *, required: bool = False, **schema: Any) -> dict[str, Any]:
    """A parameter that a route reads by itself."""
    return {
        "name": name,
        "in": "query",
        "required": required,
        "description": about,
        "schema": {"type": "string", "minLength": 1, "maxLength": 4096, **schema},
    }


PATH = {"parameters": [query("path", "Relative to the tree's root.", required=True)]}
OPTIONAL_PATH = {"parameters": [query("path", "Relative to the tree's root.", default=".")]}
STREAM_BODY = {"requestBody": {"required": True, "content": {"application/octet-stream": BINARY}}}


def finish(document: dict[str, Any]) -> dict[str, Any]:
    """Adds what the framework does not know of."""
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    schemas["Problem"] = Problem.model_json_schema()
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    components["securitySchemes"] = {
        "token": {
            "type": "http",
            "scheme": "bearer",
            "description": "Over TCP. On the Unix socket the caller's user is enough.",
        }
    }
    document["security"] = [{"token": []}, {}]
    return document
